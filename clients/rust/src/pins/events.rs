//! [`PinEvents`]: edges at a GPIO line, or at a pin of a PTP clock, as readings of a timeline.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use timevisor_linux::clock::{is_time_namespace_known, time_namespace_offset};
use timevisor_linux::gpio::{Chip, Edge, Edges, EventClock, EventLine, LineEvent};
use timevisor_linux::poll::{self, PollFd};
use timevisor_time::Utc;

use super::error::{PinError, Unplaced};
use super::place::{Monotonic, Placed, Placer};
use super::ptp::PtpInput;
use crate::error::WaitError;
use crate::reading::Reading;
use crate::timeline::Timeline;
use crate::wait::WaitOptions;

/// How often the page is looked at while no event comes.
const OBSERVE: Duration = Duration::from_secs(10);

/// One edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PinEvent {
    /// What happened; `None` for a PTP clock, which does not say.
    pub edge: Option<Edge>,
    /// So many edges between the last event and this one were not delivered, at least: the kernel's
    /// buffer (1024 events) was full, or two edges came so close that the kernel took them for one.
    /// Always 0 for a PTP clock, whose kernel buffer (128 stamps) does not tell.
    pub lost: u32,
    /// The counter, no later than the stamp.
    pub first: u64,
    /// The counter, no earlier than the stamp.
    pub last: u64,
    /// When it was stamped: true time was between earliest and latest. The longer the event waited
    /// to be read, the wider this is: +-0.25 ms for each millisecond at a GPIO line.
    pub reading: Reading,
}

/// Endless edges: block with [`Self::event`] or as an iterator, or poll the descriptor and call
/// [`Self::on_ready`]. The line is released when this is dropped.
///
/// ```no_run
/// use timevisor::pins::Edges;
/// let tai = timevisor::Client::connect()?.timeline("tai")?;
/// for event in tai.line_events("/dev/gpiochip0", 4, Edges::Both)? {
///     let event = event?;
///     println!("{:?} {} .. {}", event.edge, event.reading.earliest_ns(), event.reading.latest_ns());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PinEvents {
    timeline: Timeline,
    source: Source,
}

enum Source {
    Line(Box<Line>),
    Ptp(Box<PtpInput>),
}

/// An edge and where its stamp is on the counter.
pub(super) struct Found {
    pub(super) edge: Option<Edge>,
    pub(super) lost: u32,
    pub(super) placed: Result<Placed, Unplaced>,
}

impl Timeline {
    /// Edges of a GPIO line of a chip such as `/dev/gpiochip0`, from now on.
    ///
    /// # Errors
    /// When the chip has no such line, somebody uses it, or this user may not; when the timeline
    /// is a manually driven clock, or cannot be read.
    pub fn line_events(
        &self,
        chip: impl AsRef<Path>,
        line: u32,
        edges: Edges,
    ) -> Result<PinEvents, PinError> {
        let line = Line::open(self, chip.as_ref(), line, edges)?;
        Ok(PinEvents { timeline: self.clone(), source: Source::Line(Box::new(line)) })
    }

    /// Edges at a channel of a PTP clock such as `/dev/ptp0`, stamped by that clock. **Not tested on
    /// hardware.** The pin must have been given to the channel ([`PtpPins`](super::PtpPins)).
    ///
    /// The clock may be steered, as far as its driver allows, but not set: a step that the
    /// comparisons do not contradict would go unnoticed.
    ///
    /// # Errors
    /// When the clock has no such channel or cannot be compared closely; otherwise as
    /// [`Self::line_events`].
    pub fn ptp_events(
        &self,
        device: impl AsRef<Path>,
        channel: u32,
        edges: Edges,
    ) -> Result<PinEvents, PinError> {
        let input = PtpInput::open(self, device.as_ref(), channel, edges)?;
        Ok(PinEvents { timeline: self.clone(), source: Source::Ptp(Box::new(input)) })
    }
}

impl PinEvents {
    /// Waits for the next event.
    ///
    /// # Errors
    /// [`PinError::Unplaced`] for an event whose time is not known; the next one may be placed.
    /// [`PinError::Refused`] when the device is gone.
    pub fn event(&mut self) -> Result<PinEvent, PinError> {
        self.event_with(&WaitOptions::default())
    }

    /// Waits for the next event, with all options but the time to spin.
    ///
    /// # Errors
    /// As [`Self::event`], and those that the options add.
    pub fn event_with(&mut self, options: &WaitOptions) -> Result<PinEvent, PinError> {
        let deadline = options.timeout.and_then(|span| Instant::now().checked_add(span));
        loop {
            if let Some(event) = self.on_ready()? {
                return Ok(event);
            }
            // Later events can be placed and converted only if somebody looks at the clocks now and
            // then. If they cannot be read, the next event says so.
            match &mut self.source {
                Source::Line(line) => drop(line.placer.renew(&self.timeline)),
                Source::Ptp(input) => input.renew(&self.timeline),
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(WaitError::TimedOut.into());
            }
            let left = Some(left.unwrap_or(OBSERVE).min(OBSERVE));
            let own = PollFd::readable(self.as_fd());
            let Some(cancel) = &options.cancel else {
                poll::wait(&mut [own], left).map_err(PinError::System)?;
                continue;
            };
            let mut fds = [own, PollFd::readable(cancel.as_fd())];
            poll::wait(&mut fds, left).map_err(PinError::System)?;
            if fds[1].ready().readable {
                return Err(WaitError::Cancelled.into());
            }
        }
    }

