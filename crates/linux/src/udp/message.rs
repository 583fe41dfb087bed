//! recvmsg and its control messages: a packet or a send stamp, with the kernel's information about
//! it.
//!
//! It does not match stamps to sent packets.

use core::mem;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use timevisor_time::{Instant, Utc};

use super::address::RawAddress;
use super::control::messages;

/// The result of recvmsg.
pub(crate) struct Message {
    pub(crate) len: usize,
    pub(crate) flags: libc::c_int,
    pub(crate) stamp: Option<Instant<Utc>>,
    /// The number of the sent packet that a stamp belongs to.
    pub(crate) id: Option<u32>,
    /// The sender, where the kernel names one.
    pub(crate) from: Option<SocketAddr>,
}

pub(crate) fn receive(
    fd: &OwnedFd,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<Option<Message>> {
    // Aligned for cmsghdr; a stamp needs 64 bytes, the error report beside it 64 more.
    let mut control = [0u64; 32];
    let mut from = RawAddress::room();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data; zero is "absent" for every field.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    let (address, address_len) = from.as_mut_ptr();
    header.msg_name = address.cast();
    // SAFETY: the pointer is to a field of `from`, which is alive and not borrowed.
    header.msg_namelen = unsafe { *address_len };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let len = loop {
        // SAFETY: every pointer in the header is to a live local or to `buffer`, with its true
        // length.
        let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
        if let Ok(len) = usize::try_from(len) {
            break len;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    };
    let (stamp, id) = control_messages(&header);
    from.set_len(header.msg_namelen);
    Ok(Some(Message { len, flags: header.msg_flags, stamp, id, from: from.to_std() }))
}

fn control_messages(header: &libc::msghdr) -> (Option<Instant<Utc>>, Option<u32>) {
    let (mut stamp, mut id) = (None, None);
    // SAFETY: the header is as recvmsg left it, its control buffer is alive and aligned.
    for message in unsafe { messages(header) } {
        stamp = message.stamp().or(stamp);
        let (level, kind) = (message.level, message.kind);
        if matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        ) {
            let report = message.read::<libc::sock_extended_err>();
            let report = report.filter(|r| r.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING);
            id = report.map(|r| r.ee_data).or(id);
        }
    }
    (stamp, id)
}
