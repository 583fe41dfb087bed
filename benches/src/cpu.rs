//! Which processor runs a thread.

use std::io;

use anyhow::{Result, ensure};

fn affinity() -> Result<libc::cpu_set_t> {
    // SAFETY: a cpu_set_t is an array of words, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: `set` is a live cpu_set_t of the given size for the call to fill; 0 is this thread.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    ensure!(result == 0, "sched_getaffinity: {}", io::Error::last_os_error());
    Ok(set)
}

/// Two different processors that this process may use.
///
/// # Errors
/// When there is only one.
pub fn two() -> Result<(usize, usize)> {
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
///
/// # Errors
/// When the kernel refuses.
pub fn pin(processor: usize) -> Result<()> {
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

/// True when `leaf`'s EDX has `bit`; false when the processor does not know the leaf.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn has_extended_feature(leaf: u32, bit: u32) -> bool {
    use core::arch::x86_64::__cpuid;

    __cpuid(0x8000_0000).eax >= leaf && __cpuid(leaf).edx >> bit & 1 == 1
}
