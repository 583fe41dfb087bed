//! Waiting from Python: without the GIL while blocked, interrupted by signals, or as a descriptor
//! for an event loop.
//!
//! | module | owns |
//! | --- | --- |
//! | `block` | sleeping for a source; signals, time-outs, `Cancel` |
//! | `source` | the client's waits behind one trait |
//! | `shared` | one of them, used by one thread at a time |
//! | `classes` | `WaitFd`, `AtFd`, `Periodic`, `Watch`, `When` |
//! | `cancel` | `Cancel` |

mod block;
mod cancel;
mod classes;
mod shared;
mod source;

pub use block::{Patience, once, until_outcome};
pub use cancel::Cancel;
pub use classes::{AtFd, Periodic, WaitFd, Watch, When};
pub use shared::Shared;
pub use source::Source;
