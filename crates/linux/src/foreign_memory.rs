//! Shared memory that another process hands over by a descriptor.
//!
//! The other process chooses what its descriptors are: a FIFO, a device, a path that it cannot open
//! itself (O_PATH), a file of somebody else's. So the descriptor is duplicated rather than its name
//! opened, and what it is gets checked on the duplicate: nameless memory (a memfd, or an unlinked
//! file of /dev/shm) of that process's own user, of the right size, opened for reading and writing.
//!
//! What it does not do: protect against a truncation later on ([`crate::truncation`] does).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use crate::file_system::is_tmpfs;
use crate::process::{Process, ProcessError};

/// Why a descriptor is not the memory that it should be.
#[derive(Debug, thiserror::Error)]
pub enum ForeignMemoryError {
    /// The descriptor could not be duplicated.
    #[error("it cannot be had from the process")]
    Process(#[from] ProcessError),
    /// The process itself may not write through it, so nobody may on its behalf.
    #[error("the process has not opened it for reading and writing")]
    NotOpen,
    /// A device, a FIFO, a socket or a folder.
    #[error("it is not a regular file")]
    NotRegular,
    /// A file on a disk, a network or in a program (FUSE).
    #[error("it is not memory (tmpfs)")]
    NotMemory,
    /// A file with a name may be somebody else's.
    #[error("it has a name in a directory, which shared memory has not")]
    Named,
    /// The memory was made by another user.
    #[error("it belongs to user {owner}, and its process runs as user {user}")]
    Owner {
        /// The owner of the memory.
        owner: u32,
        /// The user of the process.
        user: u32,
    },
    /// Not the size asked for.
    #[error("it has {found} bytes, not {wanted}")]
    Size {
        /// Its bytes.
        found: u64,
        /// The bytes it should have.
        wanted: u64,
    },
    /// Seals forbid writing.
    #[error("it is sealed against writing")]
    Sealed,
    /// The kernel refused to look at it.
    #[error("it cannot be examined")]
    Io(#[source] io::Error),
}

/// Opens descriptor `fd` of a process for reading and writing, if it is nameless shared memory of
/// `bytes` bytes that the process made. The file that is returned has a lock and an offset of its
/// own.
///
/// # Errors
/// When it is anything else.
pub fn open(process: Process, fd: u32, bytes: u64) -> Result<File, ForeignMemoryError> {
    let user = process.users()?.effective;
    let theirs = process.duplicate_fd(fd)?;
    check(&theirs, user, bytes)?;
    let ours = anew(&theirs)?;
    // The kernel opens what the descriptor leads to; this only makes sure.
    let (found, wanted) = (stat(&ours)?, stat(&File::from(theirs))?);
    if (found.dev(), found.ino()) != (wanted.dev(), wanted.ino()) {
        return Err(ForeignMemoryError::Named);
    }
    Ok(ours)
}

fn check(theirs: &OwnedFd, user: u32, bytes: u64) -> Result<(), ForeignMemoryError> {
    let raw = theirs.as_raw_fd();
    let flags = get(raw, libc::F_GETFL).map_err(ForeignMemoryError::Io)?;
    if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE != libc::O_RDWR {
        return Err(ForeignMemoryError::NotOpen);
    }
    let metadata = theirs.try_clone().map(File::from).map_err(ForeignMemoryError::Io)?;
    let metadata = stat(&metadata)?;
    if !metadata.is_file() {
        return Err(ForeignMemoryError::NotRegular);
    }
    if !is_tmpfs(raw).map_err(ForeignMemoryError::Io)? {
        return Err(ForeignMemoryError::NotMemory);
    }
    if metadata.nlink() != 0 {
        return Err(ForeignMemoryError::Named);
    }
    if metadata.uid() != user {
        return Err(ForeignMemoryError::Owner { owner: metadata.uid(), user });
    }
    if metadata.len() != bytes {
        return Err(ForeignMemoryError::Size { found: metadata.len(), wanted: bytes });
    }
    // Every file in memory has seals (fcntl(2)); EINVAL says that this one is not.
    let seals = get(raw, libc::F_GET_SEALS).map_err(|_| ForeignMemoryError::NotMemory)?;
    if seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 {
        return Err(ForeignMemoryError::Sealed);
    }
    Ok(())
}

/// The same memory, opened anew: a duplicate shares its lock with the process, so two daemons would
/// both get it. This goes through our own descriptor, of which everything has been checked.
fn anew(theirs: &OwnedFd) -> Result<File, ForeignMemoryError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", theirs.as_raw_fd()))
        .map_err(ForeignMemoryError::Io)
}

fn stat(file: &File) -> Result<std::fs::Metadata, ForeignMemoryError> {
    file.metadata().map_err(ForeignMemoryError::Io)
}

/// One of fcntl's questions that take no argument.
fn get(fd: RawFd, what: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open; the command takes no argument and touches no memory.
    let answer = unsafe { libc::fcntl(fd, what) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    const BYTES: u64 = 4096;

    /// Without a start time: QEMU's user emulation, under which the lab runs this for Arm, makes up
    /// another one for each thread.
    fn us() -> Process {
        Process::new(std::process::id())
    }

    fn offered(file: &impl AsRawFd) -> Result<File, ForeignMemoryError> {
        open(us(), u32::try_from(file.as_raw_fd()).unwrap(), BYTES)
    }

    fn memfd(bytes: u64) -> File {
        // SAFETY: the name is a C string that lives through the call; the descriptor is new.
        let file = unsafe {
            let fd = libc::memfd_create(c"page".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        file.set_len(bytes).unwrap();
        file
    }

    fn seal(file: &File, seals: libc::c_int) {
        // SAFETY: the descriptor is open; the argument is an integer.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    }

    #[test]
    fn a_memfd_of_the_process_is_taken_and_has_a_lock_of_its_own() {
        let theirs = memfd(BYTES);
        let ours = offered(&theirs).unwrap();
        ours.write_all_at(b"VCLK", 0).unwrap();
        let mut found = [0; 4];
        theirs.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"VCLK");
        assert!(crate::lock_file::try_lock(&ours).unwrap());
        let second = offered(&theirs).unwrap();
        assert!(!crate::lock_file::try_lock(&second).unwrap(), "a second daemon is refused");
        let sized = memfd(BYTES);
        seal(&sized, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        offered(&sized).unwrap();
    }

    #[test]
    fn memory_of_another_kind_is_refused() {
        for bytes in [0, 1, BYTES - 1, BYTES + 1, 2 << 20] {
            let refused = offered(&memfd(bytes));
            assert!(
                matches!(refused, Err(ForeignMemoryError::Size { found, .. }) if found == bytes)
            );
        }
        let sealed = memfd(BYTES);
        seal(&sealed, libc::F_SEAL_WRITE);
        assert!(matches!(offered(&sealed), Err(ForeignMemoryError::Sealed)));
        let future = memfd(BYTES);
        seal(&future, libc::F_SEAL_FUTURE_WRITE);
        assert!(matches!(offered(&future), Err(ForeignMemoryError::Sealed)));
        let again = |write, flags| {
            let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
            OpenOptions::new().read(true).write(write).custom_flags(flags).open(path).unwrap()
        };
        assert!(matches!(offered(&again(false, 0)), Err(ForeignMemoryError::NotOpen)));
        assert!(matches!(offered(&again(false, libc::O_PATH)), Err(ForeignMemoryError::NotOpen)));
        if us().users().unwrap().effective == 0 {
            let other = memfd(BYTES);
            std::os::unix::fs::fchown(&other, Some(4001), None).unwrap();
            let refused = offered(&other);
            assert!(matches!(refused, Err(ForeignMemoryError::Owner { owner: 4001, user: 0 })));
        }
    }

    /// Nothing blocks, and nothing is opened on the way.
    #[test]
    fn files_pipes_devices_and_sockets_are_refused() {
        let named = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        named.as_file().set_len(BYTES).unwrap();
        assert!(matches!(offered(named.as_file()), Err(ForeignMemoryError::Named)));
        let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(named.path());
        assert!(matches!(offered(&path.unwrap()), Err(ForeignMemoryError::NotOpen)));
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let both = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        assert!(matches!(offered(&both), Err(ForeignMemoryError::NotRegular)));
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        assert!(matches!(offered(&null), Err(ForeignMemoryError::NotRegular)));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(offered(&socket), Err(ForeignMemoryError::NotRegular)));
        assert!(matches!(open(us(), u32::MAX / 2, BYTES), Err(ForeignMemoryError::Process(_))));
    }
}
