//! The age of the calling thread, from two records and one reading of the TSC.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{Ordering, fence};
use std::time::Duration;

use timevisor_clock_page::Counter as _;

use super::elapsed::{ElapsedBpf, Shared};
use super::error::BpfError;
use super::record::{self, Core, FineAge, Place, Task};
use crate::affinity;
use crate::counter::Tsc;

/// Maximum number of sleeps of a new thread. The programs notice the thread when it runs again
/// after a sleep.
const FIRST_SLEEPS: u32 = 200;
/// Maximum number of attempts to read an age while the thread moves between cores.
const ATTEMPTS: u32 = 1000;
/// Maximum number of sleeps of a thread whose arrival on a core was missed; after each sleep it
/// arrives again.
const SLEEPS: u32 = 100;
/// Length of such a sleep. Any length works, because only the switch to another thread matters.
const SLEEP: Duration = Duration::from_micros(1);

/// The age of the thread that registered. Dropping it releases its place.
///
/// Readings are strictly increasing, even across moves between cores and frequency changes. The
/// value stays on its thread, because only there `rdtsc` reads the counter of the thread's core.
#[derive(Debug)]
pub struct OwnAge<'a> {
    shared: &'a Shared,
    elapsed: &'a ElapsedBpf,
    place: u32,
    pid: u32,
    missed: Cell<u64>,
    not_send: PhantomData<*const ()>,
}

/// Why the age is currently unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel's programs have not seen the thread arrive on the core that it runs on.
    #[error("the thread's move to this core was missed; it will be known with the next one")]
    Lost,
    /// The records kept changing.
    #[error("the records changed during every attempt; read again")]
    Busy,
}

impl ElapsedBpf {
    /// Registers the calling thread with the initial age `age`.
    ///
    /// # Errors
    /// When all places are taken, or the programs do not see it run.
    pub fn register_self(&self, age: FineAge) -> Result<OwnAge<'_>, BpfError> {
        let pid = self.own_pid()?;
        let place = self.register(pid, age)?;
        let own = OwnAge::new(self, place, pid);
        for _ in 0..FIRST_SLEEPS {
            std::thread::sleep(Duration::from_millis(1));
            if own.task().is_some_and(|task| task.place == Place::Here) {
                return Ok(own);
            }
        }
        Err(BpfError::NotSeen(pid))
    }
}

impl<'a> OwnAge<'a> {
    fn new(elapsed: &'a ElapsedBpf, place: u32, pid: u32) -> Self {
        Self {
            shared: elapsed.shared(),
            elapsed,
            place,
            pid,
            missed: Cell::new(0),
            not_send: PhantomData,
        }
    }

    /// The current age. If the thread's arrival on its core was missed (some kernels occasionally
    /// omit a switch), the thread sleeps briefly: it then arrives again, and CLOCK_MONOTONIC
    /// measures the time since it left the previous core.
    ///
    /// # Errors
    /// When it is currently unknown; a later reading will be right again.
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
        let mine = self.shared.task(self.place);
        for _ in 0..ATTEMPTS {
            let Some((sequence, task)) = record::task(mine) else { break };
            if task.place != Place::Here {
                return Err(ReadError::Lost);
            }
            let Some(cores) = self.shared.core(task.core) else { return Err(ReadError::Lost) };
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
                return Ok(task.age_at(core.age_at(count)));
            }
        }
        Err(ReadError::Busy)
    }

    /// How often the thread had to sleep because its arrival on a core was missed.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.get()
    }

    /// This thread's record.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        record::task(self.shared.task(self.place)).map(|(_, task)| task)
    }

    /// The record of the core that runs this thread.
    #[must_use]
    pub fn core(&self) -> Option<Core> {
        record::core(self.shared.core(self.task()?.core)?).map(|(_, core)| core)
    }
}

impl Drop for OwnAge<'_> {
    fn drop(&mut self) {
        self.elapsed.forget(self.place, self.pid);
    }
}
