//! The estimate fed with arbitrary exchanges, in two kinds of world.
//!
//! - *honest*: the counter runs at one rate within its tolerance, messages only come late, and the
//!   reference is within its stated error. Then truth must lie inside the bounds at all times and
//!   nothing may be called a contradiction.
//! - *hostile*: every number is arbitrary. Then no panic, and what is said must be coherent:
//!   earliest <= estimate <= latest, a period within its limits, an error that is not negative.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_estimate::estimators::shifted_exponential::{self, ShiftedExponential};
use timevisor_estimate::reference::View;
use timevisor_estimate::{
    Ensemble, Estimator as _, Exchange, Observation, Parameters, ReferenceClock,
};
use timevisor_fuzz::{decode, log_scaled};
use timevisor_time::{Duration, Instant, Period, RateError, Tai};

/// An exchange costs some 0.2 ms under the sanitizer.
const MOST_EXCHANGES: usize = 96;
const FREQUENCIES_HZ: [u64; 5] =
    [2_000_000, 62_500_000, 1_000_000_000, 2_900_000_000, 4_000_000_000];

fuzz_target!(|data: &[u8]| decode(data, |u| {
    let nominal = Period::from_hz(*u.choose(&FREQUENCIES_HZ)?).expect("above 1.05 MHz");
    if u.arbitrary()? { honest(u, nominal) } else { hostile(u, nominal) }
}));

/// The true world: time as a function of the counter.
struct World {
    start: u64,
    at: Instant<Tai>,
    period: Period,
}

impl World {
    fn truth(&self, counter: u64) -> Instant<Tai> {
        self.at + self.period.span(counter.wrapping_sub(self.start))
    }

    /// A counter value at which `time` has come.
    fn counter(&self, time: Instant<Tai>) -> u64 {
        self.start.wrapping_add(self.period.ticks_in(time - self.at) + 1)
    }
}

fn honest(u: &mut Unstructured, nominal: Period) -> Result<()> {
    let rate_ppb = u.int_in_range(-99_000_i32..=99_000)?;
    let world = World {
        start: u.arbitrary()?,
        at: Instant::from_words(u.arbitrary::<u32>()?.into(), u.arbitrary()?),
        period: nominal.scaled(f64::from(rate_ppb) * 1e-9),
    };
    let mut clock = ReferenceClock::new(&Parameters::default(), nominal, RateError::ZERO);
    let mut now = world.start;
    for _ in 0..MOST_EXCHANGES {
        if u.is_empty() {
            break;
        }
        let gap = Duration::from_millis(log_scaled(u)?);
        now = now.wrapping_add(nominal.ticks_in(gap) + 1);
        let exchange = true_exchange(u, &world, now)?;
        now = exchange.tf;
        let seen = clock.observe(&exchange);
        assert!(!matches!(seen, Observation::Contradiction(_)), "{seen:?} of honest facts");
        for later in [0, nominal.ticks_in(Duration::from_millis(log_scaled(u)?))] {
            let Some(view) = clock.at(now.wrapping_add(later)) else { continue };
            check(&view);
            let truth = world.truth(now.wrapping_add(later));
            // Truth and readings are rounded to 2^-64 s.
            let room = Duration::from_bits(4);
            assert!(view.interval.earliest() <= truth + room, "truth before the bounds");
            assert!(truth <= view.interval.latest() + room, "truth after the bounds");
        }
    }
    check_saved(&clock, nominal);
    Ok(())
}

/// Departs at `ta`; delays and the reference's residence are arbitrary, its errors within what it
/// states.
fn true_exchange(u: &mut Unstructured, world: &World, ta: u64) -> Result<Exchange> {
    let mut delay = || Ok(Duration::from_nanos(10 * log_scaled(u)?));
    let (forward, residence, backward, error) = (delay()?, delay()?, delay()?, delay()?);
    let mut wrong = || {
        let share: i8 = u.arbitrary()?;
        Ok(Duration::from_bits(error.to_bits() / 128 * i128::from(share)))
    };
    let arrival = world.truth(ta) + forward;
    let departure = arrival + residence;
    let (tb, te) = (arrival + wrong()?, departure + wrong()?);
    let tf = world.counter(departure + backward);
    Ok(Exchange { ta, tb, te, tf, error })
}

