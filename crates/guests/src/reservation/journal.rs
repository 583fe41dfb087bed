//! What is held, on disk: written before anything is changed, so that whoever comes after a crash can bring the old state back.

use std::path::Path;

use serde::{Deserialize, Serialize};
use timevisor_linux::cpuset::Level;
use timevisor_linux::process::Process;
use timevisor_linux::scheduling::{Change, schedstat};
use timevisor_schedule::Reservation;

use super::enforce::Guarantee;
use timevisor_linux::crash_file::{CrashFile, CrashFileError};

/// One reservation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The VM's name.
    pub vm: String,
    /// QEMU's cpu-index.
    pub vcpu: u32,
    /// QEMU.
    pub pid: u32,
    /// Clock ticks after boot (proc(5), field 22): tells a process from a later one with the same pid.
    pub start_time: u64,
    /// The vCPU's thread.
    pub tid: u32,
    /// What is promised.
    pub guarantee: Guarantee,
    /// ns.
    pub budget: u64,
    /// ns.
    pub deadline: u64,
    /// ns.
    pub period: u64,
    /// The least and the greatest budget of a soft one, ns.
    #[serde(default)]
    pub soft: Option<(u64, u64)>,
    /// No other reservation may come to its processor.
    pub alone: bool,
    /// It follows what introspection learns of the guest: nobody does after a restart.
    #[serde(default)]
    pub followed: bool,
    /// Every change made for it that nobody else needs.
    pub changes: Vec<(Level, Change)>,
    /// What the thread had run when the reservation was made, ns.
    pub ran: u64,
    /// CLOCK_BOOTTIME at that moment, ns.
    pub since: u64,
}

impl Held {
    /// As a reservation; `None` for numbers that are none, from a file that somebody edited.
    #[must_use]
    pub fn reservation(&self) -> Option<Reservation> {
        Reservation::new(self.budget, self.deadline, self.period).ok()
    }

    /// The processor that it has.
    #[must_use]
    pub fn core(&self) -> Option<usize> {
        match self.guarantee {
            Guarantee::Core(core) => Some(core),
            Guarantee::Global | Guarantee::Fifo | Guarantee::Limit => None,
        }
    }

    /// Whether it may need what was changed for others at [`Level::Host`].
    #[must_use]
    pub fn needs_host(&self) -> bool {
        matches!(self.guarantee, Guarantee::Core(_) | Guarantee::Limit)
    }

    /// Whether that very QEMU still runs, or at least its vCPU: a thread that is out of budget ends only when it has some.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match Process::new(self.pid).start_time() {
            Ok(now) => now == self.start_time,
            // A zombie keeps its number as long as it has threads.
            Err(_) => self.tid != self.pid && schedstat(self.pid, self.tid).is_ok(),
        }
    }
}

/// The file cannot be used.
pub type JournalError = CrashFileError;

/// The file.
#[derive(Debug)]
pub struct Journal(CrashFile<Vec<Held>>);

impl Journal {
    /// In the run directory.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self(CrashFile::new(directory, "reservations.json"))
    }

    /// What an earlier daemon held; nothing where there is no file.
    ///
    /// # Errors
    /// A file that cannot be read or is not understood.
    pub fn read(&self) -> Result<Vec<Held>, JournalError> {
        self.0.read()
    }

    /// Replaces it.
    ///
    /// # Errors
    /// When it cannot be written: then nothing may be changed.
    pub fn write(&self, held: &[Held]) -> Result<(), JournalError> {
        self.0.write(&held.to_vec())
    }
}

/// Undoes everything that these say, without a daemon. What could not be undone.
#[must_use]
pub fn release_all(held: &[Held]) -> Vec<String> {
    let mut problems = Vec::new();
    for level in [Level::Thread, Level::Processor, Level::Host] {
        for held in held.iter().rev() {
            let of_level = |(at, _): &&(Level, Change)| *at == level;
            let changes: Vec<_> = held.changes.iter().filter(of_level).cloned().collect();
            problems.extend(super::release(held.pid, &changes, held.is_alive()));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_not_understood_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::in_directory(folder.path());
        assert_eq!(journal.read().unwrap(), []);
        let own = Process::new(std::process::id());
        let held = Held {
            vm: "web".into(),
            vcpu: 0,
            pid: own.pid(),
            start_time: own.start_time().unwrap(),
            tid: own.pid(),
            guarantee: Guarantee::Core(1),
            budget: 28_000_000,
            deadline: 50_000_000,
            period: 50_000_000,
            soft: None,
            alone: true,
            followed: false,
            changes: vec![(Level::Host, Change::Folder { path: "/x".into() })],
            ran: 1,
            since: 2,
        };
        assert!(held.is_alive() && !Held { start_time: 1, ..held.clone() }.is_alive());
        journal.write(std::slice::from_ref(&held)).unwrap();
        assert_eq!(journal.read().unwrap(), [held]);
        std::fs::write(folder.path().join("reservations.json"), "[{\"vm\":3}]").unwrap();
        assert!(journal.read().unwrap_err().to_string().contains("not understood"));
    }
}
