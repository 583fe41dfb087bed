//! Answers to requests: what the daemon knows, in the types of crates/protocols.
//!
//! | file | answers |
//! | --- | --- |
//! | this one | `now` and `status` |
//! | `clusters.rs` | `clusters` |
//! | `sources.rs` | `sources` |
//! | `tracking.rs` | `tracking` |

mod clusters;
mod sources;
mod tracking;

use timevisor_clock_page::{ClockStatus as PageStatus, Counter, Reader};
use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::{
    ClockStatus, ClockSummary, CounterSummary, ErrorBody, ErrorCode, Now,
    Reference as ReferenceReport, Response, ServerSummary, Status, ThreadAges, Timescale,
};
use timevisor_time::{Duration, Instant, Tai};

use crate::clock::{HostClock, hex};
use crate::discipline::Discipline;
use crate::references::Reference;

pub use self::clusters::clusters;
pub use self::sources::sources;
pub use self::tracking::tracking;

/// Converts the page's status to the protocol's.
pub fn status_of(status: PageStatus) -> ClockStatus {
    match status {
        PageStatus::Unknown => ClockStatus::Unknown,
        PageStatus::Initializing => ClockStatus::Initializing,
        PageStatus::Synchronized => ClockStatus::Synchronized,
        PageStatus::FreeRunning => ClockStatus::FreeRunning,
        PageStatus::Unreliable => ClockStatus::Unreliable,
    }
}

/// Answers `now` from the host's page, through the same reader that all programs use.
pub fn now(clock: &HostClock) -> Response {
    let page = clock.writer().page();
    let reading = match Reader::open(page, &clock.counter, 0).map(|reader| reader.read()) {
        Ok(Ok(reading)) => reading,
        Ok(Err(error)) => {
            return error_response(ErrorCode::Internal, &error.to_string(), "report this");
        }
        Err(error) => {
            return error_response(ErrorCode::Internal, &error.to_string(), "report this");
        }
    };
    let known = reading.has_estimate();
    let error = reading.estimated_error();
    Response::Now(Now {
        timeline: clock.writer().identity().timeline.to_owned(),
        timescale: reading.timescale().into(),
        earliest_ns: known.then(|| reading.earliest.floor_nanos()),
        estimate_ns: known.then(|| reading.estimate.floor_nanos()),
        latest_ns: known.then(|| reading.latest.ceil_nanos()),
        status: status_of(reading.status()),
        estimated_error_ns: (known && error != Duration::MAX).then(|| error.ceil_nanos()),
        disruption: reading.disruption,
        counter: reading.counter,
    })
}

/// Answers `status`.
pub fn status(
    clock: &HostClock,
    references: &[Reference],
    vms: usize,
    discipline: Option<&Discipline>,
    server: Option<ServerSummary>,
    thread_ages: Option<ThreadAges>,
    started: Duration,
) -> Response {
    Response::Status(Box::new(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_s: u64::try_from((monotonic() - started).floor_nanos() / 1_000_000_000).unwrap_or(0),
        host_id: hex(&clock.host_id),
        counter: CounterSummary {
            name: clock.counter.id().name().to_owned(),
            hz: Some(clock.calibration.period.hz()),
            reason: Some(clock.counter_reason.clone()),
            problem: clock.counter_problem(),
        },
        clock: clock_summary(clock, references),
        references: all(clock, references),
        leap_table: clock.leap.summary(clock.present()),
        discipline: discipline.map(Discipline::report),
        server,
        thread_ages,
        vms: vms as u64,
    }))
}

fn clock_summary(clock: &HostClock, references: &[Reference]) -> ClockSummary {
    let knowledge = clock.knowledge();
    let now = clock.counter.read_ordered();
    let lines = clock.writer().in_force().map(|lines| lines.rebased(now));
    let known = knowledge.clock.as_ref();
    let since =
        known.map(|k| clock.calibration.period.span(now.wrapping_sub(k.as_of)).as_secs_f64());
    ClockSummary {
        status: status_of(clock.writer().status()),
        reason: reason(clock, references),
        timescale: Timescale::Tai,
        half_width_ns: lines.map(|l| (l.latest.time - l.earliest.time).half().ceil_nanos()),
        below_ns: lines.map(|l| (l.estimate.time - l.earliest.time).ceil_nanos()),
        above_ns: lines.map(|l| (l.latest.time - l.estimate.time).ceil_nanos()),
        estimated_error_ns: known.map(|k| k.estimated_error.ceil_nanos()),
        rate_bound_ppb: known.map(|k| k.limits.half_width().ppb()),
        since_update_s: since,
        contradictions: clock.estimate().contradictions(),
        assumption: Some(clock.assumption()),
        wander_per_s: Some(clock.wander()),
        oscillator_problem: clock.oscillator_problem(),
    }
}

/// Why the clock is not synchronized, with what the operator can do: the first reference's problem
/// if there is one.
fn reason(clock: &HostClock, references: &[Reference]) -> Option<String> {
    if let Some(problem) = clock.counter_problem() {
        return Some(problem);
    }
    let own = clock.reason()?;
    let prefix =
        if clock.has_only_earlier_lines() { "what was known before still holds; " } else { "" };
    let now = monotonic();
    let trouble = references.iter().map(|r| r.report(now)).find(|r| r.status != "reachable");
    Some(match trouble {
        Some(r) => format!("{prefix}{own}; {}: {}", r.name, r.detail),
        None => format!("{prefix}{own}"),
    })
}

/// All references, with who shares a vote with whom.
fn all(clock: &HostClock, references: &[Reference]) -> Vec<ReferenceReport> {
    let witnesses = Reference::witnesses(references);
    let mut reports: Vec<ReferenceReport> =
        references.iter().enumerate().map(|(i, r)| reference(clock, i, r)).collect();
    let names: Vec<String> = reports.iter().map(|report| report.name.clone()).collect();
    for (index, report) in reports.iter_mut().enumerate() {
        let others = (0..names.len())
            .filter(|other| *other != index && witnesses[*other] == witnesses[index]);
        report.shares_vote_with = others.map(|other| names[other].clone()).collect();
    }
    reports
}

/// A reference with what the clock thinks of it.
pub fn reference(clock: &HostClock, index: usize, reference: &Reference) -> ReferenceReport {
    let mut report = reference.report(monotonic());
    let state = clock.estimate().reference(index);
    for (reason, count) in state.discarded() {
        *report.rejected.entry(reason.name().to_owned()).or_default() += count;
    }
    let falsetickers = &clock.knowledge().falsetickers;
    if let Some(falseticker) = falsetickers.iter().find(|f| f.name == report.name) {
        report.status = "falseticker".to_owned();
        report.detail.clone_from(&falseticker.reason);
    } else if clock.estimate().chosen() == Some(index) && report.status == "reachable" {
        report.status = "selected".to_owned();
    }
    let lines = clock.writer().in_force();
    report.offset_ns = state.last().zip(lines).map(|(x, lines)| {
        let ours: Instant<Tai> = lines.shifted::<Tai>(Duration::ZERO).at(x.middle()).estimate;
        (x.tb + (x.te - x.tb).half() - ours).floor_nanos()
    });
    report
}

/// Builds an error answer.
pub fn error_response(code: ErrorCode, message: &str, next_step: &str) -> Response {
    Response::Error(error(code, message, next_step))
}

pub fn error(code: ErrorCode, message: impl Into<String>, next_step: &str) -> ErrorBody {
    ErrorBody { code, message: message.into(), next_step: next_step.to_owned() }
}
