//! How many descriptors this process may have, and keeping some free.
//!
//! A daemon that other users can make open descriptors must not run out of them itself: without
//! any, it can neither read its files nor accept its administrator's connection. It opens a
//! descriptor for others only while some are free ([`are_free`]).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Raises the limit of open files (RLIMIT_NOFILE) to what the hard limit allows, but not beyond
/// `most`, and returns it. It is never lowered.
///
/// # Errors
/// When the kernel refuses; the limit then stays as it was.
pub fn raise_limit(most: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a complete structure for the call to fill.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = limit.rlim_max.min(most);
    if wanted <= limit.rlim_cur {
        return Ok(limit.rlim_cur);
    }
    limit.rlim_cur = wanted;
    // SAFETY: a complete structure for the call to read.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(wanted)
}

/// Whether this process can open `count` more descriptors now. It opens them, and closes them
/// again.
#[must_use]
pub fn are_free(count: usize) -> bool {
    let mut held = Vec::with_capacity(count);
    while held.len() < count {
        match held.first().map_or_else(event, |first: &OwnedFd| duplicate(first.as_raw_fd())) {
            Ok(fd) => held.push(fd),
            Err(_) => return false,
        }
    }
    true
}

/// Whether an error says that descriptors or kernel memory ran out: trying again at once would fail
/// again.
#[must_use]
pub fn ran_out(error: &io::Error) -> bool {
    let scarce = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| scarce.contains(&code))
}

fn event() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes two integers and touches no memory.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })
}

fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open; the argument is an integer.
    owned(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just returned, and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const CHILD: &str = "TIMEVISOR_DESCRIPTORS_CHILD";

    /// Run by the test below under `ulimit -Sn 40`: limits are the whole process's.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        assert!(are_free(8) && !are_free(40));
        let raised = raise_limit(64).unwrap();
        assert_eq!(raised, 64);
        assert!(are_free(40) && !are_free(64));
        assert_eq!(raise_limit(50).unwrap(), 64, "never lowered");
        let mut all = Vec::new();
        let error = loop {
            match event() {
                Ok(fd) => all.push(fd),
                Err(error) => break error,
            }
        };
        assert!(ran_out(&error) && !are_free(1));
        drop(all);
        assert!(are_free(8));
    }

    #[test]
    fn the_limit_is_raised_and_the_rest_is_counted() {
        assert!(!ran_out(&io::Error::from_raw_os_error(libc::ECONNABORTED)));
        let tests = std::env::current_exe().unwrap();
        let script =
            "ulimit -Sn 40 && exec \"$0\" --exact descriptors::tests::child --test-threads=1";
        let output =
            Command::new("sh").args(["-c", script]).arg(tests).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
