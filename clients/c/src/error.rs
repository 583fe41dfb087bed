//! Codes that functions return, and the text of the last error. Panics stop here.

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int};
use std::borrow::Cow;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use timevisor::group::{GroupError, JoinError, ProposeError, Refusal, SecretError};
use timevisor::pins::{PinError, Unplaced};
use timevisor::{
    AtOutcome, BindError, ConnectError, ConvertError, ElapsedError, HostCpuTimeError,
    PacketStampError, ProblemCode, ReadError, RecordingError, TimelineError, WaitError,
};

/// Every code, and what it means in general.
const CODES: &[(c_int, &CStr)] = &[
    (0, c"success"),
    (libc::EACCES, c"the group's key does not match, or there is none"),
    (libc::EAGAIN, c"not yet: poll the descriptor and try again"),
    (libc::EBADMSG, c"bounds were contradicted: they must not be relied on"),
    (libc::EBUSY, c"another thread or program is using it"),
    (libc::ECANCELED, c"the wait was cancelled"),
    (libc::ECONNRESET, c"the channel to timevisord failed"),
    (libc::EDQUOT, c"a limit of timevisord for this program's tenant was reached"),
    (
        libc::EEXIST,
        c"there is a timeline of this name with another epoch, or a member of this name",
    ),
    (libc::EIDRM, c"the timeline has ended: bind again"),
    (libc::EILSEQ, c"the file is no recording, or damaged"),
    (libc::EINVAL, c"invalid argument"),
    (
        libc::EIO,
        c"the page's writer stopped in the middle of an update, or a line does not take its value",
    ),
    (libc::EMSGSIZE, c"the payload is longer than 1 MiB"),
    (libc::ENODATA, c"the time is not known"),
    (libc::ENOENT, c"there is no such page, timeline, binding, member, device or pin"),
    (libc::ENOTCONN, c"nobody takes requirements here, or there is no bus"),
    (libc::ENOTRECOVERABLE, c"a bug in libtimevisor"),
    (libc::ENOTSUP, c"this is not possible with this clock, or this version of the library"),
    (libc::ENOTUNIQ, c"the counter was at this stamp more than once"),
    (libc::ENXIO, c"the page cannot be read from here, or the line cannot interrupt"),
    (libc::E2BIG, c"a structure of a newer version sets something that this library does not know"),
    (libc::EPROTO, c"timevisord or the bus and this library do not understand each other"),
    (libc::ERANGE, c"the requirement cannot be met, or the stamp cannot be placed"),
    (libc::ESHUTDOWN, c"this member has left its group"),
    (libc::ESTALE, c"the clock was disrupted (it may have stepped), or nobody watched it then"),
    (libc::ETIME, c"it is too late: the time may have come already"),
    (libc::ETIMEDOUT, c"the time-out came first"),
    (libc::EUSERS, c"timevisord or the bus has no room, or is asked too often"),
    (libc::EXDEV, c"the group is on another timeline"),
];

/// What a code means in general; `timevisor_last_error` says more. Codes are negative errno values;
/// their absolute values are understood, too. Never NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_strerror(code: c_int) -> *const c_char {
    let known = CODES.iter().find(|(known, _)| *known == code.saturating_abs());
    known.map_or(c"unknown code, of the operating system perhaps", |(_, text)| text).as_ptr()
}

/// What went wrong in the last function that failed in this thread, and what to do about it; ""
/// before the first one. -EAGAIN does not count as a failure. Never NULL; valid until the next
/// failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_last_error() -> *const c_char {
    // While the thread's variables are taken down there is none.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// From now on, in the whole process, reading a page whose file was truncated fails with -ENXIO; it
/// would otherwise end the process by SIGBUS. timevisor_connect does this by itself for a page that
/// options.page names; the pages that it looks for are never made shorter by timevisord, only by
/// root.
///
/// Installs a handler of SIGBUS, which deals with faults inside of clock pages and passes everything
/// else on to the action that was there before. A handler that the program installs later should
/// pass on what it does not know.
/// Returns 0, or what the kernel says. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_survive_truncation() -> c_int {
    guard(|| match timevisor::survive_truncation() {
        Ok(()) => Ok(0),
        Err(error) => Err(Failure::of(error.raw_os_error().unwrap_or(libc::EIO), &error)),
    })
}

/// This library's version, such as "0.1.0". Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Not yet: what every `on_ready` says while there is nothing.
pub(crate) const NOT_YET: c_int = -libc::EAGAIN;

