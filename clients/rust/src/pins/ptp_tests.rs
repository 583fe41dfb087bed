use super::*;
use crate::manual;

#[test]
fn a_pulse_is_asked_for_by_the_ptp_clock() {
    let clock = manual::Clock::new(1_000_000_000);
    let timeline = clock.timeline();
    let stamp = timeline.stamp();
    clock.advance(Duration::from_nanos(5_000));
    let reading = timeline.now().unwrap();
    // The PTP clock was at 77 s when the counter was at the first stamp, give or take 20 ns.
    let bracket = Bracket {
        before: stamp.wrapping_sub(20),
        realtime: Instant::from_unix_nanos(77_000_000_000),
        after: stamp.wrapping_add(20),
    };
    let period = Period::from_hz(1_000_000_000).unwrap();
    let start = start_of(1_500_000_000, &bracket, &reading, (period, period));
    let off = start.floor_nanos() - 77_500_000_000;
    assert!((-2..=2).contains(&off), "{off}");
}

#[test]
fn what_is_no_ptp_clock_says_so() {
    let error = PtpPins::open("/dev/null").unwrap_err();
    assert!(error.to_string().contains("/dev/ptpN for PTP pins"), "{error}");
}

#[test]
fn a_clock_without_pins_says_what_to_use() {
    let capabilities = Capabilities {
        max_adjustment_ppb: 0,
        cross_timestamping: true,
        timestamp_channels: 0,
        output_channels: 0,
        pins: 0,
    };
    let phc = Phc::open(Path::new("/dev/null")).unwrap();
    let pins = PtpPins { phc, device: "/dev/ptp7".into(), capabilities };
    assert_eq!(pins.count(), 0);
    let timeline = manual::Clock::new(0).timeline();
    let errors = [
        pins.pin(0).unwrap_err(),
        pins.set_pin(0, PinFunction::Output, 0).unwrap_err(),
        pins.pulse_at(&timeline, 0, 1_000, Duration::from_micros(1)).unwrap_err(),
        pins.end_output(0).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.starts_with("the PTP clock /dev/ptp7 has 0 "), "{text}");
        assert!(text.contains("use a clock that has one"), "{text}");
    }
}
