//! How much of an age nothing ran: what went by on the global clock, less what CLOCK_MONOTONIC_RAW counted.
//!
//! A guest's counter stands still while its VM is between two hosts, and CRIU gives a restored container a time namespace in which
//! the kernel's clock goes on from where the checkpoint was made. Both are what the kernel says, not more: a host's `SIGSTOP`, or a
//! `stop` of a KVM guest that stays on its host, leaves that clock running, and counts.

use timevisor_estimate::elapsed::Age;
use timevisor_time::{Duration, RateError};

/// How far CLOCK_MONOTONIC_RAW's rate may be from the truth: the oscillator, and what the kernel took for its frequency when it booted
/// (Linux refuses a TSC that differs from what firmware says by more: arch/x86/kernel/tsc.c).
const RAW_RATE: RateError = RateError::from_ppb(1_000_000);

/// Less than this is nothing that stopped anybody.
const LEAST: Duration = Duration::from_millis(1);

/// What was read at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Looked {
    /// The age with everything.
    pub(super) total: Age,
    /// CLOCK_MONOTONIC_RAW before and after, ns.
    pub(super) raw: (u64, u64),
}

/// For how long nothing ran.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Stopped {
    pub(super) sum: Age,
    pub(super) last: Option<Looked>,
}

impl Stopped {
    /// The age without it. `disrupted`: the counter was lost since the last look.
    pub(super) fn exclude(&mut self, now: Looked, disrupted: bool) -> Age {
        if let Some(last) = self.last.replace(now) {
            let stopped = stopped(&last, &now);
            // Without a reason to suspect one, a blackout must be plain: errors of every look would add up.
            if disrupted || stopped.earliest > LEAST {
                self.sum = Age {
                    earliest: self.sum.earliest + stopped.earliest,
                    estimate: self.sum.estimate + stopped.estimate,
                    latest: self.sum.latest + stopped.latest,
                };
            }
        }
        let less = |total: Duration, stopped: Duration| (total - stopped).max(Duration::ZERO);
        Age {
            earliest: less(now.total.earliest, self.sum.latest),
            estimate: less(now.total.estimate, self.sum.estimate),
            latest: less(now.total.latest, self.sum.earliest),
        }
    }
}

/// Between two looks.
fn stopped(last: &Looked, now: &Looked) -> Age {
    let went_by = Age {
        earliest: (now.total.earliest - last.total.latest).max(Duration::ZERO),
        estimate: now.total.estimate - last.total.estimate,
        latest: now.total.latest - last.total.earliest,
    };
    let span = |from: u64, to: u64| {
        let ns = i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX);
        Duration::from_nanos(ns)
    };
    // It went back: another kernel's, which says nothing of the time between.
    let ran = if now.raw.1 < last.raw.0 {
        (Duration::ZERO, Duration::ZERO, went_by.latest)
    } else {
        let (least, most) = (span(last.raw.1, now.raw.0), span(last.raw.0, now.raw.1));
        (least - RAW_RATE.over(least), least, most + RAW_RATE.over(most))
    };
    let less = |went_by: Duration, ran: Duration| (went_by - ran).max(Duration::ZERO);
    let (earliest, latest) = (less(went_by.earliest, ran.2), less(went_by.latest, ran.0));
    let estimate = less(went_by.estimate, ran.1).max(earliest).min(latest);
    Age { earliest, estimate, latest }
}
