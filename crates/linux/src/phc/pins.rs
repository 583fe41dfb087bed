//! Pins of a PTP hardware clock: stamps of edges (extts) and signals at a time (perout), with the
//! layouts of include/uapi/linux/ptp_clock.h. **Not tested on hardware**: only layouts, numbers and
//! refusals of clocks without pins are.
//!
//! The second generation of the requests is used where there is one (Linux 5.4): it refuses flags
//! that the driver does not know.
//!
//! What it does not do: convert the clock's time, or set the clock.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use timevisor_time::{Instant, Local, NANOS_PER_SEC};

use super::Phc;
use super::ioctl::{ClockTime, MAGIC, instant};
use crate::ioctl::{Ioctl, READ, WRITE};
use crate::poll::{PollFd, Woken, wait};

/// struct ptp_pin_desc.
#[derive(Clone, Copy)]
#[repr(C)]
struct PinDesc {
    name: [u8; 64],
    index: u32,
    func: u32,
    chan: u32,
    rsv: [u32; 5],
}

/// struct ptp_extts_request.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ExttsRequest {
    index: u32,
    flags: u32,
    rsv: [u32; 2],
}

/// struct ptp_perout_request, with `start` and `on` of its unions.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PeroutRequest {
    start: ClockTime,
    period: ClockTime,
    index: u32,
    flags: u32,
    on: ClockTime,
}

/// struct ptp_extts_event.
const EVENT: usize = 32;

const ENABLE_FEATURE: u32 = 1 << 0;
const RISING_EDGE: u32 = 1 << 1;
const FALLING_EDGE: u32 = 1 << 2;
const STRICT_FLAGS: u32 = 1 << 3;
const PEROUT_ONE_SHOT: u32 = 1 << 0;
const PEROUT_DUTY_CYCLE: u32 = 1 << 1;

const PIN_GETFUNC: Ioctl<PinDesc> = Ioctl::new(READ | WRITE, MAGIC, 6);
const PIN_SETFUNC: Ioctl<PinDesc> = Ioctl::new(WRITE, MAGIC, 7);
const EXTTS_REQUEST2: Ioctl<ExttsRequest> = Ioctl::new(WRITE, MAGIC, 11);
const PEROUT_REQUEST2: Ioctl<PeroutRequest> = Ioctl::new(WRITE, MAGIC, 12);

/// What a pin is used for (enum ptp_pin_function). Not tested on hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinFunction {
    /// Nothing.
    None,
    /// Its edges are stamped.
    Timestamp,
    /// A signal is made at it.
    Output,
    /// Synchronizes the physical layer.
    PhySync,
}

impl PinFunction {
    fn of_number(number: u32) -> Option<Self> {
        [Self::None, Self::Timestamp, Self::Output, Self::PhySync].get(number as usize).copied()
    }

    fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Timestamp => 1,
            Self::Output => 2,
            Self::PhySync => 3,
        }
    }
}

/// A pin whose function can be chosen. Not tested on hardware.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    /// The driver's name for it.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// What it is used for; `None` for a function that this library does not know.
    pub function: Option<PinFunction>,
    /// The channel of that function.
    pub channel: u32,
}

/// An edge at an input. Not tested on hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExternalStamp {
    /// The clock's time at the edge.
    pub time: Instant<Local>,
    /// The channel.
    pub channel: u32,
}

impl Phc {
    /// Opens `/dev/ptpN` for pins, which kernels since 6.18 allow only to those who may write.
    ///
    /// # Errors
    /// When there is no such device, or access is not allowed.
    pub fn open_for_pins(path: &Path) -> io::Result<Self> {
        File::options().read(true).write(true).open(path).map(Self)
    }

    /// A pin (PTP_PIN_GETFUNC). Not tested on hardware.
    ///
    /// # Errors
    /// EINVAL when there is no such pin; ENOTTY when this is not a PTP clock.
    pub fn pin(&self, index: u32) -> io::Result<Pin> {
        let mut pin = PinDesc { name: [0; 64], index, func: 0, chan: 0, rsv: [0; 5] };
        PIN_GETFUNC.call(self.file().as_fd(), &mut pin)?;
        let end = pin.name.iter().position(|byte| *byte == 0).unwrap_or(pin.name.len());
        Ok(Pin {
            name: String::from_utf8_lossy(&pin.name[..end]).into_owned(),
            index,
            function: PinFunction::of_number(pin.func),
            channel: pin.chan,
        })
    }

