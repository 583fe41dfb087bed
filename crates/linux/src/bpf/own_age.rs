//! A thread's own age: two records and one reading of the TSC.

use core::marker::PhantomData;
use core::sync::atomic::{Ordering, fence};

use timevisor_clock_page::Counter as _;

use super::elapsed::{ElapsedBpf, Shared};
use super::record::{self, Core, FineAge, Place, Task};
use crate::counter::Tsc;

/// Being moved again within every one of so many attempts is no accident.
const ATTEMPTS: u32 = 1000;

/// The age of the thread that registered. Dropping it gives its place back.
///
/// Readings are strictly increasing, over moves between cores and changes of their frequency. It stays on its thread: only there is
/// `rdtsc` the counter of the thread's core.
#[derive(Debug)]
pub struct OwnAge<'a> {
    shared: &'a Shared,
    elapsed: &'a ElapsedBpf,
    place: u32,
    pid: u32,
    not_send: PhantomData<*const ()>,
}

/// Why an age cannot be told at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel's programs have not seen the thread arrive on the core that it runs on.
    #[error("the thread's move to this core was missed; it will be known with the next one")]
    Lost,
    /// The records were written all the time.
    #[error("the records changed during every attempt; read again")]
    Busy,
}

impl<'a> OwnAge<'a> {
    pub(super) fn new(elapsed: &'a ElapsedBpf, place: u32, pid: u32) -> Self {
        Self { shared: elapsed.shared(), elapsed, place, pid, not_send: PhantomData }
    }

    /// The age now.
    ///
    /// # Errors
    /// When it is not known here and now; a later reading is right again.
    pub fn read(&self) -> Result<FineAge, ReadError> {
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
            // Had the thread been moved before the counter was read, its record would say so by now.
            if record::is_still(mine, sequence) && record::is_still(cores, core_sequence) {
                return Ok(task.age_at(core.age_at(count)));
            }
        }
        Err(ReadError::Busy)
    }

    /// What the kernel's programs know of this thread.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        record::task(self.shared.task(self.place)).map(|(_, task)| task)
    }

    /// What they know of the core that it runs on.
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
