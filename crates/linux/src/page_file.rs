//! Page files: their permitted owners and sizes, and a lock so that only one daemon writes each.
//!
//! Readers trust a page as much as its file: a file that others can write, or that a link
//! redirects, is refused. It does not interpret the page's bytes.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::mapping::{Access, MapError, PAGE_BYTES, SharedMapping};
use crate::process;

/// How large a page file is. The page is its first 4096 bytes either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// 4096 bytes: pages that host programs and containers map.
    Page,
    /// 2 MiB: pages that QEMU maps as an nvdimm, whose size must be a multiple of the huge page.
    Nvdimm,
}

impl PageSize {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Page => PAGE_BYTES as u64,
            Self::Nvdimm => 2 << 20,
        }
    }
}

/// Why a page file was refused.
#[derive(Debug, thiserror::Error)]
pub enum PageFileError {
    /// The file could not be opened or created. A symbolic link as the last path component gives
    /// ELOOP.
    #[error("cannot open the page file {path}: is timevisord running, and may this user open it?")]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A system call on the open file failed.
    #[error("cannot prepare the page file {path}")]
    Prepare {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Not a regular file.
    #[error("{0} is not a regular file; remove it")]
    NotRegular(PathBuf),
    /// Owned by someone who is neither root nor this user.
    #[error(
        "{path} belongs to user {owner}, not to root or this user; remove it, or give it back with chown"
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Group or others may write it, and could thereby change every reader's clock.
    #[error("{path} has mode {mode:04o}: group or others may write it; run `chmod 0644 {path}`", path = .path.display())]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Neither 4096 bytes nor 2 MiB, or not the size asked for.
    #[error("{path} has {found} bytes, not {wanted}; remove it and start timevisord again")]
    Size {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// The bytes it should have.
        wanted: u64,
    },
    /// Another process writes this page.
    #[error("{path} is already written by {holder}; stop that one first")]
    Locked {
        /// The file.
        path: PathBuf,
        /// The writer, as far as /proc identifies it.
        holder: String,
    },
    /// The file was removed or replaced while it was being opened.
    #[error("{0} was replaced while it was being opened; try again")]
    Replaced(PathBuf),
    /// The kernel could not allocate a page without a path.
    #[error("cannot make a page in memory")]
    Private(#[source] io::Error),
    /// The mapping failed.
    #[error("cannot map {path}")]
    Map {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: MapError,
    },
}

/// Opens a page for writing, creating it (mode 0644, zeroes) if it does not exist, and locks it
/// against other writers until the mapping is dropped.
///
/// # Errors
/// Every reason why we might not be the file's only writer.
pub fn create(path: &Path, size: PageSize) -> Result<SharedMapping, PageFileError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| PageFileError::Open { path: path.to_owned(), source })?;
    let prepare = |source| PageFileError::Prepare { path: path.to_owned(), source };
    let metadata = file.metadata().map_err(prepare)?;
    check(path, &metadata)?;
    lock(path, &file)?;
    // From here on the file is ours; before, its size could not be trusted.
    let metadata = file.metadata().map_err(prepare)?;
    if metadata.nlink() == 0 {
        return Err(PageFileError::Replaced(path.to_owned()));
    }
    if metadata.len() == 0 {
        file.set_len(size.bytes()).map_err(prepare)?;
        // Set regardless of the umask: QEMU and host programs run as other users and read this
        // file.
        file.set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(prepare)?;
    } else if metadata.len() != size.bytes() {
        return Err(PageFileError::Size {
            path: path.to_owned(),
            found: metadata.len(),
            wanted: size.bytes(),
        });
    }
    map(path, file, Access::ReadWrite)
}

