//! Where files are: in memory, or on a disk that may keep a writer waiting.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;

/// Whether what is written below `folder` stays in memory (tmpfs or ramfs), so that no disk delays it.
///
/// # Errors
/// When the folder cannot be opened.
pub fn is_in_memory(folder: &Path) -> io::Result<bool> {
    /// linux/magic.h, which libc does not have.
    const RAMFS_MAGIC: libc::__fsword_t = 0x8584_58f6;
    let kind = kind(File::open(folder)?.as_raw_fd())?;
    Ok(kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Whether this file is in a tmpfs, as a memfd is.
pub(crate) fn is_tmpfs(fd: RawFd) -> io::Result<bool> {
    Ok(kind(fd)? == libc::TMPFS_MAGIC)
}

fn kind(fd: RawFd) -> io::Result<libc::__fsword_t> {
    let mut status = core::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open, and the kernel fills in the whole structure when it
    // returns 0.
    unsafe {
        if libc::fstatfs(fd, status.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(status.assume_init().f_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_disks() {
        assert!(!is_in_memory(Path::new("/proc")).unwrap());
        assert!(is_in_memory(Path::new("/dev/null/x")).is_err());
        // Wherever there is one.
        if Path::new("/dev/shm").is_dir() {
            assert!(is_in_memory(Path::new("/dev/shm")).unwrap());
        }
    }
}
