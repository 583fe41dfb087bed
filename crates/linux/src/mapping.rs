//! Shared memory mappings of pages, the one resource that readers and writers share.
//!
//! A [`SharedMapping`] provides only an address and a length: the page's layout and its sequence
//! lock belong to timevisor-clock-page. Who may own which file is decided in [`crate::page_file`],
//! and what happens when a file is truncated in [`crate::truncation`].

use core::ptr::NonNull;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::truncation::Watched;

/// Size of a Timevisor page in bytes; mappings of pages are exactly this long, whatever the file's
/// size.
pub const PAGE_BYTES: usize = 4096;

/// What a mapping may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Loads only: a store would fault.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// Why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file could not be opened.
    #[error("cannot open {path}: check that it exists and that this user may open it")]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The file is shorter than the mapping: a load beyond its end would kill the process with
    /// SIGBUS.
    #[error(
        "the file has {found} bytes, {wanted} are needed; remove it and start timevisord again"
    )]
    TooShort {
        /// Bytes in the file.
        found: u64,
        /// Bytes to be mapped.
        wanted: usize,
    },
    /// The path is not a character device.
    #[error(
        "{0} is not a character device; is the kernel's ptp_vmclock driver loaded (Linux 6.13 or newer)?"
    )]
    NotADevice(PathBuf),
    /// A PCI device's memory could not be opened: sysfs allows only root.
    #[error("cannot open {path}: run as root, or once as root `chmod a+r {path}`", path = .path.display())]
    PciOpen {
        /// The file in sysfs.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A PCI device's memory is disabled.
    #[error("the device's memory is switched off; once as root: `echo 1 > {path}`", path = .path.display())]
    PciDisabled {
        /// The file that enables it.
        path: PathBuf,
        /// Why it could not be written.
        #[source]
        source: io::Error,
    },
    /// A kernel in lockdown mode does not let programs map PCI memory.
    #[error(
        "the kernel does not let programs map {path} (lockdown, as with Secure Boot); give this VM its page by nvdimm or vmclock"
    )]
    LockedDown {
        /// The file in sysfs.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A writer was requested for a read-only mapping.
    #[error("the mapping is read-only; the page's writer needs a writable one")]
    ReadOnly,
    /// A mapping of no bytes.
    #[error("a mapping needs at least one byte")]
    Empty,
    /// The kernel refused the mapping.
    #[error("the kernel refused to map the file")]
    Map(#[source] io::Error),
}

/// A MAP_SHARED mapping of the first bytes of a file. Dropping it unmaps it and closes the file,
/// which releases the file's lock.
#[derive(Debug)]
pub struct SharedMapping {
    address: NonNull<u8>,
    len: usize,
    access: Access,
    file: File,
    watched: Option<Watched>,
    /// Closed last, which gives the page's lock back.
    lock: Option<File>,
}

// SAFETY: the mapping is plain shared memory that belongs to no thread; all access goes through the
// pointer, whose user answers for its own synchronization (atomics, in timevisor-clock-page).
unsafe impl Send for SharedMapping {}
// SAFETY: as above; the methods here only read fields that never change.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `len` bytes of `file`.
    ///
    /// # Errors
    /// When a regular file is too short, the mapping would be empty, or the kernel refuses.
    pub fn new(file: File, len: usize, access: Access) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let metadata = file.metadata().map_err(MapError::Map)?;
        if metadata.is_file() && metadata.len() < len as u64 {
            return Err(MapError::TooShort { found: metadata.len(), wanted: len });
        }
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; the
        // descriptor is open.
        let address = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(MapError::Map(io::Error::last_os_error()));
        }
        let address = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| MapError::Map(io::Error::other("the kernel mapped at address zero")))?;
        let watched = Watched::new(address.as_ptr() as usize, len);
        Ok(Self { address, len, access, file, watched, lock: None })
    }

    /// Whether the file's first page holds anything. A hole must not be touched where somebody else
    /// is to fill it: a load fills it with zeros, and QEMU's post-copy then fails (UFFDIO_COPY with
    /// EEXIST). A file that does not say counts as filled.
    #[must_use]
    pub fn is_there(&self) -> bool {
        // SAFETY: the descriptor is open, and its offset is used by nobody.
        let data = unsafe { libc::lseek(self.file.as_raw_fd(), 0, libc::SEEK_DATA) };
        let hole = io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO);
        if data < 0 { !hole } else { data == 0 }
    }

    /// The same mapping, holding a lock for as long as it lives.
    #[must_use]
    pub fn holding(mut self, lock: File) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Maps a guest's vmclock device, `/dev/vmclock0`: one page, read-only
    /// (drivers/ptp/ptp_vmclock.c allows nothing else).
    ///
    /// # Errors
    /// When there is no such device, or this user may not open it.
    pub fn of_device(path: &Path) -> Result<Self, MapError> {
        let open_error = |source| MapError::Open { path: path.to_owned(), source };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .map_err(open_error)?;
        if !file.metadata().map_err(open_error)?.file_type().is_char_device() {
            return Err(MapError::NotADevice(path.to_owned()));
        }
        Self::new(file, PAGE_BYTES, Access::ReadOnly)
    }

    /// The address of the first byte; page-aligned, and valid until the mapping is dropped.
    ///
    /// Storing through it is allowed only when [`Self::access`] is [`Access::ReadWrite`].
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.address
    }

    /// Bytes mapped.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// What the mapping may be used for.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Whether an access found the file truncated. The mapping is zeroes of this process alone from
    /// then on: what is stored reaches nobody. Always false without [`crate::truncation::survive`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.watched.is_some_and(Watched::is_lost)
    }

    /// Whether the file is too short for the mapping now, or was found so before. Makes a system
    /// call.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        let short =
            |metadata: &std::fs::Metadata| metadata.is_file() && metadata.len() < self.len as u64;
        self.is_lost() || self.file.metadata().is_ok_and(|metadata| short(&metadata))
    }

    /// The file behind the mapping.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if let Some(watched) = self.watched {
            watched.end();
        }
        // SAFETY: exactly the range that mmap returned; nobody can reach it through `self` any
        // more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_seen_and_stays_one_until_it_is_touched() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(PAGE_BYTES as u64).unwrap();
        let mapping =
            SharedMapping::new(file.reopen().unwrap(), PAGE_BYTES, Access::ReadWrite).unwrap();
        assert!(!mapping.is_there() && !mapping.is_there());
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), b"x", 9).unwrap();
        assert!(mapping.is_there());
        // As QEMU discards a page that is to come again.
        // SAFETY: the descriptor is open.
        let punched = unsafe {
            let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            libc::fallocate(file.as_file().as_raw_fd(), how, 0, 4096)
        };
        assert!(punched == 0 && !mapping.is_there());
    }
    use core::sync::atomic::{AtomicU32, Ordering};

    fn word(mapping: &SharedMapping) -> &AtomicU32 {
        // SAFETY: the mapping is at least 4096 bytes, aligned to a page, and lives as long as the
        // reference.
        unsafe { mapping.as_ptr().cast::<AtomicU32>().as_ref() }
    }

    #[test]
    fn a_reader_sees_what_the_writer_stores() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let open = |write| OpenOptions::new().read(true).write(write).open(file.path()).unwrap();
        let writer = SharedMapping::new(open(true), PAGE_BYTES, Access::ReadWrite).unwrap();
        let reader = SharedMapping::new(open(false), PAGE_BYTES, Access::ReadOnly).unwrap();
        word(&writer).store(0x4b4c_4356, Ordering::Release);
        assert_eq!(word(&reader).load(Ordering::Acquire), 0x4b4c_4356);
        assert_eq!((reader.len(), reader.access()), (4096, Access::ReadOnly));
    }

    #[test]
    fn short_files_and_wrong_modes_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4095).unwrap();
        let short = SharedMapping::new(file.reopen().unwrap(), PAGE_BYTES, Access::ReadOnly);
        assert!(matches!(short, Err(MapError::TooShort { found: 4095, wanted: 4096 })));
        file.as_file().set_len(4096).unwrap();
        let read_only = File::open(file.path()).unwrap();
        assert!(matches!(
            SharedMapping::new(read_only, PAGE_BYTES, Access::ReadWrite),
            Err(MapError::Map(_))
        ));
        assert!(matches!(SharedMapping::of_device(file.path()), Err(MapError::NotADevice(_))));
        assert!(matches!(
            SharedMapping::of_device(Path::new("/dev/none")),
            Err(MapError::Open { .. })
        ));
    }
}
