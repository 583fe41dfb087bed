//! A file that one program appends records to: never opened through a symbolic link, mode 0644.
//!
//! It does not interpret the content.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for appending and reading, and creates it if it does not exist. A symbolic
/// link as the last path component is refused (ELOOP), and so is anything that is not a regular
/// file.
///
/// # Errors
/// The kernel's, or [`io::ErrorKind::InvalidInput`] for something that is not a regular file.
pub fn open_append(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO would wait for its other end.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o644).custom_flags(flags);
    regular(options.open(path)?)
}

/// Opens a regular file for reading; the path may be a symbolic link.
///
/// # Errors
/// As [`open_append`].
pub fn open_read(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn it_appends_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        open_append(&file).unwrap().write_all(b"one").unwrap();
        open_append(&file).unwrap().write_all(b"two").unwrap();
        let mut text = String::new();
        open_read(&file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "onetwo");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o133, 0);
        symlink(&file, &link).unwrap();
        assert!(open_append(&link).is_err());
        assert!(open_read(&link).is_ok());
        assert!(open_append(folder.path()).is_err());
        assert!(open_read(folder.path()).is_err());
    }
}
