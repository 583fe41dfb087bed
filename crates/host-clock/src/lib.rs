//! The publisher of a host: exchanges with references in, pages out. The daemon and the simulator
//! both run it.
//!
//! | module | owns |
//! | --- | --- |
//! | [`clock`] | [`HostClock`]: the state machine, `handle(event, host) -> actions` |
//! | [`counter_watch`] | [`CounterWatch`]: whether the counter itself can still be trusted |
//! | [`host`] | trait [`Host`]: what the state machine needs while it handles an event |
//! | [`event`] | [`Event`], [`Action`] and [`Note`] |
//! | [`publication`] | [`ClockState`] and [`Publication`]: what a clock says, and what all pages are written from |
//! | [`recovery`] | [`JournalEntry`]: what a restarted daemon continues from |
//! | [`leap`] | [`LeapState`]: UTC around a leap second, and what a page announces |
//! | [`synchronizer`] | trait [`Synchronizer`]: the estimate, or what a test puts in its place |
//! | [`subset`] | [`SubsetClock`]: a clock without a page that follows some of the references |
//! | [`timelines`] | [`TimelineClocks`]: timelines as lines on the host's counter |
//! | [`age`] | [`Age`]: how long the host or a VM has been running |
//! | [`achievable`] | [`Achievable`]: the best accuracy of the last minutes, the base of admission |
//!
//! # Order of one publication
//!
//! 1. The estimate is asked at the present counter value.
//! 2. If the answer excludes what the page says, the clock steps, and readers see one disruption.
//! 3. The journal gets the lines ([`Host::journal`]). A daemon that dies after this point restarts
//!    from them.
//! 4. The page is written: the writer enters both sequence locks, then reads the counter, then
//!    continues the old lines. No reader can have used the old lines at a later counter value than
//!    the one at which the new ones take over.
//!
//! What it does not do: system calls, logging, files, reading clocks. The caller brings the
//! counter, monotonic time and the leap seconds, writes the journal, and turns notes into log
//! lines.
#![forbid(unsafe_code)]

pub mod achievable;
pub mod age;
pub mod clock;
mod continuity;
pub mod counter_watch;
pub mod event;
pub mod host;
pub mod leap;
pub mod publication;
pub mod recovery;
pub mod subset;
pub mod synchronizer;
pub mod timelines;

pub use achievable::{Accuracy, Achievable};
pub use age::Age;
pub use clock::{HostClock, Settings, Start};
pub use counter_watch::CounterWatch;
pub use event::{Action, Event, Note};
pub use host::Host;
pub use leap::LeapState;
pub use publication::{ClockState, Publication};
pub use recovery::{JournalEntry, Resumable};
pub use subset::SubsetClock;
pub use synchronizer::Synchronizer;
pub use timelines::TimelineClocks;
