//! Groups: members that share a timeline, exchange messages and act together at a time.
//!
//! | module | owns |
//! | --- | --- |
//! | `types` | structures and enumerations |
//! | `member` | [`timevisor_group`](member::timevisor_group): joining, members, waiting, barriers, leaders |
//! | `messages` | publishing and subscriptions |
//! | `reports` | what happens to the group |
//! | `proposals` | proposing, answering, what came of it |
//! | `inbox` | what the three kinds of queues have in common |
//! | `conversions` | names, identities and outcomes between C and Rust |

// In the order of the header.
mod types;

mod member;

mod messages;

mod reports;

mod proposals;

mod conversions;
mod inbox;
