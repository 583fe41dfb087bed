//! [`PacketStamps`]: the kernel's stamps of packets (SO_TIMESTAMPING, SO_TIMESTAMPNS:
//! CLOCK_REALTIME) as counter values, rounded outward.
//!
//! CLOCK_REALTIME may be slewed at any time, including when a packet was stamped. A reading of it
//! between two readings of the counter, combined with the kernel's maximum slew rate, determines
//! between which counter values a stamp was taken. The older the stamp, the further apart they are.
//! So convert packet stamps soon; the counter values can be kept for as long as you like.
//!
//! A clock that was *set* says nothing about older stamps. Two independent signs are checked: the
//! kernel's own notification ([`ClockSet`]), and CLOCK_REALTIME - CLOCK_MONOTONIC, which slews do
//! not change. Once either indicates that the clock was set, every stamp is refused permanently.
//!
//! What it does not do: read sockets, or support hardware stamps, which come from another clock.

use std::sync::Mutex;

use timevisor_clock_page::{Counter as _, CounterId};
use timevisor_linux::clock::{Bracket, bracket, kernel_clock, monotonic, realtime};
use timevisor_linux::clock_set::ClockSet;
use timevisor_linux::stamps::SLEW_LIMIT;
use timevisor_time::{Duration, Instant, Period, Utc};

use crate::difference::is_before;
use crate::error::ReadError;
use crate::source::CounterRef;
use crate::timeline::Timeline;
use crate::unpoisoned;

/// STA_PPSTIME of adjtimex(2): with a pulse per second, the kernel may correct half a second within
/// one second.
pub(crate) const STA_PPSTIME: i32 = 0x4;

/// Each stamp is rounded to a nanosecond, once in the kernel and once in the vDSO.
const GRANULARITY: Duration = Duration::from_nanos(2);

/// Readings per bracket; the narrowest is used.
const TRIES: usize = 4;

/// Why a packet's stamp could not be placed on the counter.
#[derive(Debug, thiserror::Error)]
pub enum PacketStampError {
    /// The timeline's page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// CLOCK_REALTIME was set, or the machine slept, since this was created.
    #[error(
        "CLOCK_REALTIME was set, so packet stamps from before cannot be converted; read and discard the packets that wait in your sockets, then make new PacketStamps"
    )]
    ClockWasSet,
    /// The stamp is from before this was created.
    #[error(
        "the packet's stamp is from before these PacketStamps were made; make them before you open the socket"
    )]
    TooOld,
    /// The stamp is in the future.
    #[error("the packet's stamp is in the future: is it of CLOCK_REALTIME, in ns since 1970?")]
    Future,
    /// A manually driven clock is unrelated to CLOCK_REALTIME; a clock disciplined by a pulse per
    /// second inside the kernel may run at any rate; or time is not known yet.
    #[error("the timeline's counter cannot be compared with CLOCK_REALTIME: {0}")]
    NoCounter(&'static str),
    /// The kernel refused what is needed to watch CLOCK_REALTIME.
    #[error(
        "the kernel refused a timer or clock_adjtime; are there too many open files, or does a sandbox forbid it?"
    )]
    System(#[from] std::io::Error),
}

/// Places the kernel's stamps of packets on a timeline's counter: [`Timeline::packet_stamps`]. It
/// can be used from any number of threads.
///
/// ```no_run
/// # fn receive() -> i64 { 0 }
/// let client = timevisor::Client::connect()?;
/// let tai = client.timeline("tai")?;
/// let stamps = tai.packet_stamps()?; // before the socket is opened
/// let stamp_ns = receive(); // recvmsg(2) with SCM_TIMESTAMPING, ns since 1970
/// let (first, last) = stamps.stamp_of(stamp_ns)?; // soon: 1 ms later costs 0.25 ms
/// let arrival = tai.convert_between(first, last)?; // now, or any time later
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PacketStamps {
    timeline: Timeline,
    watch: ClockSet,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The comparison of the clocks when this was created.
    begun: Bracket,
    /// The last comparison of the two clocks.
    last: Bracket,
    /// CLOCK_REALTIME - CLOCK_MONOTONIC: minimum and maximum.
    offset: (Duration, Duration),
    was_set: bool,
}

impl Timeline {
    /// Starts watching CLOCK_REALTIME, so that stamps of packets that arrive from now on can be
    /// converted. Call this before opening the socket.
    ///
    /// # Errors
    /// When the clock is manually driven, the page cannot be read, or no descriptors are left.
    pub fn packet_stamps(&self) -> Result<PacketStamps, PacketStampError> {
        let watch = ClockSet::new()?;
        let offset = offset();
        let last = self.compared()?.0;
        let state = State { begun: last, last, offset, was_set: false };
        Ok(PacketStamps { timeline: self.clone(), watch, state: Mutex::new(state) })
    }

