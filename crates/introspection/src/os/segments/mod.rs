//! Real-time segments, as in ChronOS: a program in one flat address space marks where real-time
//! work begins and ends (plugins/segments), and declares what that work needs. This is the worked
//! example in docs/how-to/write-introspection-plugin.md.
//!
//! A segment appears as a task under SCHED_DEADLINE: `tid` is the segment's id, its beginning is a
//! request, and its end is the end of a job. So everything that works for such tasks works for
//! segments: `introspect list`, and reservations that follow a guest.
//!
//! What it does not do: look at an operating system below the program, or at programs in separate
//! address spaces.

use crate::backend::RawEvent;
use crate::os::guest_os::{DecodeError, GuestOs};
use crate::os::reads::Reads;
use crate::point::{Point, Read, Register, SLOT};
use crate::symbols::image::Image;
use crate::tasks::event::{Attributes, Event, Kind, Policy, Thread};
use crate::tasks::table::Tasks;

/// The note's type (plugins/segments/timevisor-segments.c).
const NOTE: u32 = 2;
/// Version of the functions and of struct timevisor_segment.
const VERSION: u32 = 1;
/// struct timevisor_segment: id, zero, wcet, deadline, period.
const SEGMENT: u16 = 32;

const BEGIN: u16 = 1;
const END: u16 = 2;
const RETIRE: u16 = 3;

/// A guest program with segments.
#[derive(Debug)]
pub struct Segments {
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
        if note != VERSION.to_le_bytes() {
            return Err(format!("its version is {note:02x?}, not {VERSION}"));
        }
        // The first argument is in a register, or on the stack above the return address.
        let wide = image.is_wide();
        let first = if wide { Read::value(Register::Rdi) } else { Read::at(Register::Rsp, 4, 4) };
        let point = |id, symbol: &str, more: &[Read]| {
            let address = image.slot(symbol).map_err(|e| e.to_string())?;
            let reads = [&[first], more].concat();
            let (symbol, expected) = (symbol.to_owned(), SLOT);
            Ok::<_, String>(Point { id, symbol, address, expected, reads, filter: None })
        };
        let points = vec![
            point(BEGIN, "timevisor_begin_segment", &[Read::from(0, 0, SEGMENT)])?,
            point(END, "timevisor_end_segment", &[])?,
            point(RETIRE, "timevisor_retire_segment", &[])?,
        ];
        Ok(Self { points, tasks: Tasks::default() })
    }

    /// The segment as a thread: under SCHED_DEADLINE once it was seen to begin.
    fn segment(&self, tid: u32) -> Thread {
        let known = self.tasks.get(tid).is_some();
        let policy = if known { Policy::Deadline } else { Policy::Normal };
        Thread { tid, pid: 0, comm: "segment".to_owned(), policy }
    }
}

impl GuestOs for Segments {
    fn name(&self) -> String {
        format!("real-time segments, version {VERSION}")
    }

    fn points(&self) -> &[Point] {
        &self.points
    }

    fn event(&self, raw: &RawEvent) -> Result<Event, DecodeError> {
        let point = self.points.iter().find(|point| point.id == raw.point);
        let point = point.ok_or(DecodeError::Point(raw.point))?;
        let reads = Reads { raw, lens: point.reads.iter().map(|read| read.len).collect() };
        let (thread, kind) = if raw.point == BEGIN {
            let long = |at| Ok(u64::from_le_bytes(reads.bytes(1, at)?));
            let attributes = Attributes {
                policy: Policy::Deadline,
                runtime_ns: long(8)?,
                deadline_ns: long(16)?,
                period_ns: long(24)?,
                ..Attributes::default()
            };
            let target = self.segment(reads.u32(1)?);
            (target.clone(), Kind::SetScheduler { target, attributes })
        } else {
            let ends = self.segment(reads.u32(0)?);
            (ends, if raw.point == END { Kind::Yield } else { Kind::Exit { status: 0 } })
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
