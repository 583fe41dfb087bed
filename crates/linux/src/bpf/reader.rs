//! Reads the age of the calling thread, from two records and one reading of the TSC. The process
//! that loaded the programs and its clients read with this code alone.

use core::borrow::Borrow;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use timevisor_clock_page::Counter as _;

use super::record::{self, CORES, Core, FineAge, Place, Record, Service, TASKS, Task};
use crate::affinity;
use crate::counter::Tsc;
use crate::mapping::{Access, MapError, SharedMapping};

/// Maximum number of sleeps of a new thread. The programs notice the thread when it runs again
/// after a sleep.
const FIRST_SLEEPS: u32 = 200;
/// Length of such a sleep.
const FIRST_SLEEP: Duration = Duration::from_millis(1);
/// Maximum number of attempts to read an age while the thread moves between cores.
const ATTEMPTS: u32 = 1000;
/// Maximum number of sleeps of a thread whose arrival on a core was missed; after each sleep it
/// arrives again.
const SLEEPS: u32 = 100;
/// Length of such a sleep. Any length works, because only the switch to another thread matters.
const SLEEP: Duration = Duration::from_micros(1);
/// A thread that serves others looks after the records at least this often. A reader takes it for
/// dead afterwards.
pub const ATTENDED_WITHIN: Duration = Duration::from_secs(8);
/// The ages of a reader and CLOCK_MONOTONIC part by less than one in this many.
const PART: u64 = 50;

/// Why the age is currently unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel's programs have not seen the thread arrive on the core that it runs on.
    #[error("the thread's move to this core was missed; it will be known with the next one")]
    Lost,
    /// The records kept changing.
    #[error("the records changed during every attempt; read again")]
    Busy,
    /// The record is not this thread's any more.
    #[error("this thread is not registered any more; begin again")]
    Gone,
    /// Nobody looks after the records.
    #[error(
        "nobody has looked after the ages for {} s; is timevisord stopped? Read again once it runs, or begin again",
        ATTENDED_WITHIN.as_secs()
    )]
    Unattended,
    /// Ages and CLOCK_MONOTONIC_RAW have parted.
    #[error(
        "ages of threads and CLOCK_MONOTONIC_RAW have parted, and are not served any more; `timevisor status` has the figures"
    )]
    Parted,
    /// The process that kept the records has ended.
    #[error("the timevisord that kept this age has ended; begin again with the one that runs now")]
    Ended,
}

/// The two maps of records.
#[derive(Debug)]
pub struct Records {
    cores: SharedMapping,
    tasks: SharedMapping,
}

impl Records {
    /// Maps them read-only, for a client that was given their descriptors.
    ///
    /// # Errors
    /// When these are no such maps.
    pub fn read_only(cores: OwnedFd, tasks: OwnedFd) -> Result<Self, MapError> {
        Self::map(cores, tasks, Access::ReadOnly)
    }

    pub(super) fn map(cores: OwnedFd, tasks: OwnedFd, access: Access) -> Result<Self, MapError> {
        let map =
            |fd, records| SharedMapping::new(File::from(fd), records * size_of::<Record>(), access);
        // The cores, and who looks after them.
        Ok(Self { cores: map(cores, CORES + 1)?, tasks: map(tasks, TASKS)? })
    }

    #[cfg(feature = "bpf")]
    pub(super) fn are_writable(&self) -> bool {
        self.cores.access() == Access::ReadWrite
    }

    pub(super) fn core(&self, core: u64) -> Option<&Record> {
        let index = usize::try_from(core).ok().filter(|index| *index < CORES)?;
        Some(Self::record(&self.cores, index))
    }

    pub(super) fn task(&self, place: u32) -> &Record {
        Self::record(&self.tasks, (place as usize).min(TASKS - 1))
    }

    fn service(&self) -> (u64, Service) {
        record::service(Self::record(&self.cores, CORES))
    }

    fn record(mapping: &SharedMapping, index: usize) -> &Record {
        let first: NonNull<Record> = mapping.as_ptr().cast();
        // SAFETY: the index is below the map's number of elements, each of which is a record, and
        // the mapping holds them all and lives as long as the reference. It is aligned to a page,
        // all access is atomic, and atomics need no valid value. Nothing is stored through it
        // unless it is writable.
        unsafe { first.add(index).as_ref() }
    }
}

/// The age of the calling thread, which has a record.
///
/// Readings are strictly increasing, even across moves between cores and frequency changes. The
/// value stays on its thread, because only there `rdtsc` reads the counter of the thread's core. It
/// does not survive a fork: the child is another thread.
#[derive(Debug)]
pub struct AgeReader<R> {
    records: R,
    place: u32,
    pid: u32,
    missed: Cell<u64>,
    /// The last age at which somebody was seen to look after the records, and when that was.
    attended: Cell<Option<(u64, u64)>>,
    not_send: PhantomData<*const ()>,
}

impl<R: Borrow<Records>> AgeReader<R> {
    /// For a thread with this id in the initial pid namespace, whose record is at `place`.
    #[must_use]
    pub const fn new(records: R, place: u32, pid: u32) -> Self {
        let (missed, attended) = (Cell::new(0), Cell::new(None));
        Self { records, place, pid, missed, attended, not_send: PhantomData }
    }

