//! A guest without KVM: QEMU's TCG with the plugin in plugins/tcg, which traps by translating an instruction with a call before it.
//!
//! Nothing in the guest changes. QEMU is started with `-plugin libtimevisor-introspect.so,socket=PATH`.

pub mod codec;
mod session;

pub use session::Tcg;
