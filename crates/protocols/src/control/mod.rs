//! The messages between the command line and the daemon over the Unix socket [`SOCKET_PATH`].
//!
//! One JSON object per line in each direction: `{"v":1,"request":"status"}` is answered by
//! `{"v":1,"response":{"status":{...}}}`. Requests are answered in order.
//!
//! | module | owns |
//! | --- | --- |
//! | [`birth`] | a VM's birth instant, carried from host to host |
//! | [`cluster`] | the clusters of the host |
//! | [`introspect`] | VMs' real-time tasks: requests and responses |
//! | [`request`] | requests, and the rules for VM names |
//! | [`reserve`] | reservations of processor time: requests and responses |
//! | [`response`] | responses; these shapes are also the `--json` output |
//! | [`sources`] | references in detail, the clock behind them, changes while the daemon runs |
//! | [`timelines`] | the timelines of the host: what is required of each, and what it gives |
//! | [`words`] | what several messages say: a status, a timescale, a reference |
//! | [`codec`] | lines to messages and back, for both ends, with length limits and clear errors |
//!
//! What it does not do: open the socket, check the peer (the socket's file permissions do), or act
//! on a request.

pub mod birth;
pub mod cluster;
pub mod codec;
pub mod introspect;
pub mod request;
pub mod reserve;
pub mod response;
pub mod sources;
pub mod timelines;
pub mod words;

pub use birth::{ElapsedSince, ElapsedSinceError};
pub use cluster::{ClusterClock, ClusterHost, Clusters};
pub use codec::{ClientCodec, ControlError, ServerCodec};
pub use introspect::{
    IntrospectAttach, IntrospectBackend, IntrospectEvents, IntrospectPlugins, IntrospectReserve,
    IntrospectReserved, IntrospectRow, IntrospectSenseless, IntrospectState, IntrospectTask,
    IntrospectTrace, IntrospectVm, Introspections,
};
pub use request::{
    NameError, Question, Request, UserNamespace, VmAdd, VmMigrate, VmNotice, VmPrepare, VmRemove,
};
pub use reserve::{
    HostCore, HostCores, HostOverheads, LateJob, LateJobs, MissedCause, MissedJob, Promise,
    Reservations, ReserveApply, ReserveAudit, ReserveCores, ReserveMissed, ReserveMove,
    ReserveRelease, ReserveRow,
};
pub use response::{
    ClockSummary, CounterSummary, Discipline, ErrorBody, ErrorCode, LeapSummary, Now, NtsSummary,
    Response, ServerSummary, Status, ThreadAges, Timescale, VmList, VmPrepared, VmRemoved, VmRow,
};

pub use sources::{
    Changed, Client, Clients, ClientsQuery, Exchanges, Mark, NtpData, NtsData, RecentExchange,
    Selection, Source, SourceAdd, SourceNames, Sources, Statistics, Tracking,
};
pub use timelines::{TimelineReport, Timelines};
pub use words::{ClockStatus, Notice, Polling, Reference, TimeType};

/// The protocol version; both ends refuse another.
pub const VERSION: u32 = 1;

/// Where the daemon listens unless configured otherwise.
pub const SOCKET_PATH: &str = "/run/timevisor/control";

/// The control socket's name in the run directory.
pub const SOCKET_NAME: &str = "control";

/// The name of the read-only socket there. It answers [`Question`]s, for members of
/// [`OBSERVERS`].
pub const OBSERVE_NAME: &str = "observe";

/// The group whose members may read there.
pub const OBSERVERS: &str = "timevisor";