    /// Uses a pin for a function's channel (PTP_PIN_SETFUNC). Not tested on hardware.
    ///
    /// # Errors
    /// EINVAL when there is no such pin or channel; EOPNOTSUPP when the pin cannot do that.
    pub fn set_pin(&self, index: u32, function: PinFunction, channel: u32) -> io::Result<()> {
        let mut pin =
            PinDesc { name: [0; 64], index, func: function.number(), chan: channel, rsv: [0; 5] };
        PIN_SETFUNC.call(self.file().as_fd(), &mut pin)
    }

    /// Claims a channel for this descriptor until it is closed: an advisory lock of one byte of the
    /// device (fcntl(2), F_OFD_SETLK), which programs that do not ask for it ignore.
    ///
    /// # Errors
    /// EBUSY when somebody else has claimed it.
    pub fn claim(&self, channel: u32) -> io::Result<()> {
        // SAFETY: plain integers, for which all bits 0 are valid: SEEK_SET, and the l_pid that has to be 0.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::c_short::try_from(libc::F_WRLCK).map_err(io::Error::other)?;
        (lock.l_start, lock.l_len) = (libc::off_t::from(channel), 1);
        // SAFETY: the descriptor is open, the structure complete; the call writes nothing else.
        let done =
            unsafe { libc::fcntl(self.file().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        let is_taken = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
        Err(if is_taken { io::Error::from_raw_os_error(libc::EBUSY) } else { error })
    }

    /// Has a channel stamp edges from now on: rising, falling, or both (PTP_EXTTS_REQUEST2). Neither
    /// ends that. Not tested on hardware.
    ///
    /// # Errors
    /// EINVAL when there is no such channel; EOPNOTSUPP when the driver cannot stamp these edges.
    pub fn stamp_edges(&self, channel: u32, rising: bool, falling: bool) -> io::Result<()> {
        let mut request = edges(channel, rising, falling);
        EXTTS_REQUEST2.call(self.file().as_fd(), &mut request)
    }

    /// Takes the oldest stamp that waits; `None` if there is none. Does not block, unless another
    /// program reads this clock's stamps, too, with a kernel before 6.7, where they share one queue.
    /// The kernel does not tell of stamps that it dropped. Not tested on hardware.
    ///
    /// # Errors
    /// ENODEV when the device is gone.
    pub fn next_stamp(&self) -> io::Result<Option<ExternalStamp>> {
        // read(2) of a PTP clock blocks, whatever the descriptor's flags are.
        let mut fds = [PollFd::readable(self.file().as_fd())];
        if !matches!(wait(&mut fds, Some(Duration::ZERO))?, Woken::Ready(_)) {
            return Ok(None);
        }
        let mut bytes = [0; EVENT];
        let mut file: &File = self.file();
        file.read_exact(&mut bytes)?;
        stamp_of_bytes(&bytes).map(Some)
    }

    /// Makes one pulse at an output when the clock reads `start` (PTP_PEROUT_REQUEST2 with
    /// PTP_PEROUT_ONE_SHOT and PTP_PEROUT_DUTY_CYCLE). Not tested on hardware.
    ///
    /// # Errors
    /// EINVAL when there is no such channel or the driver refuses the times; EOPNOTSUPP when it
    /// cannot make a single pulse.
    pub fn pulse_at(&self, channel: u32, start: Instant<Local>, width: Duration) -> io::Result<()> {
        let mut request = pulse(channel, start, width)?;
        PEROUT_REQUEST2.call(self.file().as_fd(), &mut request)
    }

    /// Ends what an output does (a period of zero). Not tested on hardware.
    ///
    /// # Errors
    /// EINVAL when there is no such channel.
    pub fn end_output(&self, channel: u32) -> io::Result<()> {
        let mut request = PeroutRequest { index: channel, ..PeroutRequest::default() };
        PEROUT_REQUEST2.call(self.file().as_fd(), &mut request)
    }
}

impl AsFd for Phc {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file().as_fd()
    }
}

fn edges(channel: u32, rising: bool, falling: bool) -> ExttsRequest {
    let rise = if rising { RISING_EDGE } else { 0 };
    let fall = if falling { FALLING_EDGE } else { 0 };
    let on = if rising || falling { ENABLE_FEATURE | STRICT_FLAGS } else { 0 };
    ExttsRequest { index: channel, flags: rise | fall | on, rsv: [0; 2] }
}

/// A pulse that is active for `width`, as one of a period twice as long.
fn pulse(channel: u32, start: Instant<Local>, width: Duration) -> io::Result<PeroutRequest> {
    let width = i128::try_from(width.as_nanos()).unwrap_or(i128::MAX / 2);
    if width == 0 {
        // The kernel would take a period of zero for the end of a signal.
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // The clock cannot start within a nanosecond.
    let start = i128::from(start.floor_nanos());
    Ok(PeroutRequest {
        start: clock_time(start)?,
        period: clock_time(2 * width)?,
        index: channel,
        flags: PEROUT_ONE_SHOT | PEROUT_DUTY_CYCLE,
        on: clock_time(width)?,
    })
}

fn clock_time(ns: i128) -> io::Result<ClockTime> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let sec = i64::try_from(ns.div_euclid(NANOS_PER_SEC)).map_err(out_of_range)?;
    let nsec = u32::try_from(ns.rem_euclid(NANOS_PER_SEC)).map_err(out_of_range)?;
    Ok(ClockTime { sec, nsec, reserved: 0 })
}

fn stamp_of_bytes(bytes: &[u8; EVENT]) -> io::Result<ExternalStamp> {
    let word = |at: usize| -> u32 {
        let mut four = [0; 4];
        four.copy_from_slice(&bytes[at..at + 4]);
        u32::from_ne_bytes(four)
    };
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[..8]);
    let time = ClockTime { sec: i64::from_ne_bytes(eight), nsec: word(8), reserved: 0 };
    Ok(ExternalStamp { time: instant(time)?, channel: word(16) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// Numbers, sizes and offsets are those that a C compiler computes from the header of Linux 6.1.
    #[test]
    fn the_layouts_are_the_kernels() {
        assert_eq!(PIN_GETFUNC.number(), 0xc060_3d06_u32 as libc::Ioctl);
        assert_eq!(PIN_SETFUNC.number(), 0x4060_3d07);
        assert_eq!(EXTTS_REQUEST2.number(), 0x4010_3d0b);
        assert_eq!(PEROUT_REQUEST2.number(), 0x4038_3d0c);
        assert_eq!((offset_of!(PinDesc, index), offset_of!(PinDesc, chan)), (64, 72));
        assert_eq!((offset_of!(PeroutRequest, period), offset_of!(PeroutRequest, index)), (16, 32));
        assert_eq!((offset_of!(PeroutRequest, flags), offset_of!(PeroutRequest, on)), (36, 40));
        assert_eq!(offset_of!(ExttsRequest, flags), 4);
    }

    #[test]
    fn a_stamp_is_parsed_as_the_kernel_lays_it_out() {
        let mut bytes = [0; EVENT];
        bytes[..8].copy_from_slice(&1_700_000_000_i64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&999_999_999_u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(&2_u32.to_ne_bytes());
        let stamp = stamp_of_bytes(&bytes).unwrap();
        assert_eq!(stamp.time, Instant::from_unix_nanos(1_700_000_000_999_999_999));
        assert_eq!(stamp.channel, 2);
        bytes[8..12].copy_from_slice(&1_000_000_000_u32.to_ne_bytes());
        assert!(stamp_of_bytes(&bytes).is_err());
    }

    #[test]
    fn requests_say_what_is_wanted() {
        assert_eq!((edges(1, true, false).flags, edges(1, true, true).flags), (0b1011, 0b1111));
        assert_eq!((edges(3, false, false).flags, edges(3, false, false).index), (0, 3));
        let start = Instant::from_unix_nanos(-500_000_000);
        let pulse = pulse(4, start, Duration::from_millis(750)).unwrap();
        assert_eq!((pulse.start.sec, pulse.start.nsec), (-1, 500_000_000));
        assert_eq!((pulse.period.sec, pulse.period.nsec), (1, 500_000_000));
        assert_eq!((pulse.on.nsec, pulse.index, pulse.flags), (750_000_000, 4, 0b11));
        assert!(super::pulse(4, start, Duration::ZERO).is_err());
    }

    #[test]
    fn a_channel_is_claimed_by_one_until_it_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || Phc::open_for_pins(file.path()).unwrap();
        let (one, other) = (open(), open());
        one.claim(3).unwrap();
        one.claim(3).unwrap();
        assert_eq!(other.claim(3).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        other.claim(4).unwrap();
        drop(one);
        other.claim(3).unwrap();
    }

    #[test]
    fn what_is_no_ptp_clock_says_so() {
        let null = Phc::open_for_pins(Path::new("/dev/null")).unwrap();
        let start = Instant::from_unix_nanos(0);
        for error in [
            null.pin(0).unwrap_err(),
            null.set_pin(0, PinFunction::Timestamp, 0).unwrap_err(),
            null.stamp_edges(0, true, true).unwrap_err(),
            null.pulse_at(0, start, Duration::from_millis(1)).unwrap_err(),
            null.end_output(0).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
