//! Random facts against the rules of [`Lines::continued`]: soundness, nesting, monotonicity, the
//! invariant.

use proptest::prelude::*;
use timevisor_time::{RateError, Tai};

use super::*;

const HZ: u64 = 2_600_000_000;
/// Evaluation rounds by less than a unit each time; nothing physical is that small (2^-60 s is
/// 10^-9 ns).
const ROUNDING: Duration = Duration::from_bits(16);
const SLEW: Slew = Slew { horizon: 8 * HZ, jump: Duration::from_millis(1) };

/// One step: counter ticks since the last one, the slack of the two facts and of the estimate
/// (fractions of it), the true rate's place within the limits.
#[derive(Clone, Debug)]
struct Step {
    ticks: u64,
    below_ns: i64,
    above_ns: i64,
    estimate: f64,
    rate: f64,
    rho_ppm: u32,
    expires_in: u64,
    /// How much narrower than the limits of the rate the slopes are, as a fraction of rho.
    narrow: f64,
}

fn step() -> impl Strategy<Value = Step> {
    (
        1u64..40 * HZ,
        0i64..500_000,
        0i64..500_000,
        0.0..1.0f64,
        -1.0..1.0f64,
        1u32..100,
        1u64..60 * HZ,
        prop_oneof![Just(0.0), 0.0..1.0f64],
    )
        .prop_map(
            |(ticks, below_ns, above_ns, estimate, rate, rho_ppm, expires_in, narrow)| Step {
                ticks,
                below_ns,
                above_ns,
                estimate,
                rate,
                rho_ppm,
                expires_in,
                narrow,
            },
        )
}

fn lines(base: u64, truth: Instant<Tai>, s: &Step) -> Lines<Tai> {
    let nominal = Period::from_hz(HZ).unwrap();
    let rho = RateError::from_ppm(s.rho_ppm);
    let (below, above) = (Duration::from_nanos(s.below_ns), Duration::from_nanos(s.above_ns));
    let (shortest, longest) = (nominal.slowest_time(rho), nominal.fastest_time(rho));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction of a period"
    )]
    let holdover = ((longest.to_bits() - nominal.to_bits()) as f64 * s.narrow) as u64;
    let guess = Duration::from_secs_f64((above + below).as_secs_f64() * s.estimate) - below;
    Lines {
        base,
        expiry: base + s.expires_in,
        earliest: Line {
            time: truth - below,
            period: Period::from_bits(shortest.to_bits() + holdover),
        },
        estimate: Line {
            time: (truth + guess).max(truth - below).min(truth + above),
            period: nominal,
        },
        latest: Line {
            time: truth + above,
            period: Period::from_bits(longest.to_bits() - holdover),
        },
        holdover,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn successive_lines_nest_stay_sound_and_never_go_back(steps in prop::collection::vec(step(), 2..24)) {
        let nominal = Period::from_hz(HZ).unwrap();
        let mut truth = Instant::<Tai>::from_unix_nanos(1_700_000_000_000_000_000);
        let mut counter = 1u64 << 50;
        let mut in_force = lines(counter, truth, &steps[0]);
        for s in &steps[1..] {
            // The true rate stays within the tightest limit that any line in force claims.
            let tightest = steps.iter().map(|s| s.rho_ppm).min().unwrap();
            // Slopes narrower than the limits of the rate hold while the rate is within them.
            let narrowest = steps.iter().map(|s| s.narrow).fold(0.0, f64::max);
            let rate = 1.0 + s.rate * f64::from(tightest) * 0.99e-6 * (1.0 - narrowest);
            counter += s.ticks;
            truth = truth + Duration::from_secs_f64(nominal.span(s.ticks).as_secs_f64() * rate);
            let mut target = lines(counter, truth, s);
            if in_force.holdover != 0 || target.holdover != 0 {
                target.expiry = target.expiry.max(in_force.expiry);
            }
            let next = in_force.continued(&target, counter, SLEW);

            let at = next.at(counter);
            prop_assert!(at.earliest <= truth + ROUNDING && truth <= at.latest + ROUNDING, "truth excluded");
            prop_assert!(at.earliest <= at.estimate && at.estimate <= at.latest, "estimate outside");
            for later in [0, s.ticks / 2, s.expires_in, s.expires_in + 50 * HZ] {
                let at = next.at(counter + later);
                prop_assert!(at.earliest <= at.estimate + ROUNDING && at.estimate <= at.latest + ROUNDING, "estimate outside at +{later}: {next:?}");
            }
            prop_assert!(at.estimate >= in_force.at(counter).estimate, "the estimate went back");
            for later in [0, s.ticks / 3, s.ticks, 10 * HZ] {
                let c = counter + later;
                if in_force.is_expired(c) || in_force.is_renewal_due(counter, target.expiry, SLEW) { continue; }
                let (old, new) = (in_force.at(c), next.at(c));
                prop_assert!(new.earliest + ROUNDING >= old.earliest, "lower bound does not nest at +{later}");
                prop_assert!(new.latest <= old.latest + ROUNDING, "upper bound does not nest at +{later}");
            }
            in_force = next;
        }
    }

    #[test]
    fn backwards_the_bounds_widen_and_still_hold_truth(s in step(), back in 1u64..100 * HZ) {
        let nominal = Period::from_hz(HZ).unwrap();
        let truth = Instant::<Tai>::from_unix_nanos(1_700_000_000_000_000_000);
        let l = lines(1 << 50, truth, &s);
        let rate = 1.0 + s.rate * f64::from(s.rho_ppm) * 0.99e-6;
        let past = truth - Duration::from_secs_f64(nominal.span(back).as_secs_f64() * rate);
        let at = l.at((1 << 50) - back);
        prop_assert!(at.earliest <= past && past <= at.latest);
    }
}

