//! Optional: steers CLOCK_REALTIME by the estimate, so that a host needs one time daemon instead of
//! two.
//!
//! This file decides when to steer and what to declare to the kernel, and restores everything at
//! the end. The control law is timevisor-estimate's `steering`. timevisor-linux's `adjust` contains
//! the system call, detects other programs that steer the clock (`rivals`), and saves the original
//! settings in a file, for the next daemon if this one is killed (`saved`).
//!
//! Once a second, the daemon reads the clock along with the counter. While our own clock is not
//! reliable, the rate is held and the kernel's status becomes STA_UNSYNC. When another program
//! changes the rate, steering ends immediately and the other program's rate stays. The estimate
//! does not depend on CLOCK_REALTIME, so steering has no feedback into it.

use timevisor_clock_page::ClockStatus;
use timevisor_estimate::steering::{Command, Input, Steering};
use timevisor_linux::adjust::saved::Saved;
use timevisor_linux::adjust::{self, Declaration, LeapAction, Rate, Settings, rivals};
use timevisor_linux::clock::bracket;
use timevisor_linux::counter::calibrate::{RawBracket, best_bracket, from_brackets};
use timevisor_protocols::control::Discipline as Report;
use timevisor_time::{Duration, Instant, Period, Tai, Utc};

use crate::announce::Announcer;
use crate::clock::HostClock;
use crate::config::Config;
use crate::leap::Leap;

/// The control law is designed for approximately this interval.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time until the daemon checks again after a conflict.
const RETRY: Duration = Duration::from_secs(60);
/// The longest such time: it doubles with each conflict, because each attempt interferes with the
/// other program.
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// After steering for this long, conflicts are over.
const SETTLED: Duration = Duration::from_secs(600);
/// What the log shows of working discipline, and of TAI - UTC.
const STEERING: &str = "steering CLOCK_REALTIME";
/// The kernel's settings are not changed this close to a leap second.
const LEAP_MARGIN: Duration = Duration::from_secs(5);
const BRACKET_TRIES: usize = 5;
const SECONDS_PER_DAY: i64 = 86_400;

/// The last settings that we made, to detect changes by other programs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ours {
    rate: Rate,
}

enum State {
    /// Not steering, for this reason.
    Waiting(String),
    /// Steering; `original` is restored at the end, if anything was `changed`.
    Active { original: Settings, changed: bool, ours: Option<Ours> },
}

pub struct Discipline {
    law: Steering,
    config: Config,
    saved: Saved,
    state: State,
    /// The counter's rate against CLOCK_MONOTONIC_RAW since the start (or the last suspend). Its
    /// precision improves with time.
    first: RawBracket,
    next: Duration,
    last: Duration,
    offset: Option<Duration>,
    frequency: f64,
    retry: Duration,
    /// When steering began.
    begun: Duration,
    told: Announcer,
    told_tai: Announcer,
}

impl Discipline {
    /// Returns `None` unless configured; in that case it restores the settings that an earlier
    /// daemon left changed.
    pub fn start(
        config: &Config,
        boot_id: String,
        clock: &HostClock,
        now: Duration,
    ) -> Option<Self> {
        let saved = Saved::at(config.run_directory.join("discipline.json"), boot_id);
        let left = saved.read();
        if !config.clock.discipline {
            if let Some(original) = left {
                tracing::info!(
                    "restoring the kernel's clock settings that an earlier daemon changed"
                );
                if let Err(problem) = put_back(&original, &saved) {
                    tracing::error!("{problem}");
                }
            }
            return None;
        }
        let state = match left {
            Some(original) => State::Active { original, changed: true, ours: None },
            None => State::Waiting("waiting for the clock to be synchronized".to_owned()),
        };
        Some(Self {
            law: Steering::new(config.steering()),
            config: config.clone(),
            saved,
            state,
            first: best_bracket(&clock.counter),
            next: now,
            last: now,
            offset: None,
            frequency: 0.0,
            retry: RETRY,
            begun: now,
            told: Announcer::default(),
            told_tai: Announcer::default(),
        })
    }

