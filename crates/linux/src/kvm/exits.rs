//! The bare exits that introspection's traps are made of, for programs in a guest that measure what these cost by themselves.

use std::io;

/// The port that introspection writes to; nobody listens there.
const PORT: u16 = 0x80;

/// A NOP behind KVM's forced emulation prefix. Where the switch is off, or this is no guest of KVM's, the program ends with SIGILL.
pub fn forced_nop() {
    // SAFETY: the first instruction is KVM's, which emulates a NOP, or it ends the program; neither touches registers or memory.
    unsafe {
        core::arch::asm!("ud2", ".ascii \"kvm\"", "nop", options(nomem, nostack, preserves_flags));
    }
}

/// The right to write to a port where nobody listens.
#[derive(Debug)]
pub struct DeadPort(());

impl DeadPort {
    /// For this thread.
    ///
    /// # Errors
    /// Without root's rights.
    pub fn open() -> io::Result<Self> {
        // SAFETY: no memory is passed; one port is opened for this thread.
        match unsafe { libc::ioperm(PORT.into(), 1, 1) } {
            0 => Ok(Self(())),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Writes there.
    pub fn write(&self) {
        // SAFETY: this thread may write to this port, at which no device listens.
        unsafe {
            core::arch::asm!("out 0x80, al", in("al") 0u8, options(nomem, nostack, preserves_flags));
        }
    }
}
