//! The records that the kernel's programs keep (bpf/elapsed.h): sixteen words each. The first word
//! is a sequence count that is odd while the others are being written.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Number of core records; `CORES` in bpf/elapsed.bpf.c.
pub const CORES: usize = 512;
/// Number of threads that can be registered at once; `TASKS` in bpf/elapsed.bpf.c.
pub const TASKS: usize = 512;
/// Words of a record.
pub const WORDS: usize = 16;

/// Maximum number of attempts to read a record. A writer runs in the kernel and cannot be
/// preempted, so it is done after a few attempts unless another write follows.
const TURNS: u32 = 1_000_000;

/// A record in shared memory.
pub type Record = [AtomicU64; WORDS];

/// A length of time in 2^-32 ns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct FineAge(pub u128);

impl FineAge {
    /// Builds it from the two words of a record.
    fn of(ns: u64, fraction: u64) -> Self {
        Self((u128::from(ns) << 32) + u128::from(fraction))
    }

    /// The two words of a record.
    pub(super) fn words(self) -> [u64; 2] {
        [self.nanos(), u64::try_from(self.0 & 0xffff_ffff).unwrap_or(0)]
    }

    /// Whole nanoseconds.
    #[must_use]
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0 >> 32).unwrap_or(u64::MAX)
    }
}

/// The state of a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Core {
    /// The counter value at which the current segment began.
    pub base: u64,
    /// The core's age at that value.
    pub age: FineAge,
    /// Length of a tick since then, 2^-32 ns; 0 if there is no counter.
    pub period: u64,
    /// Period times kHz; 0 if the counter does not follow the core's frequency.
    pub scale: u64,
    /// A frequency that another core reported and that is not consolidated yet; 0 if there is none.
    pub pending_khz: u64,
    /// When it was reported, ns of CLOCK_MONOTONIC.
    pub pending_since: u64,
    /// Time and ticks from the first such report that is not consolidated yet to the last one.
    pub pending_ns: u64,
    /// See `pending_ns`.
    pub pending_ticks: u64,
    /// Amount by which the age may be too large.
    pub excess_ns: u64,
    /// Number of rate changes so far.
    pub changes: u64,
    /// Number of events lost because the record was being written.
    pub missed: u64,
    /// `rdtsc` minus this counter.
    pub offset: u64,
    /// Error of the offset, in ticks.
    pub offset_error: u64,
}

impl Core {
    fn of(w: &[u64; WORDS]) -> Self {
        Self {
            base: w[1],
            age: FineAge::of(w[2], w[3]),
            period: w[4],
            scale: w[5],
            pending_khz: w[6],
            pending_since: w[7],
            pending_ns: w[8],
            pending_ticks: w[9],
            excess_ns: w[10],
            changes: w[11],
            missed: w[12],
            offset: w[13],
            offset_error: w[14],
        }
    }

    fn words(&self) -> [u64; WORDS] {
        let [ns, fraction] = self.age.words();
        [
            0,
            self.base,
            ns,
            fraction,
            self.period,
            self.scale,
            self.pending_khz,
            self.pending_since,
            self.pending_ns,
            self.pending_ticks,
            self.excess_ns,
            self.changes,
            self.missed,
            self.offset,
            self.offset_error,
            0,
        ]
    }

    /// The core's age at a value of its counter; a value before the base gives the age at the base.
    #[must_use]
    pub fn age_at(&self, count: u64) -> FineAge {
        let ticks = count.wrapping_sub(self.base);
        let ticks = if ticks >> 63 == 0 { ticks } else { 0 };
        FineAge(self.age.0 + u128::from(ticks) * u128::from(self.period))
    }
}

/// Where a registered thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// The record is free.
    #[default]
    Unused,
    /// It has not run since it was registered.
    New,
    /// On its core.
    Here,
    /// It will run on another core, and has not yet arrived.
    Moved,
}

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Task {
    /// Its id in the initial pid namespace.
    pub pid: u64,
    /// Where it is.
    pub place: Place,
    /// The core that it runs on, or ran on last.
    pub core: u64,
    /// Its age when its current segment on that core began.
    pub age: FineAge,
    /// The core's age then.
    pub base: FineAge,
    /// The core's age when it last stopped running there.
    pub left: FineAge,
    /// When it last stopped, ns of CLOCK_MONOTONIC.
    pub left_at: u64,
    /// Number of moves between cores so far.
    pub migrations: u64,
    /// The part of the age that was measured by CLOCK_MONOTONIC, between two cores.
    pub bridged_ns: u64,
    /// Number of events lost because the record was being written.
    pub missed: u64,
}

