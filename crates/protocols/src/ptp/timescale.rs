//! What a clock that ptp4l steers counts, and how that becomes TAI.
//!
//! | clock | master's timescale | it holds | TAI |
//! | --- | --- | --- | --- |
//! | a PHC | PTP | TAI | as it is |
//! | a PHC | arbitrary, UTC on the operator's word | UTC | by the leap table |
//! | CLOCK_REALTIME | PTP | TAI minus the offset that ptp4l applies | plus that offset |
//! | CLOCK_REALTIME | arbitrary, UTC on the operator's word | UTC | by the leap table |
//!
//! The third row is arithmetic, whoever is right about UTC: linuxptp's `clock_utc_correct` subtracts
//! [`State::applied_utc_offset`] from PTP time, also if the grandmaster does not vouch for it
//! (currentUtcOffsetValid 0). If the grandmaster does vouch for another offset than the leap table
//! has, one of them is wrong. Then no clock that holds UTC is used: nothing tells which UTC it is.
//!
//! Around a leap second ptp4l corrects its offset by itself (`leap_second_status`), and no data set
//! shows when. So nothing is said within [`LEAP_WINDOW`] of a change in the table, or of the end of
//! a day for which a leap second is announced, nor in the six hours after that in which linuxptp
//! takes the flag for a late one.
//!
//! What it does not do: read the leap table, or judge TAI itself. A PHC on PTP time is used whatever
//! the announced offset; [`remark`] says that they differ.

use timevisor_time::Duration;

use super::datasets::State;
use super::refusal::Refusal;

/// Announce messages come every 16 s at the slowest (logAnnounceInterval 4), and properties may be
/// two of them late (IEEE 1588-2019 clause 9.4). The rest is for a wrong UTC of half a minute.
pub const LEAP_WINDOW: Duration = Duration::from_secs(64);

/// linuxptp `leap_second_status`: so long after midnight a leap flag is a late one.
const LATE: i64 = 6 * 3600;
const DAY: i64 = 86_400;

/// Which clock ptp4l steers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Steered {
    /// A PTP hardware clock.
    Phc,
    /// CLOCK_REALTIME, because the time stamps are made by software.
    Realtime,
}

impl Steered {
    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Phc => "the hardware clock",
            Self::Realtime => "CLOCK_REALTIME",
        }
    }
}

/// TAI - UTC of the leap table around a reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableOffsets {
    /// [`LEAP_WINDOW`] before it.
    pub before: i16,
    /// [`LEAP_WINDOW`] after it.
    pub after: i16,
}

/// What the clock counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// TAI.
    Tai,
    /// TAI minus this many seconds.
    TaiMinus(i16),
    /// UTC; the leap table converts it.
    Utc,
}

/// What the clock counts, read as `utc_secs` (POSIX seconds) if it holds UTC. Without a leap table
/// nothing is compared.
///
/// # Errors
/// Why that is not known.
pub fn count(
    state: &State,
    steered: Steered,
    arbitrary_is_utc: bool,
    utc_secs: i64,
    table: Option<TableOffsets>,
) -> Result<Count, Refusal> {
    let time = &state.time;
    if !time.ptp_timescale && !arbitrary_is_utc {
        return Err(Refusal::ArbitraryTimescale);
    }
    if time.ptp_timescale && steered == Steered::Phc {
        return Ok(Count::Tai);
    }
    if time.leap != 0 && is_near_midnight(utc_secs) {
        return Err(Refusal::LeapSecond);
    }
    if let Some(TableOffsets { before, after }) = table {
        if before != after {
            return Err(Refusal::LeapSecond);
        }
        if time.utc_offset_valid && time.utc_offset != after {
            return Err(Refusal::UtcOffset { announced: time.utc_offset, table: after, steered });
        }
    }
    Ok(if time.ptp_timescale { Count::TaiMinus(state.applied_utc_offset()) } else { Count::Utc })
}

/// Whether an announced leap second may just be happening, or its flag be a late one.
fn is_near_midnight(utc_secs: i64) -> bool {
    let of_day = utc_secs.rem_euclid(DAY);
    of_day <= LATE || of_day >= DAY - LEAP_WINDOW.floor_nanos() / 1_000_000_000
}

/// What people should know of the offsets although the clock is used.
#[must_use]
pub fn remark(state: &State, steered: Steered, table: Option<TableOffsets>) -> Option<String> {
    let time = &state.time;
    if !time.ptp_timescale {
        return None;
    }
    let table = table.filter(|t| t.before == t.after).map(|t| t.after);
    match steered {
        Steered::Phc => table
            .filter(|table| time.utc_offset_valid && *table != time.utc_offset)
            .map(|table| {
                format!(
                    "the grandmaster announces TAI - UTC = {} s, the leap table says {table} s; TAI does not depend on it",
                    time.utc_offset
                )
            }),
        Steered::Realtime => {
            let applied = state.applied_utc_offset();
            let vouched = if time.utc_offset_valid {
                ""
            } else {
                ", which the grandmaster does not vouch for"
            };
            let differs = table.filter(|table| *table != applied);
            let differs = differs.map_or(String::new(), |t| format!(" (the leap table says {t} s)"));
            (!vouched.is_empty() || !differs.is_empty())
                .then(|| format!("ptp4l applies TAI - UTC = {applied} s{vouched}{differs}"))
        }
    }
}

#[cfg(test)]
#[path = "timescale_tests.rs"]
mod tests;
