//! [`PacketStamps`]: the kernel's stamps of packets (SO_TIMESTAMPING, SO_TIMESTAMPNS: CLOCK_REALTIME)
//! as counter values, outward.
//!
//! CLOCK_REALTIME may be slewed at any time, and may have been when a packet was stamped. A reading
//! of it between two readings of the counter, and the fastest slew that the kernel can make, say
//! between which counter values a stamp was taken: the longer ago, the further apart. So convert
//! packet stamps soon; the counter values may be kept as long as you like.
//!
//! A clock that was *set* says nothing about older stamps. Two independent signs are looked at: the
//! kernel's own notice ([`ClockSet`]), and CLOCK_REALTIME - CLOCK_MONOTONIC, which both clocks'
//! slews leave alone. Once either shows, every stamp is refused for good.
//!
//! What it does not do: read sockets, or know hardware stamps, which are of another clock.

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

/// STA_PPSTIME of adjtimex(2): with a pulse per second the kernel may work off half a second in one.
const STA_PPSTIME: i32 = 0x4;

/// Each stamp is rounded to a nanosecond, once in the kernel and once in the vDSO.
const GRANULARITY: Duration = Duration::from_nanos(2);

/// Readings per bracket, of which the narrowest counts.
const TRIES: usize = 4;

/// Why a packet's stamp could not be placed on the counter.
#[derive(Debug, thiserror::Error)]
pub enum PacketStampError {
    /// The timeline's page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Somebody set CLOCK_REALTIME, or the machine slept, since this was made.
    #[error(
        "CLOCK_REALTIME was set, so packet stamps from before cannot be converted; read and discard the packets that wait in your sockets, then make new PacketStamps"
    )]
    ClockWasSet,
    /// The stamp is from before this was made.
    #[error(
        "the packet's stamp is from before these PacketStamps were made; make them before you open the socket"
    )]
    TooOld,
    /// The stamp is from after now.
    #[error("the packet's stamp is in the future: is it of CLOCK_REALTIME, in ns since 1970?")]
    Future,
    /// A hand-driven clock has nothing to do with CLOCK_REALTIME; a clock that a pulse per second
    /// disciplines inside the kernel runs at any rate; or time is not known yet.
    #[error("the timeline's counter cannot be compared with CLOCK_REALTIME: {0}")]
    NoCounter(&'static str),
    /// The kernel refused what is needed to watch CLOCK_REALTIME.
    #[error(
        "the kernel refused a timer or clock_adjtime; are there too many open files, or does a sandbox forbid it?"
    )]
    System(#[from] std::io::Error),
}

/// Places the kernel's stamps of packets on a timeline's counter: [`Timeline::packet_stamps`]. For
/// any number of threads.
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
    /// When this was made.
    begun: Bracket,
    /// The last comparison of the two clocks.
    last: Bracket,
    /// CLOCK_REALTIME - CLOCK_MONOTONIC: at least, at most.
    offset: (Duration, Duration),
    was_set: bool,
}

impl Timeline {
    /// Begins to watch CLOCK_REALTIME, so that stamps of packets that come from now on can be
    /// converted. Make it before the socket is opened.
    ///
    /// # Errors
    /// A hand-driven clock; a page that cannot be read; no descriptors.
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
    /// CLOCK_REALTIME was set; a stamp from before this was made, or from the future.
    pub fn stamp_of(&self, realtime_ns: i64) -> Result<(u64, u64), PacketStampError> {
        let stamp = Instant::from_unix_nanos(i128::from(realtime_ns));
        let mut state = unpoisoned(self.state.lock());
        let (now, shortest, longest) = self.timeline.compared()?;
        // After the comparison, so that whatever disturbed it is seen.
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
    /// True when CLOCK_REALTIME - CLOCK_MONOTONIC has changed. What is known of it becomes narrower
    /// otherwise.
    fn is_stepped(&mut self, now: (Duration, Duration)) -> bool {
        let both = (self.offset.0.max(now.0), self.offset.1.min(now.1));
        // A nanosecond's rounding on either side.
        let stepped = both.0 > both.1 + GRANULARITY;
        if !stepped {
            self.offset = (both.0.min(both.1), both.1.max(both.0));
        }
        stepped
    }
}

/// CLOCK_REALTIME - CLOCK_MONOTONIC, from the narrowest of some readings.
fn offset() -> (Duration, Duration) {
    let one = || {
        let before = monotonic();
        let real = realtime().since_epoch();
        (real - monotonic(), real - before)
    };
    let width = |found: &(Duration, Duration)| found.1 - found.0;
    (0..TRIES).map(|_| one()).min_by_key(width).unwrap_or((Duration::ZERO, Duration::ZERO))
}

/// Where on the counter CLOCK_REALTIME was at `stamp`, by comparisons of the two in their order: the
/// first one of when watching began, the last one of now.
fn placed(
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
    // They exclude each other: only a clock that was set does that.
    if first < last { Err(PacketStampError::ClockWasSet) } else { Ok((place(first), place(last))) }
}

/// The same by one comparison, from either side of it.
fn around(stamp: Instant<Utc>, bracket: &Bracket, rates: (Period, Period)) -> (u64, u64) {
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
