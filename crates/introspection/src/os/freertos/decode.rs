//! Decodes the bytes of a point into an event.

use super::note::Note;
use super::points::{CREATE, DELAY, DELETE, OWN, PRIORITY, UNTIL};
use crate::backend::RawEvent;
use crate::os::guest_os::DecodeError;
use crate::os::reads::{Reads, name};
use crate::point::Point;
use crate::tasks::event::{Attributes, Event, Kind, Policy, Thread};

/// CLOCK_MONOTONIC: ticks count from the start of the scheduler.
const CLOCK: u32 = 1;

/// Converts ticks to nanoseconds.
fn ns(ticks: u32, note: &Note) -> i64 {
    // At most 2^32 seconds.
    i64::try_from(u64::from(ticks) * 1_000_000_000 / u64::from(note.tick_rate_hz))
        .unwrap_or(i64::MAX)
}

/// The policy of every task.
fn policy(note: &Note) -> Policy {
    if note.time_slicing { Policy::RoundRobin } else { Policy::Fifo }
}

pub(super) fn event(raw: &RawEvent, points: &[Point], note: &Note) -> Result<Event, DecodeError> {
    let point = points.iter().find(|point| point.id == raw.point);
    let point = point.ok_or(DecodeError::Point(raw.point))?;
    let reads = Reads { raw, lens: point.reads.iter().map(|read| read.len).collect() };
    let thread = |tid, n| {
        let comm = name(reads.all(n)?);
        Ok(Thread { tid, pid: 0, comm, policy: policy(note) })
    };
    // Before the scheduler starts, the "current" task is the highest-priority task created so far.
    let own = if reads.u32(2)? == 0 { Thread::default() } else { thread(reads.u32(0)?, 1)? };
    // A NULL handle means the calling task.
    let target = || match reads.u32(OWN)? {
        0 => Ok(own.clone()),
        handle => thread(handle, OWN + 1),
    };
    let fixed = |priority| Attributes { policy: policy(note), priority, ..Attributes::default() };
    let sleep = |absolute, ticks| Kind::Sleep { clock: CLOCK, absolute, ns: ns(ticks, note) };
    let (kind, who) = match raw.point {
        CREATE => {
            // A new task has had no policy before.
            let target = Thread { policy: Policy::Normal, ..target()? };
            (Kind::SetScheduler { target, attributes: fixed(reads.u32(OWN + 2)?) }, None)
        }
        UNTIL => {
            // Ticks wrap around, as in the kernel's own arithmetic.
            let wake = reads.u32(OWN + 2)?.wrapping_add(reads.u32(OWN + 1)?);
            (sleep(true, wake), None)
        }
        DELAY => (sleep(false, reads.u32(OWN)?), None),
        PRIORITY => {
            let attributes = fixed(reads.u32(OWN + 2)?);
            (Kind::SetScheduler { target: target()?, attributes }, None)
        }
        // The event belongs to the task that ends, not to the task that deletes it.
        DELETE => (Kind::Exit { status: 0 }, Some(target()?)),
        other => return Err(DecodeError::Point(other)),
    };
    let thread = who.unwrap_or(own);
    let RawEvent { sequence, counter, vcpu, .. } = *raw;
    Ok(Event { sequence, counter, counter_error: raw.counter_error, vcpu, thread, kind })
}
