//! The clock's last 24 hours, in two rings: every second of the last hour, and every ten seconds of
//! the last day.
//!
//! A coarse point keeps the worst of its seconds (the widest sides, the worst status), so that a
//! short trouble stays visible however much is left out. Both rings have a fixed size: 12,240 points of
//! 40 bytes, half a megabyte.

use std::collections::VecDeque;

use serde::Serialize;
use timevisor_protocols::control::ClockStatus;

use crate::sample::{Clock, STATUSES};

/// Seconds of the fine ring.
const FINE: usize = 3600;
/// Seconds of a coarse point.
const COARSE_SECONDS: u64 = 10;
/// Points of the coarse ring: a day.
const COARSE: usize = 8640;
/// A browser gets so many points at most; a wide screen has fewer than twice as many pixels.
const MOST_POINTS: usize = 1440;

/// The clock in a second, or the worst of several.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    /// By the system's clock, ms since 1970.
    at_ms: u64,
    below_ns: Option<u64>,
    above_ns: Option<u64>,
    estimated_error_ns: Option<u64>,
    /// Position in [`STATUSES`]; `None` if the page could not be read.
    status: Option<u8>,
}

/// Better ones first: what a coarse point shows is the worst.
const fn badness(status: Option<u8>) -> u8 {
    match status {
        Some(2) => 0,
        Some(3) => 1,
        Some(1) => 2,
        Some(0) => 3,
        Some(_) => 4,
        None => 5,
    }
}

impl Point {
    fn new(at_ms: u64, clock: Option<&Clock>) -> Self {
        let place = |status: ClockStatus| {
            let place = STATUSES.iter().position(|(it, _)| *it == status);
            place.and_then(|place| u8::try_from(place).ok())
        };
        Self {
            at_ms,
            below_ns: clock.and_then(|clock| clock.below_ns),
            above_ns: clock.and_then(|clock| clock.above_ns),
            estimated_error_ns: clock.and_then(|clock| clock.estimated_error_ns),
            status: clock.and_then(|clock| place(clock.status)),
        }
    }

    fn worst(&mut self, other: &Self) {
        self.below_ns = self.below_ns.max(other.below_ns);
        self.above_ns = self.above_ns.max(other.above_ns);
        self.estimated_error_ns = self.estimated_error_ns.max(other.estimated_error_ns);
        if badness(other.status) > badness(self.status) {
            self.status = other.status;
        }
    }
}

/// Columns, as the chart wants them.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Columns {
    /// By the system's clock, ms since 1970.
    pub at_ms: Vec<u64>,
    pub below_ns: Vec<Option<u64>>,
    pub above_ns: Vec<Option<u64>>,
    pub estimated_error_ns: Vec<Option<u64>>,
    /// Position in the vmclock ABI's list of statuses; null: the page could not be read.
    pub status: Vec<Option<u8>>,
}

/// The rings.
#[derive(Debug, Default)]
pub struct History {
    fine: VecDeque<Point>,
    coarse: VecDeque<Point>,
    /// The coarse point that is being made, and its number since 1970.
    pending: Option<(u64, Point)>,
}

impl History {
    /// Adds a second.
    pub fn add(&mut self, at_ms: u64, clock: Option<&Clock>) {
        let point = Point::new(at_ms, clock);
        push(&mut self.fine, point, FINE);
        let number = at_ms / (1000 * COARSE_SECONDS);
        match &mut self.pending {
            Some((same, worst)) if *same == number => worst.worst(&point),
            pending => {
                if let Some((_, done)) = pending.replace((number, point)) {
                    push(&mut self.coarse, done, COARSE);
                }
            }
        }
    }

    /// The last `seconds`, with at most 1,440 points.
    pub fn last(&self, seconds: u64, now_ms: u64) -> Columns {
        let since = now_ms.saturating_sub(seconds.saturating_mul(1000));
        let is_fine = seconds <= FINE as u64;
        let (ring, pending) = if is_fine {
            (&self.fine, None)
        } else {
            (&self.coarse, self.pending.as_ref().map(|(_, point)| point))
        };
        let points: Vec<&Point> =
            ring.iter().chain(pending).filter(|point| point.at_ms >= since).collect();
        let each = points.len().div_ceil(MOST_POINTS).max(1);
        let mut columns = Columns::default();
        for group in points.chunks(each) {
            let mut worst = *group[0];
            group.iter().for_each(|point| worst.worst(point));
            columns.at_ms.push(worst.at_ms);
            columns.below_ns.push(worst.below_ns);
            columns.above_ns.push(worst.above_ns);
            columns.estimated_error_ns.push(worst.estimated_error_ns);
            columns.status.push(worst.status);
        }
        columns
    }
}

fn push(ring: &mut VecDeque<Point>, point: Point, most: usize) {
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back(point);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(below_ns: u64, status: ClockStatus) -> Clock {
        Clock {
            status,
            estimate_ns: Some(0),
            below_ns: Some(below_ns),
            above_ns: Some(7),
            estimated_error_ns: None,
            disruption_marker: 0,
            tai_offset: None,
        }
    }

    #[test]
    fn a_day_stays_and_takes_half_a_megabyte() {
        let mut history = History::default();
        let good = clock(100, ClockStatus::Synchronized);
        let days = 3 * 86_400;
        for second in 0..days {
            history.add(second * 1000, Some(&good));
        }
        let capacity = history.fine.capacity() + history.coarse.capacity();
        let bytes = capacity * size_of::<Point>();
        assert!(bytes < 2 << 20, "{bytes} bytes");
        let now = (days - 1) * 1000;
        for seconds in [600, 3600, 6 * 3600, 86_400] {
            let columns = history.last(seconds, now);
            assert!(columns.at_ms.len() <= MOST_POINTS, "{seconds}: {}", columns.at_ms.len());
            let span = now - columns.at_ms[0];
            assert!(span > (seconds - 70) * 1000 && span <= seconds * 1000, "{seconds}: {span}");
        }
    }

    #[test]
    fn the_worst_second_of_a_day_is_seen() {
        let mut history = History::default();
        for second in 0..86_400u64 {
            let at = second * 1000;
            match second {
                40_000 => history.add(at, Some(&clock(9_999, ClockStatus::Synchronized))),
                50_000 => history.add(at, Some(&clock(100, ClockStatus::Unreliable))),
                60_000 => history.add(at, None),
                _ => history.add(at, Some(&clock(100, ClockStatus::Synchronized))),
            }
        }
        let columns = history.last(86_400, 86_400_000);
        let count = |wanted: Option<u8>| columns.status.iter().filter(|it| **it == wanted).count();
        assert_eq!((count(Some(4)), count(None)), (1, 1));
        assert_eq!(columns.below_ns.iter().filter(|it| **it == Some(9_999)).count(), 1);
        assert_eq!(columns.above_ns.iter().flatten().max(), Some(&7));
    }
}