fn fixed(base: u64, at_ns: i64, below: i64, above: i64) -> Lines<Tai> {
    let s = Step {
        ticks: 0,
        below_ns: below,
        above_ns: above,
        estimate: 0.0,
        rate: 0.0,
        rho_ppm: 10,
        expires_in: 100 * HZ,
        narrow: 0.0,
    };
    let mut l = lines(base, Instant::from_unix_nanos(i128::from(at_ns)), &s);
    l.estimate.time = Instant::from_unix_nanos(i128::from(at_ns));
    l
}

#[test]
fn a_small_gap_ahead_is_slewed_a_wide_one_jumped() {
    let old = fixed(0, 1_000_000_000, 5_000_000, 5_000_000);
    let near = old.continued(&fixed(0, 1_000_010_000, 1_000_000, 1_000_000), 0, SLEW);
    assert_eq!(near.estimate.time, old.estimate.time);
    // 10 us in 8 s is 1.25 ppm.
    let ppm = near.estimate.period.relative_to(old.estimate.period) * 1e6;
    assert!((ppm - 1.25).abs() < 0.001, "{ppm}");
    let far = old.continued(&fixed(0, 1_003_000_000, 1_000_000, 1_000_000), 0, SLEW);
    assert_eq!(far.estimate.time.ceil_nanos(), 1_003_000_000);
}

/// So many nanoseconds around the truth, for 10 s, by a crystal within 15 ppm.
fn within(below_ns: i64, above_ns: i64) -> Step {
    let (estimate, rate, narrow) = (0.0, 0.0, 0.9);
    Step { ticks: 0, below_ns, above_ns, estimate, rate, rho_ppm: 15, expires_in: 10 * HZ, narrow }
}

fn at(second: u64) -> Instant<Tai> {
    Instant::from_unix_nanos(i128::from(second) * 1_000_000_000)
}

#[test]
fn an_estimate_above_the_new_upper_bound_runs_slower_until_it_is_inside() {
    // 40 ms ahead, as a host whose counter is 66 ppm off may be after ten minutes without its server.
    let s = |half_ns| within(half_ns, half_ns);
    let mut in_force = lines(0, at(0), &s(80_000_000));
    in_force.estimate.time = at(0) + Duration::from_millis(40);
    let (mut ahead, mut took) = (Duration::from_millis(40), None);
    for second in 1..=300 {
        let (now, before) = (second * HZ, in_force.at(second * HZ).estimate);
        let next = in_force.continued(&lines(now, at(second), &s(50_000)), now, SLEW);
        let said = next.at(now);
        assert!(said.estimate >= before, "never back");
        assert!(said.latest >= said.estimate, "the upper bound is kept up to the estimate");
        let gap = said.estimate - at(second);
        // Nominal, less 13.5 + 1.5 ppm of what the true rate may be.
        let most = ahead + Duration::from_nanos(1_000);
        assert!(
            gap <= most && gap > ahead - Duration::from_micros(420),
            "{second}: {ahead}, {gap}"
        );
        for later in [10, 11, 100, 10_000] {
            let at = next.at(now + later * HZ);
            assert!(at.earliest <= at.estimate && at.estimate <= at.latest, "outside at +{later}");
        }
        if gap <= Duration::from_micros(50) && took.is_none() {
            took = Some(second);
            assert!(next.half_width() <= Duration::from_micros(101), "{}", next.half_width());
        }
        (ahead, in_force) = (gap, next);
    }
    let took = took.expect("inside in the end");
    assert!((90..=180).contains(&took), "{took} s for 40 ms at 400 ppm");
    assert_eq!(in_force.holdover, lines(0, at(0), &s(0)).holdover, "and no growth is left");
}

