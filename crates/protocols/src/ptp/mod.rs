//! PTP management (IEEE 1588-2019 clause 15), to the extent needed to ask a ptp4l how well it
//! disciplines a clock.
//!
//! | module | owns |
//! | --- | --- |
//! | [`management`] | GET requests and RESPONSE messages: header, target, one management TLV |
//! | [`datasets`] | the five requested data sets |
//! | [`accuracy`] | clockAccuracy, from the number to a span (table 5) |
//! | [`query`] | one round of the five requests: which reply is still missing |
//! | [`bound`] | from the replies to an interval of "clock minus true time", or why there is none |
//!
//! TIME_STATUS_NP is linuxptp's own; everything else is in the standard. Everything is big endian.
//!
//! What it does not do: take part in PTP (no Sync, no Delay_Req), set anything, or open sockets.

pub mod accuracy;
pub mod bound;
pub mod datasets;
pub mod management;
pub mod query;

pub use accuracy::clock_accuracy;
pub use bound::{Assumptions, OffsetWindow, Refusal};
pub use datasets::{PortState, State};
pub use management::{Id, MessageError};
pub use query::Query;
