//! Who is at the other end of a Unix socket, as the kernel attests it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process that listened at (or connected to) the other end (SO_PEERCRED, unix(7)).
///
/// # Errors
/// Not a Unix socket, or the peer is in another pid namespace (its pid then reads 0).
pub fn peer_pid(socket: &impl AsFd) -> io::Result<u32> {
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
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(peer.pid)
        .ok()
        .filter(|pid| *pid != 0)
        .ok_or_else(|| io::Error::other("the peer is in another pid namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_pair_has_this_process_at_both_ends() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_pid(&one).unwrap(), std::process::id());
    }
}
