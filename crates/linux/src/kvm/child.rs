//! Runs work in a forked child, so that a hang or a crash there does not affect this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::poll::{self, PollFd, Woken};

/// What the child found: the last step, an errno, and KVM's two exit reasons.
pub(super) type Report = [u32; 4];

/// Runs `work` in a forked child. If it does not finish in time, it is killed and the result is
/// `None`.
pub(super) fn run_in_child(work: fn() -> Report, patience: Duration) -> io::Result<Option<Report>> {
    let mut ends = [-1; 2];
    // SAFETY: pipe2 fills the array of two.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: two descriptors that pipe2 has just returned, and that nobody else owns.
    let (reader, writer) =
        unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: the child makes system calls only, no allocation and no locks, until it leaves by
    // _exit.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        let report = work();
        // SAFETY: the report is an array of known size; _exit runs no destructors of the parent's
        // state.
        unsafe {
            libc::write(writer.as_raw_fd(), report.as_ptr().cast(), size_of::<Report>());
            libc::_exit(0);
        }
    }
    drop(writer);
    let finished = wait_for(&reader, patience);
    let mut report: Report = [0; 4];
    // SAFETY: the buffer has the stated size; the pid is a child of ours that has not been waited
    // for.
    unsafe {
        if finished {
            libc::read(reader.as_raw_fd(), report.as_mut_ptr().cast(), size_of::<Report>());
        }
        libc::kill(child, libc::SIGKILL);
        while libc::waitpid(child, core::ptr::null_mut(), 0) < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    Ok(finished.then_some(report))
}

/// Waits for the report or the pipe's end, however many signals arrive.
fn wait_for(reader: &OwnedFd, patience: Duration) -> bool {
    let start = Instant::now();
    loop {
        let left = patience.saturating_sub(start.elapsed());
        let mut fds = [PollFd::readable(reader.as_fd())];
        match poll::wait(&mut fds, Some(left)) {
            Ok(Woken::Ready(_)) => return true,
            Ok(Woken::Signal) if !left.is_zero() => {}
            _ => return false,
        }
    }
}
