//! The block `vmclock_abi` of a page: what a stock guest's driver reads.

use core::sync::atomic::Ordering::Relaxed;

use timevisor_time::{Instant, Local, TimescaleId};

use super::error::{OpenError, ReadError};
use crate::CounterId;
use crate::abi::{ClockStatus, vmclock};
use crate::page::Page;
use crate::seqlock::{read_begin, read_valid};

/// Without a counter, patience is counted in turns, each of some 10 to 100 ns.
const MAX_TURNS: u32 = 1 << 22;

/// The words of `vmclock_abi` as a stock guest's driver sees them: for tests, dumps and pages
/// without our header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vmclock {
    /// u8 counter_id.
    pub counter: CounterId,
    /// u8 time_type.
    pub timescale: Option<TimescaleId>,
    /// clock_status.
    pub status: ClockStatus,
    /// disruption_marker.
    pub disruption: u64,
    /// flags.
    pub flags: u64,
    /// counter_value.
    pub base: u64,
    /// counter_period_shift.
    pub shift: u8,
    /// counter_period_frac_sec.
    pub period: u64,
    /// counter_period_maxerror.
    pub period_maxerror: u64,
    /// Time at the base.
    pub time: Instant<Local>,
    /// time_maxerror, ns.
    pub maxerror_ns: u64,
}

impl Vmclock {
    /// Reads the block under its own sequence lock.
    ///
    /// # Errors
    /// [`OpenError::NotAPage`], or [`ReadError::WriterStalled`] inside.
    pub fn read(page: &Page) -> Result<Result<Self, ReadError>, OpenError> {
        if page.head(vmclock::AT_MAGIC).load(Relaxed) != vmclock::MAGIC {
            return Err(OpenError::NotAPage);
        }
        let word = |at: usize| page.word(at).load(Relaxed);
        for _ in 0..MAX_TURNS {
            if let Some(even) = read_begin(page.head(vmclock::AT_SEQUENCE)) {
                let [_, _, counter, timescale] =
                    page.head(vmclock::AT_VERSION).load(Relaxed).to_le_bytes();
                let [_, _, status, _, _, _, _, shift] = word(vmclock::AT_SMALL).to_le_bytes();
                let block = Self {
                    counter: CounterId::from_u8(counter),
                    timescale: TimescaleId::from_u8(timescale),
                    status: ClockStatus::from_u8(status),
                    disruption: word(vmclock::AT_DISRUPTION),
                    flags: word(vmclock::AT_FLAGS),
                    base: word(vmclock::AT_COUNTER),
                    shift,
                    period: word(vmclock::AT_PERIOD),
                    period_maxerror: word(vmclock::AT_PERIOD_MAXERROR),
                    time: Instant::from_words(
                        word(vmclock::AT_TIME_SEC),
                        word(vmclock::AT_TIME_FRAC),
                    ),
                    maxerror_ns: word(vmclock::AT_TIME_MAXERROR),
                };
                if read_valid(page.head(vmclock::AT_SEQUENCE), even) {
                    return Ok(Ok(block));
                }
            }
            core::hint::spin_loop();
        }
        Ok(Err(ReadError::WriterStalled))
    }
}
