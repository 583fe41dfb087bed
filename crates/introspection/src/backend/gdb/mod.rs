//! For debugging only: the gdb remote serial protocol, as QEMU's `-gdb unix:PATH,server=on,wait=off` speaks it. Nothing else is needed, and
//! the VM stands still at every hit.
//!
//! | file | owns |
//! | --- | --- |
//! | `codec.rs` | packets, and what is written in them |
//! | `registers.rs` | where registers are in what `g` answers, by the target's description |
//! | `hit.rs` | what is read at a point, one request at a time |
//! | `session.rs` | the backend: what is asked next |
//!
//! QEMU stops the VM when somebody connects, and neither lets it go on nor takes breakpoints away when the connection ends. Who drives this
//! has to say [`LAST_WORDS`], whatever becomes of it.

pub mod codec;
mod hit;
mod registers;
mod session;

pub use session::{Gdb, LAST_WORDS, QUIET};