fn hostile(u: &mut Unstructured, nominal: Period) -> Result<()> {
    let names: Vec<String> = (0..3).map(|number| format!("reference {number}")).collect();
    let parameters = Parameters::default();
    let mut ensemble = Ensemble::new(&parameters, &names, nominal, RateError::ZERO);
    let mut estimator = ShiftedExponential::new(&parameters.estimator, nominal);
    let mut before: Option<Exchange> = None;
    for _ in 0..MOST_EXCHANGES {
        if u.is_empty() {
            break;
        }
        let exchange = any_exchange(u, before)?;
        // The trait's condition; the ensemble checks it itself.
        if exchange.check(before.as_ref(), 0).is_ok() {
            estimator.observe(&exchange);
            before = Some(exchange);
            check_estimator(&estimator, exchange.tf);
        }
        let index = u.int_in_range(0..=2)?;
        let _seen = ensemble.observe(index, &exchange);
        let now = exchange.tf.wrapping_add(u.arbitrary::<u32>()?.into());
        if let Some(view) = ensemble.reference(index).at(now) {
            check(&view);
        }
        let knowledge = ensemble.at(now);
        if let Some(clock) = knowledge.clock {
            assert!(clock.interval.contains(clock.estimate));
            assert!(!clock.estimated_error.is_negative());
            assert!(clock.limits.shortest <= clock.limits.longest);
        }
    }
    for index in 0..3 {
        check_saved(ensemble.reference(index), nominal);
    }
    Ok(())
}

/// Near the exchange before, or anything at all.
fn any_exchange(u: &mut Unstructured, before: Option<Exchange>) -> Result<Exchange> {
    let near = before.filter(|_| u.ratio(7, 8).unwrap_or(true));
    let Some(before) = near else {
        let instant = |u: &mut Unstructured| Ok(Instant::from_bits(u.arbitrary()?));
        return Ok(Exchange {
            ta: u.arbitrary()?,
            tb: instant(u)?,
            te: instant(u)?,
            tf: u.arbitrary()?,
            error: Duration::from_bits(u.arbitrary()?),
        });
    };
    let mut nanos = || Ok(Duration::from_nanos(log_scaled(u)? * 1000));
    let (gap, residence, error) = (nanos()?, nanos()?, nanos()?);
    let ta = before.tf.wrapping_add(u.arbitrary::<u32>()?.into());
    let tb = before.te + gap - Duration::from_millis(i64::from(u.arbitrary::<u8>()?));
    let tf = ta.wrapping_add(u.arbitrary::<u32>()?.into());
    Ok(Exchange { ta, tb, te: tb + residence, tf, error })
}

fn check(view: &View) {
    assert!(view.interval.contains(view.estimate), "the estimate is outside of the bounds");
    assert!(!view.estimated_error.is_negative());
    assert!(view.limits.shortest <= view.period && view.period <= view.limits.longest);
    let slopes = &view.slopes;
    assert!(slopes.shortest <= slopes.longest, "the bounds close in on each other: {view:?}");
}

fn check_estimator(estimator: &ShiftedExponential, now: u64) {
    let Some(estimate) = estimator.at(now) else { return };
    assert!(!estimate.error.is_negative() && estimate.period.to_bits() > 0);
    assert_eq!(estimator.elapsed(now, now), Duration::ZERO);
    let Some(diagnosis) = estimator.diagnosis() else { return };
    let weights: f64 = diagnosis.models.iter().map(|model| model.weight).sum();
    assert!((weights - 1.0).abs() < 1e-6, "the weights sum to {weights}");
    let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
    assert!(finite(&diagnosis.queueing) && finite(&diagnosis.minimum_delay));
}

/// What is kept for a restart can be gone on from.
fn check_saved(clock: &ReferenceClock, nominal: Period) {
    let Some(saved) = clock.saved() else { return };
    let parameters = shifted_exponential::Parameters::default();
    let resumed = ShiftedExponential::resume(&parameters, nominal, &saved);
    assert!(resumed.is_ok(), "{resumed:?}");
}
