//! Real-time segments, as in ChronOS: a program in one flat address space marks where real-time
//! work begins and ends (plugins/segments), and declares what that work needs. This is the worked
//! example in docs/how-to/write-introspection-plugin.md.
//!
//! A segment appears as a task under SCHED_DEADLINE: `tid` is the segment's id, its beginning is a
//! request, and its end is the end of a job. So everything that works for such tasks works for
//! segments: `introspect list`, and reservations that follow a guest.
//!
//! The note says which version of the interface a program was built with. Version 2 adds what
//! ChronOS's calls have and version 1 did not: a segment's utility and priority, a job that is
//! aborted, and the choice of a scheduler. The abort handler itself is the program's: its own code
//! calls it.
//!
//! What it does not do: look at an operating system below the program, or at programs in separate
//! address spaces; call anything in the guest; use utility, priority or scheduler for a
//! reservation.

use crate::backend::RawEvent;
use crate::os::guest_os::{DecodeError, GuestOs};
use crate::os::reads::Reads;
use crate::point::{Point, Read, Register, SLOT};
use crate::symbols::image::Image;
use crate::tasks::event::{Attributes, Event, Kind, Policy, Scheduler, Thread};
use crate::tasks::table::Tasks;

/// The note's type (plugins/segments/timevisor-segments.c).
pub const NOTE: u32 = 2;

const BEGIN: u16 = 1;
const END: u16 = 2;
const RETIRE: u16 = 3;
const ABORT: u16 = 4;
const SCHEDULER: u16 = 5;

/// A version of the functions and of struct timevisor_segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    /// id, zero, wcet, deadline, period.
    One,
    /// id, priority, wcet, deadline, period, utility; the abort handler behind them is not read.
    Two,
}

impl Version {
    const ALL: [Self; 2] = [Self::One, Self::Two];

    const fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// How many bytes of struct timevisor_segment are read.
    const fn segment(self) -> u16 {
        match self {
            Self::One => 32,
            Self::Two => 40,
        }
    }
}

/// A guest program with segments.
#[derive(Debug)]
pub struct Segments {
    version: Version,
    points: Vec<Point>,
    tasks: Tasks,
}

impl Segments {
    /// Recognizes the program by the file that the guest runs.
    ///
    /// # Errors
    /// What the file lacks.
    pub fn new(image: &Image<'_>) -> Result<Self, String> {
        let note = image.note(NOTE).map_err(|e| e.to_string())?;
        let note = note.ok_or(
            "the image has no note of them; build it with plugins/segments/timevisor-segments.c, and keep sections .note.* when linking",
        )?;
        let version = Version::ALL.into_iter().find(|one| note == one.number().to_le_bytes());
        let version = version.ok_or_else(|| format!("its version is {note:02x?}, not 1 or 2"))?;
        // Arguments are in registers, or on the stack above the return address.
        let [first, second, third] = if image.is_wide() {
            [Register::Rdi, Register::Rsi, Register::Rdx].map(Read::value)
        } else {
            [4, 8, 12].map(|offset| Read::at(Register::Rsp, offset, 4))
        };
        let point = |id, symbol: &str, more: &[Read]| {
            let address = image.slot(symbol).map_err(|e| e.to_string())?;
            let reads = [&[first], more].concat();
            let (symbol, expected) = (symbol.to_owned(), SLOT);
            Ok::<_, String>(Point { id, symbol, address, expected, reads, filter: None })
        };
        let mut points = vec![
            point(BEGIN, "timevisor_begin_segment", &[Read::from(0, 0, version.segment())])?,
            point(END, "timevisor_end_segment", &[])?,
            point(RETIRE, "timevisor_retire_segment", &[])?,
        ];
        if version == Version::Two {
            points.push(point(ABORT, "timevisor_segment_aborts", &[])?);
            points.push(point(SCHEDULER, "timevisor_set_scheduler", &[second, third])?);
        }
        Ok(Self { version, points, tasks: Tasks::default() })
    }

    /// The segment as a thread: under SCHED_DEADLINE once it was seen to begin.
    fn segment(&self, tid: u32) -> Thread {
        let known = self.tasks.get(tid).is_some();
        let policy = if known { Policy::Deadline } else { Policy::Normal };
        Thread { tid, pid: 0, comm: "segment".to_owned(), policy }
    }

    /// What the segment that begins asks for.
    fn attributes(&self, reads: &Reads<'_>) -> Result<Attributes, DecodeError> {
        let long = |at| Ok(u64::from_le_bytes(reads.bytes(1, at)?));
        let (priority, utility) = match self.version {
            Version::One => (0, 0),
            Version::Two => (u32::from_le_bytes(reads.bytes(1, 4)?), long(32)?),
        };
        Ok(Attributes {
            policy: Policy::Deadline,
            priority,
            runtime_ns: long(8)?,
            deadline_ns: long(16)?,
            period_ns: long(24)?,
            utility,
            ..Attributes::default()
        })
    }
}

impl GuestOs for Segments {
    fn name(&self) -> String {
        format!("real-time segments, version {}", self.version.number())
    }

    fn points(&self) -> &[Point] {
        &self.points
    }

    fn event(&self, raw: &RawEvent) -> Result<Event, DecodeError> {
        let point = self.points.iter().find(|point| point.id == raw.point);
        let point = point.ok_or(DecodeError::Point(raw.point))?;
        let reads = Reads { raw, lens: point.reads.iter().map(|read| read.len).collect() };
        let (thread, kind) = match raw.point {
            BEGIN => {
                let target = self.segment(reads.u32(1)?);
                let attributes = self.attributes(&reads)?;
                (target.clone(), Kind::SetScheduler { target, attributes })
            }
            END => (self.segment(reads.u32(0)?), Kind::Yield),
            RETIRE => (self.segment(reads.u32(0)?), Kind::Exit { status: 0 }),
            ABORT => (self.segment(reads.u32(0)?), Kind::Abort),
            SCHEDULER => {
                let (scheduler, priority) = (Scheduler::new(reads.u32(0)?), reads.u32(1)?);
                let processors = reads.u32(2)?;
                // The program as a whole chooses, not one of its segments.
                (Thread::default(), Kind::ChooseScheduler { scheduler, priority, processors })
            }
            other => return Err(DecodeError::Point(other)),
        };
        let RawEvent { sequence, counter, vcpu, .. } = *raw;
        Ok(Event { sequence, counter, counter_error: raw.counter_error, vcpu, thread, kind })
    }

    fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    fn tasks_mut(&mut self) -> &mut Tasks {
        &mut self.tasks
    }
}

#[cfg(test)]
mod tests;
