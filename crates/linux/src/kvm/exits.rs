//! The bare VM exit underlying introspection's trap, for guest programs that measure its cost in
//! isolation.

/// A NOP behind KVM's forced emulation prefix. If the switch is off, or this is not a KVM guest,
/// the program ends with SIGILL.
pub fn forced_nop() {
    // SAFETY: KVM handles the first instruction and emulates a NOP, or the program ends; neither
    // touches registers or memory.
    unsafe {
        core::arch::asm!("ud2", ".ascii \"kvm\"", "nop", options(nomem, nostack, preserves_flags));
    }
}
