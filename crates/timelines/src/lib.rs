//! Timelines: named time references that members bind to, each with its own Quality-of-Time
//! requirement.
//!
//! The [`Registry`] is the whole model: the sessions of tenants, each of which reads an owner's
//! pages; their bindings and requirements; the place of each timeline on each page; and the
//! accuracy that the references must therefore deliver. The daemon and the simulation drive it from
//! one thread. Each call takes the monotonic time as an argument.
//!
//! | module | owns |
//! | --- | --- |
//! | [`name`] | [`TimelineName`] |
//! | [`tenant`] | [`Tenant`] (whose quota), [`Owner`] (whose pages) |
//! | [`parameters`] | limits per kind of tenant, pages, quarantine |
//! | [`setup`] | what the operator configures |
//! | [`quality`] | whether an achieved quality meets a requirement; the tightest of many |
//! | [`timeline`] | [`Timeline`] and where its time comes from |
//! | `pages` | entries of an owner's pages and their generations |
//! | [`registry`] | [`Registry`]: sessions, bindings and their consequences |
//!
//! What it does not do: read clocks or sockets, count requests per second, end silent leases (the
//! daemon closes the session), or measure what a timeline achieves (the caller's closures do).
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
pub use setup::{ClockId, Configured, InvalidSetup, Origin, Setup, Visibility};
pub use tenant::{InvalidTenant, Owner, Tenant};
pub use timeline::{LifeId, Source, Timeline, TimelineId};
