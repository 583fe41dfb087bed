//! The host's clock on this machine. crates/host-clock decides what to publish and when; this
//! folder connects it to the machine.
//!
//! | file | owns |
//! | --- | --- |
//! | `wiring.rs` | the counter, the page file, and the system calls behind the publisher's actions |
//! | `journal.rs` | the recovery journal: the lines that a restarted daemon continues |
//! | `estimates.rs` | the estimators' state across restarts |
//! | `recent.rs` | the last exchanges, for who records them |
//! | `watching.rs` | the watch over the counter, and what an operator can do about it |

mod estimates;
mod journal;
mod recent;
mod watching;
mod wiring;

pub use wiring::{Disturbance, HostClock, KnownTime, epoch, hex};
