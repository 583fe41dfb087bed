//! A shared memory segment as ClockBound's clients map it: files, ownership, and the generation that tells
//! a reader whether what it has read is whole.
//!
//! The header (`shm_header.rs` of clock-bound 3.0.0-rc.0): two words of magic, the segment's size, its
//! version and its generation. The generation is odd while the body is written, even otherwise, and never
//! zero. What the body says belongs to timevisor-protocols (`clockbound`).
//!
//! Behavior: readers keep their mapping for as long as they run, so a segment of ours is written in place
//! and never truncated; a file of another shape is replaced by a whole new one under the same name.
//! ClockBound's daemon takes no lock. Another writer is therefore noticed by its marks: a generation that
//! moves before we begin (wait for [`QUIET`] where [`Segment::is_of_before`]), or that is not what we
//! left ([`Segment::publish`]).
//!
//! Limitation: a daemon that writes less often than that and starts in the same moment is noticed after
//! its first write only. Until then either writer's segment is whole.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock_file::{self, LockError};
use crate::mapping::{Access, MapError, SharedMapping};

const MAGIC: [u32; 2] = [0x414d_5a4e, 0x4342_0200];
const AT_SIZE: usize = 8;
const AT_VERSION: usize = 12;
const AT_GENERATION: usize = 14;
const AT_BODY: usize = 16;
/// The first generation of a new file: even, and not zero.
const FIRST: u16 = 2;
/// A file that nobody has written for so long has no other writer. ClockBound's daemon writes once a
/// second.
pub const QUIET: Duration = Duration::from_millis(1500);

/// Why a segment was not made, or is not written any more.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// A system call failed.
    #[error("cannot prepare {path} for ClockBound's clients; is the directory writable here?")]
    Io {
        /// The file or its directory.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Somebody else could change what clients read.
    #[error(
        "{0} must belong to root or to this user, and be writable by nobody else; correct it with chown and chmod, or remove it"
    )]
    NotOurs(PathBuf),
    /// Another program writes the segment.
    #[error(
        "another program writes {0}; stop it (systemctl disable --now clockbound), or turn this off"
    )]
    Written(PathBuf),
    /// Another Timevisor holds the segment.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The file cannot be mapped.
    #[error("cannot map {path}")]
    Map {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: MapError,
    },
}

/// A segment that this process writes.
#[derive(Debug)]
pub struct Segment {
    mapping: SharedMapping,
    path: PathBuf,
    words: usize,
    /// What we left or found there.
    generation: u16,
    is_of_before: bool,
}

impl Segment {
    /// Makes the segment with `body` in it, and its directory if there is none.
    ///
    /// A file of this shape stays as it is until the first [`Self::publish`], which fails if another program
    /// has written it meanwhile: wait for [`QUIET`] first.
    ///
    /// # Errors
    /// When another Timevisor has the file, another user could write it, or the kernel refuses.
    pub fn create(
        directory: &Path,
        name: &str,
        version: u16,
        body: &[u64],
    ) -> Result<Self, SegmentError> {
        prepare(directory)?;
        let path = directory.join(name);
        let lock = lock_file::take(&beside(&path, ".lock"))?;
        let (file, is_of_before) = match existing(&path, version, body.len())? {
            Some(file) => (file, true),
            None => (replaced(&path, version, body)?, false),
        };
        let len = AT_BODY + size_of_val(body);
        let mapping = SharedMapping::new(file, len, Access::ReadWrite)
            .map_err(|source| SegmentError::Map { path: path.clone(), source })?
            .holding(lock);
        let mut segment =
            Self { mapping, path, words: body.len(), generation: FIRST, is_of_before };
        if is_of_before {
            segment.generation = segment.generation_word().load(Acquire);
        }
        Ok(segment)
    }

    /// True for a file that was found, which may have another writer.
    #[must_use]
    pub fn is_of_before(&self) -> bool {
        self.is_of_before
    }

