//! The kernel's clock discipline: clock_adjtime(2) on CLOCK_REALTIME.
//!
//! Three things are set: the *rate* (ADJ_FREQUENCY, and ADJ_TICK beyond 500 ppm), the *phase*, and
//! what is *declared* (maximum and estimated error, STA_UNSYNC, leap second flags). The phase goes
//! through the kernel's own loop with its frequency held (STA_PLL with STA_FREQHOLD): each second
//! it applies 2^-(2 + time constant) of what is left (kernel/time/ntp.c, ntp_offset_chunk). The
//! phase correction thus ends by itself, and a killed daemon leaves only the right rate behind.
//!
//! [`Settings`] is what a program must restore when it stops. timevisord and timevisor-guest share
//! this module:
//!
//! | module | owns |
//! | --- | --- |
//! | this one | the system call: reading, steering, declaring, restoring |
//! | [`rivals`] | which other program disciplines CLOCK_REALTIME |
//! | [`saved`] | the original settings in a file, for cleaning up after a crash |
//!
//! What it does not do: decide when to steer, and by how much (timevisor-estimate's `steering`).

pub mod rivals;
pub mod saved;

use std::io;

use timevisor_time::{Duration, NANOS_PER_SEC};

/// Each second the kernel applies an eighth of the phase: SHIFT_PLL is 2, plus a time constant of
/// 1.
const TIME_CONSTANT: i64 = 1;
/// Largest phase that the kernel accepts (MAXPHASE, 500 ms).
pub const MAX_PHASE: Duration = Duration::from_millis(500);

/// The flags that a program can set; the others are the kernel's.
const WRITABLE: i32 = libc::STA_PLL
    | libc::STA_PPSFREQ
    | libc::STA_PPSTIME
    | libc::STA_FLL
    | libc::STA_INS
    | libc::STA_DEL
    | libc::STA_UNSYNC
    | libc::STA_FREQHOLD;
/// Flags that show that a program uses the kernel's loop.
const LOOP: i32 = libc::STA_PLL | libc::STA_FLL | libc::STA_PPSFREQ | libc::STA_PPSTIME;

/// The kernel's rate correction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Length of a tick in microseconds; a microsecond more is 100 ppm faster. 9000 to 11000.
    pub tick_us: i64,
    /// Frequency correction in 2^-16 ppm, at most 500 ppm either way.
    pub frequency: i64,
}

/// A leap second at the end of the UTC day.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LeapAction {
    /// None.
    #[default]
    None,
    /// 23:59:60 is inserted (STA_INS).
    Insert,
    /// 23:59:59 is skipped (STA_DEL).
    Delete,
}

/// What is declared about the clock's error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// The maximum error; the kernel lets it grow by 500 ppm. `None` if not synchronized.
    pub max_error: Option<Duration>,
    /// The estimated error.
    pub estimated_error: Duration,
    /// The leap second action at the end of the UTC day.
    pub leap: LeapAction,
}

/// The former values of everything that a discipline changes, for [`restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Rate.
    pub rate: Rate,
    /// Writable STA_* flags.
    pub status: i32,
    /// Offsets are in nanoseconds (STA_NANO).
    pub nano: bool,
    /// Time constant of the kernel's loop.
    pub constant: i64,
    /// Declared maximum error, microseconds.
    pub max_error_us: i64,
    /// Declared estimated error, microseconds.
    pub estimated_error_us: i64,
    /// TAI - UTC in seconds; 0 if the kernel was not told.
    pub tai_offset: i32,
}

impl Settings {
    /// Whether a program uses the kernel's loop or declares the clock synchronized.
    #[must_use]
    pub const fn in_use(&self) -> bool {
        self.status & LOOP != 0 || self.status & libc::STA_UNSYNC == 0
    }
}

