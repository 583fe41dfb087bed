//! Other processes as seen through /proc: their programs, files, mappings and memory.
//!
//! Read-only, except for [`while_stopped`], [`ProcessMemory::writable`] and what a duplicated
//! descriptor allows. A [`Process`] stores
//! its start time, so that a reused pid is detected.

mod memory;
mod owner;
mod patience;
mod pid_fd;
mod stopped;
pub mod text;
mod thread_id;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

pub use memory::ProcessMemory;
pub use owner::Users;
pub use pid_fd::PidFd;
use serde::{Deserialize, Serialize};

pub(crate) use stopped::ptrace;
pub use stopped::while_stopped;
pub use thread_id::{FoundThread, MOST_THREADS, find_thread, has_thread, own_thread_id};

/// Why another process could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It has ended, or its pid now belongs to another process.
    #[error("process {0} has ended")]
    Gone(u32),
    /// It keeps what was asked for from being read ([`Process::patiently`]).
    #[error(
        "process {0} could not be looked at in time: a file system of its user's does not answer, or this machine is too busy; \
         try again, end the process, or unmount that file system"
    )]
    Waits(u32),
    /// The kernel protects other users' processes (ptrace access mode, proc(5)).
    #[error("not allowed to look at {what} of process {pid}; run as root or give CAP_SYS_PTRACE")]
    NotAllowed {
        /// The process.
        pid: u32,
        /// What was requested.
        what: &'static str,
    },
    /// /proc contained something unexpected.
    #[error("cannot read {what} of process {pid}")]
    Read {
        /// The process.
        pid: u32,
        /// What was requested.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// Whether this process is in the initial pid namespace, whose process ids the kernel's BPF
/// programs see. That namespace has a fixed number (include/uapi/linux/nsfs.h, PROC_PID_INIT_INO).
/// If it cannot be read, the answer is no.
#[must_use]
pub fn in_initial_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() == "pid:[4026531836]")
}

/// A process by its pid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Process {
    pid: u32,
    /// Start time in clock ticks after boot; `None` if it has not been read.
    started: Option<u64>,
}

/// An open file: `/proc/PID/fd/N`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FdLink {
    /// The descriptor's number in that process.
    pub fd: u32,
    /// What it points to: a path, `anon_inode:kvm-vm`, `/memfd:name (deleted)`, `socket:[...]`.
    pub target: String,
}

/// How many of a process's descriptors are looked at: a process may have a million, and each costs
/// a system call. QEMUs have a few hundred.
pub const MOST_DESCRIPTORS: usize = 4096;

/// What was found among the descriptors of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FdSearch {
    /// Those that were wanted, in the order of /proc (by number).
    pub found: Vec<FdLink>,
    /// There are more descriptors than [`MOST_DESCRIPTORS`], and the rest was not looked at.
    pub cut: bool,
}

/// A line of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapLine {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Permissions such as `r-xp`.
    pub permissions: String,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device as `major:minor` in hexadecimal.
    pub device: String,
    /// Inode; 0 for anonymous memory.
    pub inode: u64,
    /// The file's name, if any; a deleted file's ends in ` (deleted)`.
    pub path: String,
}

impl MapLine {
    /// Whether this is the file that is mapped here, whatever its path: same device, same inode.
    #[must_use]
    pub fn is_of(&self, file: &std::fs::Metadata) -> bool {
        let device = file.dev();
        let device = format!("{:02x}:{:02x}", libc::major(device), libc::minor(device));
        self.inode == file.ino() && self.device == device
    }
}

/// A process as a look around sees it: nothing is read that it could keep from being read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sighting {
    /// Its pid.
    pub pid: u32,
    /// The inode of its folder in /proc: another one if another process has the pid by now. (The
    /// kernel may also forget it, and make a new one for the same process.)
    pub mark: u64,
    /// Its name as [`Process::comm`] has it. An exec changes it.
    pub name: String,
}

impl Sighting {
    fn of(pid: u32) -> Result<Self, ProcessError> {
        let process = Process::new(pid);
        let folder = std::fs::metadata(format!("/proc/{pid}"));
        let mark = folder.map_err(|source| process.error("its folder", source))?.ino();
        Ok(Self { pid, mark, name: process.comm()? })
    }

    /// The process, whose start time is not read.
    #[must_use]
    pub const fn process(&self) -> Process {
        Process::new(self.pid)
    }
}

impl Process {
    /// A process whose start time does not matter.
    #[must_use]
    pub const fn new(pid: u32) -> Self {
        Self { pid, started: None }
    }

