//! Stream sockets between a host and its guests (vsock(7)). The peer's context id is attested by
//! the kernel: on a host it names the VM, whatever the guest says.
//!
//! Limitation: only streams are supported; a live migration resets connections.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The host, as a guest sees it.
pub const HOST_CID: u32 = libc::VMADDR_CID_HOST;

/// A listening socket.
#[derive(Debug)]
pub struct VsockListener(OwnedFd);

/// A connected, non-blocking socket.
#[derive(Debug)]
pub struct VsockStream(OwnedFd);

impl VsockListener {
    /// Listens for connections from any context.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` or `ENODEV` when there is no vsock; `EADDRINUSE` when the port is taken.
    pub fn bind(port: u32) -> io::Result<Self> {
        let fd = socket()?;
        let address = address(libc::VMADDR_CID_ANY, port)?;
        // SAFETY: `address` is a valid sockaddr_vm of the stated length for the call to read.
        let failed =
            unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length(&address)?) };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: listen touches no memory.
        if unsafe { libc::listen(fd.as_raw_fd(), 64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(fd))
    }

    /// Accepts the next connection and returns it with the context id of its peer.
    ///
    /// # Errors
    /// `WouldBlock` when no connection is pending.
    pub fn accept(&self) -> io::Result<(VsockStream, u32)> {
        let mut peer = address(0, 0)?;
        let mut len = length(&peer)?;
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `peer` and `len` are valid for the call to fill; `len` states the size of `peer`.
        let fd = unsafe {
            libc::accept4(self.0.as_raw_fd(), (&raw mut peer).cast(), &raw mut len, flags)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that accept4 has just returned, and that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok((VsockStream(fd), peer.svm_cid))
    }
}

impl VsockStream {
    /// Connects; from a guest, [`HOST_CID`] is the host. Waits at most 2 s for the other end.
    ///
    /// # Errors
    /// `ENODEV` when there is no vsock device, `ECONNRESET` when nobody listens, `ETIMEDOUT`.
    pub fn connect(cid: u32, port: u32) -> io::Result<Self> {
        let fd = socket()?;
        let address = address(cid, port)?;
        // SAFETY: `address` is a valid sockaddr_vm of the stated length for the call to read.
        let failed = unsafe {
            libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length(&address)?)
        };
        if failed != 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINPROGRESS) {
                return Err(error);
            }
            finish(&fd)?;
        }
        Ok(Self(fd))
    }

    /// Reads the available bytes.
    ///
    /// # Errors
    /// `WouldBlock` when none are available.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is valid for writes of its length.
        let count =
            unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Writes as much as fits.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the bytes are valid for reads of their length.
        let count = unsafe {
            libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL)
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for VsockListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for VsockStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn finish(fd: &OwnedFd) -> io::Result<()> {
    let mut wait = [crate::poll::PollFd::writable(fd.as_fd())];
    crate::poll::wait(&mut wait, Some(std::time::Duration::from_secs(2)))?;
    if !wait[0].ready().writable && !wait[0].ready().error && !wait[0].ready().hangup {
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    }
    let (mut error, mut len) = (0 as libc::c_int, size::<libc::c_int>()?);
    // SAFETY: `error` and `len` are valid for the call to fill; `len` states the size of `error`.
    let failed = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &raw mut len,
        )
    };
    match (failed, error) {
        (0, 0) => Ok(()),
        (0, error) => Err(io::Error::from_raw_os_error(error)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket touches no memory.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that socket has just returned, and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(cid: u32, port: u32) -> io::Result<libc::sockaddr_vm> {
    // SAFETY: a sockaddr_vm is integers only, for which all zeroes are valid.
    let mut address: libc::sockaddr_vm = unsafe { core::mem::zeroed() };
    address.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).map_err(io::Error::other)?;
    address.svm_cid = cid;
    address.svm_port = port;
    Ok(address)
}

fn length(_: &libc::sockaddr_vm) -> io::Result<libc::socklen_t> {
    size::<libc::sockaddr_vm>()
}

fn size<T>() -> io::Result<libc::socklen_t> {
    libc::socklen_t::try_from(core::mem::size_of::<T>()).map_err(io::Error::other)
}
