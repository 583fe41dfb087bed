//! The channel's requests, answers and events. They are JSON, because they are rare and people
//! debug them.
//!
//! Units are in the names. Unknown fields are refused, so that a misspelt requirement is not
//! silently ignored.

use serde::{Deserialize, Serialize};

/// The longest timeline name in bytes, as a page's entry limits it.
pub const MAX_NAME_LEN: usize = 32;

/// The longest `client` text of a hello.
pub const MAX_CLIENT_LEN: usize = 64;

/// A client's request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Begins a session: answered by [`Response::Welcome`]. A second hello on one connection ends
    /// the previous session.
    Hello(Hello),
    /// Binds to a timeline: answered by [`Response::Bound`].
    Bind(Bind),
    /// Changes a binding's requirement: answered by [`Response::Bound`].
    Update(Update),
    /// Ends a binding: answered by [`Response::Unbound`].
    Unbind(Binding),
    /// Lists the timelines that this client may bind to: answered by [`Response::Timelines`].
    Timelines,
    /// Renews the leases of a connection whose end cannot be detected: answered by
    /// [`Response::Alive`].
    KeepAlive,
}

/// Introduces the client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Program and version, for the operator only.
    pub client: String,
}

/// A timeline's origin and rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Epoch {
    /// TAI, as nanoseconds since 1970-01-01 00:00:00 TAI.
    Tai,
    /// UTC as POSIX counts it; steps at leap seconds.
    Utc,
    /// Starts at 0 when the timeline is created, and is unrelated to any other clock.
    Local,
}

/// Binds to a timeline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// Its name.
    pub timeline: String,
    /// Creates the timeline if none has this name. Without it, an unknown name is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<Epoch>,
    /// The requirement; absent to only read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirement: Option<Requirement>,
    /// Bind even if the requirement cannot be met; readings then report that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
}

/// Changes a requirement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// The binding to change.
    pub binding: u64,
    /// The new requirement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirement: Option<Requirement>,
    /// As in [`Bind`]. If the change is refused, the old requirement stays in force.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
}

/// Names a binding of this session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The number from [`Bound::binding`].
    pub binding: u64,
}

/// A Quality-of-Time requirement: the greatest distance of true time from the estimate, and the
/// confidence.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// True time may be this much before the estimate at most, ns.
    pub below_ns: u64,
    /// True time may be this much after the estimate at most, ns.
    pub above_ns: u64,
    /// The clock must distinguish instants that are this far apart, ns; absent: any resolution will
    /// do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_ns: Option<u64>,
    /// The confidence.
    #[serde(default)]
    pub confidence: Confidence,
}

/// The confidence with which a requirement must be met.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// By the hard bounds: always, as long as the stated assumptions hold.
    #[default]
    WorstCase,
    /// By the estimated error, with at least this probability (0.5 up to, but not including, 1).
    Probability(f64),
}

/// Why a requirement is meaningless.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum InvalidRequirement {
    /// A width of zero: no clock is without error.
    #[error("a requirement of 0 ns cannot be met; give below_ns and above_ns of 1 or more")]
    Zero,
    /// A probability outside 0.5 to 1.
    #[error("probability {0} is not in 0.5 <= p < 1; for certainty use worst_case")]
    Probability(f64),
}

impl Requirement {
    /// Makes a requirement with the same width on both sides, by the hard bounds.
    #[must_use]
    pub const fn within_ns(ns: u64) -> Self {
        Self { below_ns: ns, above_ns: ns, resolution_ns: None, confidence: Confidence::WorstCase }
    }

    /// Checks what the types cannot express.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn validate(&self) -> Result<(), InvalidRequirement> {
        if self.below_ns == 0 || self.above_ns == 0 || self.resolution_ns == Some(0) {
            return Err(InvalidRequirement::Zero);
        }
        match self.confidence {
            Confidence::Probability(p) if !(0.5..1.0).contains(&p) => {
                Err(InvalidRequirement::Probability(p))
            }
            _ => Ok(()),
        }
    }
}

