//! The host's clock on this machine. What is published when is decided by crates/host-clock; here it meets the machine.
//!
//! | file | owns |
//! | --- | --- |
//! | `wiring.rs` | the counter, the page file, and what becomes of the publisher's actions |
//! | `journal.rs` | the recovery journal: the lines that a restarted daemon continues |
//! | `estimates.rs` | the estimators' state across restarts |

mod estimates;
mod journal;
mod wiring;

pub use wiring::{HostClock, epoch, hex};
