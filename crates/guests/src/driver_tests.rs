//! What a stock guest's driver makes of a page holds the truth: the time, and the error bound of the
//! kernel's ioctls PTP_SYS_OFFSET_EXTENDED_ATTRS and PTP_SYS_OFFSET_PRECISE_ATTRS (netdev, July 2026,
//! drivers/ptp/ptp_vmclock.c), with the driver's own rounding. The driver knows no expiry: its bound
//! has to hold on a page that nobody writes any more, too.

use std::cell::Cell;

use proptest::prelude::*;
use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, Known, Page, PageWriter, Policy, Slew, Update,
};
use timevisor_time::{CounterRatio, Duration, Instant, Interval, Period, Tai, TimescaleId};

use crate::counter_mapping::CounterMapping;
use crate::guest_clock::{GuestCounter, for_guest};

/// A host's counter, moved by hand.
struct Hand(Cell<u64>);

impl Counter for Hand {
    fn id(&self) -> CounterId {
        CounterId::X86Tsc
    }
    fn read_ordered(&self) -> u64 {
        self.0.get()
    }
}

/// What the driver returns: nanoseconds, and the error bound in them.
struct Driver {
    ns: i128,
    error_ns: i128,
}

impl Driver {
    /// At this counter value; `None` where the clock does not vouch.
    fn read(page: &Page, cycle: u64) -> Option<Self> {
        let bytes = page.bytes();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (status, shift) = (ClockStatus::from_u8(bytes[0x22]), bytes[0x27]);
        if matches!(status, ClockStatus::Unknown | ClockStatus::Unreliable) {
            return None;
        }
        let flags = word(0x18);
        assert_eq!(
            flags & 0b101_1000,
            0b101_1000,
            "both errors of the period, and the time's bound"
        );
        assert!(word(0x38) <= word(0x40), "one sigma is beyond the bound");
        let delta = u128::from(cycle.wrapping_sub(word(0x28)));
        let nanos = |bits: u128| {
            ((bits >> 64) * 1_000_000_000) + (((bits & u128::from(u64::MAX)) * 1_000_000_000) >> 64)
        };
        let time = ((delta * u128::from(word(0x30))) >> shift) + u128::from(word(0x50));
        let growth = nanos((delta * u128::from(word(0x40))) >> shift);
        let ns = i128::from(word(0x48).cast_signed()) * 1_000_000_000 + nanos(time).cast_signed();
        Some(Self { ns, error_ns: i128::from(word(0x60)) + growth.cast_signed() })
    }
}

/// What really happens, and what is found out about it.
#[derive(Clone, Debug)]
struct World {
    hz: u64,
    /// The true rate within the limits, 0..=1000.
    rate: u64,
    limits_ppb: u64,
    slopes_ppb: u64,
    ratio: CounterRatio,
    offset: i64,
    validity_s: i64,
    exchanges: Vec<Exchange>,
}

#[derive(Clone, Debug)]
struct Exchange {
    /// After the exchange before.
    after_ms: u64,
    /// How far the bounds lie around the truth, and the estimate between them (0..=1000).
    early_ns: i64,
    late_ns: i64,
    estimate: i64,
    period_ppb: i64,
    status: ClockStatus,
    /// How long after the publication the guest reads.
    age_ms: u64,
    starts_over: bool,
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let status = prop_oneof![
        Just(ClockStatus::Initializing),
        Just(ClockStatus::Synchronized),
        Just(ClockStatus::FreeRunning),
    ];
    let width = prop_oneof![0i64..10, 0i64..100_000, 0i64..3_000_000_000];
    // From at once to four months after the last publication.
    let age = prop_oneof![0u64..2, 0u64..1000, 0u64..100_000, 0u64..10_000_000_000];
    (0u64..20_000, width.clone(), width, 0i64..=1000, -1000i64..=1000, status, age, 0u8..10)
        .prop_map(|(after_ms, early_ns, late_ns, estimate, period_ppb, status, age_ms, dice)| {
            Exchange {
                after_ms,
                early_ns,
                late_ns,
                estimate,
                period_ppb,
                status,
                age_ms,
                starts_over: dice == 0,
            }
        })
}

fn world() -> impl Strategy<Value = World> {
    let ratio = prop_oneof![
        Just(CounterRatio::ONE),
        (1u64 << 46..1 << 50).prop_map(|mul| CounterRatio { mul, frac_bits: 48 }),
        (1u64 << 30..1 << 34).prop_map(|mul| CounterRatio { mul, frac_bits: 32 }),
    ];
    (
        prop_oneof![Just(24_000_000u64), Just(1_000_000_000), 500_000_000u64..5_000_000_000],
        0u64..=1000,
        1000u64..200_000,
        0u64..1000,
        ratio,
        any::<i64>(),
        1i64..100,
        proptest::collection::vec(exchange(), 1..12),
    )
        .prop_map(|(hz, rate, limits_ppb, share, ratio, offset, validity_s, exchanges)| {
            World {
                hz,
                rate,
                limits_ppb,
                slopes_ppb: limits_ppb * share / 1000,
                ratio,
                offset,
                validity_s,
                exchanges,
            }
        })
}

