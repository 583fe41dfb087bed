//! Why a ptp4l's clock is currently not a reference: a name for programs, and a sentence with the
//! next step for people.

use super::datasets::Master;
use super::timescale::Steered;

/// The reason.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// No port follows a master; the state of one.
    NotFollowing(&'static str),
    /// gmPresent is 0: this clock is its own grandmaster.
    NoGrandmaster,
    /// The grandmaster's timescale is arbitrary.
    ArbitraryTimescale,
    /// The grandmaster claims no accuracy.
    UnknownAccuracy(u8),
    /// No Sync for longer than `max_age`, or a clock that was stepped.
    Stale,
    /// A negative path delay: the stamps are wrong.
    NegativeDelay,
    /// The path delay is not measured yet, so nothing says how far off the offset is.
    NoDelay,
    /// ptp4l was seen for the first time, or again after a loss: its next measurement counts.
    Unmeasured,
    /// Too few offsets since the clock was set, or the master changed: one that is small says little.
    FewOffsets {
        /// How many there are.
        have: usize,
        /// How many are needed.
        need: usize,
    },
    /// ptp4l follows another master than before, and has not measured against it since.
    NewMaster(Master),
    /// The timescale or ptp4l's UTC offset changed, and nothing was measured since.
    NewTimescale,
    /// The grandmaster vouches for another TAI - UTC than the leap table has.
    UtcOffset {
        /// currentUtcOffset.
        announced: i16,
        /// The leap table's.
        table: i16,
        /// The clock that holds UTC.
        steered: Steered,
    },
    /// A leap second is near, or ptp4l says so: which UTC the clock shows is not known.
    LeapSecond,
}

impl Refusal {
    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotFollowing(_) => "not_following",
            Self::NoGrandmaster => "no_grandmaster",
            Self::ArbitraryTimescale => "arbitrary_timescale",
            Self::UnknownAccuracy(_) => "unknown_accuracy",
            Self::Stale => "stale",
            Self::NegativeDelay => "negative_delay",
            Self::NoDelay => "no_delay",
            Self::Unmeasured => "unmeasured",
            Self::FewOffsets { .. } => "few_offsets",
            Self::NewMaster(_) => "new_master",
            Self::NewTimescale => "new_timescale",
            Self::UtcOffset { .. } => "utc_offset",
            Self::LeapSecond => "leap_second",
        }
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotFollowing(state) => write!(
                f,
                "ptp4l follows no master (its port is {state}); check the network and the domain"
            ),
            Self::NoGrandmaster => {
                f.write_str("ptp4l sees no grandmaster but itself; check the network and the domain")
            }
            Self::ArbitraryTimescale => f.write_str(
                "the grandmaster's timescale is arbitrary (ptpTimescale 0); set it up for PTP time, or, if you know \
                 that it serves UTC, set timescale = \"utc\"",
            ),
            Self::UnknownAccuracy(code) => write!(
                f,
                "the grandmaster claims no accuracy (clockAccuracy {code:#04x}); set grandmaster_accuracy"
            ),
            Self::Stale => f.write_str(
                "ptp4l has measured no offset lately; check that Sync and Delay_Resp messages arrive",
            ),
            Self::NegativeDelay => {
                f.write_str("ptp4l measures a negative path delay; check its delay and asymmetry settings")
            }
            Self::NoDelay => f.write_str(
                "ptp4l has not measured the path delay; check that Delay_Resp or Pdelay_Resp messages arrive",
            ),
            Self::Unmeasured => f.write_str("waiting for ptp4l's next measurement"),
            Self::FewOffsets { have, need } => write!(
                f,
                "{have} of {need} offsets are measured since ptp4l follows this master or its clock was set; waiting for the \
                 others (one a poll)"
            ),
            Self::NewMaster(master) => write!(
                f,
                "ptp4l follows another master now, {master}; waiting for its measurements. If that is not meant, \
                 compare priority1 and clockClass of the masters (pmc 'GET PARENT_DATA_SET')"
            ),
            Self::NewTimescale => f.write_str(
                "the master's timescale or its UTC offset changed; waiting for ptp4l's next measurement",
            ),
            Self::UtcOffset { announced, table, steered } => write!(
                f,
                "the grandmaster vouches for TAI - UTC = {announced} s, the leap table says {table} s, and {} holds \
                 UTC; upgrade tzdata if the table is old, otherwise correct utc_offset on the grandmaster \
                 (ptp4l.conf, or pmc 'SET GRANDMASTER_SETTINGS_NP')",
                steered.name()
            ),
            Self::LeapSecond => f.write_str(
                "a leap second is near, or the grandmaster still announces one; used again when it is over",
            ),
        }
    }
}