/// Reads the settings in force.
///
/// # Errors
/// Only when a sandbox forbids clock_adjtime.
pub fn settings() -> io::Result<Settings> {
    let mut state = nothing();
    adjust(&mut state)?;
    Ok(Settings {
        rate: Rate { tick_us: state.tick, frequency: state.freq },
        status: state.status & WRITABLE,
        nano: state.status & libc::STA_NANO != 0,
        constant: state.constant,
        max_error_us: state.maxerror,
        estimated_error_us: state.esterror,
        tai_offset: state.tai,
    })
}

/// The remainder of an adjtime(3) adjustment; nonzero means that a program uses adjtime.
///
/// # Errors
/// As [`settings`].
pub fn pending_adjtime() -> io::Result<Duration> {
    let mut state = nothing();
    state.modes = libc::ADJ_OFFSET_SS_READ;
    adjust(&mut state)?;
    Ok(Duration::from_micros(state.offset))
}

/// Sets rate and phase. `phase` is the amount to add to the clock, at most [`MAX_PHASE`] either
/// way; it replaces what was left of the previous one.
///
/// # Errors
/// EPERM without CAP_SYS_TIME; EINVAL for a tick out of range.
pub fn steer(rate: Rate, phase: Duration, declaration: &Declaration) -> io::Result<()> {
    let mut state = declared(declaration);
    state.modes |= libc::ADJ_FREQUENCY
        | libc::ADJ_TICK
        | libc::ADJ_NANO
        | libc::ADJ_TIMECONST
        | libc::ADJ_OFFSET;
    state.freq = rate.frequency;
    state.tick = rate.tick_us;
    state.constant = TIME_CONSTANT;
    let limit = MAX_PHASE.floor_nanos();
    state.offset = phase.floor_nanos().clamp(-limit, limit);
    adjust(&mut state)
}

/// Adds `offset` to the clock at once. The kernel marks it unsynchronized; [`steer`] declares it
/// again.
///
/// # Errors
/// As [`steer`].
pub fn step(offset: Duration) -> io::Result<()> {
    let mut state = nothing();
    state.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    let nanos = i128::from(offset.floor_nanos());
    // ADJ_SETOFFSET requires non-negative nanoseconds.
    state.time.tv_sec = libc::time_t::try_from(nanos.div_euclid(NANOS_PER_SEC)).unwrap_or(0);
    state.time.tv_usec = libc::suseconds_t::try_from(nanos.rem_euclid(NANOS_PER_SEC)).unwrap_or(0);
    adjust(&mut state)
}

/// Tells the kernel TAI - UTC in seconds, for CLOCK_TAI.
///
/// # Errors
/// As [`steer`]; EINVAL for a negative offset.
pub fn set_tai_offset(seconds: i16) -> io::Result<()> {
    if seconds < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut state = nothing();
    state.modes = libc::ADJ_TAI;
    state.constant = i64::from(seconds);
    adjust(&mut state)
}

/// Restores all settings except TAI - UTC, which is a fact; restoring it would step CLOCK_TAI. The
/// rest of a phase is dropped. The declared errors are restored only for a clock that was not
/// synchronized; otherwise they would be out of date.
///
/// # Errors
/// As [`steer`].
pub fn restore(settings: &Settings) -> io::Result<()> {
    let mut state = nothing();
    // The kernel accepts an offset only while the loop is on.
    state.modes = libc::ADJ_STATUS | libc::ADJ_NANO | libc::ADJ_OFFSET;
    state.status = libc::STA_PLL | libc::STA_FREQHOLD | libc::STA_UNSYNC;
    adjust(&mut state)?;
    let mut state = nothing();
    state.modes = libc::ADJ_FREQUENCY | libc::ADJ_TICK | libc::ADJ_TIMECONST;
    state.freq = settings.rate.frequency;
    state.tick = settings.rate.tick_us;
    state.constant = settings.constant;
    if settings.status & libc::STA_UNSYNC != 0 {
        state.modes |= libc::ADJ_MAXERROR | libc::ADJ_ESTERROR;
        state.maxerror = settings.max_error_us;
        state.esterror = settings.estimated_error_us;
    }
    adjust(&mut state)?;
    let mut state = nothing();
    state.modes = libc::ADJ_STATUS | if settings.nano { libc::ADJ_NANO } else { libc::ADJ_MICRO };
    state.status = settings.status;
    adjust(&mut state)
}

