//! [`Elapsed`]: how long something has been running. It continues across the migration of its VM,
//! and across a checkpoint of its process that is restored on another host.
//!
//! | module | owns |
//! | --- | --- |
//! | `mod` | [`Elapsed`], [`Blackouts`]: reading |
//! | `blackouts` | how long nothing ran |
//! | `saved` | an age as text |

mod blackouts;
mod saved;
#[cfg(test)]
mod tests;

use std::sync::Mutex;

use timevisor_estimate::elapsed::{Age, Rate};
use timevisor_estimate::{Global, Lifetime, RateLimits};
use timevisor_linux::clock::monotonic_raw_nanos;
use timevisor_time::{Duration, Instant, Local, TimescaleId};

use crate::error::{ElapsedError, ReadError};
use crate::reading::Reading;
use crate::snapshot::Snapshot;
use crate::timeline::Timeline;
use crate::{Status, unpoisoned};

use self::blackouts::{Looked, Stopped};

/// Whether an age counts the time in which nothing ran: the blackout of a migration, a stopped VM,
/// the time between a checkpoint and its restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Blackouts {
    /// It does: the age is wall-clock time.
    #[default]
    Count,
    /// It does not, to the extent that a guest's counter (in a migration) or a container's
    /// CLOCK_MONOTONIC_RAW (in a restore by CRIU) stood still. The bounds cover what remains
    /// unknown.
    Exclude,
}

/// A running age. It can be used from any thread; a read takes a lock, but makes no system call.
///
/// ```
/// use std::time::Duration;
/// use timevisor::{Blackouts, Elapsed, manual::Clock};
/// let clock = Clock::new(1_000_000_000);
/// let age = Elapsed::begin(&clock.timeline(), Blackouts::Count)?;
/// clock.advance(Duration::from_secs(2));
/// let now = age.now()?;
/// assert!(now.earliest_ns() <= 2_000_000_000 && 2_000_000_000 <= now.latest_ns());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Elapsed {
    timeline: Timeline,
    blackouts: Blackouts,
    origin: u64,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    lifetime: Lifetime,
    stopped: Stopped,
    /// The page's identity and disruption marker at the last read.
    seen: Option<([u64; 5], u64)>,
    /// The last reading; later ones never go back before it.
    last: Age,
}

impl Elapsed {
    /// Starts an age now, on the timeline `tai`.
    ///
    /// # Errors
    /// When the timeline is another one, or the time is not known yet.
    pub fn begin(timeline: &Timeline, blackouts: Blackouts) -> Result<Self, ElapsedError> {
        let age = Self::with(timeline, blackouts, State::default())?;
        let now = age.now()?;
        let begun = unpoisoned(age.state.lock()).lifetime.birth().is_some();
        if now.is_known() && begun { Ok(age) } else { Err(ElapsedError::Unknown) }
    }

    /// Resumes an age that [`Self::save`] returned, here or elsewhere.
    ///
    /// # Errors
    /// When the text is not a saved age, or the timeline is another one.
    pub fn resume(timeline: &Timeline, saved: &str) -> Result<Self, ElapsedError> {
        let (blackouts, state) = saved::parse(saved).map_err(ElapsedError::Saved)?;
        Self::with(timeline, blackouts, state)
    }

    fn with(timeline: &Timeline, blackouts: Blackouts, state: State) -> Result<Self, ElapsedError> {
        use std::hash::{BuildHasher as _, RandomState};
        if timeline.now()?.timescale() != TimescaleId::Tai {
            return Err(ElapsedError::Timescale(timeline.name().to_owned()));
        }
        let origin = RandomState::new().hash_one(());
        Ok(Self { timeline: timeline.clone(), blackouts, origin, state: Mutex::new(state) })
    }

    /// The current age: a reading of a local timeline that was at 0 when the age started. Readings
    /// never decrease. The age is unknown if the counter was disrupted and the time has not been
    /// known since.
    ///
    /// # Errors
    /// When the page cannot be read.
    pub fn now(&self) -> Result<Reading, ReadError> {
        let mut state = unpoisoned(self.state.lock());
        let before = monotonic_raw_nanos();
        let (reading, snapshot) = self.timeline.look()?;
        let after = monotonic_raw_nanos();
        let seen = Seen { reading: &reading, snapshot: &snapshot, page: self.timeline.identity() };
        let age = state.read(&seen, self.blackouts, (before, after));
        Ok(self.reading(&reading, age))
    }

    /// Whether it counts blackouts.
    #[must_use]
    pub fn blackouts(&self) -> Blackouts {
        self.blackouts
    }

    /// The age as text, for a file or another machine; [`Self::resume`] continues it. At most 1024
    /// bytes of ASCII in one line.
    ///
    /// # Errors
    /// When the page cannot be read.
    pub fn save(&self) -> Result<String, ReadError> {
        self.now()?;
        let state = unpoisoned(self.state.lock());
        Ok(saved::format(self.blackouts, &state))
    }

    fn reading(&self, of_tai: &Reading, age: Option<Age>) -> Reading {
        let instant = |span: Duration| Instant::<Local>::from_bits(span.to_bits());
        let (earliest, estimate, latest) = match age {
            Some(age) => (instant(age.earliest), instant(age.estimate), instant(age.latest)),
            None => (Instant::MIN, Instant::from_bits(0), Instant::MAX),
        };
        Reading {
            earliest,
            estimate,
            latest,
            error_bits: u64::MAX,
            // An age continues across every disruption.
            disruption: 0,
            origin: self.origin,
            status: if age.is_some() { of_tai.status } else { Status::Unknown },
            timescale: TimescaleId::Local,
            known: age.is_some(),
            met: true,
            ..*of_tai
        }
    }
}

/// An observation of the timeline.
struct Seen<'a> {
    reading: &'a Reading,
    snapshot: &'a Snapshot,
    page: [u64; 5],
}

impl State {
    /// The age at a reading that was made between two values of CLOCK_MONOTONIC_RAW, in ns.
    fn read(&mut self, seen: &Seen<'_>, blackouts: Blackouts, raw: (u64, u64)) -> Option<Age> {
        let Seen { reading, snapshot, page } = seen;
        let source = (*page, reading.disruption);
        let disrupted = self.seen.is_some_and(|seen| seen != source);
        if disrupted {
            self.lifetime.lose_counter();
        }
        self.seen = Some(source);
        let (shortest, longest) = snapshot.lines.rate_limits();
        let limits = RateLimits { shortest, longest };
        let rate = Rate::new(limits.middle(), limits).ok().filter(|_| reading.known)?;
        let global = reading.is_trustworthy().then(|| Global {
            earliest: reading.earliest.relabel(),
            estimate: reading.estimate.relabel(),
            latest: reading.latest.relabel(),
        });
        // The result is not needed here; it becomes part of the state.
        let _ = self.lifetime.update(reading.counter, rate, global.as_ref());
        let total = self.lifetime.clock()?.at(reading.counter);
        let ran = match blackouts {
            Blackouts::Count => total,
            Blackouts::Exclude => {
                let counter = reading.counter;
                let looked = Looked { total, raw, counter, rate: limits, page: *page };
                self.stopped.exclude(looked, disrupted)
            }
        };
        self.last = not_before(ran, &self.last);
        Some(self.last)
    }
}

/// Moves an age forward if it is before `last`. Its bounds still contain the truth.
fn not_before(age: Age, last: &Age) -> Age {
    let earliest = age.earliest.max(last.earliest);
    let estimate = age.estimate.max(last.estimate).max(earliest);
    Age { earliest, estimate, latest: age.latest.max(estimate) }
}
