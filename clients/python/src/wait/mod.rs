//! Waiting from Python: without the GIL while blocked, interrupted by signals, or as a descriptor
//! for an event loop.
//!
//! | module | owns |
//! | --- | --- |
//! | `block` | sleeping for a source; signals, time-outs, `Cancel` |
//! | `source` | the client's four waits behind one trait; one user at a time |
//! | `classes` | `WaitFd`, `AtFd`, `Periodic`, `Watch`, `When`, `Cancel` |

mod block;
mod classes;
mod source;

pub use block::{Patience, once};
pub use classes::{AtFd, Cancel, Periodic, WaitFd, Watch, When};