    /// How it steers.
    #[cfg(test)]
    pub fn steering(&self) -> timevisor_estimate::steering::Parameters {
        self.config.steering()
    }

    /// When [`Self::on_timer`] next has something to do.
    pub fn poll_at(&self) -> Duration {
        self.next
    }

    /// Runs one step of the control loop.
    pub fn on_timer(&mut self, now: Duration, clock: &HostClock) {
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        let status = clock.writer().status();
        let reliable = matches!(status, ClockStatus::Synchronized | ClockStatus::FreeRunning);
        if let State::Waiting(_) = self.state
            && (status != ClockStatus::Synchronized || !self.begin(now))
        {
            return;
        }
        if self.somebody_else(now) {
            return;
        }
        let elapsed = now - self.last;
        self.last = now;
        let Some(base) = self.base(clock) else { return };
        let Some(reading) = read(clock).filter(|_| reliable) else {
            self.offset = None;
            return self.obey(&self.law.hold(base), None, now);
        };
        if near_leap(&clock.leap, reading.utc) {
            return;
        }
        self.offset = Some(reading.offset);
        let (offset, half_width) = (reading.offset, reading.half_width);
        let command = self.law.update(&Input { offset, half_width, base, elapsed });
        if command.step != Duration::ZERO {
            tracing::warn!("CLOCK_REALTIME is stepped by {} (clock.step_threshold)", command.step);
        }
        self.obey(&command, Some((&reading, clock)), now);
    }

    /// Handles a disturbance of the counter (a suspend, a migration): restarts the measurement of
    /// its rate against CLOCK_MONOTONIC_RAW.
    pub fn restart(&mut self, clock: &HostClock) {
        self.first = best_bracket(&clock.counter);
    }

    /// Restores the original settings.
    pub fn stop(&mut self) {
        if let Some(problem) = self.end() {
            tracing::error!("{problem}");
        }
    }

    /// Ends steering. Returns why the original settings could not be restored, if that failed.
    fn end(&mut self) -> Option<String> {
        let waiting = State::Waiting("ended".to_owned());
        match std::mem::replace(&mut self.state, waiting) {
            State::Active { original, changed: true, .. } => put_back(&original, &self.saved).err(),
            State::Active { changed: false, .. } => {
                self.saved.clear();
                None
            }
            State::Waiting(_) => None,
        }
    }

    /// How fast CLOCK_REALTIME runs away from true time at most, ppb, while the estimate's rate is right; `None` unless we
    /// steer it.
    pub fn drift_ppb(&self) -> Option<u32> {
        let steers = matches!(self.state, State::Active { ours: Some(_), .. });
        steers.then(|| self.config.steering().fastest_drift_ppm().saturating_mul(1000))
    }

    /// Returns the state for `timevisor status`.
    pub fn report(&self) -> Report {
        let (state, detail) = match &self.state {
            State::Waiting(reason) => ("waiting", reason.clone()),
            State::Active { .. } => ("steering", "CLOCK_REALTIME follows the estimate".to_owned()),
        };
        Report {
            state: state.to_owned(),
            detail,
            offset_ns: self.offset.map(Duration::floor_nanos),
            frequency_ppm: self.frequency * 1e6,
        }
    }

    /// Returns true when no other program steers the clock and the original settings are saved.
    fn begin(&mut self, now: Duration) -> bool {
        let outcome =
            adjust::settings().map_err(|e| format!("clock_adjtime is forbidden here: {e}"));
        let problem = match outcome {
            Err(problem) => Some(problem),
            Ok(original) => match rivals::conflict(&original, "set clock.discipline = false") {
                Some(conflict) => Some(conflict),
                None => match self.saved.write(&original) {
                    Err(error) => Some(format!("the present settings cannot be saved: {error}")),
                    Ok(()) => {
                        self.law = Steering::new(self.config.steering());
                        self.begun = now;
                        self.state = State::Active { original, changed: false, ours: None };
                        None
                    }
                },
            },
        };
        let Some(problem) = problem else { return true };
        self.wait(problem, now);
        false
    }

