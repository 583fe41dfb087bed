//! The x86 time stamp counter.
//!
//! [`Tsc::new`] succeeds only on machines where the TSC always runs at a constant rate, including
//! in sleep states, and where the kernel has not found it unstable. It does not convert ticks to
//! time, and does not know the frequency.

use std::sync::OnceLock;

use timevisor_clock_page::{Counter, CounterId};

/// The TSC of this machine, checked at construction.
#[derive(Clone, Copy, Debug)]
pub struct Tsc {
    ordered: OrderedRead,
}

/// Which instructions read the TSC after every earlier load. Both give the same guarantee (Intel
/// SDM vol. 2, RDTSC and RDTSCP; AMD APM vol. 3); which one is cheaper depends on the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderedRead {
    /// `lfence; rdtsc`, which every x86-64 processor has.
    Lfence,
    /// `rdtscp`, which most have.
    Rdtscp,
}

/// How often each form is timed, alternately, before one is chosen: a few microseconds on hardware.
const CHOICE_ROUNDS: usize = 24;
/// Reads between two stamps: a TSC may advance in steps that are longer than one read.
const CHOICE_READS: usize = 8;

/// Why the TSC cannot be the clock's counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TscError {
    /// CPUID 0x80000007 EDX bit 8 is clear: the rate follows the core's frequency or stops in sleep
    /// states.
    #[error(
        "the processor does not promise an invariant TSC (CPUID 0x80000007 EDX bit 8); use `counter = \"monotonic-raw\"`"
    )]
    NotInvariant,
    /// The kernel does not report the TSC as constant and nonstop.
    #[error(
        "the kernel lacks the flag {0} for this processor (/proc/cpuinfo); use `counter = \"monotonic-raw\"`"
    )]
    MissingFlag(&'static str),
    /// The kernel's watchdog marked the TSC unstable, or it was started with `tsc=unstable`.
    #[error(
        "the kernel does not offer tsc as a clocksource: it found it unstable (see `dmesg | grep -i tsc`); \
         use `counter = \"monotonic-raw\"`"
    )]
    Unstable,
}

/// What is known about this machine's TSC; the input of [`judge`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TscFacts {
    /// CPUID 0x80000007 EDX bit 8.
    pub invariant: bool,
    /// The flags line of the first processor in /proc/cpuinfo.
    pub flags: String,
    /// /sys/devices/system/clocksource/clocksource0/available_clocksource; empty when sysfs is not
    /// mounted.
    ///
    /// A guest or nested host may run on kvm-clock: what matters is that tsc is available, because
    /// the kernel removes an unstable TSC from the list (kernel/time/clocksource.c,
    /// `clocksource_mark_unstable`).
    pub available: String,
}

impl TscFacts {
    /// Asks the processor and the kernel.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
        let available = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
        Self {
            invariant: cpuid_invariant(),
            flags: flags.to_owned(),
            available: std::fs::read_to_string(available).unwrap_or_default(),
        }
    }
}

/// Whether a TSC with these facts is good enough for a clock.
///
/// # Errors
/// The first reason against it.
pub fn judge(facts: &TscFacts) -> Result<(), TscError> {
    if !facts.invariant {
        return Err(TscError::NotInvariant);
    }
    for flag in ["constant_tsc", "nonstop_tsc"] {
        if !facts.flags.split_whitespace().any(|word| word == flag) {
            return Err(TscError::MissingFlag(flag));
        }
    }
    if facts.available.split_whitespace().any(|word| word == "tsc") {
        Ok(())
    } else {
        Err(TscError::Unstable)
    }
}

impl Tsc {
    /// The TSC, if this machine's can be trusted.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn new() -> Result<Self, TscError> {
        judge(&TscFacts::of_this_machine()).map(|()| Self::for_reader())
    }

    /// The TSC without checking whether it can be trusted, for readers of a page whose writer has
    /// already decided.
    ///
    /// Ordered reads are `lfence; rdtsc`.
    #[must_use]
    pub const fn unchecked() -> Self {
        Self { ordered: OrderedRead::Lfence }
    }

    /// [`Self::unchecked`], with the ordered read that is cheaper on this processor. The first call
    /// in a process measures both; later calls use that result.
    #[must_use]
    pub fn for_reader() -> Self {
        static CHEAPER: OnceLock<OrderedRead> = OnceLock::new();
        Self { ordered: *CHEAPER.get_or_init(cheaper_ordered_read) }
    }

    /// The instructions of [`Counter::read_ordered`].
    #[must_use]
    pub const fn ordered_read(&self) -> OrderedRead {
        self.ordered
    }
}

/// Times both forms in turns. The minimum of each counts, because interruptions only make a round
/// longer.
fn cheaper_ordered_read() -> OrderedRead {
    if !cpuid_rdtscp() {
        return OrderedRead::Lfence;
    }
    let (mut lfence, mut rdtscp) = (u64::MAX, u64::MAX);
    for _ in 0..CHOICE_ROUNDS {
        lfence = lfence.min(ticks_of(read_lfence));
        rdtscp = rdtscp.min(ticks_of(read_rdtscp));
    }
    if rdtscp < lfence { OrderedRead::Rdtscp } else { OrderedRead::Lfence }
}

