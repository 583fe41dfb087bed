//! Why something did not work, and what to do about it.

use timevisor_clock_page::OpenError;
use timevisor_protocols::channel::{Achieved, InvalidRequirement, Problem};

use crate::difference::Refusal;
use crate::reading::Reading;
use crate::tried::Tried;

/// No clock page could be opened.
#[derive(Debug, thiserror::Error)]
#[error("there is no clock page to read: {}; start timevisord here, or on the host of this guest", Tried::list(.tried))]
pub struct ConnectError {
    /// Where it was looked for, and why it was not found there.
    pub tried: Vec<Tried>,
}

/// A timeline could not be opened for reading.
#[derive(Debug, thiserror::Error)]
pub enum TimelineError {
    /// The page has no timeline of this name.
    #[error(
        "there is no timeline {0:?} on the page; bind to it first, or see `timevisor timelines` for those that exist"
    )]
    NotFound(String),
    /// The page cannot be read.
    #[error("the timeline's page cannot be read")]
    Page(#[from] OpenError),
    /// The page is for a counter that this machine does not have.
    #[error(
        "the page counts {0}, which this machine does not have; read the page on the machine it was written for"
    )]
    Counter(&'static str),
    /// The server put the timeline on a page that this client cannot open.
    #[error(
        "the timeline's page, {0}, cannot be opened; is the directory shared with this container?"
    )]
    OtherPage(String),
}

/// Why the processor time of a vCPU cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HostCpuTimeError {
    /// The page cannot be read at all.
    #[error(transparent)]
    Page(#[from] TimelineError),
    /// It cannot be read at the moment.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// One read failed. Reading again later may work, except after [`Self::Gone`] and
/// [`Self::Truncated`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// The page's writer died during an update.
    #[error(
        "the page's writer stopped in the middle of an update; restart timevisord, which repairs it"
    )]
    WriterStalled,
    /// Earliest, estimate and latest are not in this order: the page is damaged.
    #[error(
        "the page is damaged: its estimate lies outside of its bounds; restart timevisord, which repairs it"
    )]
    OutOfOrder,
    /// The entry belongs to another timeline now.
    #[error("the timeline has ended and its place on the page was given to another; bind again")]
    Gone,
    /// The page's file was truncated while it was being read.
    #[error("the page's file was truncated; connect again when it has been made anew")]
    Truncated,
}

impl From<timevisor_clock_page::ReadError> for ReadError {
    fn from(error: timevisor_clock_page::ReadError) -> Self {
        match error {
            timevisor_clock_page::ReadError::WriterStalled => Self::WriterStalled,
            timevisor_clock_page::ReadError::OutOfOrder => Self::OutOfOrder,
        }
    }
}

/// A counter stamp could not be converted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConvertError {
    /// The page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The stamp is from before the first remembered publication.
    #[error(
        "the stamp is older than {since}, the oldest that can be converted: the clock was disrupted there, the handle or the recording begins there, or older publications were forgotten; convert stamps soon, or record the clock"
    )]
    TooOld {
        /// The oldest counter value that can be converted.
        since: u64,
    },
    /// The clock was disrupted between the two stamps, or between the last publication before the
    /// stamp and the first one after it.
    #[error(
        "the clock was disrupted at or before {since}, so a span across it is not known; use stamps from one side of it"
    )]
    Disrupted {
        /// The first counter value after the disruption about which something is known.
        since: u64,
    },
    /// The clock was not observed for more than a minute around the stamp: the handle was not used,
    /// or timevisord or the recorder did not run. Its rate may have been arbitrary.
    #[error(
        "nobody watched the clock from {from} to {until}, and the stamp is too far inside; call `observe` every few seconds, or keep the recorder running"
    )]
    Unobserved {
        /// Where the last publication before the stamp expired.
        from: u64,
        /// Where the next publication began.
        until: u64,
    },
    /// A recording ends before the stamp.
    #[error(
        "the stamp is newer than {until}, the last thing that was recorded; record for longer, until after the stamps were taken"
    )]
    TooNew {
        /// The last counter value that can be converted.
        until: u64,
    },
    /// The counter had this value more than once.
    #[error(
        "the counter was at this stamp {times} times in the recording (it was reset, by a restart for example); keep a recording for each boot"
    )]
    Ambiguous {
        /// The number of times.
        times: usize,
    },
    /// The last counter value of an event is before its first one.
    #[error("the event ended before it began: give the first counter value first")]
    WrongOrder,
    /// Time is not known.
    #[error("the time is not known yet; wait until the status is synchronized")]
    Unknown,
    /// Two published bounds contradict each other.
    #[error(
        "published bounds of this stamp exclude each other: an assumption failed; read `timevisor status` on the host"
    )]
    Contradiction,
}

