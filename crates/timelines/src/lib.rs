//! Timelines: named time references that members bind to, each with its own Quality-of-Time requirement.
//!
//! The [`Registry`] is the whole model: who is there (sessions of tenants, each reading from an owner's pages), what they
//! have bound to and need, where each timeline is on which page, and what the references must therefore deliver. It is
//! driven by the daemon and by the simulation alike, from one thread; the monotonic time of a call is an argument.
//!
//! | module | owns |
//! | --- | --- |
//! | [`name`] | [`TimelineName`] |
//! | [`tenant`] | [`Tenant`] (who pays), [`Owner`] (where it reads) |
//! | [`parameters`] | limits per kind of tenant, pages, quarantine |
//! | [`setup`] | what the operator configures |
//! | [`quality`] | whether what is achieved meets a requirement; the tightest of many |
//! | [`timeline`] | [`Timeline`] and where its time comes from |
//! | `pages` | entries of an owner's pages and their generations |
//! | [`registry`] | [`Registry`]: sessions, bindings, and all that follows from them |
//!
//! What it does not do: read clocks or sockets, count requests per second, end leases that have gone silent (the daemon
//! closes the session), or know what a timeline achieves (the caller's closures do).
#![forbid(unsafe_code)]

pub mod name;
mod pages;
pub mod parameters;
mod problem;
pub mod quality;
pub mod registry;
pub mod setup;
pub mod tenant;
pub mod timeline;

pub use name::{InvalidName, TimelineName};
pub use pages::{ENTRIES_PER_PAGE, Scale};
pub use parameters::{InvalidParameter, Parameters};
pub use quality::{Demand, Needs};
pub use registry::{Entry, Registry};
pub use setup::{Configured, InvalidSetup, Origin, Setup, Visibility};
pub use tenant::{InvalidTenant, Owner, Tenant};
pub use timeline::{ClockId, LifeId, Source, Timeline, TimelineId};
