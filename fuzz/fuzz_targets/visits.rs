//! A file of visits with arbitrary bytes: what is accepted has intervals, and is written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_protocols::visits::Visits;

fuzz_target!(|data: &[u8]| {
    let Ok(mut visits) = Visits::parse(data) else { return };
    assert!(visits.iter().all(|visit| visit.interval().is_some()));
    assert_eq!(Visits::parse(visits.text().as_bytes()).as_ref(), Ok(&visits));
    let Some(visit) = visits.iter().last().cloned() else { return };
    visits.add(visit.clone(), |_| true);
    assert!(visits.iter().any(|kept| *kept == visit));
    assert_eq!(Visits::parse(visits.text().as_bytes()), Ok(visits));
});
