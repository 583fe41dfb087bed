//! The messages between the command line and the daemon over the Unix socket [`SOCKET_PATH`].
//!
//! One JSON object per line in each direction: `{"v":1,"request":"status"}` is answered by
//! `{"v":1,"response":{"status":{...}}}`. Requests are answered in order.
//!
//! | module | owns |
//! | --- | --- |
//! | [`birth`] | when a VM was born, from host to host |
//! | [`introspect`] | what VMs' real-time tasks do: both |
//! | [`request`] | what can be asked, and what a VM may be called |
//! | [`reserve`] | reservations of processor time: both |
//! | [`response`] | what is answered; these shapes are also the `--json` output |
//! | [`codec`] | lines to messages and back, for both ends, with length limits and clear errors |
//!
//! What it does not do: open the socket, check who is at the other end (its file permissions do), or act on a request.

pub mod birth;
pub mod codec;
pub mod introspect;
pub mod request;
pub mod reserve;
pub mod response;

pub use birth::{ElapsedSince, ElapsedSinceError};
pub use codec::{ClientCodec, ControlError, ServerCodec};
pub use introspect::{
    IntrospectAttach, IntrospectBackend, IntrospectEvents, IntrospectReserve, IntrospectReserved,
    IntrospectRow, IntrospectState, IntrospectTask, IntrospectTrace, IntrospectVm, Introspections,
};
pub use request::{NameError, Request, TimeType, VmAdd, VmMigrate, VmPrepare, VmRemove};
pub use reserve::{
    MissedCause, MissedJob, Promise, Reservations, ReserveApply, ReserveAudit, ReserveMissed,
    ReserveRelease, ReserveRow,
};
pub use response::{
    ClockStatus, ClockSummary, CounterSummary, Discipline, ErrorBody, ErrorCode, LeapSummary, Now,
    Reference, Response, ServerSummary, Status, Timescale, VmList, VmPrepared, VmRemoved, VmRow,
};

/// The protocol version; both ends refuse another.
pub const VERSION: u32 = 1;

/// Where the daemon listens unless configured otherwise.
pub const SOCKET_PATH: &str = "/run/timevisor/control";
