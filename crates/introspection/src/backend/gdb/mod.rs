//! For debugging only: the gdb remote serial protocol of QEMU's
//! `-gdb unix:PATH,server=on,wait=off`. It needs nothing else, but the VM stops at every hit.
//!
//! | file | owns |
//! | --- | --- |
//! | `codec.rs` | packets and their contents |
//! | `registers.rs` | offsets of registers in the reply to `g`, from the target description |
//! | `hit.rs` | the reads at a point, one request at a time |
//! | `session.rs` | the backend: one request at a time |
//!
//! QEMU stops the VM when a client connects. When the connection ends, it neither resumes the VM
//! nor removes breakpoints. So the driver has to send [`LAST_WORDS`], however it terminates.

pub mod codec;
mod hit;
mod registers;
mod session;

pub use session::{Gdb, LAST_WORDS, QUIET};
