//! Each core's TSC as the kernel's programs read it: the perf event `msr/tsc`, which counts what
//! `rdtsc` does, but from 0.
//!
//! It needs no performance monitoring unit, so virtual machines have it, too.
//!
//! Limitation: it stops for the microseconds in which the kernel adds or removes another event on
//! its core. Ages lose that time, and a reading may then be earlier than the one before.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _};

use timevisor_clock_page::Counter as _;

use super::record::Core;
use crate::affinity;
use crate::counter::{Tsc, calibrate};

/// Number of comparisons of the two counters; the narrowest range that all of them allow is used.
const COMPARISONS: u32 = 4000;
/// Maximum number of measurement attempts while the counter stops or the frequency changes.
const ATTEMPTS: u32 = 5;
/// The first version of `struct perf_event_attr`; the kernel treats missing fields as 0.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    zero: [u64; 6],
}

/// A core's counter, running.
#[derive(Debug)]
pub(super) struct CoreCounter {
    event: File,
}

impl CoreCounter {
    /// Starts the event on this core.
    pub(super) fn open(core: usize) -> io::Result<Self> {
        let folder = "/sys/bus/event_source/devices/msr";
        let kind = fs::read_to_string(format!("{folder}/type"))?;
        let event = fs::read_to_string(format!("{folder}/events/tsc"))?;
        let odd = || io::Error::other(format!("odd event {event:?} of type {kind:?}"));
        let config = event.trim().strip_prefix("event=0x").ok_or_else(odd)?;
        let attributes = Attributes {
            kind: kind.trim().parse().map_err(|_| odd())?,
            size: u32::try_from(size_of::<Attributes>()).unwrap_or(0),
            config: u64::from_str_radix(config, 16).map_err(|_| odd())?,
            zero: [0; 6],
        };
        const EVERY_PROCESS: libc::c_long = -1;
        const NO_GROUP: libc::c_long = -1;
        const CLOSE_ON_EXEC: libc::c_long = 8;
        let core = libc::c_long::try_from(core).map_err(|_| odd())?;
        // SAFETY: `attributes` lives over the call and has the size that it states; the kernel
        // reads it only.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                EVERY_PROCESS,
                core,
                NO_GROUP,
                CLOSE_ON_EXEC,
            )
        };
        let fd =
            i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a descriptor that was just opened and belongs to nobody else.
        Ok(Self { event: unsafe { File::from_raw_fd(fd) } })
    }

    /// The descriptor for the map through which the programs read the counter.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        (&self.event).read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// As [`Self::offset`], repeated until it is consistent: while another event is added to the
    /// core, the kernel briefly stops all of them.
    fn settled_offset(&self) -> io::Result<(u64, u64)> {
        let mut found = self.offset();
        for _ in 1..ATTEMPTS {
            if found.is_ok() {
                break;
            }
            found = self.offset();
        }
        found
    }

    /// `rdtsc` minus this counter, and the error, in ticks. Call this only on the counter's own
    /// core.
    fn offset(&self) -> io::Result<(u64, u64)> {
        let tsc = Tsc::unchecked();
        let mut within: Option<(u64, u64)> = None;
        for _ in 0..COMPARISONS {
            let before = tsc.read_ordered();
            let count = self.read()?;
            let after = tsc.read_ordered();
            let (least, most) = (before.wrapping_sub(count), after.wrapping_sub(count));
            within = Some(within.map_or((least, most), |(l, m)| (l.max(least), m.min(most))));
        }
        match within {
            Some((least, most)) if least <= most => {
                Ok((least.midpoint(most), (most - least).div_ceil(2)))
            }
            _ => Err(io::Error::other("the event does not count what rdtsc reads on this core")),
        }
    }
}

/// Starts and measures a core's counter. Call it from a thread on that core; it takes 100 ms.
pub(super) fn measured(core: usize) -> io::Result<(CoreCounter, Core)> {
    affinity::pin(core)?;
    let counter = CoreCounter::open(core)?;
    let (offset, offset_error) = counter.settled_offset()?;
    let follows = !has_constant_rate();
    for _ in 0..ATTEMPTS {
        let before = frequency_khz(core);
        let calibration = calibrate(&Tsc::unchecked()).map_err(io::Error::other)?;
        if follows && frequency_khz(core) != before {
            continue;
        }
        let period = period_of(calibration.period.hz());
        // Without a cpufreq driver only the counter's own frequency is known, and we use it as the
        // core's.
        let khz = before.unwrap_or_else(|| round(calibration.period.hz() / 1e3));
        let scale = if follows { period.saturating_mul(khz) } else { 0 };
        let base = counter.read()?;
        let measured = Core { base, period, scale, offset, offset_error, ..Core::default() };
        return Ok((counter, measured));
    }
    Err(io::Error::other("the core's frequency does not stay the same for 100 ms"))
}

/// The period in 2^-32 ns per tick.
fn period_of(hz: f64) -> u64 {
    round(1e9 * 4_294_967_296.0 / hz)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; positive")]
fn round(value: f64) -> u64 {
    value.round() as u64
}

/// Whether the TSC keeps its rate when the core's frequency changes (arch/x86/kernel/cpu sets the
/// flag).
fn has_constant_rate() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "constant_tsc")
}

fn frequency_khz(core: usize) -> Option<u64> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_in_fractions_of_a_nanosecond() {
        assert_eq!(period_of(2e9), 1 << 31);
        assert_eq!(period_of(1e9), 1 << 32);
    }

    #[test]
    fn the_event_counts_what_rdtsc_reads() {
        let core = affinity::online().unwrap()[0];
        let found = std::thread::spawn(move || measured(core)).join().unwrap();
        match found {
            Ok((counter, core)) => {
                assert!(core.period > 0 && counter.read().unwrap() > core.base);
                // Two readings of a counter and a system call between them: microseconds at most,
                // however busy the machine.
                assert!(core.offset_error < 100_000, "{core:?}");
            }
            // We are not root, or the kernel lacks perf events.
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
}
