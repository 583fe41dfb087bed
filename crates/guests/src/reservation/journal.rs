//! What is held, on disk: written before anything is changed, so that whoever comes after a crash can bring the old state back.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use timevisor_linux::cpuset::Level;
use timevisor_linux::process::Process;
use timevisor_linux::scheduling::Change;
use timevisor_schedule::Reservation;

use super::enforce::Guarantee;

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
            Guarantee::Global | Guarantee::Fifo => None,
        }
    }

    /// Whether that very QEMU still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Process::new(self.pid).start_time().is_ok_and(|now| now == self.start_time)
    }
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Not readable or writable.
    #[error("{}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not what we write.
    #[error("{} is not understood; settings that it names stay as they are: `timevisor reserve release --all` of the version that wrote it undoes them", .path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// The file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
}

impl Journal {
    /// In the run directory: what it says is void after a boot.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("reservations.json") }
    }

    /// What an earlier daemon held; nothing where there is no file.
    ///
    /// # Errors
    /// A file that cannot be read or is not understood.
    pub fn read(&self) -> Result<Vec<Held>, JournalError> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| JournalError::Format { path: self.path.clone(), source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(JournalError::Io { path: self.path.clone(), source }),
        }
    }

    /// Replaces it; the old one or the new one is there whatever happens.
    ///
    /// # Errors
    /// When it cannot be written: then nothing may be changed.
    pub fn write(&self, held: &[Held]) -> Result<(), JournalError> {
        let fresh = self.path.with_extension("json.new");
        let io = |source| JournalError::Io { path: self.path.clone(), source };
        let bytes = serde_json::to_vec_pretty(held)
            .map_err(|source| JournalError::Format { path: self.path.clone(), source })?;
        let written = || {
            let mut options = fs::OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)
        };
        written().map_err(io)
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
        fs::write(folder.path().join("reservations.json"), "[{\"vm\":3}]").unwrap();
        assert!(journal.read().unwrap_err().to_string().contains("not understood"));
    }
}
