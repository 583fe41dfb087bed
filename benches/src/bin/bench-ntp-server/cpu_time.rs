//! Processor time.

use std::fs;

use std::time::Duration;

use anyhow::{Context, Result};

/// User and system time of a process, all threads (proc(5): fields 14 and 15 of stat, in clock
/// ticks).
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
