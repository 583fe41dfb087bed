//! A guest's end of a virtio-serial port: one byte stream to the host, one opener at a time.
//!
//! While no host program is connected, reads return no bytes and the descriptor reports a hangup,
//! which is not the end of the stream. Bytes written earlier may still reach the host, and part of
//! a message for an earlier opener may arrive here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// udev's links by port name.
const LINKS: &str = "/dev/virtio-ports";
/// The kernel's own list, for systems without udev.
const CLASS: &str = "/sys/class/virtio-ports";

/// An open, non-blocking port.
#[derive(Debug)]
pub struct VirtioPort(File);

impl VirtioPort {
    /// Opens the port of this name.
    ///
    /// # Errors
    /// `NotFound` when the VM has no such port, `EBUSY` when another process has it open.
    pub fn open(name: &str) -> io::Result<Self> {
        let path = find(name, Path::new(LINKS), Path::new(CLASS)).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("this machine has no virtio-serial port {name}"),
            )
        })?;
        Self::at(&path)
    }

    /// Opens the port at a path.
    ///
    /// # Errors
    /// As open(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map(Self)
    }

    /// Whether a program on the host is connected.
    ///
    /// # Errors
    /// As poll(2).
    pub fn is_connected(&self) -> io::Result<bool> {
        let mut fds = [crate::poll::PollFd::readable(self.0.as_fd())];
        crate::poll::wait(&mut fds, Some(std::time::Duration::ZERO))?;
        Ok(!fds[0].ready().hangup)
    }

    /// Reads the available bytes; `Ok(0)` while nobody is connected.
    ///
    /// # Errors
    /// `WouldBlock` when no bytes are available.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(buffer)
    }

    /// Writes as much as fits.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits, and while nobody is connected.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0).write(bytes)
    }
}

impl AsFd for VirtioPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn find(name: &str, links: &Path, class: &Path) -> Option<PathBuf> {
    let link = links.join(name);
    if link.exists() {
        return Some(link);
    }
    let ports = fs::read_dir(class).ok()?;
    let named = ports.flatten().find(|port| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|found| found.trim_end() == name)
    })?;
    Some(Path::new("/dev").join(named.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_udevs_link_or_by_the_kernels_name() {
        let folder = tempfile::tempdir().unwrap();
        let (links, class) = (folder.path().join("links"), folder.path().join("class"));
        assert_eq!(find("org.timevisor.0", &links, &class), None);
        for (port, name) in [("vport1p1", "org.other"), ("vport1p2", "org.timevisor.0")] {
            fs::create_dir_all(class.join(port)).unwrap();
            fs::write(class.join(port).join("name"), format!("{name}\n")).unwrap();
        }
        assert_eq!(find("org.timevisor.0", &links, &class), Some("/dev/vport1p2".into()));
        fs::create_dir_all(&links).unwrap();
        fs::write(links.join("org.timevisor.0"), "").unwrap();
        assert_eq!(find("org.timevisor.0", &links, &class), Some(links.join("org.timevisor.0")));
    }

    #[test]
    fn a_machine_without_the_port_says_so() {
        let error = VirtioPort::open("org.timevisor.there-is-none").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