/// Ticks that [`CHOICE_READS`] reads take.
#[inline(always)]
fn ticks_of(read: impl Fn() -> u64) -> u64 {
    let start = read_lfence();
    for _ in 0..CHOICE_READS {
        std::hint::black_box(read());
    }
    read_lfence().wrapping_sub(start)
}

#[inline(always)]
fn read_lfence() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: both instructions exist on every x86-64 and touch only the named registers; without
    // `nomem` the compiler moves no memory access across, which is the ordering the trait
    // guarantees.
    unsafe {
        core::arch::asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    (u64::from(high) << 32) | u64::from(low)
}

/// Call this only if CPUID says that the instruction exists.
#[inline(always)]
fn read_rdtscp() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: callers have checked CPUID; the instruction touches only the named registers (ecx
    // gets IA32_TSC_AUX). Without `nomem` the compiler moves no memory access across.
    unsafe {
        core::arch::asm!(
            "rdtscp", out("eax") low, out("edx") high, out("ecx") _, options(nostack, preserves_flags)
        );
    }
    (u64::from(high) << 32) | u64::from(low)
}

impl Counter for Tsc {
    fn id(&self) -> CounterId {
        CounterId::X86Tsc
    }

    #[inline(always)]
    fn read_ordered(&self) -> u64 {
        match self.ordered {
            OrderedRead::Lfence => read_lfence(),
            OrderedRead::Rdtscp => read_rdtscp(),
        }
    }

    #[inline(always)]
    fn read_unordered(&self) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: rdtsc exists on every x86-64 and touches only the named registers.
        unsafe {
            core::arch::asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
        }
        (u64::from(high) << 32) | u64::from(low)
    }
}

/// CPUID 0x80000007 EDX bit 8 (Intel SDM vol. 3, "Invariant TSC").
fn cpuid_invariant() -> bool {
    let (highest, _) = cpuid(0x8000_0000);
    highest >= 0x8000_0007 && cpuid(0x8000_0007).1 & (1 << 8) != 0
}

/// CPUID 0x80000001 EDX bit 27 (Intel SDM vol. 2, CPUID).
fn cpuid_rdtscp() -> bool {
    let (highest, _) = cpuid(0x8000_0000);
    highest >= 0x8000_0001 && cpuid(0x8000_0001).1 & (1 << 27) != 0
}

/// EAX and EDX of one CPUID leaf.
fn cpuid(leaf: u32) -> (u32, u32) {
    let (eax, edx): (u32, u32);
    // SAFETY: CPUID exists on every x86-64; rbx is reserved by the compiler and is restored.
    unsafe {
        core::arch::asm!(
            "mov {saved:r}, rbx",
            "cpuid",
            "mov rbx, {saved:r}",
            saved = out(reg) _,
            inout("eax") leaf => eax,
            inout("ecx") 0u32 => _,
            out("edx") edx,
            options(nomem, nostack, preserves_flags),
        );
    }
    (eax, edx)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> TscFacts {
        TscFacts {
            invariant: true,
            flags: "\t: fpu tsc constant_tsc rep_good nonstop_tsc".into(),
            available: "kvm-clock tsc acpi_pm \n".into(),
        }
    }

    #[test]
    fn every_missing_promise_refuses() {
        assert_eq!(judge(&good()), Ok(()));
        assert_eq!(judge(&TscFacts { invariant: false, ..good() }), Err(TscError::NotInvariant));
        let flags = "tsc constant_tsc".into();
        assert_eq!(judge(&TscFacts { flags, ..good() }), Err(TscError::MissingFlag("nonstop_tsc")));
        let flags = "tsc nonstop_tsc".into();
        assert_eq!(
            judge(&TscFacts { flags, ..good() }),
            Err(TscError::MissingFlag("constant_tsc"))
        );
        // The watchdog removes an unstable TSC from the list; `tsc-early` alone is no guarantee
        // either.
        let available = "hpet acpi_pm tsc-early".into();
        assert_eq!(judge(&TscFacts { available, ..good() }), Err(TscError::Unstable));
        assert_eq!(
            judge(&TscFacts { available: String::new(), ..good() }),
            Err(TscError::Unstable)
        );
    }

    #[test]
    fn reads_advance_in_both_forms() {
        let mut forms = vec![Tsc { ordered: OrderedRead::Lfence }];
        if cpuid_rdtscp() {
            forms.push(Tsc { ordered: OrderedRead::Rdtscp });
        }
        for tsc in forms {
            let before = Tsc::unchecked().read_ordered();
            let first = tsc.read_ordered();
            let second = tsc.read_ordered();
            assert!(before < first && first < second, "{tsc:?}: {before} {first} {second}");
            assert!(tsc.read_unordered() > first);
        }
    }

    #[test]
    fn the_choice_is_made_once_and_exists_here() {
        let chosen = Tsc::for_reader().ordered_read();
        assert_eq!(Tsc::for_reader().ordered_read(), chosen);
        assert!(chosen == OrderedRead::Lfence || cpuid_rdtscp());
    }
}
