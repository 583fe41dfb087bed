//! The host's lines as functions of a guest's counter. Pure.

use timevisor_clock_page::{Counter, CounterId, Line, Lines};
use timevisor_time::Period;

use crate::counter_mapping::CounterMapping;

/// Converts lines to the guest's counter; `None` for an implausible ratio.
///
/// Unless the ratio is 1, the guest's counter is rounded down to whole ticks. Both bounds therefore
/// move outward by one tick, and the periods are rounded outward.
#[must_use]
pub fn for_guest<S>(host: &Lines<S>, mapping: &CounterMapping) -> Option<Lines<S>> {
    let (base, expiry) = (mapping.guest_from_host(host.base), mapping.guest_from_host(host.expiry));
    if mapping.ratio.is_one() {
        return Some(Lines { base, expiry, ..*host });
    }
    let (shortest, _) = mapping.period_for_guest(host.earliest.period)?;
    let (_, longest) = mapping.period_for_guest(host.latest.period)?;
    let (best, _) = mapping.period_for_guest(host.estimate.period)?;
    let holdover = mapping.period_for_guest(Period::from_bits(host.holdover))?.1.to_bits();
    let tick = longest.span_ceil(1);
    Some(Lines {
        base,
        expiry,
        earliest: Line { time: host.earliest.time - tick, period: shortest },
        estimate: Line { time: host.estimate.time, period: best },
        latest: Line { time: host.latest.time + tick, period: longest },
        holdover,
    })
}

/// The guest's counter as the host can read it.
#[derive(Clone, Copy, Debug)]
pub struct GuestCounter<'a, C> {
    /// The host's counter.
    pub host: &'a C,
    /// The guest's counter as a function of the host's.
    pub mapping: CounterMapping,
}

impl<C: Counter> Counter for GuestCounter<'_, C> {
    fn id(&self) -> CounterId {
        self.host.id()
    }
    fn read_ordered(&self) -> u64 {
        self.mapping.guest_from_host(self.host.read_ordered())
    }
    fn read_unordered(&self) -> u64 {
        self.mapping.guest_from_host(self.host.read_unordered())
    }
    fn read_after_stores(&self) -> u64 {
        self.mapping.guest_from_host(self.host.read_after_stores())
    }
    fn let_others_run(&self) {
        self.host.let_others_run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use timevisor_time::CounterRatio;
    use timevisor_time::{Duration, Instant, RateError, Tai};

    fn host_lines(base: u64) -> Lines<Tai> {
        let period = Period::from_hz(2_600_000_000).unwrap();
        let time = Instant::from_unix_nanos(1_700_000_000_000_000_000);
        let rho = RateError::from_ppm(15);
        Lines {
            base,
            expiry: base + 26_000_000_000,
            earliest: Line {
                time: time - Duration::from_micros(30),
                period: period.slowest_time(rho),
            },
            estimate: Line { time, period },
            latest: Line {
                time: time + Duration::from_micros(30),
                period: period.fastest_time(rho),
            },
            holdover: 0,
        }
    }

    #[test]
    fn an_offset_changes_the_base_only() {
        let mapping = CounterMapping { ratio: CounterRatio::ONE, offset: -5000, running: true };
        let guest = for_guest(&host_lines(10_000), &mapping).unwrap();
        assert_eq!((guest.base, guest.expiry), (5000, 26_000_005_000));
        assert_eq!(guest.at(6000), host_lines(10_000).at(11_000));
    }

    /// A counter whose three read methods return different values.
    struct Barriers;

    impl Counter for Barriers {
        fn id(&self) -> CounterId {
            CounterId::ArmVcnt
        }
        fn read_ordered(&self) -> u64 {
            1
        }
        fn read_after_stores(&self) -> u64 {
            2
        }
        fn read_unordered(&self) -> u64 {
            3
        }
    }

    /// On Arm, the default `read_after_stores` puts no barrier between a store and the counter
    /// read.
    #[test]
    fn a_vms_page_is_written_with_the_hosts_barrier() {
        let mapping = CounterMapping { ratio: CounterRatio::ONE, offset: 10, running: true };
        let guest = GuestCounter { host: &Barriers, mapping };
        let reads = [guest.read_ordered(), guest.read_after_stores(), guest.read_unordered()];
        assert_eq!(reads, [11, 12, 13]);
    }

    proptest! {
        #[test]
        fn a_guest_reads_what_the_host_reads_and_its_bounds_hold_the_hosts(
            base in 1u64 << 40..1 << 52, later in 0u64..100_000_000_000, offset in any::<i64>(),
            // Ratios from a quarter to four, in the fixed-point formats of VMX (48 bits) and SVM
            // (32 bits).
            quarter in 1u64 << 46..1 << 50, svm in any::<bool>(),
        ) {
            let ratio = if svm { CounterRatio { mul: quarter >> 16, frac_bits: 32 } } else { CounterRatio { mul: quarter, frac_bits: 48 } };
            let mapping = CounterMapping { ratio, offset, running: true };
            let host = host_lines(base);
            let guest = for_guest(&host, &mapping).unwrap();
            let (h, g) = (host.at(base + later), guest.at(mapping.guest_from_host(base + later)));
            prop_assert!(g.earliest <= h.earliest && h.latest <= g.latest, "the host's bounds are not inside");
            // Two ticks of at most 1.6 ns, plus 26 s with a period rounded by 2^-84 s.
            prop_assert!((g.estimate - h.estimate).abs() < Duration::from_nanos(5), "{}", g.estimate - h.estimate);
        }
    }
}
