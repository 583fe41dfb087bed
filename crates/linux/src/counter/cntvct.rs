//! The Arm architectural virtual counter.
//!
//! The architecture guarantees a constant rate and a common count for all cores, so there is
//! nothing to check. It does not convert ticks to time.

use timevisor_clock_page::{Counter, CounterId};

/// CNTVCT_EL0, which Linux lets user space read.
#[derive(Clone, Copy, Debug)]
pub struct Cntvct(());

impl Cntvct {
    /// The counter; every 64-bit Arm machine has it.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }

    /// The frequency in hertz that firmware wrote into CNTFRQ_EL0. Nominal: the oscillator may be
    /// off by 50 ppm.
    #[must_use]
    pub fn nominal_hz(&self) -> u64 {
        let hz: u64;
        // SAFETY: CNTFRQ_EL0 is readable at EL0 under Linux and reading it has no side effect.
        unsafe {
            core::arch::asm!("mrs {hz}, cntfrq_el0", hz = out(reg) hz, options(nomem, nostack, preserves_flags));
        }
        // Bits 63:32 are reserved (Arm ARM, CNTFRQ_EL0).
        hz & 0xffff_ffff
    }
}

impl Default for Cntvct {
    fn default() -> Self {
        Self::new()
    }
}

impl Counter for Cntvct {
    fn id(&self) -> CounterId {
        CounterId::ArmVcnt
    }

    #[inline(always)]
    fn read_ordered(&self) -> u64 {
        let count: u64;
        // isb keeps the processor from sampling early. The load orders the sample with memory
        // accesses: its address depends on the count, so a later load fence (the sequence lock's)
        // cannot pass it, and a snapshot is not judged valid before its counter was read
        // (arch/arm64/include/asm/barrier.h does the same). SAFETY: CNTVCT_EL0 is readable at EL0
        // under Linux, and the word at the stack pointer always is; without `nomem` the compiler
        // moves no memory access across.
        unsafe {
            core::arch::asm!(
                "isb",
                "mrs {count}, cntvct_el0",
                "bic {zero}, {count}, {count}",
                "ldr xzr, [sp, {zero}]",
                count = out(reg) count, zero = out(reg) _, options(nostack, preserves_flags)
            );
        }
        count
    }

    #[inline(always)]
    fn read_after_stores(&self) -> u64 {
        // A fence (dmb) only orders memory accesses. A system register read is not one, so a dsb is
        // required. SAFETY: a barrier only affects ordering; without `nomem` the compiler moves no
        // memory access across.
        unsafe {
            core::arch::asm!("dsb ish", options(nostack, preserves_flags));
        }
        self.read_ordered()
    }

    #[inline(always)]
    fn read_unordered(&self) -> u64 {
        let count: u64;
        // SAFETY: CNTVCT_EL0 is readable at EL0 under Linux and reading it has no side effect.
        unsafe {
            core::arch::asm!("mrs {count}, cntvct_el0", count = out(reg) count, options(nomem, nostack, preserves_flags));
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_at_a_stated_rate() {
        let counter = Cntvct::new();
        assert!(counter.nominal_hz() > 1_000_000);
        assert!(counter.read_ordered() <= counter.read_ordered());
    }
}
