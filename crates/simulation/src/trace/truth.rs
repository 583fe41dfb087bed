//! The truth beside a trace.

use timevisor_time::{Duration, Instant, Tai};

use super::parse::{Row, TraceError};

/// Exchange rows and truth are rounded to the nanosecond and the rate is constant within a second:
/// more than this apart means that they do not belong together.
const TOLERANCE_NS: i128 = 1000;

/// The counter at every whole true second.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Truth {
    first: i64,
    counters: Vec<u64>,
    /// True time at second 0.
    origin: Instant<Tai>,
}

impl Truth {
    /// `counters[i]` was read at second `first + i`. Which second of which year that was is found
    /// from the exchanges' own true times.
    ///
    /// # Errors
    /// When no exchange carries true times, or one is further than a microsecond from the truth.
    pub fn new(first: i64, counters: Vec<u64>, rows: &[Row]) -> Result<Self, TraceError> {
        let mut truth = Self { first, counters, origin: Instant::from_bits(0) };
        let known = rows.iter().enumerate().filter_map(|(i, row)| {
            let [at_ta, at_tf] = row.truth?;
            Some([(i + 1, row.exchange.ta, at_ta), (i + 1, row.exchange.tf, at_tf)])
        });
        let mut origin = None;
        for (row, counter, instant) in known.flatten() {
            let Some(since) = truth.nanos_at(counter) else { continue };
            let found = i128::from(instant.floor_nanos()) - since;
            let second = (found + 500_000_000).div_euclid(1_000_000_000);
            let origin = *origin.get_or_insert(second);
            let nanos = found - origin * 1_000_000_000;
            if nanos.abs() > TOLERANCE_NS {
                let nanos = i64::try_from(nanos).unwrap_or(i64::MAX);
                return Err(TraceError::Mismatch { row, nanos });
            }
        }
        let seconds = origin.ok_or(TraceError::Unplaced)?;
        truth.origin = Instant::from_unix_nanos(seconds * 1_000_000_000);
        Ok(truth)
    }

    /// Nanoseconds since second 0 at a counter value within the truth's seconds.
    fn nanos_at(&self, counter: u64) -> Option<i128> {
        let after = self.counters.partition_point(|c| *c <= counter);
        let at = after.checked_sub(1)?;
        let (from, to) = (self.counters[at], *self.counters.get(after)?);
        let within = i128::from(counter - from) * 1_000_000_000 / i128::from(to - from);
        Some((i128::from(self.first) + at as i128) * 1_000_000_000 + within)
    }

    /// The first second that is known.
    #[must_use]
    pub fn first_second(&self) -> i64 {
        self.first
    }

    /// Every whole second that is known: its number, the counter value then, true time then.
    pub fn seconds(&self) -> impl Iterator<Item = (i64, u64, Instant<Tai>)> + '_ {
        let place = |(second, counter): (i64, &u64)| {
            (second, *counter, self.origin + Duration::from_secs(second))
        };
        (self.first..).zip(&self.counters).map(place)
    }
}
