//! One VM's page with all its entries, published as the daemon does it, in memory of this process.

use std::time::Instant;

use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, EntryIdentity, EntryUpdate, Identity, Line, Lines, Page,
    PageWriter, Slew, Update,
};
use timevisor_linux::counter::Tsc;
use timevisor_time::{Duration, Local, Period, TimescaleId};

/// Nanoseconds of each of 5,000 publications of a page with 18 entries.
pub fn publications() -> Vec<f64> {
    let (page, counter) = (Page::new(), Tsc::unchecked());
    let identity = Identity {
        counter: CounterId::X86Tsc,
        timescale: TimescaleId::Tai,
        host: [1; 16],
        vm: [2; 16],
        timeline: "tai",
        epoch: 1,
    };
    let mut writer = PageWriter::take_over(&page, identity, Some(37));
    let mut times = Vec::new();
    for round in 0..5000 {
        let update = update(counter.read_ordered(), round % 7);
        let entries: Vec<EntryUpdate> = (1..18)
            .map(|index| EntryUpdate {
                index,
                identity: EntryIdentity::new(index as u64, "line", TimescaleId::Tai, 1),
                required_ns: 1000,
                disruptions: 0,
                clock: 0,
                update: Ok(update),
            })
            .collect();
        let began = Instant::now();
        writer.publish(&update, &counter);
        writer.write_entries(&entries, &counter);
        times.push(began.elapsed().as_secs_f64() * 1e9);
    }
    times
}

fn update(base: u64, jitter_ns: i64) -> Update {
    let period = Period::from_bits(7_450_580_596_923_828);
    let line = |ns: i64, bits: u64| Line::<Local> {
        time: timevisor_time::Instant::from_bits(0)
            + period.span(base)
            + Duration::from_nanos(ns + jitter_ns),
        period: Period::from_bits(bits),
    };
    let rate = period.to_bits() / 100_000;
    Update {
        target: Lines {
            base,
            expiry: base.wrapping_add(20_000_000_000),
            earliest: line(-20_000, period.to_bits() - rate),
            estimate: line(0, period.to_bits()),
            latest: line(20_000, period.to_bits() + rate),
            holdover: 0,
        },
        status: ClockStatus::Synchronized,
        estimated_error: Duration::from_nanos(100),
        as_of: base,
        tai_offset: Some(37),
        slew: Slew { horizon: 20_000_000_000, jump: Duration::from_millis(1) },
    }
}
