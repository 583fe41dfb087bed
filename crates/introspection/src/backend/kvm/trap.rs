//! What stands in place of a NOP while a point is trapped: one instruction that makes the guest's vCPU leave it for KVM, and changes nothing.
//!
//! It has to be one instruction. With two (`xor eax,eax; vmmcall`: a hypercall that does not exist, which costs least) an interrupt can come between them,
//! and the address of the second one is then on a stack of the guest, where no look at its vCPUs finds it: the NOP cannot come back as long as
//! a thread may sleep there, because from its third byte on it is another instruction, one that writes. So there is no such form.

/// A form of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trap {
    /// `ud2; .ascii "kvm"`: KVM emulates the next instruction, and goes on behind it (arch/x86/kvm/x86.c, handle_ud). Needs the host's switch.
    Prefix,
    /// `cs cs cs out 0x80, al`: a byte to the port that Linux writes to when it only wants to wait (native_io_delay), where nobody listens. QEMU is
    /// asked, and does nothing. Needs no switch, and harms nothing where it is forgotten.
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
