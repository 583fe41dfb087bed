//! Samples over time: every clock's error and bounds relative to the truth at one counter value.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_lab::chronyd::bound_ns;
use timevisor_lab::interrupt;
use timevisor_lab::reader::HostPage;
use timevisor_lab::truth::Truth;

use super::subject::{Measured, Subject};

/// Time between two rounds of samples.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// The clock that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// The host's page, read on the host.
    Host,
    /// The guest's page.
    Guest,
    /// The page of a timevisord inside the guest.
    Inside,
    /// The guest's CLOCK_REALTIME, steered by a chronyd inside.
    Chronyd,
}

/// The clocks in the order of tables.
pub(super) const CLOCKS: [Clock; 4] = [Clock::Host, Clock::Guest, Clock::Inside, Clock::Chronyd];

impl Clock {
    /// Name in tables and pictures.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Host => "page, host (native)",
            Self::Guest => "page, guest (para-virtual)",
            Self::Inside => "timevisord inside the guest",
            Self::Chronyd => "chronyd inside the guest",
        }
    }

    /// Name in result files.
    pub(super) fn id(self) -> &'static str {
        match self {
            Self::Host => "host-page",
            Self::Guest => "guest-page",
            Self::Inside => "guest-timevisord",
            Self::Chronyd => "guest-chronyd",
        }
    }
}

/// One clock compared with the truth: everything minus truth, us.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) clock: Clock,
    /// Time since the beginning, s.
    pub(super) at_s: f64,
    pub(super) error_us: f64,
    pub(super) earliest_us: f64,
    pub(super) latest_us: f64,
    /// Uncertainty of the truth and of the time of reading, us.
    pub(super) uncertainty_us: f64,
}

impl Sample {
    /// Whether the bounds contained the truth, to within its uncertainty.
    pub(super) fn holds(&self) -> bool {
        self.earliest_us <= self.uncertainty_us && self.latest_us >= -self.uncertainty_us
    }

    /// Half-width of the bounds.
    pub(super) fn half_width_us(&self) -> f64 {
        (self.latest_us - self.earliest_us) / 2.0
    }
}

/// Takes samples of all clocks for `span`, with times counted from `epoch`.
pub(super) fn watch(
    subject: &mut Subject,
    epoch: Instant,
    span: Duration,
) -> anyhow::Result<Vec<Sample>> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while start.elapsed() < span {
        interrupt::check()?;
        subject.host.check_alive()?;
        let began = Instant::now();
        let at_s = epoch.elapsed().as_secs_f64();
        samples.extend(round(&subject.page, &mut subject.measured, at_s)?);
        std::thread::sleep(INTERVAL.saturating_sub(began.elapsed()));
    }
    Ok(samples)
}

/// One sample of every clock. `page` is the host's.
pub(super) fn round(
    page: &HostPage,
    guest: &mut Measured,
    at_s: f64,
) -> anyhow::Result<Vec<Sample>> {
    let (answer, truth) = Truth::around(page.counter(), || guest.ask())?;
    let mut samples = Vec::with_capacity(CLOCKS.len());
    let mut add = |clock, before: u64, after: u64, [earliest, estimate, latest]: [i64; 3]| {
        let (from, to) = (truth.at(before), truth.at(after));
        let us = |ns: i64| (ns - from.midpoint(to)) as f64 / 1000.0;
        samples.push(Sample {
            clock,
            at_s,
            error_us: us(estimate),
            earliest_us: us(earliest),
            latest_us: us(latest),
            uncertainty_us: ((to - from) / 2 + truth.uncertainty_ns()) as f64 / 1000.0,
        });
    };

    let host = page.convert(truth.end())?;
    let tai = i64::from(host.tai_offset().context("no TAI - UTC")?) * 1_000_000_000;
    let of = |bound: timevisor_time::Instant<_>| bound.floor_nanos() - tai;
    let host = [of(host.earliest), of(host.estimate), of(host.latest)];
    add(Clock::Host, truth.end(), truth.end(), host);

    for (clock, name) in [(Clock::Guest, "guest"), (Clock::Inside, "inside")] {
        let read = &answer["pages"][name];
        ensure!(read["known"] == true, "{}: {read}", clock.title());
        let ns = |field: &str| integer(read, field);
        let (before, after) = counters(guest, read)?;
        add(clock, before, after, [ns("earliest_ns")?, ns("estimate_ns")?, ns("latest_ns")?]);
    }

    let realtime = &answer["realtime"];
    let (before, after) = counters(guest, realtime)?;
    let ns = integer(realtime, "ns")?;
    let tracking = answer["tracking"].as_str().context("chronyd in the guest does not answer")?;
    let bound = bound_ns(tracking).with_context(|| format!("chronyc says {tracking:?}"))?;
    add(Clock::Chronyd, before, after, [ns - bound, ns, ns + bound]);
    Ok(samples)
}

fn integer(value: &Value, field: &str) -> anyhow::Result<i64> {
    value[field].as_i64().with_context(|| format!("no {field} in {value}"))
}

/// The host's counter before and after the reading.
fn counters(guest: &Measured, value: &Value) -> anyhow::Result<(u64, u64)> {
    let get = |field: &str| value[field].as_u64().with_context(|| format!("no {field} in {value}"));
    Ok((guest.host_counter(get("before")?), guest.host_counter(get("after")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_the_truth_or_not() {
        let sample = |earliest_us, latest_us| Sample {
            clock: Clock::Host,
            at_s: 0.0,
            error_us: 0.0,
            earliest_us,
            latest_us,
            uncertainty_us: 0.1,
        };
        assert!(
            sample(-1.0, 2.0).holds() && sample(0.05, 3.0).holds() && sample(-3.0, -0.05).holds()
        );
        assert!(!sample(0.2, 3.0).holds() && !sample(-3.0, -0.2).holds());
        assert_eq!(sample(-1.0, 2.0).half_width_us(), 1.5);
    }
}