    /// Takes the next event; `None` if there is none. May be called at any time; the descriptor
    /// stays readable while there are more.
    ///
    /// # Errors
    /// As [`Self::event`].
    pub fn on_ready(&mut self) -> Result<Option<PinEvent>, PinError> {
        let found = match &mut self.source {
            Source::Line(line) => line.next(&self.timeline)?,
            Source::Ptp(input) => input.next(&self.timeline)?,
        };
        let Some(Found { edge, lost, placed }) = found else { return Ok(None) };
        let read = placed.and_then(|(first, last)| {
            Ok(PinEvent {
                edge,
                lost,
                first,
                last,
                reading: self.timeline.convert_between(first, last)?,
            })
        });
        read.map(Some).map_err(|why| PinError::Unplaced { edge, lost, why })
    }
}

impl Iterator for PinEvents {
    type Item = Result<PinEvent, PinError>;
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.event())
    }
}

impl AsFd for PinEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Line(line) => line.line.as_fd(),
            Source::Ptp(input) => input.as_fd(),
        }
    }
}

impl core::fmt::Debug for PinEvents {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PinEvents").field("timeline", &self.timeline).finish_non_exhaustive()
    }
}

/// A GPIO line.
struct Line {
    chip: PathBuf,
    line: EventLine,
    placer: Placer<Monotonic>,
    /// CLOCK_MONOTONIC here minus the kernel's own, ns, modulo 2^64.
    namespace_ns: u64,
    count: Count,
}

impl Line {
    fn open(timeline: &Timeline, path: &Path, line: u32, edges: Edges) -> Result<Self, PinError> {
        if !is_time_namespace_known() {
            let why = "which time namespace this program is in cannot be told: mount /proc, or fork after unshare";
            return Err(PinError::Counter(Unplaced::NoCounter(why)));
        }
        // Before the first event.
        let placer = Placer::new(timeline, Monotonic).map_err(PinError::Counter)?;
        let refused =
            |error| PinError::refused(path, &format!("give events of line {line}"), error);
        let chip = Chip::open(path).map_err(refused)?;
        let line = chip.events(line, edges, EventClock::Monotonic, false).map_err(refused)?;
        let (namespace_ns, count) = (time_namespace_offset(), Count::new(edges));
        Ok(Self { chip: path.to_owned(), line, placer, namespace_ns, count })
    }

    fn next(&mut self, timeline: &Timeline) -> Result<Option<Found>, PinError> {
        let refused = |error| PinError::refused(&self.chip, "give more events", error);
        let Some(event) = self.line.next_event().map_err(refused)? else { return Ok(None) };
        let stamp_ns = event.stamp_ns.wrapping_add(self.namespace_ns);
        let stamp = timevisor_time::Instant::<Utc>::from_unix_nanos(i128::from(stamp_ns));
        let placed = self.placer.place(timeline, stamp);
        let lost = self.count.lost_before(&event);
        Ok(Some(Found { edge: Some(event.edge), lost, placed }))
    }
}

/// Tells how many edges did not come.
struct Count {
    edges: Edges,
    next: u32,
    before: Option<Edge>,
}

impl Count {
    fn new(edges: Edges) -> Self {
        Self { edges, next: 1, before: None }
    }

    fn lost_before(&mut self, event: &LineEvent) -> u32 {
        let dropped = event.line_seqno.wrapping_sub(self.next);
        self.next = event.line_seqno.wrapping_add(1);
        // Between two rising edges there was a falling one, which the kernel took for part of them.
        let twice =
            self.edges == Edges::Both && self.before.replace(event.edge) == Some(event.edge);
        dropped.max(u32::from(twice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manual::Clock;

    fn event(line_seqno: u32, edge: Edge) -> LineEvent {
        LineEvent { stamp_ns: 0, edge, offset: 0, seqno: line_seqno, line_seqno }
    }

    #[test]
    fn lost_edges_are_told() {
        let mut count = Count::new(Edges::Both);
        let mut lost = |seqno, edge| count.lost_before(&event(seqno, edge));
        assert_eq!(lost(1, Edge::Rising), 0);
        assert_eq!(lost(2, Edge::Falling), 0);
        assert_eq!(lost(5, Edge::Rising), 2, "the buffer was full");
        assert_eq!(lost(6, Edge::Rising), 1, "a falling edge was merged");
        assert_eq!(lost(7, Edge::Falling), 0);
        assert_eq!(lost(u32::MAX, Edge::Rising), u32::MAX - 8);
        assert_eq!(lost(0, Edge::Falling), 0, "the number wraps");
        let mut rising = Count::new(Edges::Rising);
        assert_eq!(rising.lost_before(&event(3, Edge::Rising)), 2, "before the first that came");
        assert_eq!(rising.lost_before(&event(4, Edge::Rising)), 0);
    }

    #[test]
    fn a_clock_for_tests_has_no_pins() {
        let timeline = Clock::new(0).timeline();
        let error = timeline.line_events("/dev/null", 0, Edges::Both).unwrap_err();
        assert!(matches!(error, PinError::Counter(Unplaced::NoCounter(_))), "{error}");
    }
}
