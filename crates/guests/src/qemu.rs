//! QEMU processes: how to find them, their names, and what runs their guest code.
//!
//! It neither starts nor stops them, and does not speak QMP.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use timevisor_linux::process::{FdSearch, MapLine, Process, ProcessError};

use crate::command_line::CommandLine;
use crate::delivery::vmclock_device;
use crate::owner::{Claimant, UserNamespace};

/// What runs the guest's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Accelerator {
    /// The processor, through KVM.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl Accelerator {
    /// The name used in JSON: `kvm`, `tcg`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// Why a QEMU process could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// /proc could not be read.
    #[error("cannot examine a QEMU process")]
    Process(#[from] ProcessError),
    /// The process is not a QEMU.
    #[error("process {0} is not a QEMU")]
    NotQemu(u32),
    /// It was told to use KVM only, and has not opened a KVM virtual machine yet.
    #[error("the QEMU of process {0} is still starting; try again")]
    Starting(u32),
}

/// A QEMU maps fewer different files: itself, its libraries, and memory.
const MOST_FILES: usize = 512;

/// A running QEMU process: what was found when it was examined. Nothing in it is a handle, so it may
/// come from a helper ([`crate::examine`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Qemu {
    /// Its process.
    pub process: Process,
    /// The name of the virtual machine; `pid-N` if it has none.
    pub name: String,
    /// Decided by its open files, not by its options: `accel=kvm:tcg` leaves the choice to QEMU.
    pub accelerator: Accelerator,
    /// What it was started with.
    pub command_line: CommandLine,
    /// Descriptors that look like the page of a vmclock device.
    pub pages: FdSearch,
    /// The files that it has mapped, each once.
    pub files: Vec<MapLine>,
}

/// Every QEMU on this host, including those that could not be examined (with the reason).
///
/// # Errors
/// When /proc is not mounted.
pub fn discover() -> io::Result<Vec<Result<Qemu, QemuError>>> {
    let all = Process::all()?.into_iter().filter_map(|seen| Process::open(seen.pid).ok());
    let found = all.map(Qemu::open);
    // Processes that have ended in the meantime are not reported.
    let ours = |result: &Result<Qemu, QemuError>| {
        !matches!(result, Err(QemuError::NotQemu(_) | QemuError::Process(ProcessError::Gone(_))))
    };
    Ok(found.filter(ours).collect())
}

impl Qemu {
    /// Examines one process.
    ///
    /// # Errors
    /// When it is not a QEMU, has ended, may not be examined, or is still starting.
    pub fn open(process: Process) -> Result<Self, QemuError> {
        let arguments = process.arguments()?;
        let comm = process.comm()?;
        // `-name process=` changes comm, wrappers change the first argument; one of the two is
        // enough.
        let first = arguments.first().map(|path| Path::new(path).file_name().unwrap_or_default());
        let is_qemu = is_qemu(&comm) || first.and_then(|name| name.to_str()).is_some_and(is_qemu);
        if !is_qemu || arguments.is_empty() {
            return Err(QemuError::NotQemu(process.pid()));
        }
        let command_line = CommandLine::parse(&arguments);
        let kvm = !process.find_fds(1, |target| target == "anon_inode:kvm-vm")?.found.is_empty();
        let accelerator = match (kvm, command_line.accelerators.as_slice()) {
            (true, _) => Accelerator::Kvm,
            (false, [only]) if only == "kvm" => return Err(QemuError::Starting(process.pid())),
            (false, _) => Accelerator::Tcg,
        };
        let name = command_line.name.clone().unwrap_or_else(|| format!("pid-{}", process.pid()));
        let pages = process.find_fds(vmclock_device::MOST_CANDIDATES, vmclock_device::is_page)?;
        let mut files: Vec<MapLine> = Vec::new();
        for map in process.maps()?.into_iter().filter(|map| map.inode != 0) {
            let same = |file: &MapLine| (file.inode, &file.device) == (map.inode, &map.device);
            if files.len() < MOST_FILES && !files.iter().any(same) {
                files.push(map);
            }
        }
        Ok(Self { process, name, accelerator, command_line, pages, files })
    }

    /// One of which nothing is known, for tests.
    #[must_use]
    pub fn unexamined(process: Process, accelerator: Accelerator) -> Self {
        let (name, command_line) = (String::new(), CommandLine::default());
        Self {
            process,
            name,
            accelerator,
            command_line,
            pages: FdSearch::default(),
            files: Vec::new(),
        }
    }
}

/// Whether a process looks like a QEMU, by its name (`name`) or its program's. One that keeps its
/// program from being read may be one.
#[must_use]
pub fn looks_like_qemu(process: Process, name: &str) -> bool {
    is_qemu(name)
        || match process.patiently(|process| process.exe()) {
            Ok(path) => path.file_name().and_then(|name| name.to_str()).is_some_and(is_qemu),
            Err(error) => matches!(error, ProcessError::Waits(_)),
        }
}

/// What the kernel says about the owner of a process.
///
/// # Errors
/// When it has ended, may not be examined, or keeps us waiting.
pub fn claimant(process: Process) -> Result<Claimant, ProcessError> {
    process.patiently(claimant_of)
}

fn claimant_of(process: Process) -> Result<Claimant, ProcessError> {
    let uid = process.users()?.only();
    let namespace = if process.shares_our_user_namespace()? {
        UserNamespace::Own
    } else {
        UserNamespace::Other
    };
    // Last: a user's process that starts a set-user-id program in between is noticed.
    let gained_rights = process.has_gained_rights()?;
    Ok(Claimant { uid, namespace, gained_rights })
}

/// Whether a program of this name is a QEMU: `qemu-system-x86_64` (Debian, upstream), cut to 15 bytes in comm; `qemu-kvm` (Red Hat), `kvm`
/// (Debian's link).
#[must_use]
pub fn is_qemu(name: &str) -> bool {
    name.starts_with("qemu-system-") || name == "qemu-kvm" || name == "kvm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_qemu() {
        assert!(is_qemu("qemu-system-x86_64") && is_qemu("qemu-system-x86") && is_qemu("qemu-kvm"));
        assert!(!is_qemu("qemu-img") && !is_qemu("qemu-nbd") && !is_qemu("kvm-irqfd-clean"));
    }

    #[test]
    fn we_are_no_qemu() {
        let us = Process::open(std::process::id()).unwrap();
        assert!(matches!(Qemu::open(us), Err(QemuError::NotQemu(_))));
        assert!(!looks_like_qemu(us, "kvm-irqfd-clean") && looks_like_qemu(us, "qemu-system-x86"));
        let said = claimant(us).unwrap();
        assert_eq!(said.uid, us.users().unwrap().only());
        assert_eq!((said.namespace, said.gained_rights), (UserNamespace::Own, false));
    }
}
