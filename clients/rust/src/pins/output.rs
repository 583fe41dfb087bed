//! [`OutputLine`]: a GPIO line that changes at a time of a timeline, or not at all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use timevisor_linux::gpio::{self, Chip};

use super::error::{PinError, Unplaced};
use crate::reading::Reading;
use crate::timeline::Timeline;
use crate::wait::WaitOptions;
use crate::wait::at::{AtFd, AtOutcome};

/// How late an output may be unless told otherwise.
const LATE_AT_MOST: Duration = Duration::from_millis(10);

/// A GPIO line as an output. It is released when this is dropped; what the pin does then is up to
/// the chip's driver. Clones share the line.
///
/// ```no_run
/// use std::time::Duration;
/// use timevisor::{Client, Requirement, pins::OutputLine};
/// let tai = Client::connect()?.bind("tai", &Requirement::within(Duration::from_micros(100)))?;
/// let valve = OutputLine::open("/dev/gpiochip0", 5, false)?;
/// let t_ns = tai.now()?.latest_ns() + 1_000_000_000;
/// let changed = valve.at(&tai, t_ns, true)?;
/// println!("{} ns late, {} ..", changed.lateness_ns, changed.reading.earliest_ns());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutputLine {
    line: Arc<gpio::OutputLine>,
    chip: PathBuf,
}

/// An output that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The estimate when the line had surely changed, less the time it was to change: 0 or more.
    pub lateness_ns: i64,
    /// The counter, before it changed.
    pub first: u64,
    /// The counter, after it had changed.
    pub last: u64,
    /// When it changed: true time was between earliest and latest.
    pub reading: Reading,
}

impl OutputLine {
    /// Takes a line of a chip such as `/dev/gpiochip0` as an output that begins active or not.
    ///
    /// # Errors
    /// When the chip has no such line, somebody uses it, or this user may not.
    pub fn open(chip: impl AsRef<Path>, line: u32, active: bool) -> Result<Self, PinError> {
        let path = chip.as_ref();
        let refused = |error| PinError::refused(path, &format!("give line {line}"), error);
        let chip = Chip::open(path).map_err(refused)?;
        let line = chip.output(line, active, false).map_err(refused)?;
        Ok(Self { line: Arc::new(line), chip: path.to_owned() })
    }

    /// Makes it active or inactive now.
    ///
    /// # Errors
    /// The driver's.
    pub fn set(&self, active: bool) -> Result<(), PinError> {
        self.line.set(active).map_err(|error| self.refused(error))
    }

    /// Whether it is active.
    ///
    /// # Errors
    /// The driver's: some cannot read outputs.
    pub fn get(&self) -> Result<bool, PinError> {
        self.line.get().map_err(|error| self.refused(error))
    }

    /// Waits until the estimate has reached `t_ns`, and then makes it active or inactive. It does so
    /// only if the clock meets the handle's requirement, now and then, was not disrupted, and it is
    /// not more than 10 ms late.
    ///
    /// # Errors
    /// [`PinError::NotChanged`] when `t_ns` has come already, the clock does not meet the handle's
    /// requirement or must not be relied on, it was disrupted, or this program woke up too late.
    /// [`PinError::Undated`], [`PinError::NotTaken`] and [`PinError::MayHaveChanged`] after it was set.
    pub fn at(&self, timeline: &Timeline, t_ns: i64, active: bool) -> Result<Changed, PinError> {
        self.at_with(timeline, t_ns, active, LATE_AT_MOST, &WaitOptions::default())
    }

    /// As [`Self::at`], with all options. `late_at_most`: a program that wakes up later than this
    /// after `t_ns` leaves the line as it is.
    ///
    /// # Errors
    /// As [`Self::at`], and those that the options add.
    pub fn at_with(
        &self,
        timeline: &Timeline,
        t_ns: i64,
        active: bool,
        late_at_most: Duration,
        options: &WaitOptions,
    ) -> Result<Changed, PinError> {
        check(timeline, t_ns)?;
        let outcome = timeline.at_with(t_ns, None, latest(t_ns, late_at_most), options)?;
        finish(timeline, t_ns, &outcome, || self.change(active))
    }

