//! Page files: their permitted owners and sizes, and a lock so that only one daemon writes each.
//!
//! Readers trust a page as much as its file: a file that others can write, or that a link
//! redirects, is refused. It does not interpret the page's bytes.
//!
//! The lock is a file of its own beside the page (`page.lock`), because whoever may read a file can
//! hold its lock. All bytes of a page file are allocated when it is made: in a sparse file on a
//! full file system, the first store would raise SIGBUS.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::lock_file::{self, LockError};
use crate::mapping::{Access, MapError, PAGE_BYTES, SharedMapping};

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
    /// The lock beside the page could not be taken, for another reason than a second writer.
    #[error("cannot lock the page file {path} against other writers")]
    Lock {
        /// The page.
        path: PathBuf,
        /// Why.
        #[source]
        source: LockError,
    },
    /// The file system has no room for the page.
    #[error("there is no room for the page file {path}; free some space")]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The file has other names, under which it may have another writer: the lock goes by name.
    #[error(
        "{0} is one file under several names (hard links), and may have another writer; remove it and start again"
    )]
    Linked(PathBuf),
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
/// Every reason why we might not be the file's only writer; [`PageFileError::NoRoom`] on a full
/// file system.
pub fn create(path: &Path, size: PageSize) -> Result<SharedMapping, PageFileError> {
    let lock = lock_file::take(&lock_of(path)).map_err(|error| match error {
        LockError::Held { holder, .. } => PageFileError::Locked { path: path.to_owned(), holder },
        source => PageFileError::Lock { path: path.to_owned(), source },
    })?;
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
    match metadata.nlink() {
        0 => return Err(PageFileError::Replaced(path.to_owned())),
        1 => {}
        _ => return Err(PageFileError::Linked(path.to_owned())),
    }
    if metadata.len() != 0 && metadata.len() != size.bytes() {
        return Err(PageFileError::Size {
            path: path.to_owned(),
            found: metadata.len(),
            wanted: size.bytes(),
        });
    }
    // Earlier versions made sparse files, so this is also done to files that have their size.
    allocate(&file, size.bytes())
        .map_err(|source| PageFileError::NoRoom { path: path.to_owned(), source })?;
    if metadata.len() == 0 {
        // Set regardless of the umask: QEMU and host programs run as other users and read this
        // file.
        file.set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(prepare)?;
    }
    map(path, file, Access::ReadWrite).map(|mapping| mapping.holding(lock))
}

/// The lock file beside a page.
fn lock_of(page: &Path) -> PathBuf {
    let mut name = OsString::from(page);
    name.push(".lock");
    PathBuf::from(name)
}

/// Allocates the first `len` bytes of a file, and makes it that long.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    loop {
        // SAFETY: the descriptor is open; the call touches no memory. It returns an error number.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
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
    allocate(&file, PageSize::Page.bytes()).map_err(PageFileError::Private)?;
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

/// Locks a page that is not a page file of ours against other writers until `file` is closed.
/// Whoever else has the page open can hold this lock, too.
///
/// # Errors
/// When another process holds the lock; the error names it.
pub fn lock(path: &Path, file: &File) -> Result<(), PageFileError> {
    let prepare = |source| PageFileError::Prepare { path: path.to_owned(), source };
    if lock_file::try_lock(file).map_err(prepare)? {
        return Ok(());
    }
    let holder = lock_file::holder_of(&file.metadata().map_err(prepare)?);
    Err(PageFileError::Locked { path: path.to_owned(), holder })
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

    /// A daemon that starts again must not wait for a user who may only read the page.
    #[test]
    fn a_reader_cannot_hold_the_writers_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        drop(create(&path, PageSize::Page).unwrap());
        let reader = File::open(&path).unwrap();
        assert!(lock_file::try_lock(&reader).unwrap(), "anybody can lock what he can read");
        create(&path, PageSize::Page).unwrap();
        assert_eq!(std::fs::metadata(lock_of(&path)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn every_byte_of_a_page_file_is_allocated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
        drop(create(&path, PageSize::Nvdimm).unwrap());
        assert!(allocated() >= 2 << 20, "{}", allocated());
        // Earlier versions made sparse files.
        std::fs::remove_file(&path).unwrap();
        File::create(&path).unwrap().set_len(2 << 20).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        drop(create(&path, PageSize::Nvdimm).unwrap());
        assert!(allocated() >= 2 << 20, "{}", allocated());
    }

    #[test]
    fn a_full_file_system_is_an_error_when_the_page_is_made() {
        // A size limit of the process stands for a full file system: another file system needs
        // privileges. In a child, because the limit is the whole process's.
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: the child makes system calls and reports by its exit status only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            // SAFETY: a complete structure; SIGXFSZ would end the child before the error arrives.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
            }
            let made = create(&folder.path().join("page"), PageSize::Page);
            let refused = matches!(made, Err(PageFileError::NoRoom { .. }));
            // SAFETY: runs no destructors of the parent's state.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: a child of ours; `status` is a c_int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_page_with_two_names_could_have_two_writers() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("page"), folder.path().join("other"));
        let writer = create(&path, PageSize::Page).unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        assert!(matches!(create(&other, PageSize::Page), Err(PageFileError::Linked(_))));
        drop(writer);
        std::fs::remove_file(&other).unwrap();
        create(&path, PageSize::Page).unwrap();
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
