//! Buffers for many requests and their replies, and the two system calls that move them
//! (recvmmsg(2), sendmmsg(2)).
//!
//! What it does not do: keep a socket's state; [`super::UdpServer`] does.

use core::mem;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use timevisor_time::{Instant, Utc};

use crate::udp::address::{RawAddress, socklen};
use crate::udp::control::messages;

/// Requests per system call: beyond this the call's own cost is small compared to that of its
/// packets.
pub const BATCH: usize = 32;
/// Longer requests are cut off ([`Request::truncated`]). The largest payload of an unfragmented
/// packet over Ethernet and IPv6: a request with NTS and placeholders has up to 1232 bytes from our
/// own client.
pub const REQUEST_BYTES: usize = 1452;
/// The longest reply: as long as a request.
pub const REPLY_BYTES: usize = REQUEST_BYTES;

/// In words, so that it is aligned for cmsghdr: a stamp needs 64 bytes, a packet info 40.
type Control = [u64; 16];

/// One request with room for its reply.
struct Slot {
    request: [u8; REQUEST_BYTES],
    len: usize,
    truncated: bool,
    peer: RawAddress,
    /// What was received, then what is sent.
    control: Control,
    stamp: Option<Instant<Utc>>,
    asked: Option<Asked>,
    reply: [u8; REPLY_BYTES],
    reply_len: usize,
    token: Option<u64>,
}

/// The address that a request was sent to.
#[derive(Clone, Copy, Debug)]
enum Asked {
    V4(libc::in_addr),
    V6(libc::in6_addr, libc::c_uint),
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The datagram, or its first [`REQUEST_BYTES`] bytes.
    pub bytes: &'a [u8],
    /// The datagram was longer.
    pub truncated: bool,
    /// Who sent it.
    pub from: SocketAddr,
    /// CLOCK_REALTIME when the kernel received it from the driver.
    pub stamp: Option<Instant<Utc>>,
}

/// The outcome of sending a batch's replies.
pub(super) struct Sent {
    /// Tokens of the replies whose departure the kernel will stamp, in the order in which it
    /// numbers them.
    pub(super) stamped: Vec<u64>,
    pub(super) failed: usize,
}

/// Up to [`BATCH`] requests and their replies; about 100 kB, reused forever.
pub struct Batch {
    slots: Vec<Slot>,
    received: usize,
}

impl Default for Batch {
    fn default() -> Self {
        let slot = || Slot {
            request: [0; REQUEST_BYTES],
            len: 0,
            truncated: false,
            peer: RawAddress::room(),
            control: [0; 16],
            stamp: None,
            asked: None,
            reply: [0; REPLY_BYTES],
            reply_len: 0,
            token: None,
        };
        Self { slots: (0..BATCH).map(|_| slot()).collect(), received: 0 }
    }
}

