//! Processors and processor time.

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

fn affinity() -> Result<libc::cpu_set_t> {
    // SAFETY: a cpu_set_t is an array of words, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: `set` is a live cpu_set_t of the given size for the call to fill; 0 is this thread.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    ensure!(result == 0, "sched_getaffinity: {}", io::Error::last_os_error());
    Ok(set)
}

/// Two different processors that this process may use.
pub(crate) fn two() -> Result<(usize, usize)> {
    let set = affinity()?;
    // SAFETY: every number is below the set's size.
    let allowed = |n: &usize| unsafe { libc::CPU_ISSET(*n, &set) };
    let found: Vec<_> = (0..libc::CPU_SETSIZE as usize).filter(allowed).take(2).collect();
    match found[..] {
        [first, second] => Ok((first, second)),
        _ => anyhow::bail!("two processors are needed: one for the servers, one for the client"),
    }
}

/// This thread, and whatever it starts from now on, runs there only.
pub(crate) fn pin(processor: usize) -> Result<()> {
    // SAFETY: a cpu_set_t is an array of words, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the number came from a set of this size.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: `set` is a live cpu_set_t of the given size; 0 is this thread.
    let result =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    ensure!(result == 0, "cannot pin to processor {processor}: {}", io::Error::last_os_error());
    Ok(())
}

/// User and system time of a process, all threads (proc(5): fields 14 and 15 of stat, in clock ticks).
pub(crate) fn time_of(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is gone: see its log"))?;
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, rest) = text.rsplit_once(')').context("no stat")?;
    let field = |n: usize| -> Result<u64> {
        Ok(rest.split_whitespace().nth(n - 3).context("stat is short")?.parse()?)
    };
    // SAFETY: sysconf has no preconditions.
    let hz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) })?.max(1);
    Ok(Duration::from_nanos((field(14)? + field(15)?) * 1_000_000_000 / hz))
}

#[cfg(test)]
mod tests {
    #[test]
    fn our_own_time_passes() {
        let pid = std::process::id();
        let before = super::time_of(pid).unwrap();
        let mut x = 1u64;
        while super::time_of(pid).unwrap() == before {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
    }
}
