//! Files of state in a directory of ours: read and replaced without being led astray.
//!
//! Behavior: a link is not followed, nothing blocks (a FIFO in the place of a file is an error), a
//! file of a stranger or one that others may write is refused, and so is one that is too long. A
//! file is replaced by a new one: after a crash, the old content is there or the new one.
//!
//! It does not interpret the content.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The longest file of state that anything here writes is far below this: 16 MiB.
pub const MOST_BYTES: u64 = 16 << 20;

/// Whom a file of state is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// Its writer (mode 0600).
    Owner,
    /// Everybody (mode 0644): another user's QEMU reads it.
    All,
}

impl Readers {
    const fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::All => 0o644,
        }
    }
}

/// Why a file is not believed. Its text tells what to do with a file of state; a caller whose files
/// people write finds this in the [`io::Error`] and says what to do with such a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Distrust {
    /// A directory.
    #[error("it is a directory; remove it")]
    Directory,
    /// A FIFO, a socket or a device.
    #[error("it is not a regular file; remove it")]
    NotRegular,
    /// The file of this user, who is neither root nor the user of this process.
    #[error("it belongs to user {0}; remove it")]
    Owner(u32),
    /// Not only its owner may write it.
    #[error("group or others may write it; remove it")]
    Writable,
    /// Not only its owner may read or write it.
    #[error("group or others may read it; chmod 600 makes it its owner's")]
    Readable,
    /// Longer than this many bytes.
    #[error("it has more than {0} bytes; remove it")]
    Long(u64),
}

impl Distrust {
    /// The reason in this error, if it is one of these.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }

    fn error(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// The kernel's ([`io::ErrorKind::NotFound`] if there is no file; ELOOP for a link), or
/// [`io::ErrorKind::InvalidData`] for a file that cannot be trusted, with the reason.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_with(path, most, is_ours, Distrust::Writable).map(|(bytes, _)| bytes)
}

/// As [`read()`], but the file may be anybody's: for one that is checked and not used. Returns its
/// owner too.
///
/// # Errors
/// As [`read()`].
pub fn read_of_anybody(path: &Path, most: u64) -> io::Result<(Vec<u8>, u32)> {
    read_with(path, most, |_| true, Distrust::Writable)
}

/// As [`read()`], for a secret: nobody but its owner may read or write the file.
///
/// # Errors
/// As [`read()`].
pub fn read_secret(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_with(path, most, is_ours, Distrust::Readable).map(|(bytes, _)| bytes)
}

/// Reads a file whose owner `may` have it. A mode that is `open` to others is refused: for
/// [`Distrust::Readable`] one that lets them read or write, otherwise one that lets them write.
/// Returns the owner too.
fn read_with(
    path: &Path,
    most: u64,
    may: fn(u32) -> bool,
    open: Distrust,
) -> io::Result<(Vec<u8>, u32)> {
    let nobody = if open == Distrust::Readable { 0o077 } else { 0o022 };
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Distrust::Directory.error());
    }
    if !metadata.is_file() {
        return Err(Distrust::NotRegular.error());
    }
    if !may(metadata.uid()) {
        return Err(Distrust::Owner(metadata.uid()).error());
    }
    if metadata.mode() & nobody != 0 {
        return Err(open.error());
    }
    // Of the file's size, so that a secret is not moved and left behind in memory.
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(most) + 1).unwrap_or(0));
    // One more byte tells a file that is too long from one that just fits.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Distrust::Long(most).error());
    }
    Ok((bytes, metadata.uid()))
}

/// Whether this is root, or the user of this process.
fn is_ours(uid: u32) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

/// Checks that nobody else may put files into a directory. Those above it are not looked at.
///
/// # Errors
/// The kernel's ([`io::ErrorKind::NotFound`] if there is none), or
/// [`io::ErrorKind::InvalidData`] for a directory that cannot be trusted, with the reason.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    if !metadata.is_dir() {
        return refuse("it is not a directory".to_owned());
    }
    if !is_ours(metadata.uid()) {
        return refuse(format!("it belongs to user {}", metadata.uid()));
    }
    if metadata.mode() & 0o022 != 0 {
        return refuse("group or others may write it".to_owned());
    }
    Ok(())
}

/// Replaces a file.
///
/// # Errors
/// When it cannot be written; the old file is then left as it was.
pub fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    replace(path, bytes, readers, |_| Ok(()))
}

