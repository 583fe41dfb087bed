//! The kernel's clocks, read only.
//!
//! Everything goes through libc's functions, so that an LD_PRELOAD network simulator sees every
//! read. This module sets no clock: Timevisor never disciplines the kernel.

use std::io;

use timevisor_clock_page::Counter;
use timevisor_time::{Duration, Instant, Utc};

/// CLOCK_REALTIME, with no claim about its error.
#[must_use]
pub fn realtime() -> Instant<Utc> {
    Instant::from_unix_nanos(nanos(libc::CLOCK_REALTIME))
}

/// CLOCK_MONOTONIC: time since boot without suspend, at the kernel's disciplined rate.
#[must_use]
pub fn monotonic() -> Duration {
    Instant::<Utc>::from_unix_nanos(nanos(libc::CLOCK_MONOTONIC)).since_epoch()
}

/// CLOCK_BOOTTIME: time since boot with suspend.
#[must_use]
pub fn boottime() -> Duration {
    Instant::<Utc>::from_unix_nanos(nanos(libc::CLOCK_BOOTTIME)).since_epoch()
}

/// CLOCK_MONOTONIC_RAW in nanoseconds.
#[must_use]
pub fn monotonic_raw_nanos() -> u64 {
    u64::try_from(nanos(libc::CLOCK_MONOTONIC_RAW)).unwrap_or(0)
}

/// The processor time that the calling thread has used.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    Instant::<Utc>::from_unix_nanos(nanos(libc::CLOCK_THREAD_CPUTIME_ID)).since_epoch()
}

/// Offset in ns of CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW in this process's time namespace
/// relative to the initial one, modulo 2^64; 0 if the kernel has no time namespaces.
#[must_use]
pub fn time_namespace_offset() -> u64 {
    std::fs::read_to_string("/proc/self/timens_offsets").map_or(0, |text| namespace_offset(&text))
}

/// Whether [`time_namespace_offset`] is this process's own: the file tells of the namespace that its children are born
/// in (proc_timens_show_offsets, fs/proc/base.c), which is another one after `unshare` without a fork.
#[must_use]
pub fn is_time_namespace_known() -> bool {
    let link = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}"));
    match (link("time"), link("time_for_children")) {
        (Ok(own), Ok(children)) => own == children,
        // A kernel without time namespaces has /proc/self/ns nevertheless.
        _ => {
            std::fs::metadata("/proc/self/ns/user").is_ok()
                || std::fs::metadata("/proc/self/ns/mnt").is_ok()
        }
    }
}

/// Parses lines of a clock's name or number, seconds and nanoseconds.
fn namespace_offset(text: &str) -> u64 {
    let monotonic = text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        words.next().filter(|clock| ["monotonic", "1"].contains(clock))?;
        let (seconds, ns): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(ns))
    });
    u64::from_ne_bytes(monotonic.unwrap_or(0).to_ne_bytes())
}

/// CLOCK_PROCESS_CPUTIME_ID in nanoseconds: how long this process's threads have run.
#[must_use]
pub fn process_cpu_nanos() -> u64 {
    u64::try_from(nanos(libc::CLOCK_PROCESS_CPUTIME_ID)).unwrap_or(0)
}

fn nanos(clock: libc::clockid_t) -> i128 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the call to fill; the clock ids above exist on every
    // supported kernel, so the call cannot fail (clock_gettime(2)).
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    i128::from(now.tv_sec) * timevisor_time::NANOS_PER_SEC + i128::from(now.tv_nsec)
}

/// One reading of CLOCK_REALTIME between two readings of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bracket {
    /// The counter before.
    pub before: u64,
    /// CLOCK_REALTIME at some moment in between, rounded down to a nanosecond.
    pub realtime: Instant<Utc>,
    /// The counter after.
    pub after: u64,
}

impl Bracket {
    /// Ticks between the two counter readings.
    #[must_use]
    pub const fn width(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }
}

/// The narrowest of `tries` brackets (at least one).
pub fn bracket(counter: &impl Counter, tries: usize) -> Bracket {
    narrowest(counter, tries, realtime)
}

/// As [`bracket`], of CLOCK_MONOTONIC: the field is named after the other clock.
pub fn monotonic_bracket(counter: &impl Counter, tries: usize) -> Bracket {
    narrowest(counter, tries, || Instant::from_unix_nanos(nanos(libc::CLOCK_MONOTONIC)))
}

