//! The process and user at the other end of a Unix socket, as attested by the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::seqpacket::address;

/// Connects to a Unix socket without ever blocking; the stream is non-blocking as well.
///
/// # Errors
/// As connect(2); `WouldBlock` when the socket's queue is full, where an ordinary connect would
/// wait forever.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (address, len) = address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket touches no memory.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that socket has just returned, and that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `address` is a valid sockaddr_un of `len` bytes, its path zero-terminated, for the
    // call to read.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(UnixStream::from(fd))
}

/// Ends a TCP connection whose peer acknowledges nothing for so long (TCP_USER_TIMEOUT, tcp(7)). Without it the
/// kernel tries for a quarter of an hour.
///
/// # Errors
/// When this is no TCP socket.
pub fn give_up_after(socket: &impl AsFd, span: std::time::Duration) -> io::Result<()> {
    let ms = libc::c_uint::try_from(span.as_millis()).unwrap_or(libc::c_uint::MAX);
    let fd = socket.as_fd().as_raw_fd();
    let length = libc::socklen_t::try_from(size_of_val(&ms)).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes of `ms`, which lives until the call returns.
    let done = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const ms).cast(),
            length,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The process that listened at (or connected to) the other end (SO_PEERCRED, unix(7)).
///
/// # Errors
/// When this is not a Unix socket, or the peer is in another pid namespace (its pid then reads 0).
pub fn peer_pid(socket: &impl AsFd) -> io::Result<u32> {
    u32::try_from(credentials(socket)?.pid)
        .ok()
        .filter(|pid| *pid != 0)
        .ok_or_else(|| io::Error::other("the peer is in another pid namespace"))
}

/// The user that connected to (or listened at) the other end, as this user namespace knows it.
///
/// # Errors
/// When this is not a Unix socket.
pub fn peer_uid(socket: &impl AsFd) -> io::Result<u32> {
    credentials(socket).map(|peer| peer.uid)
}

fn credentials(socket: &impl AsFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len =
        libc::socklen_t::try_from(core::mem::size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: `peer` and `len` are valid for the call to fill; `len` states the size of `peer`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(peer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_an_error_and_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(peer_pid(&waiting[0]).unwrap(), std::process::id());
        drop(listener);
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_socket_pair_has_this_process_at_both_ends() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_pid(&one).unwrap(), std::process::id());
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
        assert_eq!(peer_uid(&one).unwrap(), owner);
    }
}
