//! A reservation of processor time for a vCPU, from request to release.
//!
//! [`Reservations`] is a state machine. It decides which core serves a request, admits or refuses
//! it, records what it is about to change, has the host make the changes, and undoes them later. It
//! performs no effects itself: every effect and every observation goes through [`Host`] and
//! [`Guests`]. The daemon implements them for Linux; `timevisor-simulation` implements them for a
//! host that crashes at any moment.
//!
//! | module | owns |
//! | --- | --- |
//! | [`guarantee`] | what the host guarantees, and to which thread |
//! | [`request`] | requests, and the reasons for a refusal |
//! | [`restore`] | the trait [`Restore`]: what a release needs of the host |
//! | [`held`] | one reservation that is in force, as the journal stores it |
//! | [`host`] | the traits [`Host`] and [`Guests`] |
//! | [`enforcement`] | making changes (all or none), checking and undoing them |
//! | [`ledger`] | what a core can keep, and what must not be given away yet |
//! | `handover` | changes that other reservations still need when one is released |
//! | [`audit`] | what each reservation received |
//! | `book` | everything that is held; release, and a change of the budget |
//! | `core_choice` | which core serves a request |
//! | `core_isolation` | other programs' cpusets that join a reserved core to others |
//! | `soft` | budgets that follow the actual use |
//! | `stall` | how to recognize a thread that the kernel has forgotten |
//! | `stall_recovery` | how to make it run again |
//! | `configured` | reservations in the configuration |
//! | [`machine`] | [`Reservations`]: requests, the timer, a restart |
//! | [`candidates`] | what each core could do for a vCPU, and why not |
//! | `relocation` | moving a reservation to another core |
//! | `followed` | reservations that follow a guest's tasks |
//! | `moves` | reservations of VMs that come from another host, or have gone to one |
//! | [`rows`] | reservations and their state, for display |
//!
//! Each module uses only modules above it.
//!
//! All times are nanoseconds of one clock that never goes back ([`Host::now`]). What this crate
//! does not do: find a budget (`timevisor-schedule`), or know how to make a change.
#![forbid(unsafe_code)]

pub mod audit;
mod book;
pub mod candidates;
mod configured;
mod core_choice;
mod core_isolation;
pub mod enforcement;
mod followed;
pub mod guarantee;
mod handover;
pub mod held;
pub mod host;
pub mod ledger;
pub mod machine;
mod moves;
mod relocation;
pub mod request;
pub mod restore;
pub mod rows;
mod soft;
mod stall;
mod stall_recovery;

pub use candidates::{Candidate, Question};
pub use enforcement::release_all;
pub use followed::Followed;
pub use guarantee::{Guarantee, Target, Wanted};
pub use held::{Held, Level, Step};
pub use host::{Because, Claim, Core, Guests, Host, Moved, Severity, Unmade, Usage};
pub use machine::Reservations;
pub use request::{Promise, Reason, Refusal, Request};
pub use restore::Restore;
pub use rows::Row;
