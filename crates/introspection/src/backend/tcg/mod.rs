//! Guests that QEMU emulates (TCG). The plugin in plugins/tcg traps an instruction by translating
//! it with a call before it.
//!
//! The guest's memory does not change. QEMU is started with
//! `-plugin libtimevisor-introspect.so,socket=PATH`.

pub mod codec;
mod session;

pub use session::Tcg;
