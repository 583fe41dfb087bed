use timevisor_time::Duration;

use super::*;
use crate::ptp::datasets::{Master, PortState, TimeProperties};

const PTP: TimeProperties = TimeProperties {
    utc_offset: 37,
    utc_offset_valid: true,
    leap: 0,
    ptp_timescale: true,
    traceable: true,
};
const ARBITRARY: TimeProperties =
    TimeProperties { utc_offset_valid: false, ptp_timescale: false, traceable: false, ..PTP };
const TABLE: Option<TableOffsets> = Some(TableOffsets { before: 37, after: 37 });
/// 2025-07-01, noon.
const NOON: i64 = 1_751_328_000 + 43_200;
const MIDNIGHT: i64 = 1_751_328_000;

fn state(time: TimeProperties, own_utc_offset: i16) -> State {
    State {
        port: PortState::Slave,
        master: Master::default(),
        measured_grandmaster: [0; 8],
        steps_removed: 1,
        mean_path_delay: Duration::from_micros(2),
        grandmaster_accuracy: 0x21,
        grandmaster_class: 6,
        time,
        own_utc_offset,
        master_offset_ns: 0,
        ingress_ns: 1,
        grandmaster_present: true,
    }
}

fn counts(time: TimeProperties, steered: Steered) -> Result<Count, Refusal> {
    count(&state(time, 37), steered, false, NOON, TABLE)
}

#[test]
fn an_announced_offset_that_contradicts_the_table_is_refused_where_the_clock_holds_utc() {
    let wrong = TimeProperties { utc_offset: 36, ..PTP };
    let refusal = Refusal::UtcOffset { announced: 36, table: 37, steered: Steered::Realtime };
    assert_eq!(counts(wrong, Steered::Realtime), Err(refusal));
    for part in ["36 s", "37 s", "CLOCK_REALTIME", "tzdata", "utc_offset"] {
        assert!(refusal.to_string().contains(part), "{refusal}");
    }
    // Whether ptp4l applies it (traceable) or its own makes no difference.
    let doubtful = TimeProperties { traceable: false, ..wrong };
    assert_eq!(counts(doubtful, Steered::Realtime), Err(refusal));
    // Nor does TAI depend on it, but people should know.
    assert_eq!(counts(wrong, Steered::Phc), Ok(Count::Tai));
    let remark = remark(&state(wrong, 37), Steered::Phc, TABLE).unwrap();
    assert!(remark.contains("36 s") && remark.contains("37 s"), "{remark}");
    // UTC on the operator's word is UTC, too.
    let utc = TimeProperties { ptp_timescale: false, ..wrong };
    for steered in [Steered::Phc, Steered::Realtime] {
        let found = count(&state(utc, 37), steered, true, NOON, TABLE);
        assert_eq!(found, Err(Refusal::UtcOffset { announced: 36, table: 37, steered }));
    }
}

#[test]
fn what_nobody_vouches_for_is_converted_with_what_ptp4l_applied() {
    let applied = |time, own| count(&state(time, own), Steered::Realtime, false, NOON, TABLE);
    assert_eq!(counts(PTP, Steered::Realtime), Ok(Count::TaiMinus(37)));
    let unsure = TimeProperties { utc_offset_valid: false, utc_offset: 35, ..PTP };
    assert_eq!(applied(unsure, 37), Ok(Count::TaiMinus(37)));
    assert_eq!(applied(unsure, 36), Ok(Count::TaiMinus(36)));
    // A larger announced one is applied, also without validity.
    assert_eq!(applied(TimeProperties { utc_offset: 38, ..unsure }, 37), Ok(Count::TaiMinus(38)));
    // A valid one without traceability is compared, and ptp4l's own applied.
    let untraced = TimeProperties { traceable: false, ..PTP };
    assert_eq!(applied(untraced, 38), Ok(Count::TaiMinus(38)));

    let said = remark(&state(unsure, 36), Steered::Realtime, TABLE).unwrap();
    for part in ["36 s", "does not vouch", "37 s"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(remark(&state(PTP, 37), Steered::Realtime, TABLE), None);
}

#[test]
fn the_timescale_is_the_announced_one_whatever_the_operator_expects() {
    assert_eq!(counts(ARBITRARY, Steered::Phc), Err(Refusal::ArbitraryTimescale));
    assert_eq!(counts(ARBITRARY, Steered::Realtime), Err(Refusal::ArbitraryTimescale));
    for steered in [Steered::Phc, Steered::Realtime] {
        let found = count(&state(ARBITRARY, 37), steered, true, NOON, TABLE);
        assert_eq!(found, Ok(Count::Utc));
    }
    // A grandmaster that comes to PTP time steps the PHC to TAI.
    assert_eq!(count(&state(PTP, 37), Steered::Phc, true, NOON, TABLE), Ok(Count::Tai));
}

#[test]
fn a_difference_that_a_leap_second_explains_is_no_contradiction() {
    let near = |time, at, table| count(&state(time, 37), Steered::Realtime, false, at, table);
    let flagged = TimeProperties { leap: 1, ..PTP };
    let stepping = Some(TableOffsets { before: 37, after: 38 });
    let stepped = Some(TableOffsets { before: 38, after: 38 });
    // The day before.
    assert_eq!(near(flagged, MIDNIGHT - 3_600, TABLE), Ok(Count::TaiMinus(37)));
    // The table changes within the minute, on either side of it.
    for at in [MIDNIGHT - 60, MIDNIGHT, MIDNIGHT + 60] {
        assert_eq!(near(flagged, at, stepping), Err(Refusal::LeapSecond));
        assert_eq!(near(PTP, at, stepping), Err(Refusal::LeapSecond));
    }
    // The grandmaster is late, and ptp4l adds the second by itself.
    for at in [MIDNIGHT + 100, MIDNIGHT + 6 * 3_600] {
        assert_eq!(near(flagged, at, stepped), Err(Refusal::LeapSecond));
    }
    // It is done.
    let after = TimeProperties { utc_offset: 38, ..PTP };
    assert_eq!(near(after, MIDNIGHT + 100, stepped), Ok(Count::TaiMinus(38)));
    // It forgot: that is a contradiction.
    let refusal = Refusal::UtcOffset { announced: 37, table: 38, steered: Steered::Realtime };
    assert_eq!(near(PTP, MIDNIGHT + 100, stepped), Err(refusal));
}

/// linuxptp inserts an announced second, whether or not the table has it.
#[test]
fn an_announced_leap_second_without_one_in_the_table_is_waited_out() {
    let flagged = TimeProperties { leap: 1, ..PTP };
    let at = |secs| count(&state(flagged, 37), Steered::Realtime, false, secs, TABLE);
    assert_eq!(at(MIDNIGHT - 64), Err(Refusal::LeapSecond));
    assert_eq!(at(MIDNIGHT - 65), Ok(Count::TaiMinus(37)));
    assert_eq!(at(MIDNIGHT + 6 * 3_600), Err(Refusal::LeapSecond));
    assert_eq!(at(MIDNIGHT + 6 * 3_600 + 1), Ok(Count::TaiMinus(37)));
    assert_eq!(at(-1), Err(Refusal::LeapSecond));
}

#[test]
fn without_a_table_arithmetic_still_gives_tai() {
    let found = count(&state(PTP, 37), Steered::Realtime, false, NOON, None);
    assert_eq!(found, Ok(Count::TaiMinus(37)));
}
