//! One reading of a PHC, placed between two values of our counter.
//!
//! | method | what the kernel gives | what brackets the reading |
//! | --- | --- | --- |
//! | precise | device and CLOCK_MONOTONIC_RAW at one moment, latched by hardware (PCIe PTM) or computed from one counter value (a hypervisor's clock) | how well that moment of CLOCK_MONOTONIC_RAW is known on our counter |
//! | extended | CLOCK_REALTIME right before and right after the register access | those two, as bounds on our counter |
//! | plain | CLOCK_REALTIME before and after the driver's whole call | the same |
//! | gettime | nothing | our counter before and after the system call |
//!
//! In every case the counter is also read around the call, and no bracket is wider than that. A
//! PCIe read takes about a microsecond, and its two directions may take different times. All of it
//! lies inside the bracket, so no symmetry is assumed.
//!
//! What it does not do: judge the PHC's accuracy, or determine its timescale.

use std::io;

use timevisor_clock_page::Counter;
use timevisor_time::{Instant, Local, Period, RateError, Utc};

use super::{Phc, ioctl};
use crate::clock::{self, Bracket};
use crate::stamps::{KERNEL_SLEW_LIMIT, StampMap};

/// Readings per call; the one with the narrowest bracket counts.
const SAMPLES: usize = 5;
/// Readings per bracket of a kernel clock.
const BRACKET_TRIES: usize = 3;

/// How a PHC is read, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Method {
    /// PTP_SYS_OFFSET_PRECISE.
    Precise,
    /// PTP_SYS_OFFSET_EXTENDED.
    Extended,
    /// PTP_SYS_OFFSET.
    Plain,
    /// clock_gettime.
    Gettime,
}

impl Method {
    /// Best first.
    pub const ALL: [Self; 4] = [Self::Precise, Self::Extended, Self::Plain, Self::Gettime];

    /// The name in messages, which is the kernel's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Precise => "PTP_SYS_OFFSET_PRECISE",
            Self::Extended => "PTP_SYS_OFFSET_EXTENDED",
            Self::Plain => "PTP_SYS_OFFSET",
            Self::Gettime => "clock_gettime",
        }
    }
}

/// The device read `time` at some moment between the two counter values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Our counter, no later than the reading.
    pub before: u64,
    /// The device's time, on its own timescale.
    pub time: Instant<Local>,
    /// Our counter, no earlier than the reading.
    pub after: u64,
}

impl Sample {
    /// Ticks between the two counter values.
    #[must_use]
    pub const fn width(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }
}

impl Phc {
    /// The best method that works on this device: the first whose capability is reported, or that
    /// succeeds when tried.
    ///
    /// # Errors
    /// The error of clock_gettime, when nothing works.
    pub fn probe(
        &self,
        counter: &impl Counter,
        calibration: (Period, RateError),
    ) -> io::Result<Method> {
        let promised = self.capabilities().is_ok_and(|caps| caps.cross_timestamping);
        for method in Method::ALL {
            if method == Method::Precise && !promised {
                continue;
            }
            if self.sample(method, counter, calibration).is_ok() {
                return Ok(method);
            }
        }
        self.now().map(|_| Method::Gettime)
    }

    /// Reads the device. `calibration` is the counter's period relative to CLOCK_MONOTONIC_RAW and
    /// its uncertainty.
    ///
    /// # Errors
    /// The driver's errors: EOPNOTSUPP if it does not support the call, EINVAL from vmclock if the
    /// host declares its clock unreliable, ETIME or EAGAIN if the hardware did not answer in time.
    pub fn sample(
        &self,
        method: Method,
        counter: &impl Counter,
        calibration: (Period, RateError),
    ) -> io::Result<Sample> {
        match method {
            Method::Precise => self.precise(counter, calibration),
            Method::Extended => {
                self.stamped(counter, calibration, |phc| ioctl::extended(phc.file(), SAMPLES))
            }
            Method::Plain => {
                self.stamped(counter, calibration, |phc| ioctl::plain(phc.file(), SAMPLES))
            }
            Method::Gettime => self.bracketed(counter),
        }
    }

    fn bracketed(&self, counter: &impl Counter) -> io::Result<Sample> {
        let one = || -> io::Result<Sample> {
            let before = counter.read_ordered();
            let time = self.now()?;
            Ok(Sample { before, time, after: counter.read_ordered() })
        };
        let mut best = one()?;
        for _ in 1..SAMPLES {
            let next = one()?;
            if next.width() < best.width() {
                best = next;
            }
        }
        Ok(best)
    }

