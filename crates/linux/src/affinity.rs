//! The processors of this machine, those that a thread may use, and the one it runs on.

use std::io;

/// Capacity of a `cpu_set_t`.
const MOST: usize = libc::CPU_SETSIZE as usize;

/// The processors that are online, in ascending order (/sys/devices/system/cpu/online).
///
/// # Errors
/// When sysfs is not mounted, or its content is unexpected.
pub fn online() -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    list(text.trim()).ok_or_else(|| io::Error::other(format!("odd list of processors: {text:?}")))
}

/// Parses a list in the kernel's notation: `0-3,8`.
pub(crate) fn list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(all)
}

/// Formats such a list.
#[must_use]
pub fn text(processors: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for processor in processors {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *processor => *last = *processor,
            _ => runs.push((*processor, *processor)),
        }
    }
    let run = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// The processors that this thread may use, in order.
///
/// # Errors
/// When the kernel has more processors than fit into a `cpu_set_t` (1024).
pub fn allowed() -> io::Result<Vec<usize>> {
    allowed_of(0)
}

/// The processors that a thread may use, in order; 0 means this thread.
///
/// # Errors
/// When the thread has ended, or as [`allowed`].
pub fn allowed_of(tid: u32) -> io::Result<Vec<usize>> {
    // SAFETY: a cpu_set_t is an array of words, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: `set` is a live cpu_set_t of the given size for the call to fill.
    let result =
        unsafe { libc::sched_getaffinity(pid(tid), size_of::<libc::cpu_set_t>(), &raw mut set) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every number is below the set's size.
    let is_in = |n: &usize| unsafe { libc::CPU_ISSET(*n, &set) };
    Ok((0..MOST).filter(is_in).collect())
}

/// Pins this thread, and all threads that it starts from now on, to this processor.
///
/// # Errors
/// When there is no such processor, or this process may not use it.
pub fn pin(processor: usize) -> io::Result<()> {
    allow(0, &[processor])
}

/// Pins a thread, and all threads that it starts from now on, to these processors; 0 means this
/// thread.
///
/// # Errors
/// When its cpuset contains none of them, permission is missing, or the thread has ended.
pub fn allow(tid: u32, processors: &[usize]) -> io::Result<()> {
    // SAFETY: a cpu_set_t is an array of words, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    for processor in processors {
        if *processor >= MOST {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the number is below the set's size.
        unsafe { libc::CPU_SET(*processor, &mut set) };
    }
    // SAFETY: `set` is a live cpu_set_t of the given size.
    let result =
        unsafe { libc::sched_setaffinity(pid(tid), size_of::<libc::cpu_set_t>(), &raw const set) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Converts a thread id, which always fits (PID_MAX_LIMIT is 2^22).
fn pid(tid: u32) -> libc::pid_t {
    libc::pid_t::try_from(tid).unwrap_or(libc::pid_t::MAX)
}

/// The processor that runs this thread. The thread may have moved by the time this returns.
#[must_use]
pub fn current() -> Option<usize> {
    // SAFETY: the call has no arguments and touches no memory of ours.
    let processor = unsafe { libc::sched_getcpu() };
    usize::try_from(processor).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(list("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(text(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(text(&[]), "");
        assert_eq!(list("0"), Some(vec![0]));
        assert_eq!(list(""), None);
        assert_eq!(list("0-x"), None);
        assert!(!online().unwrap().is_empty());
    }

    #[test]
    fn a_pinned_thread_has_one_processor() {
        let worker = std::thread::spawn(|| {
            let last = *allowed().unwrap().last().unwrap();
            pin(last).unwrap();
            (last, allowed().unwrap())
        });
        let (last, left) = worker.join().unwrap();
        assert_eq!(left, [last]);
        assert!(pin(usize::MAX).is_err());
        assert!(pin(MOST - 1).is_err());
    }
}