/// Creates a page of zeroes that no other process can open, for a process that only uses it itself.
///
/// # Errors
/// When memory or descriptors run out.
pub fn private() -> Result<SharedMapping, PageFileError> {
    // SAFETY: the name is a C string that lives through the call.
    let fd = unsafe { libc::memfd_create(c"timevisor-page".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(PageFileError::Private(io::Error::last_os_error()));
    }
    // SAFETY: a descriptor that memfd_create has just returned, and that nobody else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(PageSize::Page.bytes()).map_err(PageFileError::Private)?;
    map(Path::new("memory"), file, Access::ReadWrite)
}

/// Opens an existing page for reading; takes no lock.
///
/// # Errors
/// When the file is missing, or somebody else could have forged it.
pub fn open(path: &Path) -> Result<SharedMapping, PageFileError> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| PageFileError::Open { path: path.to_owned(), source })?;
    let metadata = file
        .metadata()
        .map_err(|source| PageFileError::Prepare { path: path.to_owned(), source })?;
    check(path, &metadata).or_else(|error| match error {
        // In a user namespace (rootless containers) the host's root is unmapped, and its files
        // appear to belong to `nobody`. On a read-only mount, nobody inside can have created or
        // changed them.
        PageFileError::Owner { owner, .. } if is_unmapped(owner) && is_mounted_read_only(&file) => {
            Ok(())
        }
        error => Err(error),
    })?;
    if metadata.len() != PageSize::Page.bytes() && metadata.len() != PageSize::Nvdimm.bytes() {
        let wanted = PageSize::Page.bytes();
        return Err(PageFileError::Size { path: path.to_owned(), found: metadata.len(), wanted });
    }
    map(path, file, Access::ReadOnly)
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), PageFileError> {
    if !metadata.is_file() {
        return Err(PageFileError::NotRegular(path.to_owned()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(PageFileError::Writable {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
        });
    }
    // Checked last: `open` accepts one kind of owner that is refused here. SAFETY: geteuid has no
    // preconditions and cannot fail.
    let us = unsafe { libc::geteuid() };
    if metadata.uid() != 0 && metadata.uid() != us {
        return Err(PageFileError::Owner { path: path.to_owned(), owner: metadata.uid() });
    }
    Ok(())
}

/// Whether this uid is the overflow uid, which stands for all users not mapped into this process's
/// user namespace.
fn is_unmapped(owner: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(owner);
    overflow && leaves_users_out(&read("/proc/self/uid_map"))
}

/// Whether a text of /proc/self/uid_map (`INSIDE OUTSIDE COUNT` in each line) maps fewer users than
/// that of the initial namespace, which maps all of them. An unreadable text counts as mapping all
/// users.
fn leaves_users_out(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().map(count).sum::<Option<u64>>().is_some_and(|n| n > 0 && n < u64::from(u32::MAX))
}

fn is_mounted_read_only(file: &File) -> bool {
    let mut status = core::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the descriptor is open, and the kernel fills in the whole structure when it
    // returns 0.
    unsafe {
        libc::fstatvfs(file.as_raw_fd(), status.as_mut_ptr()) == 0
            && status.assume_init().f_flag & libc::ST_RDONLY != 0
    }
}

/// Locks a page against other writers until `file` is closed. This also works for pages that are
/// not our page files.
///
/// # Errors
/// When another process holds the lock; the error names it.
pub fn lock(path: &Path, file: &File) -> Result<(), PageFileError> {
    // SAFETY: the descriptor is open; flock touches no memory.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    if source.kind() != io::ErrorKind::WouldBlock {
        return Err(PageFileError::Prepare { path: path.to_owned(), source });
    }
    let prepare = |source| PageFileError::Prepare { path: path.to_owned(), source };
    let metadata = file.metadata().map_err(prepare)?;
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let holder = match holder(&locks, &metadata) {
        Some(pid) => match process::Process::new(pid).comm() {
            Ok(comm) => format!("{comm} (pid {pid})"),
            Err(_) => format!("pid {pid}"),
        },
        None => "another process".to_owned(),
    };
    Err(PageFileError::Locked { path: path.to_owned(), holder })
}

/// The pid in /proc/locks that holds a flock on this file:
/// `1: FLOCK ADVISORY WRITE 708 08:01:1234 0 EOF`.
fn holder(locks: &str, metadata: &Metadata) -> Option<u32> {
    let device = metadata.dev();
    let name =
        format!("{:02x}:{:02x}:{}", libc::major(device), libc::minor(device), metadata.ino());
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let held = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&name.as_str());
        if held { words.get(4)?.parse().ok() } else { None }
    })
}

fn map(path: &Path, file: File, access: Access) -> Result<SharedMapping, PageFileError> {
    SharedMapping::new(file, PAGE_BYTES, access)
        .map_err(|source| PageFileError::Map { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_writer_and_many_readers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let writer = create(&path, PageSize::Nvdimm).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 << 20);
        assert_eq!(open(&path).unwrap().len(), PAGE_BYTES);
        // flock belongs to the open file, so a second open in this process is a second writer too.
        match create(&path, PageSize::Nvdimm) {
            Err(PageFileError::Locked { holder, .. }) => {
                assert!(holder.ends_with(&format!("(pid {})", std::process::id())), "{holder}");
            }
            other => panic!("{other:?}"),
        }
        drop(writer);
        create(&path, PageSize::Nvdimm).unwrap();
    }

    #[test]
    fn only_a_namespace_with_fewer_users_leaves_some_out() {
        assert!(!leaves_users_out("         0          0 4294967295\n"));
        assert!(leaves_users_out("         0     100000      65536\n"));
        assert!(leaves_users_out("0 1000 1\n1 100000 65536\n"));
        assert!(!leaves_users_out("") && !leaves_users_out("nonsense"));
        // Neither our own uid nor another mapped one is unmapped.
        assert!(!is_unmapped(0));
    }

    #[test]
    fn a_writable_mount_is_not_read_only() {
        assert!(!is_mounted_read_only(&tempfile::tempfile().unwrap()));
    }

    #[test]
    fn a_private_page_is_a_page_of_zeroes() {
        let page = private().unwrap();
        assert_eq!((page.len(), page.access()), (PAGE_BYTES, Access::ReadWrite));
        // SAFETY: the last byte of a live mapping that nobody else writes.
        assert_eq!(unsafe { page.as_ptr().as_ptr().add(PAGE_BYTES - 1).read_volatile() }, 0);
    }

    #[test]
    fn the_page_survives_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        drop(create(&path, PageSize::Page).unwrap());
        std::fs::write(&path, [7u8; 4096]).unwrap();
        let again = create(&path, PageSize::Page).unwrap();
        // SAFETY: the first byte of a live mapping that nobody else writes now.
        assert_eq!(unsafe { again.as_ptr().as_ptr().read_volatile() }, 7);
    }

    #[test]
    fn files_that_others_could_forge_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        drop(create(&path, PageSize::Page).unwrap());
        assert!(matches!(
            create(&path, PageSize::Nvdimm),
            Err(PageFileError::Size { found: 4096, .. })
        ));

        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(open(&link), Err(PageFileError::Open { .. })));
        assert!(matches!(create(&link, PageSize::Page), Err(PageFileError::Open { .. })));

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
        assert!(matches!(open(&path), Err(PageFileError::Writable { mode: 0o664, .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(matches!(open(&path), Err(PageFileError::Size { found: 100, .. })));
        assert!(matches!(open(folder.path()), Err(PageFileError::NotRegular(_))));

        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(matches!(open(&path), Err(PageFileError::Owner { owner: 12345, .. })));
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o646)).unwrap();
            assert!(matches!(open(&path), Err(PageFileError::Writable { mode: 0o646, .. })));
        }
    }
}