impl Batch {
    /// How many requests there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.received
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.received == 0
    }

    /// Request `index`; `None` beyond [`Self::len`], and for one whose sender has no internet
    /// address.
    #[must_use]
    pub fn request(&self, index: usize) -> Option<Request<'_>> {
        let slot = self.slots[..self.received].get(index)?;
        let from = slot.peer.to_std()?;
        let bytes = &slot.request[..slot.len];
        Some(Request { bytes, truncated: slot.truncated, from, stamp: slot.stamp })
    }

    /// Answers request `index`, with at most [`REPLY_BYTES`]. With a token, the departure is
    /// stamped and reported under it ([`super::UdpServer::departures`]).
    pub fn reply(&mut self, index: usize, bytes: &[u8], token: Option<u64>) {
        let Some(slot) = self.slots[..self.received].get_mut(index) else { return };
        if let Some(room) = slot.reply.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            slot.reply_len = bytes.len();
            slot.token = token;
        }
    }

    #[cfg(test)]
    pub(super) fn redirect(&mut self, index: usize, to: SocketAddr) {
        self.slots[index].peer = to.into();
    }

    pub(super) fn receive(
        &mut self,
        fd: &OwnedFd,
        limit: usize,
        single: bool,
    ) -> io::Result<usize> {
        self.received = 0;
        let limit = limit.min(BATCH);
        // SAFETY: both are plain data; zero is "absent" for every pointer and length.
        let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for ((slot, part), header) in self.slots.iter_mut().zip(&mut parts).zip(&mut headers) {
            part.iov_base = slot.request.as_mut_ptr().cast();
            part.iov_len = slot.request.len();
            let header = &mut header.msg_hdr;
            header.msg_name = slot.peer.as_mut_ptr().0.cast();
            header.msg_namelen = socklen::<libc::sockaddr_storage>();
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_control = slot.control.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
        }
        let received = if single {
            // SAFETY: every pointer in the first header is to live memory of this batch, with its
            // true length.
            let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut headers[0].msg_hdr, 0) };
            headers[0].msg_len = u32::try_from(len).unwrap_or(0);
            if len < 0 { -1 } else { 1 }
        } else {
            let count = libc::c_uint::try_from(limit).unwrap_or(1);
            let (headers, none) = (headers.as_mut_ptr(), core::ptr::null_mut());
            // SAFETY: `limit` headers, each with pointers to live memory of this batch and its true
            // length. The socket does not block, so that no timeout is needed.
            unsafe { libc::recvmmsg(fd.as_raw_fd(), headers, count, 0, none) }
        };
        let Ok(received) = usize::try_from(received) else {
            return Err(io::Error::last_os_error());
        };
        for (slot, header) in self.slots.iter_mut().zip(&headers[..received]) {
            let len = usize::try_from(header.msg_len).unwrap_or(0);
            slot.len = len.min(REQUEST_BYTES);
            slot.truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            slot.peer.set_len(header.msg_hdr.msg_namelen);
            (slot.stamp, slot.asked) = arrival(&header.msg_hdr);
            slot.reply_len = 0;
            slot.token = None;
        }
        self.received = received;
        Ok(received)
    }

    pub(super) fn send(&mut self, fd: &OwnedFd, stamping: bool, single: bool) -> Sent {
        // SAFETY: both are plain data; zero is "absent" for every pointer and length.
        let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let mut tokens = [None; BATCH];
        let mut count = 0;
        for slot in self.slots[..self.received].iter_mut().filter(|slot| slot.reply_len > 0) {
            let token = slot.token.filter(|_| stamping);
            let part = &mut parts[count];
            part.iov_base = slot.reply.as_mut_ptr().cast();
            part.iov_len = slot.reply_len;
            let header = &mut headers[count].msg_hdr;
            header.msg_namelen = slot.peer.as_ptr().1;
            header.msg_name = slot.peer.as_mut_ptr().0.cast();
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_control = slot.control.as_mut_ptr().cast();
            header.msg_controllen = departure(&mut slot.control, slot.asked, token.is_some()) as _;
            if header.msg_controllen == 0 {
                header.msg_control = core::ptr::null_mut();
            }
            tokens[count] = token;
            count += 1;
        }
        let mut sent = Sent { stamped: Vec::new(), failed: 0 };
        let mut next = 0;
        while next < count {
            let rest = &mut headers[next..count];
            let taken = if single {
                // SAFETY: every pointer in the header is to live memory of this batch, with its
                // true length.
                let len = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const rest[0].msg_hdr, 0) };
                libc::c_int::from(len >= 0)
            } else {
                let left = libc::c_uint::try_from(rest.len()).unwrap_or(1);
                // SAFETY: `left` headers, each with pointers to live memory of this batch and its
                // true length.
                unsafe { libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), left, 0) }
            };
            let taken = usize::try_from(taken).unwrap_or(0);
            sent.stamped.extend(tokens[next..next + taken].iter().flatten());
            next += taken;
            if taken == 0 {
                // The first reply was refused, for example because there is no route back; the
                // others may succeed.
                sent.failed += 1;
                next += 1;
            }
        }
        sent
    }
}

/// What the control messages of a received packet say: its stamp, and the address it was sent to.
fn arrival(header: &libc::msghdr) -> (Option<Instant<Utc>>, Option<Asked>) {
    let (mut stamp, mut asked) = (None, None);
    // SAFETY: the header is as the kernel left it, its control buffer is alive and aligned.
    for message in unsafe { messages(header) } {
        stamp = message.stamp().or(stamp);
        match (message.level, message.kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // ipi_spec_dst, not ipi_addr: for a broadcast, it is the address to reply from.
                let info = message.read::<libc::in_pktinfo>();
                asked = info.map(|info| Asked::V4(info.ipi_spec_dst)).or(asked);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let info = message.read::<libc::in6_pktinfo>();
                asked = info.map(|info| Asked::V6(info.ipi6_addr, info.ipi6_ifindex)).or(asked);
            }
            _ => {}
        }
    }
    (stamp, asked)
}

/// Writes the control messages of a packet to be sent; returns their size in bytes.
fn departure(control: &mut Control, asked: Option<Asked>, stamped: bool) -> usize {
    *control = [0; 16];
    let mut at = 0;
    match asked {
        Some(Asked::V4(from)) => {
            // Any interface; the route to the client decides.
            let any = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: any };
            at += put(control, at, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(Asked::V6(from, interface)) => {
            // Include the interface: a link-local address is meaningless without it.
            let info = libc::in6_pktinfo { ipi6_addr: from, ipi6_ifindex: interface };
            at += put(control, at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        None => {}
    }
    if stamped {
        let flags: u32 = libc::SOF_TIMESTAMPING_TX_SOFTWARE;
        at += put(control, at, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags);
    }
    at
}

/// Writes one control message at byte `at`, which is a multiple of eight; returns the space it
/// takes.
fn put<T: Copy>(
    control: &mut Control,
    at: usize,
    level: libc::c_int,
    kind: libc::c_int,
    value: T,
) -> usize {
    let size = libc::c_uint::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: these two are arithmetic on lengths.
    let (len, space) = unsafe { (libc::CMSG_LEN(size) as usize, libc::CMSG_SPACE(size) as usize) };
    assert!(
        at % 8 == 0 && at + space <= size_of::<Control>(),
        "the control buffer is large enough"
    );
    // SAFETY: the message lies within the buffer (just asserted), which is aligned for a cmsghdr;
    // the value may not be aligned, hence write_unaligned. CMSG_DATA only adds the header's length.
    unsafe {
        let header = control.as_mut_ptr().cast::<u8>().add(at).cast::<libc::cmsghdr>();
        (*header).cmsg_len = len as _;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
    space
}
