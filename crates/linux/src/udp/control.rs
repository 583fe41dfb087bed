//! The control messages returned by recvmsg(2) and recvmmsg(2), see cmsg(3).
//!
//! What it does not do: interpret anything except time stamps.

use timevisor_time::{Instant, NANOS_PER_SEC, Utc};

/// One control message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlMessage<'a> {
    /// `SOL_SOCKET`, `IPPROTO_IP`...
    pub(crate) level: libc::c_int,
    /// The type within the level.
    pub(crate) kind: libc::c_int,
    payload: &'a [u8],
}

/// Plain data that the kernel fills in; any bytes are valid.
///
/// # Safety
/// The type must be valid for every bit pattern.
pub(crate) unsafe trait FromKernel: Copy {}
// SAFETY: integers throughout.
unsafe impl FromKernel for libc::timespec {}
// SAFETY: integers throughout.
unsafe impl FromKernel for libc::sock_extended_err {}
// SAFETY: integers throughout.
unsafe impl FromKernel for libc::in_pktinfo {}
// SAFETY: integers throughout.
unsafe impl FromKernel for libc::in6_pktinfo {}

impl ControlMessage<'_> {
    /// The start of the payload as a `T`; `None` if it is shorter.
    pub(crate) fn read<T: FromKernel>(&self) -> Option<T> {
        // SAFETY: the payload holds a whole `T`, which is valid for any bytes; alignment is not
        // assumed.
        (self.payload.len() >= size_of::<T>())
            .then(|| unsafe { self.payload.as_ptr().cast::<T>().read_unaligned() })
    }

    /// The software stamp, if this message is one and the kernel took it.
    pub(crate) fn stamp(&self) -> Option<Instant<Utc>> {
        if (self.level, self.kind) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
            return None;
        }
        let found: libc::timespec = self.read()?;
        let nanos = i128::from(found.tv_sec) * NANOS_PER_SEC + i128::from(found.tv_nsec);
        (nanos != 0).then(|| Instant::from_unix_nanos(nanos))
    }
}

/// All control messages of a header.
///
/// # Safety
/// The header must be as recvmsg left it, with its control buffer alive and aligned for cmsghdr.
pub(crate) unsafe fn messages(header: &libc::msghdr) -> impl Iterator<Item = ControlMessage<'_>> {
    // SAFETY: the caller vouches for the header.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    core::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: the CMSG functions return only headers that lie within the control buffer, and
        // the payload of one ends where its length says.
        let message = unsafe {
            let data = libc::CMSG_DATA(next);
            let length = ((*next).cmsg_len as usize).saturating_sub(data as usize - next as usize);
            let payload = core::slice::from_raw_parts(data, length);
            ControlMessage { level: (*next).cmsg_level, kind: (*next).cmsg_type, payload }
        };
        // SAFETY: `next` came from CMSG_FIRSTHDR or CMSG_NXTHDR of the same header.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
        Some(message)
    })
}
