//! Unix sockets of packets (SOCK_SEQPACKET): a connection on which each message keeps its ends, and
//! may bring descriptors along.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::passing;

/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 64;

/// A listening socket; nothing about it blocks.
#[derive(Debug)]
pub struct PacketListener(OwnedFd);

impl PacketListener {
    /// Listens at `path`.
    ///
    /// # Errors
    /// As socket(2), bind(2) and listen(2).
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = socket(libc::SOCK_NONBLOCK)?;
        let (address, len) = address(path)?;
        // SAFETY: a valid sockaddr_un of `len` bytes for the call to read.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        check(bound)?;
        // SAFETY: two integers.
        check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
        Ok(Self(socket))
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// As accept4(2); `WouldBlock` when none waits.
    pub fn accept(&self) -> io::Result<PacketStream> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let (fd, none) = (self.0.as_raw_fd(), core::ptr::null_mut());
        // SAFETY: no address is asked for.
        let accepted = unsafe { libc::accept4(fd, none, core::ptr::null_mut(), flags) };
        check(accepted)?;
        // SAFETY: a descriptor that the kernel has just returned, and that nobody else owns.
        Ok(PacketStream(unsafe { OwnedFd::from_raw_fd(accepted) }))
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct PacketStream(OwnedFd);

impl PacketStream {
    /// Connects to the socket at `path`. Sending and receiving wait for `patience` at most.
    ///
    /// # Errors
    /// As connect(2).
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        let socket = socket(0)?;
        let seconds = patience.as_secs().try_into().map_err(io::Error::other)?;
        let limit = libc::timeval { tv_sec: seconds, tv_usec: patience.subsec_micros().into() };
        let size = libc::socklen_t::try_from(size_of::<libc::timeval>()).unwrap_or(0);
        // connect(2) waits for a full queue as long as a send would.
        for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
            // SAFETY: a complete timeval of the size that is stated, for the call to read.
            let set = unsafe {
                let value = (&raw const limit).cast();
                libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size)
            };
            check(set)?;
        }
        let (address, len) = address(path)?;
        // SAFETY: a valid sockaddr_un of `len` bytes for the call to read.
        check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(Self(socket))
    }

    /// Sends a message, with one or two descriptors if there are any.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if descriptors.is_empty() {
            return crate::helper::send(&self.0, message, 0);
        }
        passing::send(self.as_fd(), message, descriptors, 0)
    }

    /// Receives a message into `buffer`: its length, 0 at the end, and the descriptors that came
    /// along. What is longer than the buffer is cut.
    ///
    /// # Errors
    /// As recvmsg(2); `WouldBlock` when nothing has come.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        passing::receive(self.as_fd(), buffer, 0)
    }

    /// As [`Self::receive`], for a peer from whom no descriptors are taken: they are closed.
    ///
    /// # Errors
    /// As recv(2).
    pub fn receive_bytes(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (fd, to, len) = (self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: a buffer of the length that is given.
        let received = unsafe { libc::recv(fd, to, len, 0) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Whether the other end is gone. Makes one system call.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.0.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one pollfd, as the length says; the call returns at once.
        let found = unsafe { libc::poll(&raw mut fd, 1, 0) };
        found > 0 && fd.revents & (libc::POLLHUP | libc::POLLERR) != 0
    }
}

impl AsFd for PacketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: socket touches no memory.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    check(fd)?;
    // SAFETY: a descriptor that socket has just returned, and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The address of a socket at `path`.
pub(crate) fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let name = path.as_os_str().as_bytes();
    let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(io::Error::other)?;
    let mut address = libc::sockaddr_un { sun_family: family, sun_path: [0; 108] };
    if name.is_empty() || name.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a socket's path has 1 to 107 bytes",
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let len =
        libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).map_err(io::Error::other)?;
    Ok((address, len))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_ends_and_bring_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packets");
        let patience = Duration::from_secs(5);
        assert_eq!(
            PacketStream::connect(&path, patience).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let listener = PacketListener::bind(&path).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let client = PacketStream::connect(&path, patience).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(crate::peer::peer_pid(&server).unwrap(), std::process::id());
        assert!(server.receive_bytes(&mut [0; 8]).is_err());
        client.send(b"one", &[]).unwrap();
        client.send(b"gift", &[client.as_fd()]).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(server.receive_bytes(&mut buffer).unwrap(), 3);
        assert_eq!(server.receive_bytes(&mut buffer).unwrap(), 4);
        server.send(b"two", &[listener.as_fd(), listener.as_fd()]).unwrap();
        let (length, descriptors) = client.receive(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], descriptors.len()), (&b"two"[..], 2));
        assert!(!client.has_ended());
        drop(server);
        assert!(client.has_ended());
        assert_eq!(client.receive(&mut buffer).unwrap().0, 0);
    }
}