/// A daemon that starts without any reference, after one that died in the middle of a slew.
#[test]
fn who_goes_on_from_the_middle_of_a_slew_does_not_go_on_slewing() {
    let ms = Duration::from_millis;
    let mut in_force = lines(0, at(0), &within(80_000_000, 80_000_000));
    in_force.estimate.time = at(0) + ms(10);
    let s = within(50_000, 50_000);
    let slewing = in_force.continued(&lines(HZ, at(1), &s), HZ, SLEW);
    let rate = |ppm: u32| {
        let nominal = Period::from_hz(HZ).unwrap();
        let error = RateError::from_ppm(ppm);
        (nominal.slowest_time(error), nominal.fastest_time(error))
    };
    let ppm = |a: Period, b: Period| (a.to_bits() as f64 / b.to_bits() as f64 - 1.0) * 1e6;
    assert!(ppm(slewing.estimate.period, rate(0).0) < -300.0, "it slews");
    let known = slewing.free_running(2 * HZ, Some(rate(15)));
    assert_eq!(
        (known.earliest.period, known.latest.period, known.holdover),
        (rate(15).0, rate(15).1, 0)
    );
    assert!(ppm(known.estimate.period, rate(0).0).abs() < 15.1, "{known:?}");
    // Limits that contradict say nothing; the estimate's rate is likely anyway.
    let faster = Period::from_hz(HZ / 2).unwrap();
    for unknown in [None, Some((faster, faster))] {
        let unknown = slewing.free_running(2 * HZ, unknown);
        assert_eq!((unknown.earliest.period, unknown.latest.period), slewing.rate_limits());
        assert!(ppm(unknown.estimate.period, rate(0).0).abs() < 15.1, "{unknown:?}");
    }
    // Guests' pages follow the host's lines, with its holdover: theirs is not added to it.
    let mut guest = lines(0, at(0), &within(80_000_000, 80_000_000));
    guest.estimate.time = at(0) + ms(40);
    let followed = guest.continued(&slewing, 2 * HZ, SLEW);
    assert!(ppm(followed.estimate.period, rate(0).0) > -420.0, "{followed:?}");
}

#[test]
fn who_dies_while_the_estimate_is_above_the_bound_leaves_bounds_that_hold_it() {
    let old = fixed(0, 1_000_000_000, 50_000_000, 50_000_000);
    let mut target = fixed(0, 960_000_000, 1_000, 1_000);
    target.expiry = 10 * HZ;
    let next = old.continued(&Lines { expiry: 100 * HZ, ..target }, 0, SLEW);
    assert_eq!(next.estimate.time, old.estimate.time, "never back");
    for seconds in [0, 10, 101, 1_000, 100_000] {
        let at = next.at(seconds * HZ);
        assert!(at.earliest <= at.estimate && at.estimate <= at.latest, "outside at {seconds} s");
    }
    // Once the target has caught up, the bound is the target's again.
    let target = fixed(0, 1_001_000_000, 1_000, 1_000);
    assert!(next.continued(&target, 0, SLEW).half_width() < Duration::from_micros(1002));
}

#[test]
fn past_the_expiry_bounds_grow_by_the_holdover() {
    let mut l = fixed(0, 0, 1000, 1000);
    let before = l.at(l.expiry + HZ);
    l.holdover = RateError::from_ppm(15).of_ceil(Period::from_hz(HZ).unwrap().to_bits());
    let after = l.at(l.expiry + HZ);
    assert_eq!(l.at(l.expiry), fixed(0, 0, 1000, 1000).at(l.expiry));
    let grown = (after.latest - before.latest).ceil_nanos();
    assert!((15_000..=15_001).contains(&grown), "{grown}");
    assert_eq!(after.estimate, before.estimate);
}

#[test]
fn lines_that_are_about_to_expire_are_renewed_even_by_wider_ones() {
    let old = fixed(0, 1_000_000_000, 1000, 1000);
    let wide = |base| fixed(base, 1_000_000_000, 2000, 2000);
    let early = old.continued(&wide(50 * HZ), 50 * HZ, SLEW);
    assert_eq!(early.expiry, old.expiry, "kept, and so is their expiry");
    let due = old.expiry - SLEW.horizon / 128;
    assert!(old.is_renewal_due(due, due + 100 * HZ, SLEW));
    assert_eq!(old.continued(&wide(due), due, SLEW).expiry, due + 100 * HZ);
}

#[test]
fn expiry_is_a_signed_distance() {
    let mut l = fixed(0, 0, 1, 1);
    l.expiry = 5;
    assert!(
        !l.is_expired(5) && l.is_expired(6) && !l.is_expired(u64::MAX),
        "a reader just before zero has not expired"
    );
}
