//! How long the host or a VM has been running: an elapsed clock on the host's counter.
//!
//! The elapsed clock is crates/estimate's. This module feeds it from publications: the counter's
//! rate, the global clock while its bounds may be relied on, and the birth instant that the owner's
//! page carries, which outlives a daemon and migrates with a VM.

use timevisor_clock_page::{ClockStatus, Line, Lines, NotedBirth};
use timevisor_estimate::elapsed::Rate;
use timevisor_estimate::{Birth, Global, Lifetime, RateLimits};
use timevisor_time::{Instant, Local};

use crate::publication::ClockState;

/// One owner's age.
#[derive(Clone, Copy, Debug, Default)]
pub struct Age {
    lifetime: Lifetime,
    arrivals: u64,
    disruptions: u64,
}

/// What every age is derived from at one publication.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    now: u64,
    expiry: u64,
    holdover: u64,
    rate: Option<Rate>,
    global: Option<Global>,
}

impl Moment {
    /// Of the host's clock at counter value `now`. `calibrated` limits the counter's rate where
    /// nothing is published; lines expire at `expiry`.
    #[must_use]
    pub fn new(host: &ClockState, calibrated: RateLimits, now: u64, expiry: u64) -> Self {
        let limits = host.lines.as_ref().map_or(calibrated, |lines| {
            let (shortest, longest) = lines.rate_limits();
            RateLimits { shortest, longest }
        });
        Self {
            now,
            expiry,
            holdover: host.lines.as_ref().map_or(0, |lines| lines.holdover),
            rate: Rate::new(limits.middle(), limits).ok(),
            global: global(host, now),
        }
    }
}

/// The global clock at `now`, while its bounds may be relied on.
fn global(host: &ClockState, now: u64) -> Option<Global> {
    let reliable = matches!(host.status, ClockStatus::Synchronized | ClockStatus::FreeRunning);
    let at = host.lines.filter(|_| reliable)?.at(now);
    Some(Global { earliest: at.earliest, estimate: at.estimate, latest: at.latest })
}

impl Age {
    /// Takes in a publication, and returns the birth instant if it has just become known.
    ///
    /// `arrivals` counts how often the owner came from another host: a new number voids what was
    /// known of its age. `found` is what the owner's page says of its birth.
    pub fn update(
        &mut self,
        moment: &Moment,
        arrivals: u64,
        found: NotedBirth,
    ) -> Option<NotedBirth> {
        let rate = moment.rate?;
        if self.arrivals != arrivals {
            *self = Self { arrivals, disruptions: self.disruptions + 1, ..Self::default() };
        }
        match found {
            NotedBirth::At { zero, within } => self.lifetime.born(Birth { zero, within }),
            // It began on another host, under another daemon, or before the counter was disturbed.
            NotedBirth::Begun if !self.has_begun() => return None,
            NotedBirth::Begun | NotedBirth::Nothing => {}
        }
        let born = self.lifetime.update(moment.now, rate, moment.global.as_ref());
        born.map(|Birth { zero, within }| NotedBirth::At { zero, within })
    }

    fn has_begun(&self) -> bool {
        self.lifetime.clock().is_some() || self.lifetime.birth().is_some()
    }

    /// What has to be noted before somebody reads this age, where its birth is not known yet:
    /// whoever cannot go on from a birth later must not begin again.
    #[must_use]
    pub fn before_reading(&self, found: NotedBirth) -> Option<NotedBirth> {
        let is_unborn = self.lifetime.clock().is_some() && self.lifetime.birth().is_none();
        (is_unborn && found == NotedBirth::Nothing).then_some(NotedBirth::Begun)
    }

    /// The counter was disturbed: the age continues from the birth instant once the time is known
    /// again.
    pub fn start_over(&mut self) {
        self.lifetime.lose_counter();
        self.disruptions += 1;
    }

    /// The age as lines on the host's counter, and a count that grows when what they said before is
    /// void.
    #[must_use]
    pub fn lines(&self, moment: &Moment) -> (Option<Lines<Local>>, u64) {
        let lines = self.lifetime.clock().map(|clock| {
            let (age, limits) = (clock.at(moment.now), clock.rate().limits());
            let line = |span: timevisor_time::Duration, period| Line {
                time: Instant::from_bits(span.to_bits()),
                period,
            };
            Lines {
                base: moment.now,
                expiry: moment.expiry,
                earliest: line(age.earliest, limits.shortest),
                estimate: line(age.estimate, clock.rate().period()),
                latest: line(age.latest, limits.longest),
                holdover: moment.holdover,
            }
        });
        (lines, self.disruptions)
    }
}
