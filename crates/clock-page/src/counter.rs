//! The counter that a page's lines are functions of.

/// Which counter a page is written for: the vmclock ABI's `counter_id`, plus one of our own for the
/// fallback.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum CounterId {
    /// Arm architectural virtual counter, CNTVCT_EL0.
    ArmVcnt = 0,
    /// x86 time stamp counter.
    X86Tsc = 1,
    /// CLOCK_MONOTONIC_RAW in nanoseconds: only on a host's own page, never in a VM's.
    MonotonicRaw = 0x80,
    /// Not valid: the vmclock ABI's value for "no counter".
    Invalid = 0xff,
}

impl CounterId {
    /// From the page's byte.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Self {
        match byte {
            0 => Self::ArmVcnt,
            1 => Self::X86Tsc,
            0x80 => Self::MonotonicRaw,
            _ => Self::Invalid,
        }
    }

    /// The name used in JSON, configuration and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ArmVcnt => "cntvct",
            Self::X86Tsc => "tsc",
            Self::MonotonicRaw => "monotonic-raw",
            Self::Invalid => "invalid",
        }
    }
}

/// A free-running 64-bit tick count that nobody disciplines.
pub trait Counter {
    /// Which counter this is.
    fn id(&self) -> CounterId;

    /// Reads it, ordered after every earlier load (`lfence; rdtsc`, `isb; mrs cntvct_el0`).
    fn read_ordered(&self) -> u64;

    /// Reads it after every earlier store has become visible to other processors
    /// (`mfence; lfence; rdtsc`, `dsb ish; isb; mrs cntvct_el0`).
    fn read_after_stores(&self) -> u64 {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
        self.read_ordered()
    }

    /// Reads it with no ordering: the processor may sample it some tens of cycles early or late.
    fn read_unordered(&self) -> u64 {
        self.read_ordered()
    }

    /// Lets other threads have this processor for some microseconds, where the counter's platform can; by default it does
    /// not. A reader asks for it when a page's update takes longer than any does: a reader with a real-time priority
    /// may have interrupted the writer, which then waits for this very processor.
    fn let_others_run(&self) {
        core::hint::spin_loop();
    }
}

impl<C: Counter + ?Sized> Counter for &C {
    fn id(&self) -> CounterId {
        (**self).id()
    }
    fn read_ordered(&self) -> u64 {
        (**self).read_ordered()
    }
    fn read_after_stores(&self) -> u64 {
        (**self).read_after_stores()
    }
    fn read_unordered(&self) -> u64 {
        (**self).read_unordered()
    }
    fn let_others_run(&self) {
        (**self).let_others_run();
    }
}
