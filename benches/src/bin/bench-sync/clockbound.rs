//! ClockBound's bound, computed on the same exchanges.
//!
//! ClockBound 3 (`clock-bound` 3.0.0-rc.0, `daemon/clock_sync_algorithm/ff/ntp.rs`, `event/ntp.rs`,
//! `ffsync_params.rs`), which disciplines the clock itself; a server without root delay and
//! dispersion of its own, as in the traces:
//!
//! ```text
//! an exchange's bound    b_i = root dispersion + (root delay + RTT_i) / 2
//! at an exchange         B   = max b_i over the last 1024 s, without those with RTT_i > 5 * the smallest of them
//! taken over             unless the exchange itself is one of those, or the bound in force, aged, is smaller
//! at a reading           B + 15 ppm * (now - the exchange's middle)
//! ```
//!
//! Its predecessors add |system time offset| of chronyd and the time since their last look at it
//! (once a second) at a drift that the operator configures, 50 ppm in their documentation; that
//! needs chronyd's state, which traces do not have. chronyd's claimed bound beside it is the same
//! sum at chronyd's own drift.

use std::collections::VecDeque;

use timevisor_simulation::trace::{Trace, nominal_period};
use timevisor_time::Period;

/// `DEFAULT_SKM_WINDOW`, s.
const WINDOW_S: f64 = 1024.0;
/// `NTP_DEFAULTS.rtt_threshold_multiplier`.
const SLOW: u64 = 5;
/// `DEFAULT_MAX_DISPERSION_PPB`.
const DRIFT: f64 = 15e-6;

struct Sample {
    tf: u64,
    round_trip: u64,
    bound_s: f64,
}

/// The daemon's state for one server.
struct ClockBound {
    period: Period,
    window: VecDeque<Sample>,
    /// Bound and the counter value that it ages from.
    in_force: Option<(f64, u64)>,
}

impl ClockBound {
    fn seconds(&self, from: u64, to: u64) -> f64 {
        self.period.span(to.wrapping_sub(from)).as_secs_f64()
    }

    fn observe(&mut self, exchange: &timevisor_estimate::Exchange) {
        let round_trip = exchange.round_trip();
        let half = self.period.span(round_trip).half() + exchange.error;
        let sample = Sample { tf: exchange.tf, round_trip, bound_s: half.as_secs_f64() };
        self.window.push_back(sample);
        while self.window.front().is_some_and(|s| self.seconds(s.tf, exchange.tf) > WINDOW_S) {
            self.window.pop_front();
        }
        let Some(fastest) = self.window.iter().map(|s| s.round_trip).min() else { return };
        if round_trip > SLOW * fastest {
            return;
        }
        let usable = self.window.iter().filter(|s| s.round_trip <= SLOW * fastest);
        let bound = usable.map(|s| s.bound_s).fold(0.0, f64::max);
        let middle = exchange.middle();
        if self.at(middle).is_none_or(|aged| aged > bound) {
            self.in_force = Some((bound, middle));
        }
    }

    fn at(&self, counter: u64) -> Option<f64> {
        let (bound, since) = self.in_force?;
        Some(bound + DRIFT * self.seconds(since, counter))
    }
}

/// Half the width of the bound at every true second from `skip` on, us.
pub(crate) fn half_widths(trace: &Trace, skip: i64) -> Vec<f64> {
    let Some(truth) = &trace.truth else { return Vec::new() };
    let mut bound =
        ClockBound { period: nominal_period(), window: VecDeque::new(), in_force: None };
    let mut rows = trace.rows.iter().peekable();
    let mut widths = Vec::new();
    for (second, counter, _) in truth.seconds() {
        while let Some(row) = rows.next_if(|row| row.exchange.tf <= counter) {
            bound.observe(&row.exchange);
        }
        if second >= truth.first_second() + skip {
            widths.extend(bound.at(counter).map(|seconds| seconds * 1e6));
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_estimate::Exchange;
    use timevisor_time::{Duration, Instant};

    fn exchange(second: u64, round_trip: u64) -> Exchange {
        let ta = second * 1_000_000_000;
        let t = Instant::from_unix_nanos(i128::from(ta));
        Exchange { ta, tb: t, te: t, tf: ta + round_trip, error: Duration::ZERO }
    }

    #[test]
    fn the_slowest_usable_exchange_of_the_window_counts() {
        let mut b =
            ClockBound { period: nominal_period(), window: VecDeque::new(), in_force: None };
        let mut feed = |second: u64, round_trip: u64| {
            b.observe(&exchange(second, round_trip));
            let (bound, since) = b.in_force.unwrap();
            ((bound * 1e9).round(), since / 1_000_000_000)
        };
        assert_eq!(feed(0, 100_000), (50_000.0, 0));
        // A second's 15 us leave the old bound the better one; 240 us of 16 s make it the worse.
        assert_eq!(feed(1, 300_000), (50_000.0, 0));
        assert_eq!(feed(16, 300_000), (150_000.0, 16));
        assert_eq!(feed(32, 100_000), (150_000.0, 32));
        // More than five times the fastest: as if it had not come.
        assert_eq!(feed(48, 500_002), (150_000.0, 32));
        // The slow one has left the window of 1024 s.
        assert_eq!(feed(1041, 100_000), (50_000.0, 1041));
        let aged = b.at(1051 * 1_000_000_000 + 50_000).unwrap();
        assert!((aged - (50e-6 + 150e-6)).abs() < 1e-9, "{aged}");
    }
}
