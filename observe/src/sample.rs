//! What is known at one moment.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use timevisor::Reading;
use timevisor_protocols::control::{
    ClockStatus, ClusterClock, IntrospectRow, Question, ReserveRow, Response, Source, Status,
    TimelineReport, Tracking, VmList,
};

/// timevisord's answers; absent where it did not answer that question.
#[derive(Debug, Default)]
pub struct Answers {
    pub status: Option<Status>,
    pub sources: Option<Vec<Source>>,
    pub tracking: Option<Tracking>,
    pub clusters: Option<Vec<ClusterClock>>,
    pub timelines: Option<Vec<TimelineReport>>,
    pub vms: Option<VmList>,
    pub reservations: Option<Vec<ReserveRow>>,
    pub introspections: Option<Vec<IntrospectRow>>,
    /// Questions that were refused, with the reason.
    pub refused: Vec<(Question, String)>,
}

impl Answers {
    /// Takes answers in the order of [`Question::OBSERVED`].
    pub fn from_responses(responses: Vec<Response>) -> Self {
        let mut answers = Self::default();
        for (question, response) in Question::OBSERVED.into_iter().zip(responses) {
            match response {
                Response::Status(it) => answers.status = Some(*it),
                Response::Sources(it) => answers.sources = Some(it.sources),
                Response::Tracking(it) => answers.tracking = Some(*it),
                Response::Clusters(it) => answers.clusters = Some(it.clusters),
                Response::Timelines(it) => answers.timelines = Some(it.timelines),
                Response::VmList(it) => answers.vms = Some(it),
                Response::Reservations(it) => answers.reservations = Some(it.reservations),
                Response::Introspections(it) => answers.introspections = Some(it.vms),
                Response::Error(error) => answers.refused.push((question, error.to_string())),
                _ => answers.refused.push((question, "another kind of answer came".to_owned())),
            }
        }
        answers
    }
}

/// The clock, as the page says it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Clock {
    pub status: ClockStatus,
    /// TAI ns since 1970; `None` while the time is not known, as are the distances.
    pub estimate_ns: Option<i64>,
    /// Estimate minus earliest.
    pub below_ns: Option<u64>,
    /// Latest minus estimate.
    pub above_ns: Option<u64>,
    /// One sigma.
    pub estimated_error_ns: Option<u64>,
    pub disruption_marker: u64,
    pub tai_offset: Option<i16>,
}

impl From<&Reading> for Clock {
    fn from(reading: &Reading) -> Self {
        use timevisor::Status as Page;
        Self {
            status: match reading.status() {
                Page::Unknown => ClockStatus::Unknown,
                Page::Initializing => ClockStatus::Initializing,
                Page::Synchronized => ClockStatus::Synchronized,
                Page::FreeRunning => ClockStatus::FreeRunning,
                Page::Unreliable => ClockStatus::Unreliable,
            },
            estimate_ns: reading.is_known().then(|| reading.estimate_ns()),
            below_ns: reading.below_ns(),
            above_ns: reading.above_ns(),
            estimated_error_ns: reading.estimated_error_ns(),
            disruption_marker: reading.disruption(),
            tai_offset: reading.tai_offset(),
        }
    }
}

/// All five, in the order of the vmclock ABI.
pub const STATUSES: [(ClockStatus, &str); 5] = [
    (ClockStatus::Unknown, "unknown"),
    (ClockStatus::Initializing, "initializing"),
    (ClockStatus::Synchronized, "synchronized"),
    (ClockStatus::FreeRunning, "freerunning"),
    (ClockStatus::Unreliable, "unreliable"),
];

/// A status by name.
pub fn status_name(status: ClockStatus) -> &'static str {
    STATUSES.iter().find(|(it, _)| *it == status).map_or("unknown", |(_, name)| name)
}

/// Whether timevisord answers, and since when that has been so.
#[derive(Clone, PartialEq, Debug)]
pub struct Presence {
    /// Why it does not answer.
    pub problem: Option<String>,
    /// By the system's clock, ms since 1970.
    pub since_ms: u64,
}

/// What is known at one moment.
#[derive(Debug)]
pub struct Sample {
    pub taken: Instant,
    /// By the system's clock, ms since 1970.
    pub taken_ms: u64,
    /// The page, or why it cannot be read.
    pub clock: Result<Clock, String>,
    pub presence: Presence,
    /// Empty while timevisord does not answer.
    pub answers: Answers,
    /// The processor time of each reservation in the last seconds, as a share of one processor; in
    /// the order of the reservations.
    pub used: Vec<Option<f64>>,
}

/// The system's clock, ms since 1970: for people and for browsers, not for intervals.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
