//! The PTP_SYS_OFFSET_* calls, with the layouts of include/uapi/linux/ptp_clock.h.
//!
//! The first generation of each number is used (not `..._EXTENDED2`): it exists on every kernel
//! that has the call at all, and differs only in not checking reserved fields.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use timevisor_time::{Instant, NANOS_PER_SEC, Timescale};

use crate::ioctl::{Ioctl, READ, WRITE};

/// PTP_MAX_SAMPLES.
pub const MAX_SAMPLES: usize = 25;

/// struct ptp_clock_time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub(super) struct ClockTime {
    pub(super) sec: i64,
    pub(super) nsec: u32,
    pub(super) reserved: u32,
}

/// struct ptp_clock_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct ClockCaps {
    max_adj: i32,
    n_alarm: i32,
    n_ext_ts: i32,
    n_per_out: i32,
    pps: i32,
    n_pins: i32,
    cross_timestamping: i32,
    adjust_phase: i32,
    rsv: [i32; 12],
}

/// struct ptp_sys_offset.
#[derive(Clone, Copy)]
#[repr(C)]
struct SysOffset {
    n_samples: u32,
    rsv: [u32; 3],
    ts: [ClockTime; 2 * MAX_SAMPLES + 1],
}

/// struct ptp_sys_offset_extended. In `rsv[0]`, kernels since 6.12 expect the clock id for the
/// system stamps; 0 is CLOCK_REALTIME, as before.
#[derive(Clone, Copy)]
#[repr(C)]
struct SysOffsetExtended {
    n_samples: u32,
    rsv: [u32; 3],
    ts: [[ClockTime; 3]; MAX_SAMPLES],
}

/// struct ptp_sys_offset_precise.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct SysOffsetPrecise {
    device: ClockTime,
    sys_realtime: ClockTime,
    sys_monoraw: ClockTime,
    rsv: [u32; 4],
}

// The request numbers below include the sizes, so a wrong layout would be a different call.
const _: () = assert!(
    size_of::<ClockTime>() == 16
        && size_of::<ClockCaps>() == 80
        && size_of::<SysOffset>() == 832
        && size_of::<SysOffsetExtended>() == 1216
        && size_of::<SysOffsetPrecise>() == 64
);

/// PTP_CLK_MAGIC.
pub(super) const MAGIC: u8 = b'=';

const GETCAPS: Ioctl<ClockCaps> = Ioctl::new(READ, MAGIC, 1);
const SYS_OFFSET: Ioctl<SysOffset> = Ioctl::new(WRITE, MAGIC, 5);
const SYS_OFFSET_PRECISE: Ioctl<SysOffsetPrecise> = Ioctl::new(READ | WRITE, MAGIC, 8);
const SYS_OFFSET_EXTENDED: Ioctl<SysOffsetExtended> = Ioctl::new(READ | WRITE, MAGIC, 9);

/// The capabilities that the device reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Largest frequency adjustment, ppb; 0 for a clock that cannot be set, such as a hypervisor's.
    pub max_adjustment_ppb: i32,
    /// The device claims to support PTP_SYS_OFFSET_PRECISE.
    pub cross_timestamping: bool,
    /// Channels that stamp the edges of an input.
    pub timestamp_channels: u32,
    /// Channels that make a signal at an output.
    pub output_channels: u32,
    /// Pins whose function can be chosen.
    pub pins: u32,
}

/// The device's time between two readings of CLOCK_REALTIME.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Triple<S, D> {
    /// CLOCK_REALTIME before.
    pub before: Instant<S>,
    /// The device.
    pub device: Instant<D>,
    /// CLOCK_REALTIME after.
    pub after: Instant<S>,
}

/// The device and the system's clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precise<D> {
    /// The device.
    pub device: Instant<D>,
    /// CLOCK_MONOTONIC_RAW in nanoseconds.
    pub monotonic_raw_ns: u64,
}

pub(super) fn capabilities(file: &File) -> io::Result<Capabilities> {
    let mut caps = ClockCaps::default();
    GETCAPS.call(file.as_fd(), &mut caps)?;
    Ok(Capabilities {
        max_adjustment_ppb: caps.max_adj,
        cross_timestamping: caps.cross_timestamping != 0,
        timestamp_channels: u32::try_from(caps.n_ext_ts).unwrap_or(0),
        output_channels: u32::try_from(caps.n_per_out).unwrap_or(0),
        pins: u32::try_from(caps.n_pins).unwrap_or(0),
    })
}

