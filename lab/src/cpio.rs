//! Writes a newc cpio archive, the format of an initramfs (kernel:
//! Documentation/driver-api/early-userspace).
//!
//! Directories are created as needed. Hard links and compression are not supported.

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// An archive under construction. Paths may be relative or absolute; both mean the same.
#[derive(Debug, Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
    directories: BTreeSet<String>,
}

impl Cpio {
    /// Creates an empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory and its parents.
    pub fn directory(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || !self.directories.insert(path.to_owned()) {
            return;
        }
        self.parents(path);
        self.entry(path, DIRECTORY | 0o755, &[], (0, 0));
    }

    /// Adds a regular file with permission bits `mode`.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | (mode & 0o7777), data, (0, 0));
    }

    /// Adds a symbolic link to `target`.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, SYMLINK | 0o777, target.as_bytes(), (0, 0));
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, CHARACTER | mode, &[], (major, minor));
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.trim_matches('/').rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8], device: (u32, u32)) {
        let name = path.trim_matches('/');
        self.inode += 1;
        let size = u32::try_from(data.len()).expect("a cpio member is below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a path is short");
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_header() {
        let mut cpio = Cpio::new();
        cpio.file("a", 0o644, b"hi");
        let bytes = cpio.finish();
        let header = b"070701\
            00000001000081A400000000000000000000000100000000\
            00000002000000000000000000000000000000000000000200000000a\0hi\0\0";
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(bytes[..header.len()], header[..]);
    }

    #[test]
    fn parents_come_once_and_first() {
        let mut cpio = Cpio::new();
        cpio.file("/x/y/one", 0o644, b"");
        cpio.file("/x/y/two", 0o644, b"");
        let text = String::from_utf8(cpio.finish()).unwrap();
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("x\0") < at("x/y\0") && at("x/y\0") < at("x/y/one\0"));
        assert_eq!(text.matches("x/y\0").count(), 1);
    }
}
