//! T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines", with two real-time tasks in a guest.
//!
//! | file | owns |
//! | --- | --- |
//! | `responses.rs` | figures 1 to 4 |
//! | `apache.rs` | table 1 |
//! | `budget.rs` | the least budget, by analysis and measured |
//! | `satisfaction.rs` | many tasks over their utilization (the workload of another paper, KairosVM) |

pub(super) mod apache;
pub(super) mod budget;
pub(super) mod responses;
pub(super) mod satisfaction;
