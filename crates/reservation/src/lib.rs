//! A reservation of processor time for a vCPU, from request to release.
//!
//! [`Reservations`] is a state machine. It decides which core serves a request, admits or refuses
//! it, writes down what it is about to change, has the host make the changes, and undoes them
//! later. It performs nothing itself: every effect and every observation goes through [`Host`] and
//! [`Guests`]. The daemon implements them for Linux, `timevisor-simulation` for a host that crashes
//! at any moment.
//!
//! | module | owns |
//! | --- | --- |
//! | [`guarantee`] | what the host promises, for which thread |
//! | [`request`] | what somebody asks for, and why it is refused |
//! | [`held`] | one reservation that is in force, as the journal stores it |
//! | [`host`] | the traits [`Restore`], [`Host`] and [`Guests`] |
//! | [`enforcement`] | make changes all or not at all, check them, undo them |
//! | [`ledger`] | what a core can keep, and what must not be given away yet |
//! | `handover` | changes that other reservations still need when one is released |
//! | [`audit`] | what each reservation got |
//! | `book` | everything that is held; release, and a change of the budget |
//! | `core_choice` | which core serves a request |
//! | `core_isolation` | other programs' cpusets that join a reserved core to others |
//! | `soft` | budgets that follow the use |
//! | `stall` | how a thread that the kernel forgot is recognized |
//! | `stall_recovery` | how it is brought back |
//! | `configured` | reservations that the configuration names |
//! | [`machine`] | [`Reservations`]: requests, the timer, a restart |
//! | `followed` | reservations that follow a guest's tasks |
//! | [`rows`] | what is held and how it fares, for people |
//!
//! Each module uses only modules above it.
//!
//! All times are nanoseconds of one clock that never goes back ([`Host::now`]). What this crate
//! does not do: find a budget (`timevisor-schedule`), or know how a change is made.
#![forbid(unsafe_code)]

pub mod audit;
mod book;
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
pub mod request;
pub mod rows;
mod soft;
mod stall;
mod stall_recovery;

pub use enforcement::release_all;
pub use guarantee::{Guarantee, Target, Wanted};
pub use held::{Held, Level, Step};
pub use host::{Guests, Host, Restore, Severity, Unmade, Usage};
pub use machine::Reservations;
pub use request::{Promise, Reason, Refusal, Request};
pub use rows::Row;