/// PTP_SYS_OFFSET_PRECISE: EOPNOTSUPP if the device does not support hardware cross-timestamping.
pub(super) fn precise<D>(file: &File) -> io::Result<Precise<D>> {
    let mut offset = SysOffsetPrecise::default();
    SYS_OFFSET_PRECISE.call(file.as_fd(), &mut offset)?;
    let raw = nanos(offset.sys_monoraw)?;
    Ok(Precise {
        device: instant(offset.device)?,
        monotonic_raw_ns: u64::try_from(raw).map_err(|_| nonsense())?,
    })
}

/// PTP_SYS_OFFSET_EXTENDED: `samples` readings of the device, each between two of CLOCK_REALTIME,
/// taken by the driver right next to the register access.
pub(super) fn extended<S: Timescale, D>(
    file: &File,
    samples: usize,
) -> io::Result<Vec<Triple<S, D>>> {
    let samples = samples.clamp(1, MAX_SAMPLES);
    let mut offset = SysOffsetExtended {
        n_samples: u32::try_from(samples).unwrap_or(1),
        rsv: [0; 3],
        ts: [[ClockTime::default(); 3]; MAX_SAMPLES],
    };
    SYS_OFFSET_EXTENDED.call(file.as_fd(), &mut offset)?;
    offset.ts[..samples].iter().map(|[a, b, c]| triple(*a, *b, *c)).collect()
}

/// PTP_SYS_OFFSET: device and CLOCK_REALTIME alternately, with the whole driver call in between.
pub(super) fn plain<S: Timescale, D>(file: &File, samples: usize) -> io::Result<Vec<Triple<S, D>>> {
    let samples = samples.clamp(1, MAX_SAMPLES);
    let mut offset = SysOffset {
        n_samples: u32::try_from(samples).unwrap_or(1),
        rsv: [0; 3],
        ts: [ClockTime::default(); 2 * MAX_SAMPLES + 1],
    };
    SYS_OFFSET.call(file.as_fd(), &mut offset)?;
    let stamps = &offset.ts[..=2 * samples];
    stamps.windows(3).step_by(2).map(|w| triple(w[0], w[1], w[2])).collect()
}

fn triple<S, D>(
    before: ClockTime,
    device: ClockTime,
    after: ClockTime,
) -> io::Result<Triple<S, D>> {
    Ok(Triple { before: instant(before)?, device: instant(device)?, after: instant(after)? })
}

pub(super) fn instant<S>(time: ClockTime) -> io::Result<Instant<S>> {
    nanos(time).map(Instant::from_unix_nanos)
}

fn nanos(time: ClockTime) -> io::Result<i128> {
    if time.nsec >= 1_000_000_000 {
        return Err(nonsense());
    }
    Ok(i128::from(time.sec) * NANOS_PER_SEC + i128::from(time.nsec))
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the driver returned an impossible time")
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use timevisor_time::{Local, Utc};

    /// The numbers are those that a C compiler computes from the header of Linux 6.1.
    #[test]
    fn the_numbers_are_the_kernels() {
        assert_eq!(GETCAPS.number(), 0x8050_3d01);
        assert_eq!(SYS_OFFSET.number(), 0x4340_3d05);
        assert_eq!(SYS_OFFSET_PRECISE.number(), 0xc040_3d08_u32 as libc::Ioctl);
        assert_eq!(SYS_OFFSET_EXTENDED.number(), 0xc4c0_3d09_u32 as libc::Ioctl);
        assert_eq!(offset_of!(ClockCaps, cross_timestamping), 24);
        assert_eq!(offset_of!(SysOffset, ts), 16);
        assert_eq!(offset_of!(SysOffsetExtended, ts), 16);
        assert_eq!(offset_of!(SysOffsetPrecise, sys_monoraw), 32);
    }

    #[test]
    fn what_is_no_ptp_clock_says_so() {
        let null = File::open("/dev/null").unwrap();
        for error in [
            capabilities(&null).unwrap_err(),
            precise::<Local>(&null).unwrap_err(),
            extended::<Utc, Local>(&null, 1).unwrap_err(),
            plain::<Utc, Local>(&null, 99).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }

    #[test]
    fn an_impossible_time_is_refused() {
        let time = |sec, nsec| ClockTime { sec, nsec, reserved: 0 };
        assert_eq!(nanos(time(-1, 1)).unwrap(), -999_999_999);
        assert!(nanos(time(1, 1_000_000_000)).is_err());
    }
}
