//! [`MeasuredSpan`]: how much time elapsed between two stamps of one counter.

use timevisor_clock_page::ClockStatus;
use timevisor_time::Duration;

use crate::difference::Between;

/// Half a nanosecond, 2^-64 s.
const HALF_NS: Duration = Duration::from_bits((1 << 63) / 1_000_000_000);

/// How much true time elapsed between two stamps, in seconds of TAI. It is between the shortest and
/// the longest, provided that the assumptions of docs/explanation/bounds.md hold. All three are
/// negative when the first stamp is the later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeasuredSpan {
    shortest: Duration,
    estimate: Duration,
    longest: Duration,
    status: ClockStatus,
}

impl MeasuredSpan {
    pub(crate) fn ahead(between: &Between) -> Self {
        let Between { shortest, estimate, longest, status } = *between;
        Self { shortest, estimate, longest, status }
    }

    pub(crate) fn back(between: &Between) -> Self {
        let Between { shortest, estimate, longest, status } = *between;
        Self { shortest: -longest, estimate: -estimate, longest: -shortest, status }
    }

    /// At least this much time elapsed, ns, rounded down.
    #[must_use]
    pub fn shortest_ns(&self) -> i64 {
        self.shortest.floor_nanos()
    }

    /// The best estimate, to the nearest ns, from the clock's mean rate around the stamps. It
    /// excludes the slews of the published estimate.
    #[must_use]
    pub fn estimate_ns(&self) -> i64 {
        (self.estimate + HALF_NS).floor_nanos()
    }

    /// At most this much time elapsed, ns, rounded up.
    #[must_use]
    pub fn longest_ns(&self) -> i64 {
        self.longest.ceil_nanos()
    }

    /// As [`Self::shortest_ns`], in 2^-64 s.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        self.shortest
    }

    /// As [`Self::estimate_ns`], in 2^-64 s.
    #[must_use]
    pub fn estimate(&self) -> Duration {
        self.estimate
    }

    /// As [`Self::longest_ns`], in 2^-64 s.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The uncertainty: longest - shortest, ns, rounded up.
    #[must_use]
    pub fn width_ns(&self) -> u64 {
        u64::try_from((self.longest - self.shortest).ceil_nanos()).unwrap_or(0)
    }

    /// The weakest status of the clock between the two stamps (docs/reference/statuses.md). The
    /// span must not be relied on if it is unreliable.
    #[must_use]
    pub fn status(&self) -> ClockStatus {
        self.status
    }
}
