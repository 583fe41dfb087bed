//! Other processes as seen through /proc: their programs, files, mappings and memory.
//!
//! Read-only, except for [`while_stopped`], [`ProcessMemory::writable`] and what a duplicated
//! descriptor allows. A [`Process`] stores
//! its start time, so that a reused pid is detected.

mod memory;
mod owner;
mod pid_fd;
mod stopped;

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

pub use stopped::while_stopped;

/// Why another process could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It has ended, or its pid now belongs to another process.
    #[error("process {0} has ended")]
    Gone(u32),
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

    /// Every process of this pid namespace, in the order of /proc.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn all() -> io::Result<Vec<Self>> {
        Ok(Self::all_named()?.into_iter().map(|(process, _)| process).collect())
    }

    /// The same, each with its name as [`Self::comm`] has it. An exec changes the name.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub fn all_named() -> io::Result<Vec<(Self, String)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
                // Processes that have ended in the meantime are skipped.
                found.extend(Self::open_named(pid).ok());
            }
        }
        Ok(found)
    }

    fn open_named(pid: u32) -> Result<(Self, String), ProcessError> {
        let process = Self::new(pid);
        let stat = process.read("stat")?;
        let stat = String::from_utf8_lossy(&stat);
        let name = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
        let name = name.map_or_else(String::new, |(name, _)| name.to_owned());
        Ok((Self { pid, started: Some(process.start_in(&stat)?) }, name))
    }

    /// Its pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs, and is still the same process.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.start_time().is_ok_and(|now| self.started.is_none_or(|then| then == now))
    }

    /// When it started, in clock ticks after boot: field 22 of /proc/PID/stat. A zombie counts as
    /// ended.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] after its end.
    pub fn start_time(&self) -> Result<u64, ProcessError> {
        let stat = self.read("stat")?;
        self.start_in(&String::from_utf8_lossy(&stat))
    }

    fn start_in(&self, stat: &str) -> Result<u64, ProcessError> {
        // The name in parentheses may contain anything, so count from its end.
        let (_, rest) = stat.rsplit_once(')').unwrap_or_default();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return Err(ProcessError::Gone(self.pid));
        }
        fields.get(19).and_then(|field| field.parse().ok()).ok_or_else(|| self.odd("stat"))
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
        pidfd.duplicate(fd).map_err(|source| self.error("a descriptor", source))
    }

    /// Its mappings, by address.
    ///
    /// # Errors
    /// When the process has ended, or permission is missing.
    pub fn maps(&self) -> Result<Vec<MapLine>, ProcessError> {
        let text = self.read("maps")?;
        let text = String::from_utf8_lossy(&text);
        text.lines().map(|line| parse_map(line).ok_or_else(|| self.odd("maps"))).collect()
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

/// `55d0-55e0 r-xp 00001000 fd:01 1234    /usr/bin/name with spaces` (proc_pid_maps(5)).
fn parse_map(line: &str) -> Option<MapLine> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let mut words = rest.splitn(4, ' ');
    let permissions = words.next()?.to_owned();
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let device = words.next()?.to_owned();
    let (inode, path) = words.next()?.split_once(' ').unwrap_or((rest.rsplit(' ').next()?, ""));
    Some(MapLine {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        permissions,
        offset,
        device,
        inode: inode.parse().ok()?,
        path: path.trim_start().to_owned(),
    })
}

#[cfg(test)]
mod tests;
