//! A connection that sends some last words when this process ends, however it ends.
//!
//! A forked child relays everything. It owns the connection, ignores signals, and only makes system
//! calls. When our end closes, it sends the last words, waits for the answer, and exits. If SIGKILL
//! ends both processes together, no last words are sent.

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long the other end may take to accept bytes.
const PATIENCE: Duration = Duration::from_secs(5);
/// We assume that the other end has handled the last words when it has been silent for this many
/// ms; and the maximum number of such waits.
const ANSWER_MS: libc::c_int = 300;
const ANSWERS: u32 = 20;

/// The child; dropping this waits for it to exit.
#[derive(Debug)]
pub struct Relay(libc::pid_t);

/// Returns our end of a relayed connection, and its relay. Drop the stream first. The byte `quiet`
/// is not relayed; once it was sent, the last words are no longer sent.
///
/// # Errors
/// When the child cannot be created.
pub fn relay(
    stream: UnixStream,
    words: &'static [u8],
    quiet: u8,
) -> io::Result<(UnixStream, Relay)> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (ours, theirs) = UnixStream::pair()?;
    let (near, far) = (theirs.as_raw_fd(), stream.as_raw_fd());
    // SAFETY: the child makes system calls only, no allocation and no locks, until it leaves by
    // _exit.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        run(near, far, words, quiet);
        // SAFETY: runs no destructors of the parent's state.
        unsafe { libc::_exit(0) };
    }
    // These now belong to the child alone.
    drop((stream, theirs));
    Ok((ours, Relay(child)))
}

impl Drop for Relay {
    fn drop(&mut self) {
        // SAFETY: a child of ours that has not been waited for.
        while unsafe { libc::waitpid(self.0, core::ptr::null_mut(), 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// Runs in the child.
fn run(near: RawFd, far: RawFd, words: &[u8], quiet: u8) {
    alone(near, far);
    let mut buffer = [0u8; 4096];
    let mut has_words = true;
    loop {
        let [from_near, from_far] = wait([near, far], -1);
        if from_far {
            let Some(len) = read(far, &mut buffer) else { return };
            if !write(near, &buffer[..len]) {
                break;
            }
        }
        if from_near {
            let Some(len) = read(near, &mut buffer) else { break };
            has_words &= !buffer[..len].contains(&quiet);
            let mut parts = buffer[..len].split(|byte| *byte == quiet);
            if !parts.all(|part| write(far, part)) {
                return;
            }
        }
    }
    if has_words && write(far, words) {
        for _ in 0..ANSWERS {
            // Closing the connection too early may lose the last bytes.
            let [answers, _] = wait([far, -1], ANSWER_MS);
            if !answers || read(far, &mut buffer).is_none() {
                return;
            }
        }
    }
}

/// Closes all other descriptors, because clients wait for them to close, and ignores signals.
fn alone(near: RawFd, far: RawFd) {
    let (low, high) = (near.min(far), near.max(far));
    for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, RawFd::MAX)] {
        if first <= last {
            // SAFETY: the call touches no memory; nothing in the child uses these descriptors.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initializes the set that sigprocmask reads.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), core::ptr::null_mut());
    }
}

/// Waits, and returns which descriptors are readable or at end of file.
fn wait(fds: [RawFd; 2], ms: libc::c_int) -> [bool; 2] {
    let mut all = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the array has two elements, as stated; poll ignores negative descriptors.
    unsafe { libc::poll(all.as_mut_ptr(), 2, ms) };
    all.map(|fd| fd.revents != 0)
}

/// Returns the number of bytes read; 0 at end of file.
fn read(fd: RawFd, buffer: &mut [u8]) -> Option<usize> {
    // SAFETY: the buffer has the stated size.
    let len = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(len).ok().filter(|len| *len > 0)
}

fn write(fd: RawFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: the buffer has the stated size.
        let len = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        let Some(rest) = usize::try_from(len).ok().filter(|len| *len > 0) else { return false };
        bytes = bytes.get(rest..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    fn started() -> (UnixStream, Relay, UnixStream) {
        let (far, stub) = UnixStream::pair().unwrap();
        let (ours, relay) = relay(far, b"bye", 0).unwrap();
        for stream in [&ours, &stub] {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        (ours, relay, stub)
    }

    fn reads(mut stream: &UnixStream, expected: &[u8]) {
        let mut found = vec![0; expected.len()];
        stream.read_exact(&mut found).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn it_relays_and_says_the_last_words() {
        let (mut ours, relay, mut stub) = started();
        ours.write_all(b"hello").unwrap();
        reads(&stub, b"hello");
        stub.write_all(b"yes").unwrap();
        reads(&ours, b"yes");
        drop(ours);
        reads(&stub, b"bye");
        stub.write_all(b"+$OK#9a").unwrap();
        drop(relay);
        assert_eq!(stub.read(&mut [0; 8]).unwrap(), 0, "that was the last");
    }

    #[test]
    fn it_can_be_told_to_be_quiet() {
        let (mut ours, relay, mut stub) = started();
        ours.write_all(b"\0leave").unwrap();
        reads(&stub, b"leave");
        drop(ours);
        assert_eq!(stub.read(&mut [0; 8]).unwrap(), 0);
        drop(relay);
    }

    #[test]
    fn it_ends_with_the_other_end() {
        let (mut ours, relay, stub) = started();
        drop(stub);
        assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
        drop(relay);
    }
}
