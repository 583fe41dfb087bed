//! [`Stamps`]: an event's counter as CLOCK_MONOTONIC.

use timevisor_clock_page::{Counter as _, CounterId};
use timevisor_linux::clock::monotonic;
use timevisor_linux::counter::{Calibration, HostCounter, calibrate};

/// The counter that events carry.
#[derive(Debug)]
pub struct Stamps {
    counter: HostCounter,
    calibration: Calibration,
}

impl Stamps {
    /// Measures it, which takes a tenth of a second; `None` where events carry another one.
    pub fn measure() -> Option<Self> {
        let counter = HostCounter::for_reader(CounterId::X86Tsc)?;
        let calibration = calibrate(&counter).ok()?;
        Some(Self { counter, calibration })
    }

    /// When it had this value, in ns of CLOCK_MONOTONIC.
    pub fn at(&self, counter: u64) -> i64 {
        let (now, read) = (monotonic().floor_nanos(), self.counter.read_ordered());
        let ago = self.calibration.period.span(read.saturating_sub(counter)).floor_nanos();
        now.saturating_sub(ago)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_counter_is_a_moment() {
        let stamps = Stamps::measure().unwrap();
        let before = monotonic().floor_nanos();
        let read = stamps.counter.read_ordered();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let at = stamps.at(read);
        let after = monotonic().floor_nanos() - 20_000_000;
        assert!(at > before - 1_000_000 && at < after + 1_000_000, "{before} {at} {after}");
    }
}
