//! Pins of PTP clocks: **not tested on hardware.** Clocks without pins say so, which is tested.
//!
//! A PTP clock runs at its own rate, which programs may steer as far as its driver allows, often by
//! percents. What is known of the time between two of its readings is therefore wide: at 6 %, 60 us
//! after a millisecond.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use timevisor_linux::clock::Bracket;
use timevisor_linux::counter::{HostCounter, calibrate};
use timevisor_linux::gpio::Edges;
use timevisor_linux::phc::pins::{Pin, PinFunction};
use timevisor_linux::phc::{Capabilities, Method, Phc};
use timevisor_time::{self as time, Instant, Period, RateError};

use super::error::{PinError, Unplaced};
use super::events::Found;
use super::output::{check, is_qualified};
use super::place::{self, Clock, Placer};
use crate::packets::around;
use crate::reading::Reading;
use crate::timeline::Timeline;

/// How far an oscillator may be off beyond what steers it: ten times what IEEE 802.1AS allows.
const OSCILLATOR: RateError = RateError::from_ppm(1000);
/// How far apart a stamp and a reading of one moment may be: the hardware's ticks and synchronizers.
const GRAIN: time::Duration = time::Duration::from_nanos(100);

/// The pins of a PTP clock such as `/dev/ptp0`. Not tested on hardware.
///
/// ```no_run
/// use timevisor::pins::{Edges, PinFunction, PtpPins};
/// let pins = PtpPins::open("/dev/ptp0")?;
/// println!("{:?}", pins.pin(0)?);
/// pins.set_pin(0, PinFunction::Timestamp, 0)?;
/// let tai = timevisor::Client::connect()?.timeline("tai")?;
/// println!("{:?}", tai.ptp_events("/dev/ptp0", 0, Edges::Rising)?.event()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PtpPins {
    phc: Phc,
    device: PathBuf,
    capabilities: Capabilities,
}

/// A pulse that the clock will make. Not tested on hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pulse {
    /// When it begins, by the PTP clock, ns of its own timescale.
    pub device_ns: i64,
    /// The counter, no later than that.
    pub first: u64,
    /// The counter, no earlier than that.
    pub last: u64,
    /// When it begins on the timeline, provided that nobody sets the PTP clock and the timeline is
    /// not disrupted before.
    pub reading: Reading,
}

impl PtpPins {
    /// Opens a clock. Kernels since 6.18 want the right to write to it. Not tested on hardware.
    ///
    /// # Errors
    /// When there is no such clock, or this user may not use it.
    pub fn open(device: impl AsRef<Path>) -> Result<Self, PinError> {
        let device = device.as_ref();
        let refused = |error| PinError::refused(device, "open", error);
        let phc = Phc::open_for_pins(device).map_err(refused)?;
        let capabilities =
            phc.capabilities().map_err(|e| PinError::refused(device, "say what it can do", e))?;
        Ok(Self { phc, device: device.to_owned(), capabilities })
    }

    /// How many pins have a function that can be chosen. Not tested on hardware.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.capabilities.pins
    }

    /// A pin, counted from 0. Not tested on hardware.
    ///
    /// # Errors
    /// [`PinError::NoPin`], or the driver's.
    pub fn pin(&self, index: u32) -> Result<Pin, PinError> {
        self.check("pins", self.capabilities.pins, index)?;
        self.phc.pin(index).map_err(|error| self.refused("describe the pin", error))
    }

    /// Uses a pin for a channel of a function. Not tested on hardware.
    ///
    /// # Errors
    /// [`PinError::NoPin`], or the driver's.
    pub fn set_pin(&self, index: u32, function: PinFunction, channel: u32) -> Result<(), PinError> {
        self.check("pins", self.capabilities.pins, index)?;
        let refused = |error| self.refused("give the pin that function", error);
        self.phc.set_pin(index, function, channel).map_err(refused)
    }

    /// Has an output's channel make one pulse of this width, which begins when the timeline's
    /// estimate is `t_ns`, as far as can be told now: sooner is more exact. The clock's hardware
    /// makes it, whatever this program does meanwhile. Not tested on hardware.
    ///
    /// # Errors
    /// [`PinError::NoPin`]; [`PinError::NotChanged`] when `t_ns` has come already, or what is known
    /// of the pulse's time does not meet the handle's requirement; [`PinError::Undated`] when `t_ns`
    /// may have come before the clock was told, which may then have made the pulse late; the
    /// driver's.
    pub fn pulse_at(
        &self,
        timeline: &Timeline,
        channel: u32,
        t_ns: i64,
        width: Duration,
    ) -> Result<Pulse, PinError> {
        self.check("channels for outputs", self.capabilities.output_channels, channel)?;
        if width.is_zero() {
            return Err(PinError::OutOfRange("the pulse has no width; give 1 ns or more"));
        }
        let clock = self.clock(timeline)?;
        let bracket =
            place::with_counter(timeline, |c| clock.compare(c)).map_err(PinError::Counter)?;
        let reading = check(timeline, t_ns)?;
        let unknown = PinError::Counter(Unplaced::NoCounter("the time is not known yet"));
        let limits = timeline.rate_limits().map_err(|error| PinError::Counter(error.into()))?;
        let (shortest, longest) = limits.ok_or(unknown)?;
        let start = start_of(t_ns, &bracket, &reading, (shortest, longest));
        let rates = place::rates((shortest, longest), clock.rate());
        let placed = around(start.relabel(), &bracket, rates);
        let (first, last) = place::widened(placed, GRAIN, shortest);
        let predicted = timeline
            .convert_between(first, last)
            .map_err(|error| PinError::Counter(error.into()))?;
        is_qualified(&predicted)?;
        let refused = |error| self.refused("make the pulse", error);
        self.phc.pulse_at(channel, start, width).map_err(refused)?;
        let is_early = timeline.is_surely_before(predicted.earliest_ns());
        if !is_early.is_ok_and(|early| early) {
            let why = Unplaced::NoCounter("the time may have come before the clock was told");
            return Err(PinError::Undated { first, last, why });
        }
        Ok(Pulse { device_ns: start.floor_nanos(), first, last, reading: predicted })
    }

    /// Ends what an output's channel does, or is to do. Not tested on hardware.
    ///
    /// # Errors
    /// [`PinError::NoPin`], or the driver's.
    pub fn end_output(&self, channel: u32) -> Result<(), PinError> {
        self.check("channels for outputs", self.capabilities.output_channels, channel)?;
        self.phc.end_output(channel).map_err(|error| self.refused("end the output", error))
    }

    fn check(&self, kind: &'static str, has: u32, wanted: u32) -> Result<(), PinError> {
        if wanted < has {
            return Ok(());
        }
        let device = self.device.display().to_string();
        Err(PinError::NoPin { device, kind, has, wanted })
    }

    fn refused(&self, asked: &str, error: std::io::Error) -> PinError {
        PinError::refused(&self.device, asked, error)
    }

    fn clock(&self, timeline: &Timeline) -> Result<PtpClock, PinError> {
        let phc = Phc::open(&self.device).map_err(|error| self.refused("open", error))?;
        let calibrated = place::with_counter(timeline, |counter| {
            let known =
                calibrate(counter).map_err(|_| Unplaced::NoCounter("it does not advance"))?;
            let calibration = (known.period, known.error);
            Ok((calibration, phc.probe(counter, calibration)?))
        });
        let (calibration, method) = calibrated.map_err(PinError::Counter)?;
        if !matches!(method, Method::Precise | Method::Extended) {
            return Err(PinError::NoComparison(self.device.display().to_string()));
        }
        let most = u32::try_from(self.capabilities.max_adjustment_ppb).unwrap_or(0);
        let rate = RateError::from_ppb(most).plus(OSCILLATOR);
        Ok(PtpClock { phc, method, calibration, rate })
    }
}