fn narrowest(counter: &impl Counter, tries: usize, clock: impl Fn() -> Instant<Utc>) -> Bracket {
    let one = || {
        let before = counter.read_ordered();
        let realtime = clock();
        Bracket { before, realtime, after: counter.read_ordered() }
    };
    let mut best = one();
    for _ in 1..tries {
        let next = one();
        if next.width() < best.width() {
            best = next;
        }
    }
    best
}

/// How long this machine has been suspended since boot: CLOCK_BOOTTIME - CLOCK_MONOTONIC.
///
/// Both advance together otherwise, so a change of more than the reading error (the second value,
/// normally below a microsecond) means that a suspend happened and that counters may have stopped.
#[must_use]
pub fn suspended() -> (Duration, Duration) {
    let mut best = (Duration::ZERO, Duration::MAX);
    for _ in 0..4 {
        let before = monotonic();
        let boot = boottime();
        let after = monotonic();
        if after - before < best.1 {
            best = (boot - after, after - before);
        }
    }
    best
}

/// The state of the kernel's own clock discipline (clock_adjtime(2), include/uapi/linux/timex.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelClock {
    /// STA_* flags.
    pub status: i32,
    /// Maximum error in microseconds, as declared by the program that disciplines the clock; grows
    /// by 500 ppm.
    pub maxerror_us: i64,
    /// Estimated error in microseconds.
    pub esterror_us: i64,
    /// TAI - UTC in seconds; 0 if not set.
    pub tai_offset: i32,
    /// No program disciplines the clock (STA_UNSYNC).
    pub unsynchronized: bool,
    /// Offsets are in nanoseconds (STA_NANO).
    pub nano: bool,
    /// Frequency correction in 2^-16 ppm.
    pub frequency_scaled_ppm: i64,
}

/// Asks the kernel how its clock is disciplined.
///
/// # Errors
/// Only when a sandbox forbids clock_adjtime.
pub fn kernel_clock() -> io::Result<KernelClock> {
    // SAFETY: timex is plain data; all zeroes is `modes = 0`, which reads and changes nothing.
    let mut state: libc::timex = unsafe { core::mem::zeroed() };
    // SAFETY: `state` is a valid timex that outlives the call.
    if unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, &raw mut state) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(KernelClock {
        status: state.status,
        maxerror_us: state.maxerror,
        esterror_us: state.esterror,
        tai_offset: state.tai,
        unsynchronized: state.status & libc::STA_UNSYNC != 0,
        nano: state.status & libc::STA_NANO != 0,
        frequency_scaled_ppm: state.freq,
    })
}

/// This boot's random id: a new one means that counters and CLOCK_MONOTONIC have restarted.
///
/// # Errors
/// When /proc is not mounted or its file is not a UUID.
pub fn boot_id() -> io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    parse_uuid(text.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "boot_id is not a UUID"))
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::namespace_offset;
    use super::*;
    use crate::counter::MonotonicRaw;

    #[test]
    fn offsets_of_time_namespaces() {
        let text = "monotonic         -3 500000000\nboottime          7         0\n";
        assert_eq!(namespace_offset(text), 0u64.wrapping_sub(2_500_000_000));
        assert_eq!(namespace_offset("monotonic 0 0\nboottime 0 0\n"), 0);
        assert_eq!(namespace_offset("what?"), 0);
    }

    #[test]
    fn clocks_advance_and_boottime_is_not_behind() {
        let first = monotonic();
        assert!(boottime() >= first);
        assert!(monotonic() >= first);
        let (suspended, error) = suspended();
        assert!(suspended + error >= Duration::ZERO);
        assert!(error < Duration::from_millis(100), "{error}");
    }

    #[test]
    fn a_bracket_is_ordered() {
        let found = bracket(&MonotonicRaw, 8);
        assert!(found.before <= found.after);
        assert!(found.realtime.secs() > 1_600_000_000, "{:?}", found.realtime);
        let earlier = monotonic();
        let found = monotonic_bracket(&MonotonicRaw, 8);
        assert!(found.before <= found.after);
        let read = found.realtime.since_epoch();
        assert!(earlier <= read && read <= monotonic(), "{read}");
    }

    #[test]
    fn the_kernel_tells_its_state() {
        let state = kernel_clock().unwrap();
        assert_eq!(state.unsynchronized, state.status & 0x40 != 0);
    }

    #[test]
    fn uuids_parse_or_not() {
        assert_eq!(
            parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap()[..3],
            [0x00, 0x11, 0x22]
        );
        assert_eq!(parse_uuid("00112233"), None);
        assert_eq!(parse_uuid("zz112233-4455-6677-8899-aabbccddeeff"), None);
        assert!(boot_id().is_ok());
    }
}
