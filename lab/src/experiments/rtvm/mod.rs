//! T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines", with two real-time tasks in a guest.
//!
//! | file | owns |
//! | --- | --- |
//! | `responses.rs` | figures 1 to 4 |
//! | `budget.rs` | the least budget, by analysis and measured |

pub(super) mod budget;
pub(super) mod responses;
