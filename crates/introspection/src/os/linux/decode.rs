//! Decodes the bytes of a point into an event.

use super::points::{self, CALL, EXIT, POLICY, SET, SLEEP, TASK, YIELD};
use crate::backend::RawEvent;
use crate::os::guest_os::DecodeError;
use crate::os::reads::{Reads, name};
use crate::tasks::event::{Attributes, Event, Kind, Policy, Thread};

/// HRTIMER_MODE_REL (include/linux/hrtimer.h); the other bits say where the timer runs.
const RELATIVE: u64 = 1;

/// Decodes the task whose reads start at `first`.
fn thread(reads: &Reads<'_>, first: usize) -> Result<Thread, DecodeError> {
    Ok(Thread {
        policy: Policy::new(reads.u32(first + usize::from(POLICY))?),
        tid: reads.u32(first + 2)?,
        pid: u32::from_le_bytes(reads.bytes(first + 2, 4)?),
        comm: name(&reads.bytes::<16>(first + 3, 0)?),
    })
}

fn attributes(reads: &Reads<'_>, n: usize) -> Result<Attributes, DecodeError> {
    let word = |at| Ok(u32::from_le_bytes(reads.bytes(n, at)?));
    let long = |at| Ok(u64::from_le_bytes(reads.bytes(n, at)?));
    Ok(Attributes {
        policy: Policy::new(word(4)?),
        flags: long(8)?,
        nice: word(16)?.cast_signed(),
        priority: word(20)?,
        runtime_ns: long(24)?,
        deadline_ns: long(32)?,
        period_ns: long(40)?,
        utility: 0,
    })
}

/// The lower half of a register; a 32-bit argument leaves the upper half undefined.
fn low(register: u64) -> u32 {
    u32::try_from(register & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

pub(super) fn event(raw: &RawEvent) -> Result<Event, DecodeError> {
    let lens = points::lens(raw.point).ok_or(DecodeError::Point(raw.point))?;
    let reads = Reads { raw, lens };
    let own = TASK.len();
    let kind = match raw.point {
        SET => Kind::SetScheduler {
            target: thread(&reads, own)?,
            attributes: attributes(&reads, 2 * own)?,
        },
        YIELD => Kind::Yield,
        SLEEP => Kind::Sleep {
            clock: low(reads.u64(own + 2)?),
            absolute: reads.u64(own + 1)? & RELATIVE == 0,
            ns: reads.u64(own)?.cast_signed(),
        },
        EXIT => Kind::Exit { status: low(reads.u64(own)?) },
        CALL => Kind::SystemCall { number: low(reads.u64(own)?) },
        other => return Err(DecodeError::Point(other)),
    };
    Ok(Event {
        sequence: raw.sequence,
        counter: raw.counter,
        counter_error: raw.counter_error,
        vcpu: raw.vcpu,
        thread: thread(&reads, 0)?,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(point: u16, parts: &[&[u8]]) -> RawEvent {
        let (sequence, counter) = (9, Some(8));
        RawEvent {
            sequence,
            counter,
            counter_error: 0,
            point,
            vcpu: 1,
            failed: 0,
            data: parts.concat(),
        }
    }

    fn task(tid: u32, comm: &[u8; 16], policy: u32) -> Vec<u8> {
        let words = [tid, tid - 1].map(u32::to_le_bytes);
        [&[0; 8][..], &policy.to_le_bytes()[..], &words[0], &words[1], &comm[..]].concat()
    }

    #[test]
    fn what_the_points_read() {
        let own = task(7, b"rt\x1b[31m\0\0\0\0\0\0\0\0\0", 6);
        let long = |n: u64| n.to_le_bytes();
        let sleep = raw(SLEEP, &[&own, &long(5), &long(0x8000_0000_0000_0010), &long(1)]);
        let event = event(&sleep).unwrap();
        assert_eq!(event.thread.comm, "rt?[31m");
        assert_eq!((event.thread.tid, event.thread.pid, event.vcpu, event.sequence), (7, 6, 1, 9));
        assert_eq!(event.thread.policy, Policy::Deadline);
        assert_eq!(event.kind, Kind::Sleep { clock: 1, absolute: true, ns: 5 });

        let mut attributes = vec![0; 48];
        for (at, value) in [(4, 6u64), (20, 3), (24, 1_000), (32, 2_000), (40, 3_000)] {
            attributes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        attributes[20..24].copy_from_slice(&3u32.to_le_bytes());
        let set = raw(SET, &[&own, &task(12, b"0123456789abcdef", 0), &attributes]);
        let Kind::SetScheduler { target, attributes } = super::event(&set).unwrap().kind else {
            panic!("another kind")
        };
        assert_eq!((target.tid, target.comm.as_str()), (12, "0123456789abcdef"));
        assert_eq!((attributes.policy, attributes.runtime_ns), (Policy::Deadline, 1_000));
        assert_eq!((attributes.deadline_ns, attributes.period_ns), (2_000, 3_000));
    }

    #[test]
    fn failed_and_foreign_reads() {
        let mut exit = raw(EXIT, &[&task(7, &[b'x'; 16], 1), &256u64.to_le_bytes()]);
        assert_eq!(event(&exit).unwrap().kind, Kind::Exit { status: 256 });
        let call = raw(CALL, &[&task(7, &[b'x'; 16], 0), &(0xff_0000_0000u64 + 39).to_le_bytes()]);
        assert_eq!(event(&call).unwrap().kind, Kind::SystemCall { number: 39 });
        exit.failed = 1 << 2;
        assert_eq!(event(&exit), Err(DecodeError::Read { point: EXIT, read: 2 }));
        exit.point = 77;
        assert_eq!(event(&exit), Err(DecodeError::Point(77)));
    }

    proptest! {
        #[test]
        fn anything_is_decoded_or_refused(
            point in 0u16..7,
            failed in any::<u16>(),
            data in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            let mut raw = raw(point, &[&data]);
            raw.failed = failed;
            if let Ok(event) = event(&raw) {
                prop_assert!(event.thread.comm.chars().all(|c| (' '..='~').contains(&c)));
            }
        }
    }
}
