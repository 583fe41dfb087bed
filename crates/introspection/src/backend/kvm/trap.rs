//! The instruction that replaces a NOP while a point is trapped. It makes the vCPU exit to KVM, and
//! changes nothing in the guest.
//!
//! It has to be a single instruction. Two of them (`xor eax,eax; vmmcall`, an unknown hypercall,
//! would cost least) can be separated by an interrupt. The address of the second one is then on a
//! stack of the guest, and no look at the vCPUs finds it. The NOP could not be restored while a
//! thread may sleep there, because from its third byte on it is another instruction, one that
//! writes.

/// A form of trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trap {
    /// `ud2; .ascii "kvm"`: KVM emulates the next instruction, and goes on behind it
    /// (arch/x86/kvm/x86.c, handle_ud). Needs the host's switch.
    Prefix,
    /// `cs cs cs out 0x80, al`: a byte to the port that Linux writes to when it only wants to wait
    /// (native_io_delay), where nobody listens. QEMU is asked, and does nothing. Needs no switch,
    /// and harms nothing where it is forgotten.
    Port,
}

impl Trap {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 5] {
        match self {
            Self::Prefix => [0x0f, 0x0b, 0x6b, 0x76, 0x6d],
            Self::Port => [0x2e, 0x2e, 0x2e, 0xe6, 0x80],
        }
    }
}