    /// Writes a new body.
    ///
    /// # Errors
    /// When another program has written since; nothing is written then.
    ///
    /// # Panics
    /// When the body has another length than the first one.
    pub fn publish(&mut self, body: &[u64]) -> Result<(), SegmentError> {
        assert!(body.len() == self.words, "{} words instead of {}", body.len(), self.words);
        let generation = self.generation_word();
        if generation.load(Acquire) != self.generation {
            return Err(SegmentError::Written(self.path.clone()));
        }
        // A writer that died while it wrote has left an odd one.
        let odd = self.generation | 1;
        generation.store(odd, Relaxed);
        fence(Release);
        for (at, word) in body.iter().enumerate() {
            self.word(at).store(*word, Relaxed);
        }
        let even = odd.checked_add(1).unwrap_or(FIRST);
        generation.store(even, Release);
        self.generation = even;
        Ok(())
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn generation_word(&self) -> &AtomicU16 {
        // SAFETY: the mapping is page aligned, writable, at least a header long (`create`), and lives as
        // long as `self`; everybody accesses this word atomically.
        unsafe { self.mapping.as_ptr().byte_add(AT_GENERATION).cast::<AtomicU16>().as_ref() }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.words, "beyond the segment");
        let offset = AT_BODY + at * size_of::<u64>();
        // SAFETY: as above; `at` is inside the body, which is mapped, and the offset is a multiple of 8.
        unsafe { self.mapping.as_ptr().byte_add(offset).cast::<AtomicU64>().as_ref() }
    }
}

/// Makes the directory if there is none; it must be one in which nobody else can replace files.
fn prepare(directory: &Path) -> Result<(), SegmentError> {
    let io = |source| SegmentError::Io { path: directory.to_owned(), source };
    match DirBuilder::new().mode(0o755).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io(error)),
    }
    let metadata = directory.symlink_metadata().map_err(io)?;
    if !metadata.is_dir() || !is_ours(&metadata) {
        return Err(SegmentError::NotOurs(directory.to_owned()));
    }
    Ok(())
}

/// The file at `path` if it can be written in place.
fn existing(path: &Path, version: u16, words: usize) -> Result<Option<File>, SegmentError> {
    let io = |source| SegmentError::Io { path: path.to_owned(), source };
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() || !is_ours(&metadata) || metadata.nlink() > 1 {
        return Err(SegmentError::NotOurs(path.to_owned()));
    }
    let len = AT_BODY + words * size_of::<u64>();
    if metadata.len() < len as u64 || metadata.mode() & 0o444 != 0o444 {
        return Ok(None);
    }
    let mapping = SharedMapping::new(file.try_clone().map_err(io)?, len, Access::ReadOnly)
        .map_err(|source| SegmentError::Map { path: path.to_owned(), source })?;
    Ok(is_of_shape(&mapping, version, len).then_some(file))
}

fn is_of_shape(mapping: &SharedMapping, version: u16, len: usize) -> bool {
    let start = mapping.as_ptr();
    // SAFETY: the mapping is page aligned, at least a header long and lives through this function; the
    // offsets are multiples of each type's size.
    let (magic, size, found) = unsafe {
        (
            [start.cast::<AtomicU32>().as_ref(), start.byte_add(4).cast::<AtomicU32>().as_ref()],
            start.byte_add(AT_SIZE).cast::<AtomicU32>().as_ref(),
            start.byte_add(AT_VERSION).cast::<AtomicU16>().as_ref(),
        )
    };
    magic.map(|word| word.load(Relaxed)) == MAGIC
        && size.load(Relaxed) as usize == len
        && found.load(Relaxed) == version
}

/// A whole new file at `path`; readers of the one before keep that.
fn replaced(path: &Path, version: u16, body: &[u64]) -> Result<File, SegmentError> {
    let io = |source| SegmentError::Io { path: path.to_owned(), source };
    let len = u32::try_from(AT_BODY + size_of_val(body))
        .map_err(|_| io(io::ErrorKind::FileTooLarge.into()))?;
    let mut bytes = Vec::new();
    bytes.extend(MAGIC.iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend(len.to_ne_bytes());
    bytes.extend(version.to_ne_bytes());
    bytes.extend(FIRST.to_ne_bytes());
    bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
    let new = beside(path, ".new");
    // Of a writer that died here. Nobody but us can have made it (`prepare`).
    match std::fs::remove_file(&new) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&new)
        .map_err(io)?;
    file.write_all(&bytes).map_err(io)?;
    // Whatever the umask is: clients run as any user.
    file.set_permissions(Permissions::from_mode(0o644)).map_err(io)?;
    std::fs::rename(&new, path).map_err(io)?;
    Ok(file)
}