impl Task {
    fn of(w: &[u64; WORDS]) -> Self {
        Self {
            pid: w[1],
            place: match w[2] {
                1 => Place::New,
                2 => Place::Here,
                3 => Place::Moved,
                _ => Place::Unused,
            },
            core: w[3],
            age: FineAge::of(w[4], w[5]),
            base: FineAge::of(w[6], w[7]),
            left: FineAge::of(w[8], w[9]),
            left_at: w[10],
            migrations: w[11],
            bridged_ns: w[12],
            missed: w[13],
        }
    }

    /// The thread's age when its core's is `core`.
    #[must_use]
    pub fn age_at(&self, core: FineAge) -> FineAge {
        FineAge(self.age.0 + core.0.saturating_sub(self.base.0))
    }
}

/// A consistent copy of a record, the sequence first; `None` if the record keeps changing.
pub(super) fn snapshot(record: &Record) -> Option<[u64; WORDS]> {
    for _ in 0..TURNS {
        let sequence = record[0].load(Ordering::Acquire);
        if sequence & 1 == 0 {
            let mut words = [sequence; WORDS];
            for (word, shared) in words.iter_mut().zip(record).skip(1) {
                *word = shared.load(Ordering::Relaxed);
            }
            if is_still(record, sequence) {
                return Some(words);
            }
        }
        spin_loop();
    }
    None
}

/// Whether nothing has been written since the sequence had this value; ordered after all earlier
/// loads.
pub(super) fn is_still(record: &Record, sequence: u64) -> bool {
    fence(Ordering::Acquire);
    record[0].load(Ordering::Relaxed) == sequence
}

pub(super) fn core(record: &Record) -> Option<(u64, Core)> {
    snapshot(record).map(|words| (words[0], Core::of(&words)))
}

pub(super) fn task(record: &Record) -> Option<(u64, Task)> {
    snapshot(record).map(|words| (words[0], Task::of(&words)))
}

/// Whether readers may rely on the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Yes.
    Serving,
    /// No: ages and CLOCK_MONOTONIC_RAW have parted.
    Parted,
    /// No: the process that kept them has ended.
    Ended,
}

impl Service {
    /// As a word of the record.
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Serving => 0,
            Self::Parted => 1,
            Self::Ended => 2,
        }
    }
}

/// When the records were last looked after (CLOCK_MONOTONIC, ns; 0 if nobody needs to), and the
/// state.
pub(super) fn service(record: &Record) -> (u64, Service) {
    let state = match record[1].load(Ordering::Relaxed) {
        0 => Service::Serving,
        1 => Service::Parted,
        _ => Service::Ended,
    };
    (record[0].load(Ordering::Relaxed), state)
}

/// Writes a core's record without locking. Allowed only while no program can access it.
pub(super) fn write_core(record: &Record, core: &Core) {
    write(record, &core.words());
}

fn write(record: &Record, words: &[u64; WORDS]) {
    for (shared, word) in record.iter().zip(words).skip(1) {
        shared.store(*word, Ordering::Relaxed);
    }
    // An even sequence count that no reader has started with.
    record[0].fetch_add(2, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let record = Record::default();
        let wrote = Core {
            base: 7,
            age: FineAge((5 << 32) + 3),
            period: 1 << 31,
            scale: 11,
            offset: u64::MAX,
            offset_error: 13,
            ..Core::default()
        };
        write_core(&record, &wrote);
        assert_eq!(core(&record), Some((2, wrote)));
        // Half a nanosecond per tick.
        assert_eq!(wrote.age_at(9), FineAge((6 << 32) + 3));
        assert_eq!(wrote.age_at(6), wrote.age);
        let read = Task { age: FineAge(9 << 32), ..Task::default() };
        assert_eq!(read.age_at(FineAge(1 << 32)).nanos(), 10);
    }

    #[test]
    fn the_service_is_told_in_two_words() {
        let record = Record::default();
        assert_eq!(service(&record), (0, Service::Serving));
        for state in [Service::Serving, Service::Parted, Service::Ended] {
            record[0].store(7, Ordering::Relaxed);
            record[1].store(state.word(), Ordering::Relaxed);
            assert_eq!(service(&record), (7, state));
        }
    }

    #[test]
    fn a_record_that_is_being_written_is_not_read() {
        let record = Record::default();
        record[0].store(1, Ordering::Relaxed);
        assert_eq!(snapshot(&record), None);
    }
}
