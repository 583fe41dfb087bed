//! Blackouts: the time in which nothing ran. It is the time that passed on the global clock minus
//! what the machine counted in the meantime.
//!
//! | between two observations | counted by |
//! | --- | --- |
//! | the page belongs to the same VM | its counter, which stops between two hosts and resumes from the same value |
//! | another page, or another disruption of a host's | CLOCK_MONOTONIC_RAW: CRIU restores into a time namespace in which it continues from the checkpoint |
//! | neither: the same clock continues | nothing stopped, unless CLOCK_MONOTONIC_RAW clearly did (a restore on the same host) |
//!
//! Only events that stop a counter are detected. SIGSTOP of a process, and `stop` of a KVM guest
//! that stays on its host, leave both counters running, so that time counts.

use timevisor_estimate::RateLimits;
use timevisor_estimate::elapsed::Age;
use timevisor_time::{Duration, RateError};

/// Maximum rate error of CLOCK_MONOTONIC_RAW: that of the oscillator plus that of the frequency
/// that the kernel assumed at boot. In emulated guests, which had to measure the frequency, the
/// error was larger; [`Stopped::raw_is_right`] detects those.
const RAW_RATE: RateError = RateError::from_ppb(1_000_000);

/// A shorter gap is not a blackout, and a shorter interval does not prove a rate.
const LEAST: Duration = Duration::from_millis(1);

/// An observation at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Looked {
    /// The age, blackouts included.
    pub(super) total: Age,
    /// CLOCK_MONOTONIC_RAW before and after, ns.
    pub(super) raw: (u64, u64),
    /// The page's counter.
    pub(super) counter: u64,
    /// The counter's rate.
    pub(super) rate: RateLimits,
    /// Whose page it is: [`timevisor_clock_page::Reader::identity`].
    pub(super) page: [u64; 5],
}

/// The accumulated time in which nothing ran.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Stopped {
    pub(super) sum: Age,
    pub(super) last: Option<Looked>,
    /// Whether CLOCK_MONOTONIC_RAW has agreed with the page and never disagreed.
    pub(super) raw_is_right: Option<bool>,
}

impl Stopped {
    /// The age without blackouts. `disrupted` means that the clock that was read last has ended.
    pub(super) fn exclude(&mut self, now: Looked, disrupted: bool) -> Age {
        if let Some(last) = self.last.replace(now) {
            let stopped = if disrupted {
                let counted = counted(&last, &now).or_else(|| self.by_raw(&last, &now));
                went_by(&last, &now).less(counted)
            } else {
                self.jump(&last, &now)
            };
            self.sum = Age {
                earliest: self.sum.earliest + stopped.earliest,
                estimate: self.sum.estimate + stopped.estimate,
                latest: self.sum.latest + stopped.latest,
            };
        }
        let less = |total: Duration, stopped: Duration| (total - stopped).max(Duration::ZERO);
        Age {
            earliest: less(now.total.earliest, self.sum.latest),
            estimate: less(now.total.estimate, self.sum.estimate),
            latest: less(now.total.latest, self.sum.earliest),
        }
    }

    /// What CLOCK_MONOTONIC_RAW counted; `None` if it belongs to another kernel, or cannot be
    /// relied on.
    fn by_raw(&self, last: &Looked, now: &Looked) -> Option<Span> {
        let usable = self.raw_is_right != Some(false) && last.raw.1 <= now.raw.0;
        usable.then(|| raw(last, now))
    }

    /// Handles a page clock that continued. If CLOCK_MONOTONIC_RAW did not, that is the only sign
    /// of a restore on the same host.
    fn jump(&mut self, last: &Looked, now: &Looked) -> Age {
        let (went_by, raw) = (went_by(last, now), raw(last, now));
        let stopped = went_by.less(Some(raw));
        let slow = stopped.earliest > LEAST;
        let fast = raw.least > went_by.most || now.raw.1 < last.raw.0;
        if fast || (slow && self.raw_is_right.is_none()) {
            self.raw_is_right = Some(false);
        } else if went_by.least > LEAST && !slow {
            self.raw_is_right.get_or_insert(true);
        }
        // Only clear blackouts count, because the errors of all observations would add up.
        if slow && self.raw_is_right == Some(true) { stopped } else { Age::ZERO }
    }
}

/// A length of time.
#[derive(Clone, Copy)]
struct Span {
    least: Duration,
    likely: Duration,
    most: Duration,
}

impl Span {
    /// What remains after subtracting what was counted; without a count, anything from zero to all
    /// of it.
    fn less(self, counted: Option<Self>) -> Age {
        let counted =
            counted.unwrap_or(Self { least: Duration::ZERO, likely: Duration::ZERO, ..self });
        let left = |whole: Duration, part: Duration| (whole - part).max(Duration::ZERO);
        let (earliest, latest) = (left(self.least, counted.most), left(self.most, counted.least));
        let estimate = left(self.likely, counted.likely).max(earliest).min(latest);
        Age { earliest, estimate, latest }
    }
}

fn went_by(last: &Looked, now: &Looked) -> Span {
    Span {
        least: (now.total.earliest - last.total.latest).max(Duration::ZERO),
        likely: now.total.estimate - last.total.estimate,
        most: now.total.latest - last.total.earliest,
    }
}

fn raw(last: &Looked, now: &Looked) -> Span {
    let span = |from: u64, to: u64| {
        Duration::from_nanos(i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX))
    };
    let (least, most) = (span(last.raw.1, now.raw.0), span(last.raw.0, now.raw.1));
    Span { least: least - RAW_RATE.over(least), likely: least, most: most + RAW_RATE.over(most) }
}

/// What the VM's counter counted. It is not known how much of it was counted on which host, so the
/// rate was one of the two.
fn counted(last: &Looked, now: &Looked) -> Option<Span> {
    let vm = |looked: &Looked| [looked.page[2], looked.page[3]];
    let ticks = now.counter.wrapping_sub(last.counter);
    // The counter went backwards: a snapshot was loaded, or the VM was reset.
    let usable = vm(last) == vm(now) && vm(now) != [0; 2] && ticks >> 63 == 0;
    usable.then(|| Span {
        least: last.rate.shortest.min(now.rate.shortest).span(ticks),
        likely: now.rate.middle().span(ticks),
        most: last.rate.longest.max(now.rate.longest).span_ceil(ticks),
    })
}