fn scaled(period: Period, ppb: i128) -> Period {
    let bits = i128::from(period.to_bits());
    Period::from_bits(u64::try_from(bits + bits * ppb / 1_000_000_000).unwrap())
}

/// Runs a world; returns how many reads there were that the clock vouched for.
fn run(world: &World) -> Result<usize, TestCaseError> {
    let nominal = Period::from_hz(world.hz).unwrap();
    let (limits, slopes) = (i128::from(world.limits_ppb), i128::from(world.slopes_ppb));
    // The true rate lies within the slopes, hence within the limits.
    let rate = -slopes + 2 * slopes * i128::from(world.rate) / 1000;
    let true_period = scaled(nominal, rate);
    let start = 1u64 << 40;
    let zero = Instant::<Tai>::from_unix_nanos(1_700_000_000_123_456_789);
    let truth = |counter: u64| zero + true_period.span(counter - start);

    let policy = Policy { nominal, validity: Duration::from_secs(world.validity_s) };
    let mapping = CounterMapping { ratio: world.ratio, offset: world.offset, running: true };
    let page = Page::new();
    let identity = Identity {
        counter: CounterId::X86Tsc,
        timescale: TimescaleId::Tai,
        host: [1; 16],
        vm: [2; 16],
        timeline: "tai",
        epoch: 5,
    };
    let mut writer = PageWriter::take_over(&page, identity, Some(37));
    let hand = Hand(Cell::new(start));
    let ticks =
        |ms: u64| nominal.ticks_in(Duration::from_nanos(i64::try_from(ms).unwrap() * 1_000_000));
    let mut vouched = 0;
    for exchange in &world.exchanges {
        hand.0.set(hand.0.get() + ticks(exchange.after_ms));
        let now = hand.0.get();
        let early = truth(now) - Duration::from_nanos(exchange.early_ns);
        // Spans round down by less than a unit; bounds of estimators do not.
        let late = truth(now) + Duration::from_nanos(exchange.late_ns) + Duration::EPSILON;
        let estimate = early
            + Duration::from_bits((late - early).to_bits() * i128::from(exchange.estimate) / 1000);
        let within = |ppb: i128| (scaled(nominal, -ppb - 1), scaled(nominal, ppb + 1));
        let known = Known {
            interval: Interval::new(early, late).unwrap(),
            estimate,
            period: scaled(nominal, slopes * i128::from(exchange.period_ppb) / 1000),
            slopes: within(slopes),
            limits: within(limits),
        };
        let host = policy.lines(now, &known);
        let Some(target) = for_guest(&host.shifted(Duration::ZERO), &mapping) else { return Ok(0) };
        if exchange.starts_over {
            writer.disrupt();
        }
        let slew = Slew {
            horizon: mapping
                .guest_from_host(policy.slew().horizon)
                .wrapping_sub(mapping.guest_from_host(0)),
            ..policy.slew()
        };
        let update = Update {
            target,
            status: exchange.status,
            estimated_error: Duration::from_nanos(exchange.early_ns.min(exchange.late_ns)),
            as_of: mapping.guest_from_host(now),
            tai_offset: Some(37),
            slew,
        };
        writer.publish(&update, &GuestCounter { host: &hand, mapping });
        for age_ms in [0, exchange.age_ms / 1000, exchange.age_ms] {
            let later = now + ticks(age_ms);
            let Some(driver) = Driver::read(&page, mapping.guest_from_host(later)) else {
                continue;
            };
            vouched += 1;
            let off = truth(later) - Instant::from_unix_nanos(driver.ns);
            prop_assert!(
                off.abs() <= Duration::from_nanos(i64::try_from(driver.error_ns).unwrap()),
                "the driver is off by {off} and states {} ns, {age_ms} ms after {exchange:?}",
                driver.error_ns
            );
        }
    }
    Ok(vouched)
}

#[test]
fn most_worlds_are_read() {
    let exchange = Exchange {
        after_ms: 1000,
        early_ns: 40_000,
        late_ns: 30_000,
        estimate: 300,
        period_ppb: 20,
        status: ClockStatus::Synchronized,
        age_ms: 900,
        starts_over: false,
    };
    let world = World {
        hz: 2_600_000_000,
        rate: 900,
        limits_ppb: 15_000,
        slopes_ppb: 100,
        ratio: CounterRatio::ONE,
        offset: -5,
        validity_s: 10,
        exchanges: vec![exchange; 5],
    };
    assert_eq!(run(&world).unwrap(), 15);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_drivers_bound_holds_the_truth(world in world()) {
        run(&world)?;
    }
}
