//! The daemon's own bounds and page lines over an oscillator that warms up and cools down: its rate
//! limits move along, and spans always contain the truth.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers of a simulated world"
)]

use timevisor_clock_page::{Known, Policy};
use timevisor_estimate::{Exchange, Parameters, RateLimits, ReferenceClock};
use timevisor_time::{RateError, Tai};

use super::*;
use crate::error::ConvertError;
use crate::history::History;
use crate::testing::published;

const HZ: u64 = 1_000_000_000;
const START: u64 = 1 << 40;
/// Half of what the default floor allows, ppb per second.
const RAMP: f64 = 15.0;
/// The rate goes from one end to the other and back, ppb.
const END: f64 = 40_000.0;

/// Seconds for one way.
fn way() -> f64 {
    2.0 * END / RAMP
}

/// The rate's offset, ppb.
fn rate(counter: u64) -> f64 {
    let at = seconds(counter) / way();
    let up = at.floor() % 2.0 == 0.0;
    let gone = RAMP * way() * at.fract();
    if up { gone - END } else { END - gone }
}

fn seconds(counter: u64) -> f64 {
    (counter - START) as f64 / HZ as f64
}

/// Each way brings the clock back to where it was, because the mean rate is nominal.
fn truth(counter: u64) -> Instant<Tai> {
    let at = seconds(counter) / way();
    let (gone, up) = (at.fract() * way(), at.floor() % 2.0 == 0.0);
    let offset_ns = RAMP * gone * gone / 2.0 - END * gone;
    let offset_ps = (if up { offset_ns } else { -offset_ns } * 1000.0) as i128;
    let ps = i128::from(counter - START) * 1000 + 1_000_000_000_000_000 + offset_ps;
    Instant::from_bits((ps << 64) / 1_000_000_000_000)
}

/// What the daemon would publish every second, with an exchange every 4 s over 30 us plus queueing.
fn publications(count: u64) -> Vec<Snapshot> {
    let nominal = Period::from_hz(HZ).unwrap();
    let parameters = Parameters::default();
    let mut clock = ReferenceClock::new(&parameters, nominal, RateError::ZERO);
    let policy = Policy { nominal, validity: parameters.validity };
    let mut random = 1u64;
    let mut queueing = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = ((random >> 33) as f64 + 1.0) / (1u64 << 31) as f64;
        (-uniform.ln() * 15_000.0) as u64
    };
    let (mut in_force, mut all) = (None, Vec::new());
    for second in 0..count {
        let now = START + second * HZ;
        if second % 4 == 0 {
            let middle = now + 30_000 + queueing();
            let (t, tf) = (truth(middle), middle + 30_000 + queueing());
            let error = Duration::from_nanos(50);
            clock.observe(&Exchange { ta: now, tb: t, te: t, tf, error });
        }
        let now = now + HZ / 2;
        let view = clock.at(now).unwrap();
        let pair = |limits: RateLimits| (limits.shortest, limits.longest);
        let known = Known {
            interval: view.interval,
            estimate: view.estimate,
            period: view.period,
            slopes: pair(view.slopes),
            limits: pair(view.limits),
        };
        let lines = policy.next(in_force.as_ref(), &policy.lines(now, &known), now);
        in_force = Some(lines);
        let trusted =
            if view.trusted { ClockStatus::Synchronized } else { ClockStatus::Unreliable };
        all.push(published(&lines.shifted(Duration::ZERO), trusted, clock.contradictions()));
    }
    all
}

#[test]
fn spans_hold_the_truth_while_the_limits_of_the_rate_move() {
    let all = publications(5400);
    let groups = all.chunk_by(|a, b| a.said.disruption == b.said.disruption);
    let period = |counter| Period::from_hz(HZ).unwrap().scaled(rate(counter) * 1e-9);
    let mut foreign = 0;
    let (mut checked, mut ratios) = (0, Vec::new());
    let (mut history, mut answered, mut forgotten) = (History::default(), 0, 0);
    let mut random = 7u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 20) % limit
    };
    for group in groups {
        // A long-lived handle: it forgets old publications, and refuses stamps from that time.
        for (index, publication) in group.iter().enumerate() {
            history.note(*publication);
            let ago = below(3000).min(index as u64) * HZ;
            let (from, to) = (publication.lines.base - ago, publication.lines.base);
            let rounding = Duration::from_bits((1 << 64) / 1_000_000_000_000 * 2);
            match history.between(from.max(group[0].lines.base), to) {
                Ok(found) => {
                    let span = truth(to) - truth(from.max(group[0].lines.base));
                    assert!(found.shortest <= span + rounding && span - rounding <= found.longest);
                    answered += 1;
                }
                Err(ConvertError::TooOld { .. }) => {
                    assert!(ago > 1000 * HZ);
                    forgotten += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        let stretch = Stretch::new(group).unwrap();
        let (first, last) = (group[0].lines.base, group[group.len() - 1].lines.base);
        for _ in 0..group.len() * 2 {
            let from = first + below(last - first + 1);
            let longest = [HZ / 100, HZ, 60 * HZ, last - first + 1][below(4) as usize];
            let to = (from + below(longest)).min(last);
            let found = stretch.between(from, to).unwrap();
            let span = truth(to) - truth(from);
            let rounding = Duration::from_bits((1 << 64) / 1_000_000_000_000 * 2);
            assert!(found.shortest <= span + rounding && span - rounding <= found.longest);
            let at = stretch.at(from).unwrap().at;
            let truth: Instant<Local> = truth(from).relabel();
            assert!(at.earliest <= truth + rounding && truth - rounding <= at.latest);
            checked += 1;
            let readings = (at.latest - at.earliest).as_secs_f64() * 2.0;
            if longest == HZ && to - from > HZ / 2 {
                ratios.push(readings / (found.longest - found.shortest).as_secs_f64());
            }
        }
        for (index, publication) in group.iter().enumerate().skip(600) {
            let (shortest, longest) = publication.lines.rate_limits();
            let near = period(publication.lines.base);
            assert!(shortest <= near && near <= longest, "{index}");
            let later = group[(index + 1800) % group.len()].lines.base;
            foreign += usize::from(period(later) < shortest || longest < period(later));
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "{checked} spans and stamps hold the truth in {} publications; half an hour away {foreign} limits of the rate would not; spans of 0.5 to 1 s are {:.1} times narrower than two conversions",
        all.len(),
        ratios[ratios.len() / 2],
    );
    assert!(answered > 2000 && forgotten > 100, "{answered} {forgotten}");
    assert!(foreign > 1000, "the world is steep enough for the limits to move");
}
