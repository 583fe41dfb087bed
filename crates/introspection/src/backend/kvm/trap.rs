//! The instruction that replaces a NOP while a point is trapped. It makes the vCPU exit to KVM, and
//! changes nothing in the guest.
//!
//! It has to be a single instruction. A pair would cost least (`xor eax,eax; vmmcall`, an unknown
//! hypercall), but an interrupt can separate its two instructions. The address of the second one is
//! then on a guest stack, where an inspection of the vCPUs cannot find it. As long as a thread may
//! sleep there, the NOP could not be restored: from its third byte on, it is a different
//! instruction, one that writes.

/// A form of trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trap {
    /// `ud2; .ascii "kvm"`: KVM emulates the next instruction and continues after it
    /// (arch/x86/kvm/x86.c, handle_ud). Needs the host's switch.
    Prefix,
    /// `cs cs cs out 0x80, al`: writes a byte to the port that Linux uses only for delays
    /// (native_io_delay), where no device listens. KVM exits to QEMU, which does nothing. Needs no
    /// switch, and is harmless if it is left behind.
    Port,
}

impl Trap {
    /// The bytes of the trap.
    #[must_use]
    pub const fn bytes(self) -> [u8; 5] {
        match self {
            Self::Prefix => [0x0f, 0x0b, 0x6b, 0x76, 0x6d],
            Self::Port => [0x2e, 0x2e, 0x2e, 0xe6, 0x80],
        }
    }
}