    /// Waits until the programs have seen the thread run, which they do after a sleep. Returns false
    /// if they do not.
    #[must_use]
    pub fn settle(&self) -> bool {
        (0..FIRST_SLEEPS).any(|_| {
            std::thread::sleep(FIRST_SLEEP);
            self.task().is_some_and(|task| task.place == Place::Here)
        })
    }

    /// The current age. If the thread's arrival on its core was missed (some kernels occasionally
    /// omit a switch), the thread sleeps briefly: it then arrives again, and CLOCK_MONOTONIC
    /// measures the time since it left the previous core.
    ///
    /// # Errors
    /// When it is currently unknown. After [`ReadError::Lost`], [`ReadError::Busy`] and
    /// [`ReadError::Unattended`] a later reading may be right again.
    pub fn read(&self) -> Result<FineAge, ReadError> {
        for _ in 0..SLEEPS {
            match self.read_once() {
                Err(ReadError::Lost) => {
                    self.missed.set(self.missed.get() + 1);
                    std::thread::sleep(SLEEP);
                }
                done => return done,
            }
        }
        Err(ReadError::Lost)
    }

    fn read_once(&self) -> Result<FineAge, ReadError> {
        let tsc = Tsc::unchecked();
        let records = self.records.borrow();
        // A thread that moved after the end of the service would be lost for ever.
        let service = records.service();
        check_state(service.1)?;
        let mine = records.task(self.place);
        for _ in 0..ATTEMPTS {
            let Some((sequence, task)) = record::task(mine) else { break };
            if task.pid != u64::from(self.pid) {
                return Err(ReadError::Gone);
            }
            if task.place != Place::Here {
                return Err(ReadError::Lost);
            }
            let Some(cores) = records.core(task.core) else { return Err(ReadError::Lost) };
            let Some((core_sequence, core)) = record::core(cores) else { break };
            let count = tsc.read_ordered().wrapping_sub(core.offset);
            fence(Ordering::Acquire);
            let runs_on = affinity::current();
            // If the thread had moved before the counter was read, its record would show it by now.
            if record::is_still(mine, sequence) && record::is_still(cores, core_sequence) {
                // Unless the programs did not see it.
                if runs_on.map(|core| core as u64) != Some(task.core) {
                    return Err(ReadError::Lost);
                }
                let age = task.age_at(core.age_at(count));
                self.check_attended(age.nanos(), service.0)?;
                return Ok(age);
            }
        }
        Err(ReadError::Busy)
    }

    /// Whether the records are looked after. No call is made: what has passed by this thread's age
    /// since the last look that it knows of is compared with what has passed by the looks.
    fn check_attended(&self, age: u64, looked_at: u64) -> Result<(), ReadError> {
        if looked_at == 0 {
            return Ok(());
        }
        let Some((known_age, known_look)) = self.attended.get() else {
            self.attended.set(Some((age, looked_at)));
            return Ok(());
        };
        let (aged, looked) = (age.saturating_sub(known_age), looked_at.saturating_sub(known_look));
        let patience = u64::try_from(ATTENDED_WITHIN.as_nanos()).unwrap_or(u64::MAX);
        if aged > looked.saturating_add(aged / PART).saturating_add(patience) {
            return Err(ReadError::Unattended);
        }
        if looked > 0 {
            self.attended.set(Some((age, looked_at)));
        }
        Ok(())
    }

    /// How often the thread had to sleep because its arrival on a core was missed.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.get()
    }

    /// This thread's record.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        record::task(self.records.borrow().task(self.place)).map(|(_, task)| task)
    }

    /// The record of the core that runs this thread.
    #[must_use]
    pub fn core(&self) -> Option<Core> {
        let core = self.records.borrow().core(self.task()?.core)?;
        record::core(core).map(|(_, core)| core)
    }
}

fn check_state(service: Service) -> Result<(), ReadError> {
    match service {
        Service::Serving => Ok(()),
        Service::Parted => Err(ReadError::Parted),
        Service::Ended => Err(ReadError::Ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    fn reader() -> AgeReader<Records> {
        // Any memory of the right size: zeros, an unused record.
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let fd = || file.as_fd().try_clone_to_owned().unwrap();
        AgeReader::new(Records::read_only(fd(), fd()).unwrap(), 0, 7)
    }

    #[test]
    fn another_threads_record_is_not_read() {
        assert_eq!(reader().read(), Err(ReadError::Gone));
    }

    #[test]
    fn a_reader_notices_when_nobody_looks_after_the_records() {
        const S: u64 = 1_000_000_000;
        let reader = reader();
        let check = |age, look| reader.check_attended(age * S, look * S);
        // Nobody needs to.
        assert_eq!((check(0, 0), check(1000, 0)), (Ok(()), Ok(())));
        assert_eq!((check(1000, 5), check(1008, 5)), (Ok(()), Ok(())));
        assert_eq!(check(1009, 5), Err(ReadError::Unattended));
        // It was stopped for a while.
        assert_eq!(check(1010, 15), Ok(()));
        // A reader that comes after ten minutes finds a look that was one second after its last.
        assert_eq!(check(1610, 16), Err(ReadError::Unattended));
        assert_eq!(check(1610, 615), Ok(()));
    }
}
