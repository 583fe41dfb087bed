//! K. Burns, A. Barbalace, V. Legout, B. Ravindran, "KairosVM: Deterministic introspection for real-time virtual machine hierarchical
//! scheduling", the evaluation.
//!
//! | file | owns |
//! | --- | --- |
//! | `table.rs` | six calls by how they are trapped |
//! | `latency.rs` | figure 6 in an emulated guest |
//! | `latency_kvm.rs` | figure 6 under KVM |

pub(super) mod latency;
pub(super) mod latency_kvm;
mod table;