    /// As [`Self::at`], as a descriptor for an event loop.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn at_fd(
        &self,
        timeline: &Timeline,
        t_ns: i64,
        active: bool,
        late_at_most: Duration,
        spin: Duration,
    ) -> Result<OutputFd, PinError> {
        check(timeline, t_ns)?;
        let at = timeline.at_fd(t_ns, None, latest(t_ns, late_at_most), spin)?;
        Ok(OutputFd { line: self.clone(), timeline: timeline.clone(), t_ns, active, at })
    }

    /// Sets it and reads it back, which also waits for a write that the bus has posted. `None` where
    /// the driver cannot read outputs.
    fn change(&self, active: bool) -> Result<Option<bool>, PinError> {
        self.set(active)?;
        Ok(self.line.get().ok().map(|found| found == active))
    }

    fn refused(&self, error: io::Error) -> PinError {
        PinError::refused(&self.chip, "set or read the line", error)
    }
}

/// An output's time for an event loop: when the descriptor is readable, call [`Self::on_ready`].
/// Dropping it leaves the line as it is.
pub struct OutputFd {
    line: OutputLine,
    timeline: Timeline,
    t_ns: i64,
    active: bool,
    at: AtFd,
}

impl OutputFd {
    /// Checks whether the time has come, and if so changes the line. `None` if not yet, and after
    /// it has ended. May be called at any time.
    ///
    /// # Errors
    /// As [`OutputLine::at`]; it has then ended.
    pub fn on_ready(&mut self) -> Result<Option<Changed>, PinError> {
        let Some(outcome) = self.at.on_ready()? else { return Ok(None) };
        let Self { line, timeline, t_ns, active, .. } = self;
        finish(timeline, *t_ns, &outcome, || line.change(*active)).map(Some)
    }
}

impl AsFd for OutputFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.at.as_fd()
    }
}

fn latest(t_ns: i64, late_at_most: Duration) -> i64 {
    t_ns.saturating_add(i64::try_from(late_at_most.as_nanos()).unwrap_or(i64::MAX))
}

/// Whether it can be done at all.
pub(super) fn check(timeline: &Timeline, t_ns: i64) -> Result<Reading, PinError> {
    let reading = timeline.now().map_err(|error| PinError::Counter(error.into()))?;
    is_qualified(&reading)?;
    let by_ns = reading.estimate_ns().saturating_sub(t_ns);
    if by_ns >= 0 {
        return Err(PinError::not_changed(AtOutcome::TooLate { by_ns, reading }));
    }
    Ok(reading)
}

/// Whether the clock meets the handle's requirement and may be relied on.
pub(super) fn is_qualified(reading: &Reading) -> Result<(), PinError> {
    if reading.met() && reading.is_trustworthy() {
        return Ok(());
    }
    let trusted = reading.half_width_ns().filter(|_| reading.is_trustworthy());
    let half_width_ns = trusted.unwrap_or(u64::MAX);
    Err(PinError::not_changed(AtOutcome::QotViolated { half_width_ns, reading: *reading }))
}

/// Changes it now if that is the outcome.
fn finish(
    timeline: &Timeline,
    t_ns: i64,
    outcome: &AtOutcome,
    change: impl FnOnce() -> Result<Option<bool>, PinError>,
) -> Result<Changed, PinError> {
    let AtOutcome::Fired { reading: due, .. } = outcome else {
        return Err(PinError::not_changed(*outcome));
    };
    is_qualified(due)?;
    let first = timeline.stamp();
    let taken = change();
    let after = timeline.now();
    let taken = match taken {
        Ok(taken) => taken,
        Err(source) => {
            let last = after.map_or(0, |reading| reading.counter());
            return Err(PinError::MayHaveChanged { first, last, source: Box::new(source) });
        }
    };
    if taken == Some(false) {
        let last = after.map_or(0, |reading| reading.counter());
        return Err(PinError::NotTaken { first, last });
    }
    let undated = |last, why| PinError::Undated { first, last, why };
    let after = after.map_err(|error| undated(0, error.into()))?;
    let last = after.counter();
    if (due.origin, due.disruption) != (after.origin, after.disruption) {
        return Err(undated(last, Unplaced::Disrupted));
    }
    if taken.is_none() {
        return Err(undated(last, Unplaced::NotReadBack));
    }
    let reading =
        timeline.convert_between(first, last).map_err(|error| undated(last, error.into()))?;
    // The estimate never goes back without a disruption.
    let lateness_ns = after.estimate_ns().saturating_sub(t_ns).max(0);
    Ok(Changed { lateness_ns, first, last, reading })
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