/// A timeline's quality at one moment. Unknown values are absent, never made up.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Achieved {
    /// Estimate minus earliest, ns, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_ns: Option<u64>,
    /// Latest minus estimate, ns, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_ns: Option<u64>,
    /// One sigma of the estimate, ns, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_error_ns: Option<u64>,
    /// One tick of the counter, ns, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_ns: Option<u64>,
}

/// The server's answer at the beginning of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// The session's number, which every later frame must carry.
    pub session: u64,
    /// The client's identity as the server sees it: `uid:1000`, `vm:web`.
    pub tenant: String,
    /// The host's page, for clients on the host; a guest has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<HostPage>,
    /// The client's limits.
    pub limits: Limits,
}

/// The page with the host's timelines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostPage {
    /// Its file on the host; a container may have mounted it elsewhere.
    pub path: String,
    /// Its epoch, as in its header, by which a client recognizes the page under any name.
    pub epoch: u64,
}

/// A tenant's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Most bindings at a time, over all sessions.
    pub bindings: u32,
    /// Most timelines that it may have created at a time.
    pub timelines: u32,
    /// Most requests per second, on average.
    pub requests_per_second: u32,
    /// Leases end after this much silence; absent: they end with the connection only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// The place of a timeline on this client's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The 4 KiB page of the file; always 0 in a guest.
    pub page: u32,
    /// The entry of that page.
    pub entry: u16,
    /// The entry's generation. A reader that finds another one sees another timeline.
    pub generation: u16,
}

/// A binding in force.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The binding's number in this session.
    pub binding: u64,
    /// The timeline's name.
    pub timeline: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Where to read the timeline.
    pub place: Place,
    /// Its current quality.
    pub achieved: Achieved,
    /// Whether that quality meets the requirement (true without one).
    pub met: bool,
}

/// A timeline to which a client may bind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineRow {
    /// Its name.
    pub name: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Number of bindings of all tenants.
    pub members: u32,
    /// The tightest requirement, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<Requirement>,
    /// Its current quality.
    pub achieved: Achieved,
    /// Whether a client created it; it ends with its last binding.
    pub temporary: bool,
}

/// The server's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Response {
    /// Answers a hello.
    Welcome(Welcome),
    /// Answers a bind or an update.
    Bound(Bound),
    /// Answers an unbind.
    Unbound(Binding),
    /// Lists timelines.
    Timelines(Vec<TimelineRow>),
    /// Answers a keep-alive.
    Alive,
    /// Answers any request that failed.
    Problem(Problem),
}

/// Why a request failed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}; {next_step}")]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// The kind, for programs.
    pub code: ProblemCode,
    /// The problem, for people.
    pub message: String,
    /// The next step.
    pub next_step: String,
    /// With [`ProblemCode::CannotBeMet`]: the achievable quality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub achievable: Option<Achieved>,
}

/// Kinds of problems.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCode {
    /// The request is malformed.
    BadRequest,
    /// Another protocol version.
    Version,
    /// No hello came yet, or a frame has another session's number or an old id.
    Session,
    /// The timeline or binding does not exist.
    NotFound,
    /// The timeline exists with another epoch.
    Exists,
    /// The requirement cannot be met: see [`Problem::achievable`].
    CannotBeMet,
    /// One of the tenant's limits is reached.
    Quota,
    /// Too many requests; wait.
    RateLimited,
    /// Not possible now: the page is full, or the daemon is ending.
    Unavailable,
}

/// An event that the server sends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// A binding's timeline starts or stops meeting its requirement.
    Quality {
        /// The binding.
        binding: u64,
        /// Whether the requirement is met now.
        met: bool,
        /// The current quality.
        achieved: Achieved,
    },
    /// The timeline's entry has moved (the VM is on another host now).
    Moved {
        /// The binding.
        binding: u64,
        /// The new place.
        place: Place,
    },
    /// The timeline may have stepped.
    Disrupted {
        /// The binding.
        binding: u64,
    },
    /// The server ends the session with its bindings.
    Closing {
        /// The reason.
        reason: String,
    },
}