    fn wait(&mut self, problem: String, now: Duration) {
        if self.told.changed(now, &problem) {
            tracing::error!("CLOCK_REALTIME is not steered: {problem}");
        }
        self.state = State::Waiting(problem);
        self.offset = None;
        self.next = now + self.retry;
    }

    /// Ends steering when the kernel's rate is not the one that we set. The other program's rate
    /// stays.
    fn somebody_else(&mut self, now: Duration) -> bool {
        let State::Active { ours: Some(ours), .. } = &self.state else { return false };
        let changed = match adjust::settings() {
            Ok(found) => found.rate != ours.rate,
            Err(_) => false,
        };
        if changed {
            self.saved.clear();
            let settled = now - self.begun > SETTLED;
            self.retry = if settled { RETRY } else { (self.retry + self.retry).min(RETRY_MAX) };
            let text = "another program changed its rate; find and stop that program, or set clock.discipline = false";
            self.wait(text.to_owned(), now);
        }
        changed
    }

    /// Returns the true seconds per second of CLOCK_MONOTONIC_RAW, minus one.
    fn base(&self, clock: &HostClock) -> Option<f64> {
        let known = clock.knowledge().clock.as_ref()?;
        let raw = from_brackets(self.first, best_bracket(&clock.counter)).ok();
        // During the first second, the initial calibration is more precise.
        let raw = raw.filter(|r| r.error < clock.calibration.error).unwrap_or(clock.calibration);
        Some(known.period.relative_to(raw.period))
    }

    fn obey(&mut self, command: &Command, told: Option<(&Reading, &HostClock)>, now: Duration) {
        let rate = Rate { tick_us: command.rate.tick_us, frequency: command.rate.frequency };
        let declaration = told.map_or(UNKNOWN, |(reading, clock)| declare(reading, command, clock));
        let done = if command.step == Duration::ZERO { Ok(()) } else { adjust::step(command.step) };
        let done = done.and_then(|()| adjust::steer(rate, command.phase, &declaration));
        if let Err(error) = done {
            let mut text = format!("clock_adjtime: {error}; the daemon needs CAP_SYS_TIME");
            if let Some(problem) = self.end() {
                text = format!("{text}; {problem}");
            }
            return self.wait(text, now);
        }
        self.frequency = command.rate.ratio();
        if let Some((reading, clock)) = told {
            let problem = tell_tai(&clock.leap, reading.utc).err().unwrap_or_default();
            if self.told_tai.changed(now, &problem) && !problem.is_empty() {
                tracing::warn!("{problem}");
            }
        }
        if let State::Active { ours, changed, .. } = &mut self.state {
            (*ours, *changed) = (Some(Ours { rate }), true);
        }
        // Only now is it certain that the kernel lets us.
        if self.told.changed(now, STEERING) {
            tracing::info!("{STEERING}");
        }
    }
}

impl Drop for Discipline {
    fn drop(&mut self) {
        self.stop();
    }
}

fn put_back(original: &Settings, saved: &Saved) -> Result<(), String> {
    adjust::restore(original).map_err(|error| {
        format!(
            "the kernel's clock settings cannot be restored: {error}; frequency was {} (2^-16 ppm), tick {}",
            original.rate.frequency, original.rate.tick_us
        )
    })?;
    saved.clear();
    Ok(())
}

const UNKNOWN: Declaration =
    Declaration { max_error: None, estimated_error: Duration::ZERO, leap: LeapAction::None };

/// CLOCK_REALTIME and the estimate at the same moment.
struct Reading {
    utc: Instant<Utc>,
    offset: Duration,
    half_width: Duration,
}

