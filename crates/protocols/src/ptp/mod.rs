//! PTP management (IEEE 1588-2019 clause 15), to the extent needed to ask a ptp4l how well it
//! disciplines a clock.
//!
//! | module | owns |
//! | --- | --- |
//! | [`management`] | GET requests and RESPONSE messages: header, target, one management TLV |
//! | [`datasets`] | the six requested data sets |
//! | [`accuracy`] | clockAccuracy, from the number to a span (table 5) |
//! | [`query`] | one round of the six requests: which reply is still missing |
//! | [`settling`] | whether a measurement belongs to the master and the timescale that are in force |
//! | [`steered_rate`] | how fast the clock is steered, hence how far it moved since a measurement |
//! | [`bound`] | from the replies to a bound on "clock minus true time" |
//! | [`timescale`] | from the clock's count to TAI: the announced offset against the leap table |
//! | [`refusal`] | why a ptp4l's clock is currently not a reference |
//!
//! TIME_STATUS_NP and GRANDMASTER_SETTINGS_NP are linuxptp's own; everything else is in the
//! standard. Everything is big endian.
//!
//! What it does not do: take part in PTP (no Sync, no Delay_Req), set anything, or open sockets.

pub mod accuracy;
pub mod bound;
pub mod datasets;
pub mod management;
pub mod query;
pub mod refusal;
pub mod settling;
pub mod steered_rate;
pub mod timescale;

pub use accuracy::clock_accuracy;
pub use bound::{Assumptions, OFFSETS, OffsetWindow};
pub use datasets::{Master, PortIdentity, PortState, State, TimeProperties};
pub use management::{Id, MessageError};
pub use query::Query;
pub use refusal::Refusal;
pub use settling::Settling;
pub use steered_rate::{Reading, SteeredRate};
pub use timescale::{Count, Steered, TableOffsets};
