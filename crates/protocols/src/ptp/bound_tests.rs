use proptest::prelude::*;

use super::*;

fn assumptions() -> Assumptions {
    Assumptions {
        grandmaster_accuracy: None,
        hop_error: Duration::from_micros(1),
        drift: RateError::from_ppm(15),
        drift_unlocked: RateError::from_ppm(100),
        accuracy: Duration::from_nanos(100),
        max_age: Duration::from_secs(8),
        arbitrary_is_utc: false,
    }
}

fn state(offset: i64, ingress_ns: i64) -> State {
    State {
        port: PortState::Slave,
        steps_removed: 1,
        mean_path_delay: Duration::from_micros(2),
        grandmaster_accuracy: 0x21,
        grandmaster_class: 6,
        utc_offset: Some(37),
        ptp_timescale: true,
        master_offset_ns: offset,
        ingress_ns,
        grandmaster_present: true,
    }
}

const START: i64 = 1_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// Nanoseconds as 2^-64 s are rounded, each time by less than 2^-64 s.
fn near(span: Duration, nanos: i64) {
    let off = (span - Duration::from_nanos(nanos)).abs();
    assert!(off < Duration::from_bits(1 << 34), "{span} is not {nanos} ns");
}

#[test]
fn the_formula() {
    let mut window = OffsetWindow::new(assumptions());
    let found = window.judge(&state(40, START), START + SECOND).unwrap();
    // 2 us path, 100 ns grandmaster, 15 us drift in a second, 100 ns interface.
    let error = 2_000 + 100 + 15_000 + 100;
    near(found.least, -error);
    near(found.most, 40 + error);
    let far = State { steps_removed: 3, ..state(40, START) };
    near(window.judge(&far, START + SECOND).unwrap().most, 40 + error + 2_000);
    let unlocked = State { port: PortState::Uncalibrated, ..state(40, START) };
    let wide = window.judge(&unlocked, START + SECOND).unwrap();
    near(wide.most, 40 + error + 85_000);
}

/// Found by fuzzing: a second offset with the same ingress time was ignored.
#[test]
fn the_newest_offset_always_counts() {
    let mut window = OffsetWindow::new(assumptions());
    window.judge(&state(40, START), START).unwrap();
    let found = window.judge(&state(9_000, START), START).unwrap();
    near(found.most, 9_000 + 2_200);
}

#[test]
fn recent_offsets_count_and_old_ones_do_not() {
    let mut window = OffsetWindow::new(assumptions());
    let mut at = START;
    let mut judge = |window: &mut OffsetWindow, offset| {
        at += SECOND;
        window.judge(&state(offset, at), at).unwrap()
    };
    let error = 2_200;
    judge(&mut window, -5_000);
    // The same measurement reported twice counts once.
    for _ in 0..3 {
        near(
            window.judge(&state(-5_000, START + SECOND), START + SECOND).unwrap().least,
            -5_000 - error,
        );
    }
    for _ in 0..OFFSETS - 1 {
        let found = judge(&mut window, 300);
        near(found.least, -5_000 - error);
        near(found.most, 300 + error);
    }
    near(judge(&mut window, 300).least, -error);
}

#[test]
fn a_clock_that_follows_nothing_is_refused_with_the_next_step() {
    let cases: [(State, Refusal, &str); 6] = [
        (
            State { port: PortState::Other(4), ..state(0, START) },
            Refusal::NotFollowing("LISTENING"),
            "check the network",
        ),
        (
            State { port: PortState::Master, ..state(0, START) },
            Refusal::NotFollowing("MASTER"),
            "domain",
        ),
        (
            State { grandmaster_present: false, ..state(0, START) },
            Refusal::NoGrandmaster,
            "network",
        ),
        (
            State { ptp_timescale: false, ..state(0, START) },
            Refusal::ArbitraryTimescale,
            "timescale = \"utc\"",
        ),
        (
            State { grandmaster_accuracy: 0xfe, ..state(0, START) },
            Refusal::UnknownAccuracy(0xfe),
            "set grandmaster_accuracy",
        ),
        (
            State { mean_path_delay: Duration::from_nanos(-1), ..state(0, START) },
            Refusal::NegativeDelay,
            "asymmetry",
        ),
    ];
    for (state, refusal, advice) in cases {
        let mut window = OffsetWindow::new(assumptions());
        assert_eq!(window.judge(&state, START), Err(refusal));
        assert!(refusal.to_string().contains(advice), "{refusal}");
    }
    let mut window = OffsetWindow::new(assumptions());
    assert_eq!(window.judge(&state(0, START), START + 9 * SECOND), Err(Refusal::Stale));
    // The clock was stepped back.
    assert_eq!(window.judge(&state(0, START), START - SECOND), Err(Refusal::Stale));
    let operator = Assumptions {
        grandmaster_accuracy: Some(Duration::from_millis(1)),
        arbitrary_is_utc: true,
        ..assumptions()
    };
    let vague = State { ptp_timescale: false, grandmaster_accuracy: 0xfe, ..state(0, START) };
    let found = OffsetWindow::new(operator).judge(&vague, START).unwrap();
    near(found.most, 1_002_100);
}

#[test]
fn a_refusal_forgets_the_offsets_before_it() {
    let mut window = OffsetWindow::new(assumptions());
    window.judge(&state(50_000, START), START).unwrap();
    let away = State { grandmaster_present: false, ..state(0, START) };
    window.judge(&away, START).unwrap_err();
    let found = window.judge(&state(10, START + SECOND), START + SECOND).unwrap();
    assert!(found.most < Duration::from_nanos(2_300), "{found:?}");
}

proptest! {
    /// A master at true time, delays of any asymmetry, a clock that drifts within its limit and a
    /// servo that removes any part of the measured offset: "clock minus true time" is always
    /// inside.
    #[test]
    fn it_holds_for_any_asymmetry(
        theta in -1_000_000_i64..1_000_000,
        forward in 0_i64..500_000,
        backward in 0_i64..500_000,
        removed in 0_i64..=1000,
        drift_ppm in -15_i64..=15,
        age_ns in 0_i64..7 * SECOND,
    ) {
        let mean = (forward + backward) / 2;
        let measured = theta + forward - mean;
        let servo = measured / 1000 * removed;
        let drifted = drift_ppm * age_ns / 1_000_000;
        let now_off = theta - servo + drifted;
        let told = State { mean_path_delay: Duration::from_nanos(mean), ..state(measured, START) };
        let found = OffsetWindow::new(assumptions()).judge(&told, START + age_ns).unwrap();
        let slack = Duration::from_nanos(1);
        prop_assert!(found.least <= Duration::from_nanos(now_off) + slack, "{found:?} {now_off}");
        prop_assert!(found.most + slack >= Duration::from_nanos(now_off), "{found:?} {now_off}");
    }
}