/// As [`write()`], and the content is on the disk when this returns.
///
/// # Errors
/// As [`write()`].
pub fn write_durably(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    replace(path, bytes, readers, File::sync_all)
}

/// Takes the content out of a file that cannot be removed, for instance because its directory is
/// read-only.
///
/// # Errors
/// The kernel's; a link is not followed, and a FIFO does not block.
pub fn empty(path: &Path) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().write(true).custom_flags(flags).open(path)?.set_len(0)
}

fn replace(
    path: &Path,
    bytes: &[u8],
    readers: Readers,
    settle: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let fresh = beside(path);
    // Left behind by a crash; or put there by somebody else, and then not written through.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(readers.mode())
            .custom_flags(libc::O_NOFOLLOW)
            .open(&fresh)?;
        // Whatever the umask is.
        file.set_permissions(Permissions::from_mode(readers.mode()))?;
        file.write_all(bytes)?;
        settle(&file)?;
        fs::rename(&fresh, path)
    };
    written().inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

/// Where the new file is made: `NAME.new`.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn fifo(path: &Path) {
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(read(&path, 10).unwrap_err().kind(), io::ErrorKind::NotFound);
        write(&path, b"first", Readers::Owner).unwrap();
        assert_eq!((read(&path, 10).unwrap(), mode(&path)), (b"first".to_vec(), 0o600));
        write_durably(&path, b"second", Readers::All).unwrap();
        assert_eq!((read(&path, 6).unwrap(), mode(&path)), (b"second".to_vec(), 0o644));
        let text = read(&path, 5).unwrap_err().to_string();
        assert!(text.contains("more than 5 bytes"), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn it_does_not_wait_for_a_fifo_or_follow_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fifo(&path("fifo"));
        assert!(read(&path("fifo"), 10).unwrap_err().to_string().contains("regular"));
        fs::write(path("target"), "secret").unwrap();
        symlink(path("target"), path("link")).unwrap();
        assert_eq!(read(&path("link"), 10).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        let directory = read(folder.path(), 10).unwrap_err();
        assert_eq!(Distrust::of(&directory), Some(Distrust::Directory));
        // What is in the way of a write is replaced, and nothing is written through it.
        fifo(&path("fifo.new"));
        write(&path("fifo"), b"new", Readers::Owner).unwrap();
        assert_eq!(read(&path("fifo"), 10).unwrap(), b"new");
        symlink(path("target"), path("link.new")).unwrap();
        write(&path("link"), b"new", Readers::Owner).unwrap();
        assert_eq!(read(&path("link"), 10).unwrap(), b"new");
        assert_eq!(fs::read(path("target")).unwrap(), b"secret");
    }

    #[test]
    fn a_file_is_emptied_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("state"), "content").unwrap();
        symlink(path("state"), path("link")).unwrap();
        fifo(&path("fifo"));
        assert!(empty(&path("link")).is_err() && empty(&path("fifo")).is_err());
        assert!(empty(folder.path()).is_err() && empty(&path("none")).is_err());
        assert_eq!(fs::read(path("state")).unwrap(), b"content");
        empty(&path("state")).unwrap();
        assert_eq!(fs::read(path("state")).unwrap(), b"");
    }

    #[test]
    fn what_others_can_write_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write(&path, b"x", Readers::Owner).unwrap();
        for open in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
            assert!(read(&path, 10).unwrap_err().to_string().contains("may write"), "{open:o}");
        }
        assert_eq!(Distrust::of(&read(&path, 10).unwrap_err()), Some(Distrust::Writable));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        read(&path, 10).unwrap();
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            std::os::unix::fs::chown(&path, Some(4001), None).unwrap();
            assert!(read(&path, 10).unwrap_err().to_string().contains("user 4001"));
            assert_eq!(Distrust::of(&read(&path, 10).unwrap_err()), Some(Distrust::Owner(4001)));
            assert_eq!(read_of_anybody(&path, 10).unwrap(), (b"x".to_vec(), 4001));
        }
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write(&path, b"old", Readers::Owner).unwrap();
        fs::create_dir(beside(&path)).unwrap();
        assert!(write(&path, b"new", Readers::Owner).is_err());
        assert_eq!(read(&path, 10).unwrap(), b"old");
    }
}
