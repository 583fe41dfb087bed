//! A guest that a plugin's file describes.

use super::compile::{Absolute, EventRule, ExitRule, KindRule, Plugin};
use super::reads::lacking;
use super::tasks::thread;
use super::values::Found;
use crate::backend::RawEvent;
use crate::os::guest_os::{DecodeError, GuestOs};
use crate::os::reads::Reads;
use crate::point::{Point, SLOT};
use crate::symbols::image::Image;
use crate::tasks::event::{Attributes, Event, Kind};
use crate::tasks::table::Tasks;

/// A recognized guest.
#[derive(Debug)]
pub struct Described {
    name: String,
    points: Vec<Point>,
    /// For each point, what it means.
    events: Vec<Meaning>,
    /// The fields of its note.
    note: Vec<u64>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Meaning {
    event: EventRule,
    /// Bit n: read n may fail.
    may_fail: u16,
    /// The names of its reads.
    names: Vec<String>,
}

impl Plugin {
    /// Whether the image has the note of this guest system, whatever is in it.
    #[must_use]
    pub fn has_note(&self, image: &Image<'_>) -> bool {
        self.note.is_in(image)
    }

    /// Recognizes the guest by the file that it runs.
    ///
    /// # Errors
    /// What the image lacks.
    pub fn guest(&self, image: &Image<'_>) -> Result<Described, String> {
        let note = self.note.values(image)?;
        let is_wide = image.is_wide();
        if !(if is_wide { self.bits.wide } else { self.bits.narrow }) {
            let found = if is_wide { 64 } else { 32 };
            return Err(format!("it is for {found} bits, and {} is not", self.file));
        }
        let in_file = |why: String| format!("{}: {why}", self.file);
        let mut points: Vec<Point> = Vec::new();
        for (id, rule) in (1..).zip(&self.points) {
            let symbol = rule.symbol.clone();
            let key = format!("point.{symbol}.symbol");
            let address = image.slot(&symbol).map_err(|e| in_file(lacking(image, &key, &e)))?;
            if let Some(other) = points.iter().find(|point| point.address == address) {
                return Err(format!("{symbol} and {} are one function", other.symbol));
            }
            let reads = rule.reads.iter().map(|read| read.read(image, &note).map_err(in_file));
            let reads = reads.collect::<Result<Vec<_>, _>>()?;
            points.push(Point { id, symbol, address, expected: SLOT, reads, filter: rule.filter });
        }
        let may_fail = |n: usize, may: bool| {
            let bit = u32::try_from(n).ok().and_then(|n| 1u16.checked_shl(n));
            bit.filter(|_| may).unwrap_or(0)
        };
        let events = self.points.iter().map(|point| {
            let reads = point.reads.iter().enumerate();
            Meaning {
                event: point.event.clone(),
                may_fail: reads.fold(0, |all, (n, read)| all | may_fail(n, read.may_fail)),
                names: point.reads.iter().map(|read| read.name.clone()).collect(),
            }
        });
        let shown = self.note.shown(&note);
        let name =
            if shown.is_empty() { self.name.clone() } else { format!("{} {shown}", self.name) };
        Ok(Described { name, points, events: events.collect(), note, tasks: Tasks::default() })
    }
}

impl GuestOs for Described {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn points(&self) -> &[Point] {
        &self.points
    }

    fn event(&self, raw: &RawEvent) -> Result<Event, DecodeError> {
        let mut all = self.points.iter().zip(&self.events);
        let found = all.find(|(point, _)| point.id == raw.point);
        let (point, Meaning { event, may_fail, .. }) =
            found.ok_or(DecodeError::Point(raw.point))?;
        let lens = point.reads.iter().map(|read| read.len).collect();
        let reads = Reads { raw, lens };
        let found = Found { reads, may_fail: *may_fail, note: &self.note };
        let kind = match &event.kind {
            KindRule::SetScheduler { target, attributes: of } => Kind::SetScheduler {
                target: thread(target, &found, &self.tasks)?,
                attributes: Attributes {
                    policy: of.policy.chosen(&found)?,
                    flags: of.flags.u64(&found)?,
                    nice: of.nice.i32(&found)?,
                    priority: of.priority.u32(&found)?,
                    runtime_ns: of.runtime_ns.u64(&found)?,
                    deadline_ns: of.deadline_ns.u64(&found)?,
                    period_ns: of.period_ns.u64(&found)?,
                    utility: of.utility.u64(&found)?,
                },
            },
            KindRule::Yield => Kind::Yield,
            KindRule::Sleep(of) => Kind::Sleep {
                clock: of.clock.u32(&found)?,
                absolute: match &of.absolute {
                    Absolute::Constant(is) => *is,
                    Absolute::Read(value) => !value.is_zero(&found)?,
                },
                ns: of.ns.i64(&found)?,
            },
            KindRule::Abort => Kind::Abort,
            KindRule::ChooseScheduler(of) => Kind::ChooseScheduler {
                scheduler: of.scheduler.chosen(&found)?,
                priority: of.priority.u32(&found)?,
                processors: of.processors.u32(&found)?,
            },
            KindRule::Exit(ExitRule::Status(status)) => Kind::Exit { status: status.u32(&found)? },
            // WEXITSTATUS is the second byte.
            KindRule::Exit(ExitRule::Code(code)) => {
                Kind::Exit { status: u32::from(code.low_byte(&found)?) << 8 }
            }
        };
        let thread = thread(&event.thread, &found, &self.tasks)?;
        let RawEvent { sequence, counter, counter_error, vcpu, .. } = *raw;
        Ok(Event { sequence, counter, counter_error, vcpu, thread, kind })
    }

    fn read_name(&self, point: u16, read: usize) -> Option<&str> {
        let mut all = self.points.iter().zip(&self.events);
        let (_, meaning) = all.find(|(of, _)| of.id == point)?;
        meaning.names.get(read).map(String::as_str)
    }

    fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    fn tasks_mut(&mut self) -> &mut Tasks {
        &mut self.tasks
    }
}
