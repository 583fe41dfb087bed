//! A saved estimate as a file may have it, or a true one with arbitrary numbers in it: what is
//! accepted starts where it says, and can be gone on from without a panic.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_estimate::estimators::shifted_exponential::{Parameters, Saved, ShiftedExponential};
use timevisor_estimate::{Estimator as _, Exchange};
use timevisor_fuzz::decode;
use timevisor_time::{Duration, Instant, Period};

const TRUE_ONE: &str = include_str!("../corpus-seeds/estimate_saved/three-hundred-exchanges.json");

/// What a file may say of an offset, s.
const LARGEST_OFFSET: Duration = Duration::from_secs(1_000_000);

fuzz_target!(|data: &[u8]| {
    if let Ok(saved) = serde_json::from_slice(data) {
        check(&saved);
    } else {
        decode(data, |u| {
            check(&altered(u)?);
            Ok(())
        });
    }
});

fn altered(u: &mut Unstructured) -> Result<Saved> {
    let mut saved: Saved = serde_json::from_str(TRUE_ONE).expect("it was written by this code");
    for _ in 0..u.int_in_range(1..=4)? {
        let expert = &mut saved.experts[u.int_in_range(0..=1)?];
        let number = match u.int_in_range(0..=7)? {
            0 => &mut saved.queueing_s,
            1 => &mut saved.independence,
            2 => &mut expert.merit,
            3 => &mut expert.queueing_s[u.int_in_range(0..=1)?],
            4 => &mut expert.weights[u.int_in_range(0..=7)?],
            5 | 6 => &mut expert.mean[u.int_in_range(0..=4)?],
            _ => &mut expert.covariance[u.int_in_range(0..=14)?],
        };
        *number = match u.int_in_range(0..=3)? {
            0 => f64::from_bits(u.arbitrary()?),
            1 => *number * f64::from(u.arbitrary::<i8>()?),
            _ => f64::from(u.arbitrary::<i8>()?) * 10_f64.powi(u.int_in_range(-30..=12)?),
        };
    }
    if u.arbitrary()? {
        saved.counter = u.arbitrary()?;
        saved.seconds = u.arbitrary()?;
        saved.exchanges = u.arbitrary()?;
    }
    Ok(saved)
}

fn check(saved: &Saved) {
    let nominal = Period::from_hz(1_000_000_000).expect("above 1.05 MHz");
    let mut estimator = match ShiftedExponential::resume(&Parameters::default(), nominal, saved) {
        Ok(estimator) => estimator,
        Err(unusable) => return assert!(unusable.to_string().contains(unusable.field)),
    };
    let now = estimator.at(saved.counter).expect("it was saved with a time");
    assert!(!now.error.is_negative() && now.period.to_bits() > 0);
    let said = Instant::from_words(saved.seconds.cast_unsigned(), saved.fraction);
    let off = (now.time - said).abs();
    assert!(off <= LARGEST_OFFSET + Duration::from_secs(1), "{off} from the saved time");
    for second in 1..=20_u64 {
        let ta = saved.counter.wrapping_add(second * 1_000_000_000);
        let tb = now.time + Duration::from_secs(second.cast_signed());
        let tf = ta.wrapping_add(100_000);
        estimator.observe(&Exchange { ta, tb, te: tb, tf, error: Duration::ZERO });
        assert!(estimator.at(tf).is_none_or(|estimate| !estimate.error.is_negative()));
    }
    let _kept = estimator.saved();
}