fn read(clock: &HostClock) -> Option<Reading> {
    let lines = clock.writer().in_force()?.shifted::<Tai>(Duration::ZERO);
    let at = bracket(&clock.counter, BRACKET_TRIES);
    let middle = at.before.wrapping_add(at.width() / 2);
    let said = lines.at(middle);
    let tai_offset = clock.leap.offset_of_tai(said.estimate).ok()?;
    let utc = (said.estimate - Duration::from_secs(i64::from(tai_offset))).relabel::<Utc>();
    let period: Period = clock.calibration.period;
    let bound = (said.latest - said.estimate).max(said.estimate - said.earliest);
    Some(Reading {
        utc,
        offset: utc - at.realtime,
        half_width: bound + period.span_ceil(at.width()),
    })
}

fn declare(reading: &Reading, command: &Command, clock: &HostClock) -> Declaration {
    let left = (reading.offset - command.step).abs();
    let sigma = clock.knowledge().clock.as_ref().map_or(Duration::ZERO, |k| k.estimated_error);
    Declaration {
        max_error: Some(reading.half_width + left),
        estimated_error: sigma + left,
        leap: leap_today(&clock.leap, reading.utc),
    }
}

/// Announces a leap second at the end of this UTC day. The kernel then inserts it.
fn leap_today(leap: &Leap, utc: Instant<Utc>) -> LeapAction {
    let midnight = (utc.secs().div_euclid(SECONDS_PER_DAY) + 1) * SECONDS_PER_DAY;
    let at = |secs: i64| {
        leap.offset_at(Instant::from_unix_nanos(i128::from(secs) * timevisor_time::NANOS_PER_SEC))
    };
    match (at(midnight - 1), at(midnight)) {
        (Ok(before), Ok(after)) if after > before => LeapAction::Insert,
        (Ok(before), Ok(after)) if after < before => LeapAction::Delete,
        _ => LeapAction::None,
    }
}

fn near_leap(leap: &Leap, utc: Instant<Utc>) -> bool {
    let (before, after) = (leap.offset_at(utc - LEAP_MARGIN), leap.offset_at(utc + LEAP_MARGIN));
    before.is_ok() && after.is_ok() && before != after
}

/// Sets CLOCK_TAI's offset if it is known and differs from the kernel's.
fn tell_tai(leap: &Leap, utc: Instant<Utc>) -> Result<(), String> {
    let Ok(offset) = leap.offset_at(utc) else { return Ok(()) };
    let known = adjust::settings().map(|s| s.tai_offset);
    if known.is_ok_and(|known| known != i32::from(offset)) {
        adjust::set_tai_offset(offset)
            .map_err(|error| format!("cannot tell the kernel TAI - UTC: {error}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClockConfig;

    fn leap() -> Leap {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leap");
        // 2016-12-31 had one additional second.
        std::fs::write(&path, "#@ 4000000000\n3644697600 36\n3692217600 37\n").unwrap();
        Leap::load(&ClockConfig { leap_table: path, ..ClockConfig::default() })
    }

    fn utc(secs: i128) -> Instant<Utc> {
        Instant::from_unix_nanos(secs * 1_000_000_000)
    }

    const MIDNIGHT: i128 = 1_483_228_800;

    #[test]
    fn the_kernel_is_told_on_the_day_and_left_alone_at_the_second() {
        let leap = leap();
        assert_eq!(leap_today(&leap, utc(MIDNIGHT - 86_401)), LeapAction::None);
        assert_eq!(leap_today(&leap, utc(MIDNIGHT - 86_400)), LeapAction::Insert);
        assert_eq!(leap_today(&leap, utc(MIDNIGHT - 1)), LeapAction::Insert);
        assert_eq!(leap_today(&leap, utc(MIDNIGHT)), LeapAction::None);
        assert!(near_leap(&leap, utc(MIDNIGHT - 2)) && near_leap(&leap, utc(MIDNIGHT + 2)));
        assert!(!near_leap(&leap, utc(MIDNIGHT - 60)));
    }
}