    /// Both clocks now, and the limits of the counter's period.
    fn compared(&self) -> Result<(Bracket, Period, Period), PacketStampError> {
        let (shortest, longest) =
            self.rate_limits()?.ok_or(PacketStampError::NoCounter("the time is not known yet"))?;
        if kernel_clock()?.status & STA_PPSTIME != 0 {
            return Err(PacketStampError::NoCounter("the kernel follows a pulse per second"));
        }
        let now = self.with_reader(|reader| match reader.counter() {
            CounterRef::Host(counter) if counter.id() != CounterId::Invalid => {
                Ok(bracket(counter, TRIES))
            }
            _ => Err(PacketStampError::NoCounter("it is a clock for tests")),
        })?;
        Ok((now, shortest, longest))
    }
}

impl PacketStamps {
    /// The counter values between which the kernel stamped a packet: first, last. Give both to
    /// [`Timeline::convert_between`], now or later, or to a [`Recording`](crate::Recording).
    ///
    /// `realtime_ns`: the software stamp, ns since 1970 (`tv_sec * 1_000_000_000 + tv_nsec`).
    ///
    /// # Errors
    /// When CLOCK_REALTIME was set, or the stamp is from before this was created or from the
    /// future.
    pub fn stamp_of(&self, realtime_ns: i64) -> Result<(u64, u64), PacketStampError> {
        let stamp = Instant::from_unix_nanos(i128::from(realtime_ns));
        let mut state = unpoisoned(self.state.lock());
        let (now, shortest, longest) = self.timeline.compared()?;
        // Checked after the comparison, so that anything that disturbed it is noticed.
        let was_set = state.is_stepped(offset()) || self.watch.was_set()?;
        state.was_set |= was_set;
        if state.was_set {
            return Err(PacketStampError::ClockWasSet);
        }
        let rates = (shortest.slowest_time(SLEW_LIMIT), longest.fastest_time(SLEW_LIMIT));
        let found = placed(stamp, [state.begun, state.last, now], rates);
        state.was_set = matches!(found, Err(PacketStampError::ClockWasSet));
        state.last = now;
        found
    }
}

impl State {
    /// Whether CLOCK_REALTIME - CLOCK_MONOTONIC has changed. If not, its known range is narrowed.
    fn is_stepped(&mut self, now: (Duration, Duration)) -> bool {
        let both = (self.offset.0.max(now.0), self.offset.1.min(now.1));
        // Allows for a nanosecond of rounding on either side.
        let stepped = both.0 > both.1 + GRANULARITY;
        if !stepped {
            self.offset = (both.0.min(both.1), both.1.max(both.0));
        }
        stepped
    }
}

/// CLOCK_REALTIME - CLOCK_MONOTONIC, from the narrowest of several readings.
fn offset() -> (Duration, Duration) {
    let one = || {
        let before = monotonic();
        let real = realtime().since_epoch();
        (real - monotonic(), real - before)
    };
    let width = |found: &(Duration, Duration)| found.1 - found.0;
    (0..TRIES).map(|_| one()).min_by_key(width).unwrap_or((Duration::ZERO, Duration::ZERO))
}

/// The counter values between which CLOCK_REALTIME was at `stamp`, from comparisons of the two in
/// order: the first one is from when watching started, the last one from now. For other clocks, too
/// (`pins`).
pub(crate) fn placed(
    stamp: Instant<Utc>,
    compared: [Bracket; 3],
    rates: (Period, Period),
) -> Result<(u64, u64), PacketStampError> {
    let [begun, _, now] = compared;
    if stamp < begun.realtime {
        return Err(PacketStampError::TooOld);
    }
    if stamp - now.realtime > GRANULARITY {
        return Err(PacketStampError::Future);
    }
    let around = compared.map(|bracket| around(stamp, &bracket, rates));
    // The packet was stamped before now.
    let behind = |counter: u64| {
        if is_before(now.after, counter) { 0 } else { now.after.wrapping_sub(counter) }
    };
    let first = around.map(|(first, _)| behind(first)).into_iter().min().unwrap_or(0);
    let last = around.map(|(_, last)| behind(last)).into_iter().max().unwrap_or(0);
    let place = |back: u64| now.after.wrapping_sub(back);
    // They contradict each other, which happens only if the clock was set.
    if first < last { Err(PacketStampError::ClockWasSet) } else { Ok((place(first), place(last))) }
}

/// As [`placed`], from one comparison that may be before or after the stamp.
pub(crate) fn around(
    stamp: Instant<Utc>,
    bracket: &Bracket,
    rates: (Period, Period),
) -> (u64, u64) {
    let fewest = |span: Duration| rates.1.ticks_in(span);
    let most = |span: Duration| rates.0.ticks_in(span).saturating_add(1);
    let apart = stamp - bracket.realtime;
    let (low, high) = (apart - GRANULARITY, apart + GRANULARITY);
    let first = if low.is_negative() {
        bracket.before.wrapping_sub(most(-low))
    } else {
        bracket.before.wrapping_add(fewest(low))
    };
    let last = if high.is_negative() {
        bracket.after.wrapping_sub(fewest(-high))
    } else {
        bracket.after.wrapping_add(most(high))
    };
    (first, last)
}

#[cfg(test)]
#[path = "packets_tests.rs"]
mod tests;
