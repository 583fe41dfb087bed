//! The byte streams that a channel may use. None of them blocks.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use timevisor_linux::peer;
use timevisor_linux::virtio_port::VirtioPort;
use timevisor_linux::vsock::{HOST_CID, VsockStream};
use timevisor_protocols::channel::{HOST_SOCKET, PORT_NAME, VSOCK_PORT};

use crate::tried::Tried;

/// The directory in which udev names a guest's ports.
const PORTS: &str = "/dev/virtio-ports";

/// Where to reach a timevisord.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChannelAddress {
    /// A Unix socket: of timevisord on a host, of timevisor-guest in a guest.
    Unix(PathBuf),
    /// A guest's virtio-serial port. One program at a time can open it.
    Port(PathBuf),
    /// A vsock port of a context, as `man 7 vsock` numbers them.
    Vsock {
        /// 2 is the host.
        cid: u32,
        /// The port.
        port: u32,
    },
}

impl core::fmt::Display for ChannelAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unix(path) | Self::Port(path) => write!(f, "{}", path.display()),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
        }
    }
}

impl ChannelAddress {
    /// The candidates in the order of preference. In a guest where timevisor-guest holds the port,
    /// its socket is the way to reach the host.
    pub(crate) fn candidates() -> Vec<Self> {
        vec![
            Self::Unix(PathBuf::from(HOST_SOCKET)),
            Self::Port(Path::new(PORTS).join(PORT_NAME)),
            Self::Vsock { cid: HOST_CID, port: VSOCK_PORT },
        ]
    }

    /// Parses a path or `vsock:CID:PORT`, as used on command lines. The type of the file at the
    /// path decides; a path without a file counts as a socket.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let numbers = text.strip_prefix("vsock:").and_then(|rest| rest.split_once(':'));
        if let Some((Ok(cid), Ok(port))) = numbers.map(|(cid, port)| (cid.parse(), port.parse())) {
            return Self::Vsock { cid, port };
        }
        let path = PathBuf::from(text);
        let device = std::fs::metadata(&path).is_ok_and(|m| m.file_type().is_char_device());
        if device { Self::Port(path) } else { Self::Unix(path) }
    }

    pub(crate) fn open(&self) -> Result<Stream, Tried> {
        let opened = match self {
            Self::Unix(path) => peer::connect(path).map(Stream::Unix),
            // By name, because without udev the kernel's name is different.
            Self::Port(path) => match path.strip_prefix(PORTS).ok().and_then(Path::to_str) {
                Some(name) => VirtioPort::open(name).map(Stream::Port),
                None => VirtioPort::at(path).map(Stream::Port),
            },
            Self::Vsock { cid, port } => VsockStream::connect(*cid, *port).map(Stream::Vsock),
        };
        opened.map_err(|error| Tried::new(self, &error))
    }
}

/// An open stream.
pub(crate) enum Stream {
    Unix(UnixStream),
    Port(VirtioPort),
    Vsock(VsockStream),
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Bytes(usize),
    Nothing,
    /// The host has not opened the port's other end yet.
    Nobody,
    Closed,
}

impl Stream {
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Found> {
        let read = match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Port(port) => port.read(buffer),
            Self::Vsock(stream) => stream.read(buffer),
        };
        match (read, &self) {
            (Ok(0), Self::Port(_)) => Ok(Found::Nobody),
            (Ok(0), _) => Ok(Found::Closed),
            (Ok(count), _) => Ok(Found::Bytes(count)),
            (Err(error), _) if is_temporary(&error) => Ok(Found::Nothing),
            (Err(error), _) => Err(error),
        }
    }

    /// Writes, and returns how many bytes were accepted.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wrote = match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Port(port) => port.write(bytes),
            Self::Vsock(stream) => stream.write(bytes),
        };
        match wrote {
            Err(error) if is_temporary(&error) => Ok(0),
            other => other,
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Port(port) => port.as_fd(),
            Self::Vsock(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_are_written() {
        for text in ["vsock:2:21590", "/run/timevisor/timelines"] {
            assert_eq!(ChannelAddress::parse(text).to_string(), text);
        }
        assert_eq!(
            ChannelAddress::parse("vsock:2:21590"),
            ChannelAddress::candidates().pop().unwrap()
        );
        assert!(matches!(ChannelAddress::parse("/dev/null"), ChannelAddress::Port(_)));
        assert!(matches!(ChannelAddress::parse("vsock:a:b"), ChannelAddress::Unix(_)));
    }
}
