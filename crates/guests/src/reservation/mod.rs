//! Reservations of processor time for vCPUs: what has to change on the host, making it, and bringing the old state back.
//!
//! | file | owns |
//! | --- | --- |
//! | `vcpus.rs` | which thread of a QEMU runs which vCPU |
//! | `enforce.rs` | the changes that make a reservation, in order; made all or not at all |
//! | `explain.rs` | what the kernel's refusals mean, and what to do |
//! | `journal.rs` | what is held, on disk: written before anything is changed |
//! | `ledger.rs` | what is held, on which processor, and what must not be given away yet |
//! | `stall.rs` | a thread that the kernel has forgotten to let run |
//!
//! What it does not do: find the budget (crates/schedule), or talk to anybody (the daemon).

mod enforce;
mod explain;
mod journal;
mod ledger;
mod stall;
pub mod vcpus;

pub use enforce::{
    Guarantee, Planned, Wanted, begin_anew, check, make, make_again, plan, release,
    with_reservation,
};
pub use explain::{EnforceError, explain};
pub use journal::{Held, Journal, JournalError, release_all};
pub use ledger::{Ledger, Neighbour, Refused};
pub use stall::Stall;
