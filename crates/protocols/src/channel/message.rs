//! What is asked and answered on the channel: JSON in the frames' payload, because it is rare and people debug it.
//!
//! Units are in the names. Unknown fields are refused: a misspelt requirement must not be silently ignored.

use serde::{Deserialize, Serialize};

/// The longest timeline name in bytes: what fits into a page's entry.
pub const MAX_NAME_LEN: usize = 32;

/// The longest `client` text of a hello.
pub const MAX_CLIENT_LEN: usize = 64;

/// What a client asks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Begins a session: answered by [`Response::Welcome`]. A second hello on one connection ends the session before.
    Hello(Hello),
    /// Binds to a timeline: answered by [`Response::Bound`].
    Bind(Bind),
    /// Changes a binding's requirement: answered by [`Response::Bound`].
    Update(Update),
    /// Ends a binding: answered by [`Response::Unbound`].
    Unbind(Binding),
    /// What this client may bind to: answered by [`Response::Timelines`].
    Timelines,
    /// Keeps the leases of a connection that cannot be seen to close: answered by [`Response::Alive`].
    KeepAlive,
}

/// Who begins a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Program and version, for the operator's eyes only.
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
    /// Starts at 0 when the timeline is made, and belongs to nobody else's clock.
    Local,
}

/// Binds to a timeline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// Its name.
    pub timeline: String,
    /// Makes the timeline when there is none of this name; without it an unknown name is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<Epoch>,
    /// What is needed; nothing: only to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirement: Option<Requirement>,
    /// Bind even if the requirement cannot be met; readings then say so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
}

/// Changes a requirement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// Which binding.
    pub binding: u64,
    /// What is needed from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirement: Option<Requirement>,
    /// As in [`Bind`]. Where it is refused, the old requirement stays in force.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
}

/// Names a binding of this session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// As [`Bound::binding`] said.
    pub binding: u64,
}

/// A Quality-of-Time requirement: how far true time may be from the estimate, and how surely.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// True time may be this much before the estimate at most, ns.
    pub below_ns: u64,
    /// True time may be this much after the estimate at most, ns.
    pub above_ns: u64,
    /// The clock must tell instants apart that are this far from each other, ns; absent: any resolution will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_ns: Option<u64>,
    /// How surely.
    #[serde(default)]
    pub confidence: Confidence,
}

/// How surely a requirement is to be met.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// By the hard bounds: always, as long as the stated assumptions hold.
    #[default]
    WorstCase,
    /// By the estimated error, with at least this probability (0.5 up to, but not including, 1).
    Probability(f64),
}

/// A requirement that means nothing.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum InvalidRequirement {
    /// No clock is without error.
    #[error("a requirement of 0 ns cannot be met; give below_ns and above_ns of 1 or more")]
    Zero,
    /// Outside 0.5 to 1.
    #[error("probability {0} is not in 0.5 <= p < 1; for certainty use worst_case")]
    Probability(f64),
}

impl Requirement {
    /// The same on both sides, by the hard bounds.
    #[must_use]
    pub const fn within_ns(ns: u64) -> Self {
        Self { below_ns: ns, above_ns: ns, resolution_ns: None, confidence: Confidence::WorstCase }
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The first rule that it breaks.
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

/// What a timeline gives at a moment. What is not known is absent, never a made-up number.
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

/// What a client is told at the beginning of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// The session's number, to be put into every frame that follows.
    pub session: u64,
    /// Who the server takes the client for: `uid:1000`, `vm:web`.
    pub tenant: String,
    /// The host's page, for clients on the host; a guest has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<HostPage>,
    /// What this client may do.
    pub limits: Limits,
}

/// Which page the host's timelines are on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostPage {
    /// Its file on the host; a container may have mounted it elsewhere.
    pub path: String,
    /// Its epoch, as in its header: by this a client knows the page under any name.
    pub epoch: u64,
}

/// A tenant's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bindings at the same time, over all sessions.
    pub bindings: u32,
    /// Timelines it has made at the same time.
    pub timelines: u32,
    /// Requests a second, on average.
    pub requests_per_second: u32,
    /// Leases end when nothing has been heard for this long; absent: they end with the connection only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// Where a timeline is on this client's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Which 4 KiB page of the file; always 0 in a guest.
    pub page: u32,
    /// Which entry of that page.
    pub entry: u16,
    /// The entry's generation: a reader that finds another one is looking at another timeline.
    pub generation: u16,
}

/// A binding as it is in force.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Names the binding in this session.
    pub binding: u64,
    /// The timeline's name.
    pub timeline: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Where to read it.
    pub place: Place,
    /// What it gives now.
    pub achieved: Achieved,
    /// Whether that meets the requirement (true without one).
    pub met: bool,
}

/// One timeline that a client may bind to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineRow {
    /// Its name.
    pub name: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Bindings to it, of all tenants.
    pub members: u32,
    /// The tightest requirement, where there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<Requirement>,
    /// What it gives now.
    pub achieved: Achieved,
    /// Made by a client, and gone with its last binding.
    pub temporary: bool,
}

/// What the server answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Response {
    /// To a hello.
    Welcome(Welcome),
    /// To a bind or an update.
    Bound(Bound),
    /// To an unbind.
    Unbound(Binding),
    /// To a question for timelines.
    Timelines(Vec<TimelineRow>),
    /// To a keep-alive.
    Alive,
    /// To anything that could not be done.
    Problem(Problem),
}

/// Why a request was not carried out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}; {next_step}")]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// For programs.
    pub code: ProblemCode,
    /// For people.
    pub message: String,
    /// What to do about it.
    pub next_step: String,
    /// With [`ProblemCode::CannotBeMet`]: what can be.
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
    /// No hello yet, a frame of another session, or an id that was used before.
    Session,
    /// There is no such timeline or binding.
    NotFound,
    /// The timeline exists with another epoch.
    Exists,
    /// The requirement is beyond what can be had: see [`Problem::achievable`].
    CannotBeMet,
    /// A limit of the tenant's.
    Quota,
    /// Too many requests; wait.
    RateLimited,
    /// Not now: no room on the page, the daemon is ending.
    Unavailable,
}

/// What the server says unasked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// What a binding's timeline gives has begun or ceased to meet its requirement.
    Quality {
        /// Which binding.
        binding: u64,
        /// Whether it is met now.
        met: bool,
        /// What it gives now.
        achieved: Achieved,
    },
    /// The timeline's entry has moved (the VM has another host now).
    Moved {
        /// Which binding.
        binding: u64,
        /// Where it is now.
        place: Place,
    },
    /// The timeline may have stepped.
    Disrupted {
        /// Which binding.
        binding: u64,
    },
    /// The server ends the session: bindings are gone.
    Closing {
        /// Why.
        reason: String,
    },
}
