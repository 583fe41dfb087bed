//! Descriptors in messages (SCM_RIGHTS, unix(7)): at most one to a message.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Bytes of a descriptor.
const ONE: libc::c_uint = 4;
const _: () = assert!(size_of::<RawFd>() == 4);

/// Room for a control message with one descriptor, aligned as the kernel wants it.
#[repr(C)]
union Control {
    _header: libc::cmsghdr,
    // SAFETY: computes a number.
    bytes: [u8; unsafe { libc::CMSG_SPACE(ONE) } as usize],
}

/// Sends a message with a descriptor.
pub(super) fn send(
    socket: &OwnedFd,
    message: &[u8],
    descriptor: BorrowedFd<'_>,
    flags: libc::c_int,
) -> io::Result<()> {
    let mut data =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    // SAFETY: plain data, for which zeros are valid.
    let mut control: Control = unsafe { core::mem::zeroed() };
    let header = header(&mut data, &mut control);
    // SAFETY: the header says that the control message has room for one descriptor, and the first
    // header lies in it.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = length_with_one();
        libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
    }
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: message, control message and descriptor live through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a message into `buffer`: its length, and the descriptor that came along. Without one
/// although one was sent, this process has too many.
pub(super) fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut data = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: plain data, for which zeros are valid.
    let mut control: Control = unsafe { core::mem::zeroed() };
    let mut header = header(&mut data, &mut control);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: buffer and control message of the lengths that the header says.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let Ok(length) = usize::try_from(received) else { return Err(io::Error::last_os_error()) };
    // SAFETY: the kernel has written control messages within the length that the header now has.
    let descriptor = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        let is_one = !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_RIGHTS
            && (*first).cmsg_len == length_with_one();
        // A descriptor that the kernel has just opened for us, and that nobody else owns.
        is_one
            .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned()))
    };
    Ok((length, descriptor))
}

fn header(data: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: plain data, for which zeros are valid; its padding differs between C libraries.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = data;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut *control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    header
}

fn length_with_one() -> LengthOf {
    // SAFETY: computes a number.
    unsafe { libc::CMSG_LEN(ONE) as LengthOf }
}

/// Type of `cmsg_len`, which differs between C libraries.
#[cfg(target_env = "musl")]
type LengthOf = libc::socklen_t;
/// The same.
#[cfg(not(target_env = "musl"))]
type LengthOf = libc::size_t;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_its_message_and_only_there() {
        let (ours, theirs) = super::super::pair().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        send(&ours, b"with", near.as_fd(), 0).unwrap();
        super::super::send(&ours, b"without", 0).unwrap();
        drop(near);
        let mut buffer = [0; 16];
        let (length, passed) = receive(&theirs, &mut buffer, 0).unwrap();
        assert_eq!(&buffer[..length], b"with");
        let mut near = UnixStream::from(passed.unwrap());
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        let (length, passed) = receive(&theirs, &mut buffer, 0).unwrap();
        assert_eq!((&buffer[..length], passed.is_none()), (&b"without"[..], true));
    }

    /// The parent receives without asking for descriptors: what a helper sends is not kept.
    #[test]
    fn a_descriptor_that_is_not_asked_for_is_closed() {
        let (ours, theirs) = super::super::pair().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        send(&theirs, b"gift", near.as_fd(), 0).unwrap();
        drop(near);
        assert_eq!(super::super::receive(&ours, 0).unwrap(), b"gift");
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
}