fn is_ours(metadata: &Metadata) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let us = unsafe { libc::geteuid() };
    metadata.mode() & 0o022 == 0 && (metadata.uid() == 0 || metadata.uid() == us)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const BODY: [u64; 3] = [1, 2, 3];

    fn read(path: &Path) -> (u16, Vec<u64>) {
        let bytes = std::fs::read(path).unwrap();
        let words =
            bytes[AT_BODY..].chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        (u16::from_ne_bytes([bytes[AT_GENERATION], bytes[AT_GENERATION + 1]]), words.collect())
    }

    #[test]
    fn readers_see_each_body_under_an_even_generation() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("clockbound");
        let mut segment = Segment::create(&directory, "shm1", 0x0303, &BODY).unwrap();
        assert_eq!(read(segment.path()), (2, BODY.to_vec()));
        let bytes = std::fs::read(segment.path()).unwrap();
        assert_eq!(bytes[..16], *b"NZMA\0\x02BC\x28\0\0\0\x03\x03\x02\0");
        segment.publish(&[4, 5, 6]).unwrap();
        assert_eq!(read(segment.path()), (4, vec![4, 5, 6]));
        assert_eq!(std::fs::metadata(segment.path()).unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_generation_is_never_zero() {
        let folder = tempfile::tempdir().unwrap();
        let mut segment = Segment::create(folder.path(), "shm1", 0x0303, &BODY).unwrap();
        for _ in 0..70_000 {
            segment.publish(&BODY).unwrap();
            assert!(segment.generation != 0 && segment.generation % 2 == 0);
        }
    }

    #[test]
    fn a_segment_of_before_is_written_in_place_and_another_shape_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shm1");
        let inode = || std::fs::metadata(&path).unwrap().ino();
        drop(Segment::create(folder.path(), "shm1", 0x0303, &BODY).unwrap());
        let first = inode();
        // A writer that died while it wrote.
        File::options().write(true).open(&path).unwrap().write_all_at(&[7, 0], 14).unwrap();
        let mut again = Segment::create(folder.path(), "shm1", 0x0303, &[0; 3]).unwrap();
        assert!(again.is_of_before() && read(&path) == (7, BODY.to_vec()));
        again.publish(&[7, 8, 9]).unwrap();
        assert_eq!((inode(), read(&path)), (first, (8, vec![7, 8, 9])));
        drop(again);
        let reader = File::open(&path).unwrap();
        drop(Segment::create(folder.path(), "shm1", 2, &BODY).unwrap());
        assert_ne!(inode(), first);
        assert_eq!(reader.metadata().unwrap().len(), 40, "its readers keep the old one");
    }

    #[test]
    fn another_writer_is_noticed_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut segment = Segment::create(folder.path(), "shm1", 0x0303, &BODY).unwrap();
        let again = Segment::create(folder.path(), "shm1", 0x0303, &BODY);
        assert!(matches!(again, Err(SegmentError::Lock(LockError::Held { .. }))), "{again:?}");
        // ClockBound's daemon takes no lock.
        let file = File::options().write(true).open(segment.path()).unwrap();
        file.write_all_at(&[44, 0], 14).unwrap();
        let error = segment.publish(&[9, 9, 9]).unwrap_err();
        assert!(error.to_string().contains("systemctl disable --now clockbound"), "{error}");
        assert_eq!(read(segment.path()), (44, BODY.to_vec()));
    }

    #[test]
    fn what_others_could_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let create = || Segment::create(folder.path(), "shm1", 0x0303, &BODY);
        set(folder.path(), 0o777);
        assert!(matches!(create(), Err(SegmentError::NotOurs(_))));
        set(folder.path(), 0o755);
        drop(create().unwrap());
        set(&folder.path().join("shm1"), 0o666);
        assert!(matches!(create(), Err(SegmentError::NotOurs(_))));
        std::fs::remove_file(folder.path().join("shm1")).unwrap();
        std::os::unix::fs::symlink("/etc/hosts", folder.path().join("shm1")).unwrap();
        assert!(matches!(create(), Err(SegmentError::Io { .. })));
    }
}