/// A function's failure: what C sees of an error.
#[derive(Debug)]
pub(crate) struct Failure {
    code: c_int,
    text: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code: -errno, text: text.into() }
    }

    /// A caller's mistake.
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    fn of(errno: c_int, error: &dyn core::error::Error) -> Self {
        let mut text = error.to_string();
        let mut inner = error.source();
        while let Some(cause) = inner {
            text = format!("{text}: {cause}");
            inner = cause.source();
        }
        Self::new(errno, text)
    }

    /// Kept for `timevisor_last_error`.
    fn report(self) -> c_int {
        let text: Vec<u8> = self.text.bytes().filter(|byte| *byte != 0).collect();
        let text = CString::new(text).unwrap_or_default();
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        self.code
    }
}

/// Every function's frame: failures become codes, and no panic goes further. Where panics abort
/// (programs built like that, and the workspace's `release` profile), a panic ends the process
/// instead; the installed library is built with `library`.
pub(crate) fn guard(call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // After a panic only data that is consistent between any two statements is used again.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => failure.report(),
        Err(_) => Failure::new(
            libc::ENOTRECOVERABLE,
            "a bug in libtimevisor (its message is on the standard error output); please report it",
        )
        .report(),
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::of(libc::ENOENT, &error)
    }
}

impl From<TimelineError> for Failure {
    fn from(error: TimelineError) -> Self {
        let errno = match &error {
            TimelineError::NotFound(_) => libc::ENOENT,
            TimelineError::Page(_) | TimelineError::Counter(_) | TimelineError::OtherPage(_) => {
                libc::ENXIO
            }
        };
        Self::of(errno, &error)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let errno = match error {
            ReadError::WriterStalled | ReadError::OutOfOrder => libc::EIO,
            ReadError::Gone => libc::EIDRM,
            ReadError::Truncated => libc::ENXIO,
        };
        Self::of(errno, &error)
    }
}

impl From<HostCpuTimeError> for Failure {
    fn from(error: HostCpuTimeError) -> Self {
        match error {
            HostCpuTimeError::Page(error) => error.into(),
            HostCpuTimeError::Read(error) => error.into(),
        }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Read(error) => error.into(),
            ConvertError::TooOld { .. }
            | ConvertError::TooNew { .. }
            | ConvertError::Unobserved { .. }
            | ConvertError::Disrupted { .. } => Self::of(libc::ESTALE, &error),
            ConvertError::Ambiguous { .. } => Self::of(libc::ENOTUNIQ, &error),
            ConvertError::WrongOrder => Self::of(libc::EINVAL, &error),
            ConvertError::Unknown => Self::of(libc::ENODATA, &error),
            ConvertError::Contradiction => Self::of(libc::EBADMSG, &error),
        }
    }
}

impl From<RecordingError> for Failure {
    fn from(error: RecordingError) -> Self {
        let errno = match &error {
            RecordingError::Read(error) => return (*error).into(),
            // A FIFO or a folder has no number of the kernel's.
            RecordingError::File { source, .. } => source.raw_os_error().unwrap_or(libc::EINVAL),
            RecordingError::NotARecording | RecordingError::Damaged { .. } => libc::EILSEQ,
            RecordingError::Version(_) => libc::ENOTSUP,
            RecordingError::OtherClock(_) => libc::EINVAL,
            RecordingError::Busy(_) => libc::EBUSY,
        };
        Self::of(errno, &error)
    }
}

