//! A helper: this program once more, as a process of its own, at the other end of a socket.
//!
//! It does what may hang, crash or be tricked. The parent never waits for it: sending and receiving
//! return at once, and a helper that hangs is killed and left behind. A process that hangs in the
//! kernel outlives even SIGKILL; that is the helper then, and not the parent.
//!
//! Each message is one packet (SOCK_SEQPACKET), so neither end has to find where one ends. The
//! parent may pass a descriptor along; a helper cannot.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use crate::passing;

/// The longest message, bytes: within the default size of a socket's buffer (212,992 bytes, net.core.wmem_default).
pub const LONGEST: usize = 160 << 10;

/// One helper, as its parent sees it.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    socket: OwnedFd,
}

impl Helper {
    /// Starts this program with `argument`. Its standard input is its end of the socket.
    ///
    /// # Errors
    /// When there are no more processes or descriptors.
    pub fn start(argument: impl AsRef<OsStr>) -> io::Result<Self> {
        // The program that runs, even if its file has been replaced.
        Self::start_program("/proc/self/exe", argument)
    }

    /// As [`Self::start`], with another program than this one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_program(
        program: impl AsRef<OsStr>,
        argument: impl AsRef<OsStr>,
    ) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let child = Command::new(program)
            .arg(argument)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .env_clear()
            .current_dir("/")
            .spawn()?;
        Ok(Self { child, socket: ours })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Becomes readable when a message has arrived, or the helper has ended.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message, or fails at once.
    ///
    /// # Errors
    /// `WouldBlock` when the helper has not taken the earlier ones; others when it has ended.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        send(&self.socket, message, libc::MSG_DONTWAIT)
    }

    /// As [`Self::send`], with a descriptor that the helper gets a copy of.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_with(&self, message: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        passing::send(self.fd(), message, &[descriptor], libc::MSG_DONTWAIT)
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// `UnexpectedEof` when the helper has ended.
    pub fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        match receive(&self.socket, libc::MSG_DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    /// Closes its socket, which is its order to end, without waiting for that.
    #[must_use]
    pub fn close(self) -> Dying {
        drop(self.socket);
        Dying(self.child)
    }

    /// Kills it, without waiting for its end.
    pub fn kill(mut self) -> Dying {
        let _ = self.child.kill();
        Dying(self.child)
    }
}

/// A helper that was killed, or told to end.
#[derive(Debug)]
pub struct Dying(Child);

impl Dying {
    /// Whether it has ended. One that hangs in the kernel may never do so.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

/// The helper's end.
#[derive(Debug)]
pub struct Parent(OwnedFd);

impl Parent {
    /// The socket that [`Helper::start`] made its standard input.
    ///
    /// # Errors
    /// When standard input is not such a socket: the program was started by hand.
    pub fn from_standard_input() -> io::Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let (mut kind, mut length): (libc::c_int, libc::socklen_t) = (0, 4);
        // SAFETY: an integer of four bytes, as the length says.
        let known = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_TYPE,
                (&raw mut kind).cast(),
                &raw mut length,
            )
        };
        if known != 0 || kind != libc::SOCK_SEQPACKET {
            let text =
                "standard input is not the socket of a timevisord: it starts its helpers itself";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Self(socket))
    }

    /// The next message; waits for it. `None` when the parent has ended.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        match receive(&self.0, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            received => received.map(Some),
        }
    }

    /// Becomes readable when a message has arrived, or the parent has ended.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The next message, if there is one, and the descriptor that came along.
    ///
    /// # Errors
    /// `UnexpectedEof` when the parent has ended.
    pub fn receive_with(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let mut buffer = vec![0; LONGEST];
        match passing::receive(self.fd(), &mut buffer, libc::MSG_DONTWAIT) {
            // No message is empty.
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((length, mut descriptors)) => {
                buffer.truncate(length);
                // What a message brings beyond the one is closed.
                descriptors.truncate(1);
                Ok(Some((buffer, descriptors.pop())))
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                Some(libc::ECONNRESET) => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Err(error),
            },
        }
    }

    /// Sends a message; waits until the parent has room for it.
    ///
    /// # Errors
    /// `UnexpectedEof` when the parent has ended.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        send(&self.0, message, 0).map_err(|error| match error.raw_os_error() {
            // The second one if it had not read everything.
            Some(libc::EPIPE | libc::ECONNRESET) => {
                let text = "the timevisord that started this helper has ended";
                io::Error::new(io::ErrorKind::UnexpectedEof, text)
            }
            _ => error,
        })
    }
}

pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: an array of two descriptors for the call to fill.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: descriptors that the kernel has just returned, and that nobody else owns.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into())
}

pub(crate) fn send(socket: &OwnedFd, message: &[u8], flags: libc::c_int) -> io::Result<()> {
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes live through the call.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn receive(socket: &OwnedFd, flags: libc::c_int) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; LONGEST];
    loop {
        // SAFETY: a buffer of the length that is given.
        let received = unsafe {
            libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags)
        };
        match usize::try_from(received) {
            // No message is empty.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ECONNRESET) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => return Err(error),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_ends_and_an_end_is_noticed() {
        let (ours, theirs) = pair().unwrap();
        let parent = Parent(theirs);
        parent.send(b"one").unwrap();
        parent.send(&vec![7; LONGEST]).unwrap();
        assert_eq!(receive(&ours, libc::MSG_DONTWAIT).unwrap(), b"one");
        assert_eq!(receive(&ours, libc::MSG_DONTWAIT).unwrap().len(), LONGEST);
        let none = receive(&ours, libc::MSG_DONTWAIT).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        send(&ours, b"two", libc::MSG_DONTWAIT).unwrap();
        assert_eq!(parent.receive().unwrap().as_deref(), Some(&b"two"[..]));
        drop(ours);
        assert_eq!(parent.receive().unwrap(), None);
        let ended = parent.send(b"three").unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        // Also of a parent that has not read everything.
        let (ours, theirs) = pair().unwrap();
        let parent = Parent(theirs);
        parent.send(b"one").unwrap();
        drop(ours);
        for _ in 0..2 {
            let ended = parent.send(b"two").unwrap_err();
            assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    /// A helper that takes nothing fills its buffer; the parent does not wait.
    #[test]
    fn the_parent_never_waits() {
        let (ours, _theirs) = pair().unwrap();
        let refused = (0..10_000).find_map(|_| send(&ours, &[0; 1000], libc::MSG_DONTWAIT).err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
