//! Groups: members that share a timeline, exchange messages and act together at a time.
//!
//! | module | owns |
//! | --- | --- |
//! | `member` | `Group`: joining, and what a member can do; `Pending` |
//! | `options` | how to join, out of Python's arguments |
//! | `inbox` | `Messages`, `Reports`, `Proposals`: queues with a descriptor each |
//! | `waiting` | `GroupWait`: waits for a group, blocking or with a descriptor |
//! | `records` | the dataclasses of `timevisor._group_words`, filled |
//! | `errors` | the group's errors as exceptions |

mod errors;
mod inbox;
mod member;
mod options;
mod records;
mod waiting;

pub use inbox::{Messages, Proposals, Reports};
pub use member::{Group, Pending};
pub use options::{AnyBus, Bus, JoinOptions, Key};
pub use waiting::GroupWait;