impl From<PacketStampError> for Failure {
    fn from(error: PacketStampError) -> Self {
        let errno = match &error {
            PacketStampError::Read(error) => return (*error).into(),
            PacketStampError::ClockWasSet => libc::ESTALE,
            PacketStampError::TooOld | PacketStampError::Future => libc::ERANGE,
            PacketStampError::NoCounter(_) => libc::ENOTSUP,
            PacketStampError::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        Self::of(errno, &error)
    }
}

impl From<PinError> for Failure {
    fn from(error: PinError) -> Self {
        let errno = match &error {
            PinError::Refused { source, .. } | PinError::System(source) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            PinError::NoPin { .. } => libc::ENOENT,
            PinError::NoComparison(_) => libc::ENOTSUP,
            PinError::Counter(why)
            | PinError::Unplaced { why, .. }
            | PinError::Undated { why, .. } => errno_of_unplaced(why),
            PinError::NotChanged(outcome) => match **outcome {
                AtOutcome::Disrupted { .. } => libc::ESTALE,
                AtOutcome::QotViolated { .. } => libc::ERANGE,
                AtOutcome::TooLate { .. } | AtOutcome::Fired { .. } => libc::ETIME,
            },
            PinError::NotTaken { .. } | PinError::MayHaveChanged { .. } => libc::EIO,
            PinError::OutOfRange(_) => libc::EINVAL,
            PinError::Wait(wait) => errno_of_wait(wait),
        };
        Self::of(errno, &error)
    }
}

fn errno_of_unplaced(why: &Unplaced) -> c_int {
    match why {
        Unplaced::Read(error) => -Failure::from(*error).code,
        Unplaced::Convert(error) => -Failure::from(*error).code,
        Unplaced::Disrupted | Unplaced::TooOld => libc::ESTALE,
        Unplaced::Contradiction => libc::EBADMSG,
        Unplaced::NoCounter(_) | Unplaced::NotReadBack => libc::ENOTSUP,
        Unplaced::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

impl From<ElapsedError> for Failure {
    fn from(error: ElapsedError) -> Self {
        match error {
            ElapsedError::Read(error) => error.into(),
            ElapsedError::Unknown => Self::of(libc::ENODATA, &error),
            ElapsedError::Timescale(_) | ElapsedError::Saved(_) => Self::of(libc::EINVAL, &error),
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Read(error) => error.into(),
            other => Self::of(errno_of_wait(&other), &other),
        }
    }
}

fn errno_of_wait(error: &WaitError) -> c_int {
    match error {
        WaitError::Read(error) => -Failure::from(*error).code,
        WaitError::Disrupted { .. } => libc::ESTALE,
        WaitError::Unknown => libc::ENODATA,
        WaitError::Unreliable { .. } => libc::EBADMSG,
        WaitError::TooLate { .. } => libc::ETIME,
        WaitError::Cancelled => libc::ECANCELED,
        WaitError::TimedOut => libc::ETIMEDOUT,
        WaitError::OutOfRange(_) => libc::EINVAL,
        WaitError::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        let errno = match &error {
            BindError::Invalid(_) | BindError::Name(_) => libc::EINVAL,
            BindError::NoChannel { .. } => libc::ENOTCONN,
            BindError::CannotBeMet { .. } => libc::ERANGE,
            BindError::Refused(problem) => match problem.code {
                ProblemCode::NotFound => libc::ENOENT,
                ProblemCode::Exists => libc::EEXIST,
                ProblemCode::CannotBeMet => libc::ERANGE,
                ProblemCode::Quota => libc::EDQUOT,
                ProblemCode::RateLimited | ProblemCode::Unavailable => libc::EUSERS,
                ProblemCode::BadRequest | ProblemCode::Version | ProblemCode::Session => {
                    libc::EPROTO
                }
            },
            BindError::Channel(_) => libc::ECONNRESET,
            BindError::TimedOut(_) => libc::ETIMEDOUT,
            BindError::Timeline(TimelineError::NotFound(_)) => libc::ENOENT,
            BindError::Timeline(_) => libc::ENXIO,
        };
        Self::of(errno, &error)
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        let errno = match error {
            JoinError::Bind(error) => return error.into(),
            JoinError::Timeline(error) => return error.into(),
            JoinError::Name(..) | JoinError::Requirement(_) | JoinError::Address(..) => {
                libc::EINVAL
            }
            JoinError::NoBus(_) => libc::ENOTCONN,
            JoinError::Silent => libc::ETIMEDOUT,
            JoinError::Refused(refusal, _) => match refusal {
                Refusal::NameTaken => libc::EEXIST,
                Refusal::Key => libc::EACCES,
                Refusal::Timeline => libc::EXDEV,
                Refusal::Full => libc::EUSERS,
                Refusal::Name => libc::EINVAL,
                Refusal::Version | Refusal::Handle | Refusal::Message | Refusal::Removed => {
                    libc::EPROTO
                }
            },
            JoinError::Random(_) => libc::EIO,
            JoinError::Io(ref error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        Self::of(errno, &error)
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Self {
        let errno = match &error {
            GroupError::Name(..) | GroupError::Leader(_) => libc::EINVAL,
            GroupError::TooLong(_) | GroupError::Propose(ProposeError::TooLong(_)) => {
                libc::EMSGSIZE
            }
            GroupError::Disconnected | GroupError::Forked => libc::ENOTCONN,
            GroupError::TimedOut => libc::ETIMEDOUT,
            GroupError::NoMember(_) => libc::ENOENT,
            GroupError::WaitsAlready(_) => libc::EBUSY,
            GroupError::Left => libc::ESHUTDOWN,
            GroupError::Descriptor(error) => error.raw_os_error().unwrap_or(libc::EIO),
            GroupError::Propose(error) => match error {
                ProposeError::Clock => libc::ENODATA,
                ProposeError::TooSoon(_) => libc::ETIME,
                ProposeError::NotAmongThem => libc::EINVAL,
                _ => libc::EUSERS,
            },
        };
        Self::of(errno, &error)
    }
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Self {
        let text = format!("{error}; make one with `timevisor cluster key FILE`");
        Self::new(libc::EINVAL, text)
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
