//! This machine's counters, and the choice of one.
//!
//! | module | owns |
//! | --- | --- |
//! | `tsc` | [`Tsc`] (x86) and when it is trusted |
//! | `cntvct` | `Cntvct` (Arm) |
//! | [`monotonic_raw`] | [`MonotonicRaw`], the fallback |
//! | [`mod@calibrate`] | a counter's nominal frequency |
//! | [`clocksource`] | [`Clocksources`]: what the kernel thinks of it now |
//! | [`history`] | [`CounterHistory`]: whether what was learned of it is still valid |
//!
//! What it does not do: discipline anything. Every counter here is free-running.

pub mod calibrate;
pub mod clocksource;
#[cfg(target_arch = "aarch64")]
pub mod cntvct;
pub mod history;
pub mod monotonic_raw;
#[cfg(target_arch = "x86_64")]
pub mod tsc;

use timevisor_clock_page::{Counter, CounterId};

pub use calibrate::{Calibration, CalibrationError, calibrate};
pub use clocksource::Clocksources;
#[cfg(target_arch = "aarch64")]
pub use cntvct::Cntvct;
pub use history::CounterHistory;
pub use monotonic_raw::{HostMonotonicRaw, MonotonicRaw};
#[cfg(target_arch = "x86_64")]
pub use tsc::{OrderedRead, Tsc, TscError, TscFacts};

/// For which a reader leaves the processor to a writer that it may have interrupted.
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

/// The counter chosen for this host.
#[derive(Clone, Copy, Debug)]
pub enum HostCounter {
    /// The x86 time stamp counter.
    #[cfg(target_arch = "x86_64")]
    Tsc(Tsc),
    /// The Arm virtual counter.
    #[cfg(target_arch = "aarch64")]
    Cntvct(Cntvct),
    /// CLOCK_MONOTONIC_RAW.
    MonotonicRaw(HostMonotonicRaw),
}

impl Counter for HostCounter {
    fn id(&self) -> CounterId {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc(counter) => counter.id(),
            #[cfg(target_arch = "aarch64")]
            Self::Cntvct(counter) => counter.id(),
            Self::MonotonicRaw(counter) => counter.id(),
        }
    }

    #[inline]
    fn read_ordered(&self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc(counter) => counter.read_ordered(),
            #[cfg(target_arch = "aarch64")]
            Self::Cntvct(counter) => counter.read_ordered(),
            Self::MonotonicRaw(counter) => counter.read_ordered(),
        }
    }

    #[inline]
    fn read_after_stores(&self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc(counter) => counter.read_after_stores(),
            #[cfg(target_arch = "aarch64")]
            Self::Cntvct(counter) => counter.read_after_stores(),
            Self::MonotonicRaw(counter) => counter.read_after_stores(),
        }
    }

    #[inline]
    fn read_unordered(&self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc(counter) => counter.read_unordered(),
            #[cfg(target_arch = "aarch64")]
            Self::Cntvct(counter) => counter.read_unordered(),
            Self::MonotonicRaw(counter) => counter.read_unordered(),
        }
    }

    fn let_others_run(&self) {
        std::thread::sleep(NAP);
    }
}

impl HostCounter {
    /// The counter that a page was written for, for a reader on this machine. The page's writer has
    /// already checked it.
    ///
    /// `None` when this machine has no such counter.
    #[must_use]
    pub fn for_reader(id: CounterId) -> Option<Self> {
        match id {
            #[cfg(target_arch = "x86_64")]
            CounterId::X86Tsc => Some(Self::Tsc(Tsc::for_reader())),
            #[cfg(target_arch = "aarch64")]
            CounterId::ArmVcnt => Some(Self::Cntvct(Cntvct::new())),
            CounterId::MonotonicRaw => Some(Self::MonotonicRaw(HostMonotonicRaw::from_here())),
            _ => None,
        }
    }
}

/// The operator's choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// The architecture's counter if it can be trusted; otherwise monotonic-raw.
    #[default]
    Auto,
    /// The TSC or nothing.
    Tsc,
    /// CNTVCT or nothing.
    Cntvct,
    /// CLOCK_MONOTONIC_RAW.
    MonotonicRaw,
}

/// Why the requested counter cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SelectError {
    /// The counter belongs to another architecture.
    #[error("this machine is not {0}; use `counter = \"auto\"`")]
    OtherArchitecture(&'static str),
    /// The TSC exists but cannot be trusted.
    #[cfg(target_arch = "x86_64")]
    #[error("the TSC cannot be trusted")]
    Tsc(#[source] TscError),
}

/// Selects this host's counter and returns the reason.
///
/// # Errors
/// When a counter was requested by name and this machine has no working one. `Auto` never fails.
pub fn select(choice: Choice) -> Result<(HostCounter, String), SelectError> {
    match choice {
        Choice::Auto => Ok(automatic()),
        Choice::Tsc => tsc_by_name(),
        Choice::Cntvct => cntvct_by_name(),
        Choice::MonotonicRaw => Ok((
            HostCounter::MonotonicRaw(HostMonotonicRaw::from_here()),
            "monotonic-raw, by configuration".to_owned(),
        )),
    }
}

#[cfg(target_arch = "x86_64")]
fn automatic() -> (HostCounter, String) {
    match Tsc::new() {
        Ok(tsc) => {
            (HostCounter::Tsc(tsc), "tsc: invariant, and on offer as a clocksource".to_owned())
        }
        Err(reason) => (
            HostCounter::MonotonicRaw(HostMonotonicRaw::from_here()),
            format!("monotonic-raw, because {reason}"),
        ),
    }
}

#[cfg(target_arch = "aarch64")]
fn automatic() -> (HostCounter, String) {
    (HostCounter::Cntvct(Cntvct::new()), "cntvct: constant by architecture".to_owned())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn automatic() -> (HostCounter, String) {
    (
        HostCounter::MonotonicRaw(HostMonotonicRaw::from_here()),
        "monotonic-raw: no known counter on this architecture".to_owned(),
    )
}

#[cfg(target_arch = "x86_64")]
fn tsc_by_name() -> Result<(HostCounter, String), SelectError> {
    Tsc::new()
        .map(|tsc| (HostCounter::Tsc(tsc), "tsc, by configuration".to_owned()))
        .map_err(SelectError::Tsc)
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_by_name() -> Result<(HostCounter, String), SelectError> {
    Err(SelectError::OtherArchitecture("x86-64"))
}

#[cfg(target_arch = "aarch64")]
fn cntvct_by_name() -> Result<(HostCounter, String), SelectError> {
    Ok((HostCounter::Cntvct(Cntvct::new()), "cntvct, by configuration".to_owned()))
}

#[cfg(not(target_arch = "aarch64"))]
fn cntvct_by_name() -> Result<(HostCounter, String), SelectError> {
    Err(SelectError::OtherArchitecture("64-bit Arm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_always_finds_a_counter() {
        let (counter, why) = select(Choice::Auto).unwrap();
        assert!(why.starts_with(counter.id().name()), "{why}");
        assert!(counter.read_ordered() <= counter.read_ordered());
    }

    #[test]
    fn readers_get_the_counter_of_the_page_or_nothing() {
        assert_eq!(
            HostCounter::for_reader(CounterId::MonotonicRaw).unwrap().id(),
            CounterId::MonotonicRaw
        );
        assert!(HostCounter::for_reader(CounterId::Invalid).is_none());
        let foreign =
            if cfg!(target_arch = "x86_64") { CounterId::ArmVcnt } else { CounterId::X86Tsc };
        assert!(HostCounter::for_reader(foreign).is_none());
    }
}
