//! K. Burns, A. Barbalace, V. Legout, B. Ravindran, "KairosVM: Deterministic introspection for
//! real-time virtual machine hierarchical scheduling", the evaluation.
//!
//! | file | owns |
//! | --- | --- |
//! | `table.rs` | the costs of six calls by how they are trapped |
//! | `latency.rs` | figure 6 in an emulated guest |
//! | `latency_kvm.rs` | figure 6 under KVM |
//! | `satisfaction.rs` | figures 7 and 8, table I in an emulated guest |
//! | `early.rs` | what jobs that complete early leave to others |
//! | `attached.rs` | introspection for a limited time |

mod attached;
pub(super) mod early;
pub(super) mod latency;
pub(super) mod latency_kvm;
pub(super) mod satisfaction;
mod table;

/// Names and arguments of `attach`; the first row has no introspection.
const WAYS: [(&str, &[&str]); 4] = [
    ("guest", &[]),
    ("guest, introspected", &["--backend", "tcg"]),
    ("guest, every call trapped", &["--backend", "tcg", "--every-system-call"]),
    ("guest, gdb stub", &["--backend", "gdb"]),
];