/// A PTP clock that is compared with the counter.
struct PtpClock {
    phc: Phc,
    method: Method,
    calibration: (Period, RateError),
    rate: RateError,
}

impl Clock for PtpClock {
    fn compare(&self, counter: &HostCounter) -> Result<Bracket, Unplaced> {
        let sample = self.phc.sample(self.method, counter, self.calibration)?;
        Ok(place::bracket_of(&sample))
    }

    fn rate(&self) -> RateError {
        self.rate
    }

    fn grain(&self) -> time::Duration {
        GRAIN
    }
}

/// A channel that stamps edges; it is switched off when this is dropped. Others of this library leave
/// it alone until then.
pub(super) struct PtpInput {
    pins: PtpPins,
    channel: u32,
    placer: Placer<PtpClock>,
}

impl PtpInput {
    pub(super) fn open(
        timeline: &Timeline,
        device: &Path,
        channel: u32,
        edges: Edges,
    ) -> Result<Self, PinError> {
        let pins = PtpPins::open(device)?;
        let has = pins.capabilities.timestamp_channels;
        pins.check("channels for stamps", has, channel)?;
        let clock = pins.clock(timeline)?;
        let placer = Placer::new(timeline, clock).map_err(PinError::Counter)?;
        let (rising, falling) = (edges != Edges::Falling, edges != Edges::Rising);
        let refused = |error| pins.refused("stamp these edges", error);
        // Who ends first would switch the channel off for the other.
        pins.phc.claim(channel).map_err(refused)?;
        pins.phc.stamp_edges(channel, rising, falling).map_err(refused)?;
        Ok(Self { pins, channel, placer })
    }

    pub(super) fn next(&mut self, timeline: &Timeline) -> Result<Option<Found>, PinError> {
        loop {
            let next = self.pins.phc.next_stamp();
            let Some(stamp) = next.map_err(|e| self.pins.refused("give more stamps", e))? else {
                return Ok(None);
            };
            // Kernels put the stamps of all channels into one queue.
            if stamp.channel == self.channel {
                let placed = self.placer.place(timeline, stamp.time);
                return Ok(Some(Found { edge: None, lost: 0, placed }));
            }
        }
    }

    /// Compares the clocks while no stamp comes.
    pub(super) fn renew(&mut self, timeline: &Timeline) {
        // If they cannot be read, the next stamp says so.
        let _ = self.placer.renew(timeline);
    }
}

impl Drop for PtpInput {
    fn drop(&mut self) {
        // Fails only if the device is gone.
        let _ = self.pins.phc.stamp_edges(self.channel, false, false);
    }
}

impl AsFd for PtpInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pins.phc.as_fd()
    }
}

/// What the PTP clock will read when the timeline's estimate is `t_ns`, at their present rates: from
/// a comparison, and a reading of the timeline after it.
fn start_of(
    t_ns: i64,
    bracket: &Bracket,
    reading: &Reading,
    (shortest, longest): (Period, Period),
) -> Instant<time::Local> {
    let middle = bracket.before.wrapping_add(bracket.width() / 2);
    let ticks = reading.counter().wrapping_sub(middle);
    let mean = Period::from_bits(shortest.to_bits().midpoint(longest.to_bits()));
    let due = Instant::<time::Local>::from_unix_nanos(i128::from(t_ns));
    let left = due - reading.estimate();
    bracket.realtime.relabel::<time::Local>() + mean.span(ticks) + left
}

#[cfg(test)]
#[path = "ptp_tests.rs"]
mod tests;
