//! Lock files: one holder, and nobody else can get at the lock.
//!
//! flock(2) needs no more than an open descriptor, so whoever may read a file can hold its lock and
//! keep its owner from starting again. A lock file therefore has mode 0600 from the moment that it
//! exists. Earlier versions locked files that everybody may read; such a file is replaced.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::process::{Process, text};

/// How often a file is replaced or found replaced before we give up.
const ATTEMPTS: u32 = 8;

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file could not be opened, changed or locked. A symbolic link gives ELOOP.
    #[error("cannot lock {path}")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Not a regular file of root's or of this user.
    #[error("{0} is not a regular file of this user or root; remove it")]
    NotOurs(PathBuf),
    /// Another process holds the lock.
    #[error("{path} is held by {holder}; stop that one first")]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The holder, as far as /proc identifies it.
        holder: String,
    },
    /// Somebody keeps replacing the file.
    #[error("{0} is being replaced all the time; find out by whom")]
    Replaced(PathBuf),
}

/// Takes the lock, and creates the file if there is none. The lock is held until the file that is
/// returned is closed.
///
/// # Errors
/// When another process holds it (the error names it), or the file cannot be trusted.
pub fn take(path: &Path) -> Result<File, LockError> {
    let io = |source| LockError::Io { path: path.to_owned(), source };
    for _ in 0..ATTEMPTS {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)
            .map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() || (metadata.uid() != 0 && metadata.uid() != our_uid()) {
            return Err(LockError::NotOurs(path.to_owned()));
        }
        let was_open_to_others = metadata.mode() & 0o077 != 0;
        let locked = try_lock(&file).map_err(io)?;
        if !locked {
            let pid = holder(&metadata);
            if !was_open_to_others || pid.is_some_and(is_ours) {
                return Err(LockError::Held { path: path.to_owned(), holder: named(pid) });
            }
        }
        if was_open_to_others {
            // Strangers may hold this file open, and with it the lock, now or later.
            file.set_permissions(Permissions::from_mode(0o600)).map_err(io)?;
            if leads_to(path, &metadata) {
                fs::remove_file(path).map_err(io)?;
            }
            continue;
        }
        if leads_to(path, &metadata) {
            return Ok(file);
        }
    }
    Err(LockError::Replaced(path.to_owned()))
}

/// Tries to lock an open file against everybody else who locks it; false if another has done so.
///
/// # Errors
/// The kernel's, except for a lock that another holds.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open; flock touches no memory.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// The process that holds a file's lock, for people; "another process" where /proc does not tell.
#[must_use]
pub fn holder_of(file: &Metadata) -> String {
    named(holder(file))
}

fn named(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => match Process::new(pid).comm() {
            Ok(comm) => format!("{comm} (pid {pid})"),
            Err(_) => format!("pid {pid}"),
        },
        None => "another process".to_owned(),
    }
}

fn holder(file: &Metadata) -> Option<u32> {
    let device = file.dev();
    let name = format!("{:02x}:{:02x}:{}", libc::major(device), libc::minor(device), file.ino());
    text::flock_holder(&fs::read_to_string("/proc/locks").unwrap_or_default(), &name)
}

/// Whether root or this user runs the process. The real user counts: a program that is set-user-id
/// has its caller's.
fn is_ours(pid: u32) -> bool {
    Process::new(pid).users().is_ok_and(|users| users.real == 0 || users.real == our_uid())
}

fn leads_to(path: &Path, metadata: &Metadata) -> bool {
    let same = |found: Metadata| (found.dev(), found.ino()) == (metadata.dev(), metadata.ino());
    fs::symlink_metadata(path).is_ok_and(same)
}

fn our_uid() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_lock_has_one_holder_and_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = take(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        match take(&path) {
            Err(LockError::Held { holder, .. }) => {
                assert!(holder.ends_with(&format!("(pid {})", std::process::id())), "{holder}");
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        take(&path).unwrap();
    }

    #[test]
    fn links_folders_and_pipes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (link, fifo) = (folder.path().join("link"), folder.path().join("fifo"));
        std::os::unix::fs::symlink(folder.path().join("target"), &link).unwrap();
        assert!(matches!(take(&link), Err(LockError::Io { .. })));
        assert!(matches!(take(folder.path()), Err(LockError::Io { .. })));
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(matches!(take(&fifo), Err(LockError::NotOurs(_))));
    }

    /// Holds a lock as another user, until it is killed.
    fn stranger(path: &Path) -> Child {
        let mut flock = Command::new("flock");
        flock.arg(path).args(["sh", "-c", "echo held; exec sleep 60"]).uid(4001).gid(4001);
        let mut child = flock.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 4];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        child
    }

    #[test]
    fn another_users_lock_on_an_older_daemons_file_blocks_nobody() {
        if our_uid() != 0 {
            return eprintln!("only root can be another user");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut child = stranger(&path);
        let held = take(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(matches!(take(&path), Err(LockError::Held { .. })), "and it is one lock again");
        drop(held);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_older_daemon_that_still_runs_keeps_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let old = File::create(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(try_lock(&old).unwrap());
        assert!(matches!(take(&path), Err(LockError::Held { .. })));
        drop(old);
        let held = take(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(leads_to(&path, &held.metadata().unwrap()));
    }
}
