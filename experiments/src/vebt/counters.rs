//! Figure 7: two guests at once, each with a clock synchronized inside it, one by a good counter
//! and one by the HPET.
//!
//! The paper's RADclocks use the Xen Clocksource and the HPET, and poll every 16 s. Here each guest
//! has a timevisord that counts CLOCK_MONOTONIC_RAW, which its kernel takes from the TSC or from an
//! emulated HPET, and asks once a second. Beside it are the clock that a chronyd keeps on the same
//! counter, and the guest's page, which counts the TSC in both.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::progress;
use timevisor_lab::scenario::Context;

use super::look;
use super::paper;
use crate::report;
use crate::subject::{self, Measured, Options, Subject};
use crate::watch::{Clock, INTERVAL, Sample, round};

const NAME: &str = "vebt-counters";
const COUNTERS: [&str; 2] = ["tsc", "hpet"];
/// The second guest's number on the LAN, and its name.
const SECOND: (u8, &str) = (1, "second");
/// The clocks of each guest.
const CLOCKS: [Clock; 3] = [Clock::Inside, Clock::Chronyd, Clock::Guest];

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let hpet = Options { append: "clocksource=hpet", ..Options::default() };
    let mut first = progress::step("the first guest", || Subject::start(ctx, Options::default()))?;
    let mut second = progress::step("the second guest", || first.another(ctx, SECOND, hpet))?;
    for (guest, counter) in [(&mut first.measured, COUNTERS[0]), (&mut second, COUNTERS[1])] {
        let found = clocksource(guest)?;
        ensure!(found == counter, "the guest runs on {found}, not on the {counter}");
    }
    subject::settle()?;
    let began = Instant::now();
    let mut samples: [Vec<Sample>; 2] = Default::default();
    progress::step("reading all clocks", || {
        while began.elapsed() < span {
            first.host.check_alive()?;
            let at_s = began.elapsed().as_secs_f64();
            samples[0].extend(round(&first.page, &mut first.measured, at_s)?);
            samples[1].extend(round(&first.page, &mut second, at_s)?);
            interrupt::sleep(INTERVAL)?;
        }
        Ok(())
    })?;
    for (counter, samples) in COUNTERS.iter().zip(&samples) {
        std::fs::write(ctx.path(&format!("samples-{counter}.csv")), report::csv(samples))?;
    }
    look::head("error against the truth");
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for clock in CLOCKS {
        for (counter, samples) in COUNTERS.iter().zip(&samples) {
            let own = || samples.iter().filter(|s| s.clock == clock);
            let errors: Vec<f64> = own().map(|s| s.error_us).collect();
            let name = format!("{}, {counter}", clock.title());
            let mut row = look::row(&name, &errors);
            let held = own().filter(|s| s.holds()).count();
            println!("{:<46} its bounds held the truth {held} of {}", "", errors.len());
            row["held"] = json!(held);
            rows.push(row);
            if clock == Clock::Inside {
                let points = own().map(|s| (s.at_s, s.error_us)).collect();
                series.push(Series { name, points });
            }
        }
    }
    println!("paper: {}", paper::COUNTERS);
    let axes = ["time, s", "offset from truth, us"];
    plot::write(NAME, &plot::lines(NAME, axes, series, false))?;
    report::write(NAME, rows)
}

fn clocksource(guest: &mut Measured) -> anyhow::Result<String> {
    const FILE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    Ok(guest.guest().sh(&format!("cat {FILE}"))?.trim().to_owned())
}