    fn stamped(
        &self,
        counter: &impl Counter,
        calibration: (Period, RateError),
        read: impl Fn(&Self) -> io::Result<Vec<ioctl::Triple<Utc, Local>>>,
    ) -> io::Result<Sample> {
        let (period, error) = calibration;
        let first = clock::bracket(counter, BRACKET_TRIES);
        let before = counter.read_ordered();
        let triples = read(self)?;
        let after = counter.read_ordered();
        let last = clock::bracket(counter, BRACKET_TRIES);
        let map = StampMap::new(first, last, period, KERNEL_SLEW_LIMIT.plus(error));
        let place = |triple: &ioctl::Triple<Utc, Local>| {
            // CLOCK_REALTIME may have been stepped in between; the counter's own bracket still
            // holds in that case.
            let sent = map.and_then(|m| m.send_bound(triple.before)).unwrap_or(before);
            let received = map.and_then(|m| m.receive_bound(triple.after)).unwrap_or(after);
            narrowed((before, after), (sent, received), triple.device)
        };
        triples
            .iter()
            .map(place)
            .min_by_key(Sample::width)
            .ok_or_else(|| io::Error::other("the driver returned no samples"))
    }

    fn precise(
        &self,
        counter: &impl Counter,
        (period, error): (Period, RateError),
    ) -> io::Result<Sample> {
        let first = raw_bracket(counter);
        let before = counter.read_ordered();
        let at = ioctl::precise(self.file())?;
        let after = counter.read_ordered();
        let last = raw_bracket(counter);
        // CLOCK_MONOTONIC_RAW is never slewed: only the calibration's error separates it from the
        // counter.
        let place = StampMap::new(first, last, period, error).and_then(|map| {
            map.interval(Instant::from_unix_nanos(i128::from(at.monotonic_raw_ns)))
        });
        let inner = place.map_or((before, after), |i| (i.earliest, i.latest));
        Ok(narrowed((before, after), inner, at.device))
    }
}

/// The overlap of two brackets; the outer one if they do not overlap.
fn narrowed(outer: (u64, u64), inner: (u64, u64), time: Instant<Local>) -> Sample {
    let (before, after) = (outer.0.max(inner.0), outer.1.min(inner.1));
    if before <= after {
        Sample { before, time, after }
    } else {
        Sample { before: outer.0, time, after: outer.1 }
    }
}

/// A bracket of CLOCK_MONOTONIC_RAW. [`StampMap`] relates any kernel clock to the counter; its
/// field is named after the most common one.
fn raw_bracket(counter: &impl Counter) -> Bracket {
    let one = || {
        let before = counter.read_ordered();
        let raw = i128::from(clock::monotonic_raw_nanos());
        Bracket { before, realtime: Instant::from_unix_nanos(raw), after: counter.read_ordered() }
    };
    let mut best = one();
    for _ in 1..BRACKET_TRIES {
        let next = one();
        if next.width() < best.width() {
            best = next;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::{MonotonicRaw, calibrate};
    use std::path::Path;

    #[test]
    fn brackets_overlap_or_the_outer_one_holds() {
        let time = Instant::from_bits(0);
        let sample = |before, after| Sample { before, time, after };
        assert_eq!(narrowed((10, 20), (12, 15), time), sample(12, 15));
        assert_eq!(narrowed((10, 20), (5, 30), time), sample(10, 20));
        assert_eq!(narrowed((10, 20), (25, 30), time), sample(10, 20));
    }

    #[test]
    fn methods_are_ordered_and_named() {
        assert!(Method::ALL.is_sorted());
        assert_eq!(Method::Precise.name(), "PTP_SYS_OFFSET_PRECISE");
    }

    /// Runs only if the machine has a PTP clock; the lab runs it in a guest.
    #[test]
    fn every_method_of_a_present_device_agrees() {
        let Ok(phc) = Phc::open(Path::new("/dev/ptp0")) else { return };
        let counter = MonotonicRaw;
        let known = calibrate(&counter).unwrap();
        let calibration = (known.period, known.error);
        let best = phc.probe(&counter, calibration).unwrap();
        for method in Method::ALL.into_iter().filter(|m| *m >= best) {
            let Ok(sample) = phc.sample(method, &counter, calibration) else { continue };
            assert!(sample.before <= sample.after, "{method:?}");
        }
    }
}