impl From<Refusal> for ConvertError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Contradiction => Self::Contradiction,
            Refusal::Unobserved { from, until } => Self::Unobserved { from, until },
        }
    }
}

/// An age could not be started or resumed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElapsedError {
    /// The page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Ages are measured on TAI: UTC repeats itself, and a local timeline ends with its host.
    #[error("an age cannot be measured on the timeline {0:?}; open the timeline \"tai\"")]
    Timescale(String),
    /// The time is not known, so the age would have no known beginning.
    #[error("the time is not known yet; wait until the status is synchronized")]
    Unknown,
    /// The text is not what [`crate::Elapsed::save`] returned.
    #[error("this is not a saved age ({0}); give what `save` returned, unchanged")]
    Saved(&'static str),
}

/// A wait ended before its time came.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The clock may have stepped during the wait.
    #[error(
        "the clock was disrupted during the wait (it may have stepped); decide whether the time is still right, and wait again"
    )]
    Disrupted {
        /// The first reading after the disruption.
        reading: Reading,
    },
    /// Time is not known.
    #[error("the time is not known; call wait_met first, or wait until the status is synchronized")]
    Unknown,
    /// The bounds must not be relied on, and this wait needs them.
    #[error("the clock is unreliable: its assumptions were contradicted; wait for another status")]
    Unreliable {
        /// The reading that showed it.
        reading: Reading,
    },
    /// The time may already have come, but this wait was for a moment surely before it.
    #[error(
        "it is too late: the time may have come, up to {by_ns} ns ago; leave undone what had to be done before it, or give a longer lead"
    )]
    TooLate {
        /// How far the reading's latest is beyond the time, ns: 0 or more.
        by_ns: i64,
        /// The reading that found it.
        reading: Reading,
    },
    /// Somebody called [`crate::Cancel::cancel`].
    #[error("the wait was cancelled; wait again with another Cancel")]
    Cancelled,
    /// The timeout expired first.
    #[error("the time-out came before the time that was waited for; wait again, or for longer")]
    TimedOut,
    /// A period or a lead is zero, or a time is out of range.
    #[error("{0}")]
    OutOfRange(&'static str),
    /// A descriptor could not be created or waited for.
    #[error("the kernel refused a timer; are there too many open files?")]
    System(#[from] std::io::Error),
}

/// A requirement could not be stated, changed or withdrawn.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The requirement makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidRequirement),
    /// The name is not valid for a timeline.
    #[error(
        "{0:?} cannot be a timeline's name: 1 to 32 bytes of letters, digits, `.`, `_` and `-`"
    )]
    Name(String),
    /// No channel to a timevisord.
    #[error("nobody takes requirements here: {}; reading works without: `Client::timeline`", Tried::list(.tried))]
    NoChannel {
        /// Where it was looked for, and why it was not found there.
        tried: Vec<Tried>,
    },
    /// The requirement cannot be met.
    #[error("the requirement cannot be met ({}); relax it, or bind with best effort", can_be_met(.achievable))]
    CannotBeMet {
        /// What can be achieved.
        achievable: Achieved,
        /// The server's explanation.
        problem: Box<Problem>,
    },
    /// The server refused for another reason.
    #[error(transparent)]
    Refused(Box<Problem>),
    /// The channel failed.
    #[error("the channel to timevisord failed: {0}; it is tried again at the next call")]
    Channel(String),
    /// No answer in time.
    #[error("timevisord did not answer in {0:?}; is it overloaded? See its log")]
    TimedOut(std::time::Duration),
    /// The timeline is bound but cannot be read here.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

fn can_be_met(achievable: &Achieved) -> String {
    match (achievable.below_ns, achievable.above_ns) {
        (Some(below), Some(above)) => format!("to be had: -{below} ns, +{above} ns"),
        _ => "what can be had is not known yet".to_owned(),
    }
}
