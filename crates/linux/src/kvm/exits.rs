//! The bare exit that introspection's trap is made of, for programs in a guest that measure what it
//! costs by itself.

/// A NOP behind KVM's forced emulation prefix. Where the switch is off, or this is no guest of
/// KVM's, the program ends with SIGILL.
pub fn forced_nop() {
    // SAFETY: the first instruction is KVM's, which emulates a NOP, or it ends the program; neither
    // touches registers or memory.
    unsafe {
        core::arch::asm!("ud2", ".ascii \"kvm\"", "nop", options(nomem, nostack, preserves_flags));
    }
}