    /// A running process, with its start time.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] when there is none.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        Self::new(pid).start_time().map(|started| Self { pid, started: Some(started) })
    }

    /// Every process of this pid namespace, in the order of /proc, zombies included.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn all() -> io::Result<Vec<Sighting>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
                // Processes that have ended in the meantime are skipped.
                found.extend(Sighting::of(pid).ok());
            }
        }
        Ok(found)
    }

    /// The process that had this pid and was started then; it may have ended.
    #[must_use]
    pub const fn of(pid: u32, started: u64) -> Self {
        Self { pid, started: Some(started) }
    }

    /// Its pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// When it started, as known since [`Self::open`]; nothing is read.
    #[must_use]
    pub const fn started(&self) -> Option<u64> {
        self.started
    }

    /// Whether it still runs, and is still the same process.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.start_time().is_ok_and(|now| self.started.is_none_or(|then| then == now))
    }

    /// Whether it is known to have ended. A process that cannot be looked at may still run.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self.start_time() {
            Ok(now) => self.started.is_some_and(|then| then != now),
            Err(error) => matches!(error, ProcessError::Gone(_)),
        }
    }

    /// When it started, in clock ticks after boot: field 22 of /proc/PID/stat. A zombie counts as
    /// ended.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] after its end.
    pub fn start_time(&self) -> Result<u64, ProcessError> {
        let stat = self.read("stat")?;
        let stat = text::stat(&String::from_utf8_lossy(&stat)).ok_or_else(|| self.odd("stat"))?;
        if stat.has_ended() { Err(ProcessError::Gone(self.pid)) } else { Ok(stat.started) }
    }

    /// Its name, cut to 15 bytes by the kernel.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn comm(&self) -> Result<String, ProcessError> {
        self.read("comm").map(|text| String::from_utf8_lossy(&text).trim_end().to_owned())
    }

    /// The path of its executable; ends in ` (deleted)` after an upgrade.
    ///
    /// # Errors
    /// When the process has ended, or permission is missing.
    pub fn exe(&self) -> Result<PathBuf, ProcessError> {
        std::fs::read_link(self.path("exe")).map_err(|source| self.error("exe", source))
    }

    /// Opens its executable: the file that is actually running, even if it has been replaced on
    /// disk.
    ///
    /// # Errors
    /// When the process has ended, or permission is missing.
    pub fn open_exe(&self) -> Result<File, ProcessError> {
        File::open(self.path("exe")).map_err(|source| self.error("exe", source))
    }

    /// Its command line, as it was started. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn arguments(&self) -> Result<Vec<String>, ProcessError> {
        let line = self.read("cmdline")?;
        let line = line.strip_suffix(b"\0").unwrap_or(&line);
        if line.is_empty() {
            return Ok(Vec::new());
        }
        Ok(line
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect())
    }

    /// Its open files for whose target `wanted` holds: at most `most` of them, and none beyond the
    /// first [`MOST_DESCRIPTORS`] descriptors. What a target says is the process's choice, and no
    /// proof of anything.
    ///
    /// # Errors
    /// When the process has ended, or permission is missing.
    pub fn find_fds(
        &self,
        most: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<FdSearch, ProcessError> {
        let folder =
            std::fs::read_dir(self.path("fd")).map_err(|source| self.error("fd", source))?;
        let mut search = FdSearch::default();
        for (looked, entry) in folder.enumerate() {
            if looked == MOST_DESCRIPTORS {
                search.cut = true;
                break;
            }
            let entry = entry.map_err(|source| self.error("fd", source))?;
            // Descriptors that were closed in the meantime are skipped.
            let (number, target) = (entry.file_name(), std::fs::read_link(entry.path()));
            let number = number.to_str().and_then(|name| name.parse().ok());
            let (Some(fd), Ok(target)) = (number, target) else { continue };
            let target = String::from_utf8_lossy(&target.into_os_string().into_vec()).into_owned();
            if wanted(&target) {
                search.found.push(FdLink { fd, target });
                if search.found.len() == most {
                    break;
                }
            }
        }
        Ok(search)
    }

    /// Duplicates one of its descriptors (pidfd_getfd, Linux 5.6): the very open file that the
    /// process has, with the access that the process was given. No path is opened.
    ///
    /// # Errors
    /// When the process has ended or closed the descriptor, or ptrace is not allowed.
    pub fn duplicate_fd(&self, fd: u32) -> Result<OwnedFd, ProcessError> {
        let pidfd = PidFd::open(*self)?;
        self.patiently(move |process| {
            pidfd.duplicate(fd).map_err(|source| process.error("a descriptor", source))
        })
    }

    /// Its mappings, by address.
    ///
    /// # Errors
    /// When the process has ended, or permission is missing.
    pub fn maps(&self) -> Result<Vec<MapLine>, ProcessError> {
        let maps = self.read("maps")?;
        let maps = String::from_utf8_lossy(&maps);
        maps.lines().map(|line| text::map(line).ok_or_else(|| self.odd("maps"))).collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    fn read(&self, what: &'static str) -> Result<Vec<u8>, ProcessError> {
        std::fs::read(self.path(what)).map_err(|source| self.error(what, source))
    }

    fn odd(&self, what: &'static str) -> ProcessError {
        let source = io::Error::new(io::ErrorKind::InvalidData, "unknown format");
        ProcessError::Read { pid: self.pid, what, source }
    }

    fn error(&self, what: &'static str, source: io::Error) -> ProcessError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => ProcessError::NotAllowed { pid: self.pid, what },
            Some(libc::ENOENT | libc::ESRCH | libc::ECHILD) if !self.path("stat").exists() => {
                ProcessError::Gone(self.pid)
            }
            _ => ProcessError::Read { pid: self.pid, what, source },
        }
    }
}

#[cfg(test)]
mod tests;
