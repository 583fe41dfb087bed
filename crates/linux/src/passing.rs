//! Descriptors in messages (SCM_RIGHTS, unix(7)): at most two to a message.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors of a message.
pub(crate) const MOST: usize = 2;
/// Bytes of that many.
const ALL: libc::c_uint = 8;
const _: () = assert!(size_of::<RawFd>() * MOST == ALL as usize);

/// Room for a control message with [`MOST`] descriptors, aligned as the kernel wants it.
#[repr(C)]
union Control {
    _header: libc::cmsghdr,
    // SAFETY: computes a number.
    bytes: [u8; unsafe { libc::CMSG_SPACE(ALL) } as usize],
}

/// Sends a message with one or two descriptors.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<()> {
    if descriptors.is_empty() || descriptors.len() > MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "one or two descriptors"));
    }
    let mut data =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    // SAFETY: plain data, for which zeros are valid.
    let mut control: Control = unsafe { core::mem::zeroed() };
    let mut header = header(&mut data, &mut control);
    header.msg_controllen = space(descriptors.len());
    // SAFETY: the header says that the control message has room for the descriptors, the room has
    // (there are at most `MOST`), and the first header lies in it.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = length(descriptors.len());
        let to = libc::CMSG_DATA(first).cast::<RawFd>();
        for (index, descriptor) in descriptors.iter().enumerate() {
            to.add(index).write_unaligned(descriptor.as_raw_fd());
        }
    }
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: message, control message and descriptors live through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a message into `buffer`: its length, and the descriptors that came along. Fewer than
/// were sent: this process has too many.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut data = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: plain data, for which zeros are valid.
    let mut control: Control = unsafe { core::mem::zeroed() };
    let mut header = header(&mut data, &mut control);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: buffer and control message of the lengths that the header says.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let Ok(length_of_message) = usize::try_from(received) else {
        return Err(io::Error::last_os_error());
    };
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has written control messages within the length that the header now has.
    // The descriptors are those that it has just opened for us, and nobody else owns them.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        let is_rights = !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_RIGHTS;
        let count = (1..=MOST).find(|count| is_rights && (*first).cmsg_len == length(*count));
        for index in 0..count.unwrap_or(0) {
            let fd = libc::CMSG_DATA(first).cast::<RawFd>().add(index).read_unaligned();
            descriptors.push(OwnedFd::from_raw_fd(fd));
        }
    }
    Ok((length_of_message, descriptors))
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

/// Bytes of a control message with `count` descriptors, without the padding at its end.
fn length(count: usize) -> LengthOf {
    // SAFETY: computes a number.
    unsafe { libc::CMSG_LEN(bytes(count)) as LengthOf }
}

/// The same with the padding.
fn space(count: usize) -> LengthOf {
    // SAFETY: computes a number.
    unsafe { libc::CMSG_SPACE(bytes(count)) as LengthOf }
}

fn bytes(count: usize) -> libc::c_uint {
    libc::c_uint::try_from(count * size_of::<RawFd>()).unwrap_or(ALL)
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

    use crate::helper::pair;

    #[test]
    fn descriptors_arrive_with_their_message_and_only_there() {
        for count in 1..=MOST {
            let (ours, theirs) = pair().unwrap();
            let mut pairs: Vec<_> = (0..count).map(|_| UnixStream::pair().unwrap()).collect();
            let fds: Vec<_> = pairs.iter().map(|(near, _)| near.as_fd()).collect();
            send(ours.as_fd(), b"with", &fds, 0).unwrap();
            crate::helper::send(&ours, b"without", 0).unwrap();
            let mut buffer = [0; 16];
            let (length, passed) = receive(theirs.as_fd(), &mut buffer, 0).unwrap();
            assert_eq!((&buffer[..length], passed.len()), (&b"with"[..], count));
            for (index, (near, (_, far))) in passed.into_iter().zip(&mut pairs).enumerate() {
                let sign = [u8::try_from(index).unwrap()];
                UnixStream::from(near).write_all(&sign).unwrap();
                let mut got = [9];
                far.read_exact(&mut got).unwrap();
                assert_eq!(got, sign);
            }
            let (length, passed) = receive(theirs.as_fd(), &mut buffer, 0).unwrap();
            assert_eq!((&buffer[..length], passed.is_empty()), (&b"without"[..], true));
        }
        let (ours, _theirs) = pair().unwrap();
        assert!(send(ours.as_fd(), b"x", &[ours.as_fd(); MOST + 1], 0).is_err());
        assert!(send(ours.as_fd(), b"x", &[], 0).is_err());
    }

    /// The parent receives without asking for descriptors: what a helper sends is not kept.
    #[test]
    fn a_descriptor_that_is_not_asked_for_is_closed() {
        let (ours, theirs) = pair().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        send(theirs.as_fd(), b"gift", &[near.as_fd()], 0).unwrap();
        drop(near);
        assert_eq!(crate::helper::receive(&ours, 0).unwrap(), b"gift");
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
}
