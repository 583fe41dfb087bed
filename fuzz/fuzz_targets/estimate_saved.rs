//! A saved estimate as a file may have it: what is accepted can be read at once and gone on from without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_estimate::estimators::shifted_exponential::{Parameters, Saved, ShiftedExponential};
use timevisor_estimate::{Estimator as _, Exchange};
use timevisor_time::{Duration, Period};

fuzz_target!(|data: &[u8]| {
    let Ok(saved) = serde_json::from_slice::<Saved>(data) else { return };
    let nominal = Period::from_hz(1_000_000_000).expect("above 1.05 MHz");
    let mut estimator = match ShiftedExponential::resume(&Parameters::default(), nominal, &saved) {
        Ok(estimator) => estimator,
        Err(unusable) => return assert!(unusable.to_string().contains(unusable.field)),
    };
    let now = estimator.at(saved.counter).expect("it was saved with a time");
    assert!(!now.error.is_negative() && now.period.to_bits() > 0);
    for second in 1..=20_u64 {
        let ta = saved.counter.wrapping_add(second * 1_000_000_000);
        let tb = now.time + Duration::from_secs(second.cast_signed());
        let tf = ta.wrapping_add(100_000);
        estimator.observe(&Exchange { ta, tb, te: tb, tf, error: Duration::ZERO });
        assert!(estimator.at(tf).is_none_or(|estimate| !estimate.error.is_negative()));
    }
    let _kept = estimator.saved();
});