fn declared(declaration: &Declaration) -> libc::timex {
    let mut state = nothing();
    state.modes = libc::ADJ_STATUS | libc::ADJ_MAXERROR | libc::ADJ_ESTERROR;
    state.status = libc::STA_PLL | libc::STA_FREQHOLD;
    state.status |= match declaration.leap {
        LeapAction::None => 0,
        LeapAction::Insert => libc::STA_INS,
        LeapAction::Delete => libc::STA_DEL,
    };
    // NTP_PHASE_LIMIT, 16 s: the error that the kernel itself declares for an undisciplined clock.
    const UNKNOWN_US: i64 = 16_000_000;
    match declaration.max_error {
        Some(error) => {
            state.maxerror = micros(error).min(UNKNOWN_US);
            state.esterror = micros(declaration.estimated_error).min(UNKNOWN_US);
        }
        None => {
            state.status |= libc::STA_UNSYNC;
            state.maxerror = UNKNOWN_US;
            state.esterror = UNKNOWN_US;
        }
    }
    state
}

/// Whole microseconds, rounded up.
fn micros(error: Duration) -> i64 {
    error.ceil_nanos().max(0).saturating_add(999) / 1000
}

fn nothing() -> libc::timex {
    // SAFETY: timex is plain data; all zeroes is `modes = 0`, which reads and changes nothing.
    unsafe { core::mem::zeroed() }
}

fn adjust(state: &mut libc::timex) -> io::Result<()> {
    // SAFETY: `state` is a valid timex that outlives the call.
    if unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, core::ptr::from_mut(state)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_changes_nothing() {
        let first = settings().unwrap();
        pending_adjtime().unwrap();
        let second = settings().unwrap();
        assert_eq!(
            (first.rate, first.status, first.nano),
            (second.rate, second.status, second.nano)
        );
        assert!((9_000..=11_000).contains(&first.rate.tick_us));
    }

    #[test]
    fn declarations_become_flags_and_microseconds() {
        let good = declared(&Declaration {
            max_error: Some(Duration::from_nanos(1_500_001)),
            estimated_error: Duration::from_nanos(1),
            leap: LeapAction::Insert,
        });
        assert_eq!((good.maxerror, good.esterror), (1501, 1));
        assert_eq!(good.status & (libc::STA_UNSYNC | libc::STA_INS), libc::STA_INS);
        let lost = declared(&Declaration {
            max_error: None,
            estimated_error: Duration::ZERO,
            leap: LeapAction::Delete,
        });
        assert_eq!(lost.maxerror, 16_000_000);
        assert_eq!(
            lost.status & (libc::STA_UNSYNC | libc::STA_DEL),
            libc::STA_UNSYNC | libc::STA_DEL
        );
        let wide = declared(&Declaration {
            max_error: Some(Duration::MAX),
            estimated_error: Duration::MAX,
            leap: LeapAction::None,
        });
        assert_eq!((wide.maxerror, wide.esterror), (16_000_000, 16_000_000));
    }

    #[test]
    fn who_keeps_the_clock_is_visible() {
        let free = Settings {
            rate: Rate { tick_us: 10_000, frequency: 0 },
            status: libc::STA_UNSYNC,
            nano: false,
            constant: 2,
            max_error_us: 16_000_000,
            estimated_error_us: 16_000_000,
            tai_offset: 0,
        };
        assert!(!free.in_use());
        assert!(Settings { status: 0, ..free }.in_use());
        assert!(Settings { status: libc::STA_UNSYNC | libc::STA_PLL, ..free }.in_use());
    }
}
