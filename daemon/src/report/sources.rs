//! Answers `sources`: everything that is known of each reference.

use timevisor_clock_page::Counter;
use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::{
    Mark, Reference as Report, Response, Selection, Source, Sources, Statistics,
};
use timevisor_time::{Duration, Instant, Tai};

use crate::clock::HostClock;
use crate::references::Reference;

/// Answers `sources`.
pub fn sources(clock: &HostClock, references: &[Reference]) -> Response {
    let now = monotonic();
    let reports = super::all(clock, references).into_iter().enumerate();
    let source = |(index, report): (usize, Report)| {
        let details = references[index].details(now);
        Source {
            selection: selection(clock, index, &report),
            statistics: statistics(clock, index),
            reference: report,
            ntp: details.ntp,
            nts: details.nts,
        }
    };
    Response::Sources(Sources { sources: reports.map(source).collect() })
}

fn selection(clock: &HostClock, index: usize, report: &Report) -> Selection {
    let estimate = clock.estimate();
    let weight = estimate.share(index);
    let speaks = estimate.reference(index).used() > 0;
    let mark = match weight {
        _ if report.status == "falseticker" => Mark::Falseticker,
        _ if !speaks => Mark::Unusable,
        Some(_) if estimate.chosen() == Some(index) => Mark::Selected,
        Some(_) => Mark::Combined,
        None => Mark::Rebuilding,
    };
    let counts = matches!(mark, Mark::Selected | Mark::Combined);
    Selection { mark, weight: weight.filter(|_| counts) }
}

/// What the reference says at present, beside our clock.
fn statistics(clock: &HostClock, index: usize) -> Option<Statistics> {
    let state = clock.estimate().reference(index);
    let now = clock.counter.read_ordered();
    let view = state.at(now)?;
    let known = clock.knowledge().clock.as_ref()?;
    let lines = clock.writer().in_force()?.shifted::<Tai>(Duration::ZERO);
    let ours: Instant<Tai> = lines.at(now).estimate;
    let age = clock.calibration.period.span(now.wrapping_sub(view.as_of));
    Some(Statistics {
        samples: state.used(),
        last_sample_s: age.as_secs_f64(),
        offset_ns: (view.estimate - ours).floor_nanos(),
        estimated_error_ns: view.estimated_error.ceil_nanos(),
        earliest_ns: (view.interval.earliest() - ours).floor_nanos(),
        latest_ns: (view.interval.latest() - ours).ceil_nanos(),
        frequency_ppm: view.period.relative_to(known.period) * 1e6,
        skew_ppm: view.limits.half_width().ppb() / 1000.0,
        contradictions: state.contradictions(),
    })
}
