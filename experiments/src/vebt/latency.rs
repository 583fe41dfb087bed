//! Figure 5: the duration of one access, measured with the TSC before and after it: natively, in a
//! guest that uses the TSC, and in a guest with an emulated HPET.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_lab::chronyd::Chronyd;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::scenario::Context;

use super::paper;
use crate::fleet::Fleet;
use crate::job;
use crate::report;

const NAME: &str = "vebt-latency";
const PROGRAM: &str = "lab-access";
/// Number of accesses to one clock before the next one's turn.
const READS: &str = "10000";
/// The guest's kernel switches from its early clocksource to the final one about 2 s after the
/// boot.
const SETTLE: Duration = Duration::from_secs(5);

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let each = span / 3;
    let (host, _server) = host(ctx)?;
    println!(
        "  rounds of {READS} accesses; by rdtsc before and after each, so every row holds what `nothing` takes"
    );
    let native = {
        let program = ctx.program("timevisor-lab-guest", PROGRAM)?;
        let page = format!("page={}", host.directory().join("clock").display());
        job::native(&program, &[&each.as_secs_f64().to_string(), READS, &page])?
    };
    let tsc = in_guest(ctx, &host, each, "tsc", "")?;
    let hpet = in_guest(ctx, &host, each, "hpet", "clocksource=hpet")?;

    let (mut rows, mut series) = (Vec::new(), Vec::new());
    let places = [("native", native), ("guest", tsc), ("guest, emulated HPET", hpet)];
    for (place, found) in &places {
        let source = found["clocksource"].as_str().unwrap_or("unknown");
        let tick = found["tick_ns"].as_f64().context("no tick_ns")?;
        println!("\n{place}: clocksource {source}, {tick:.4} ns a tick\n{HEAD}");
        for row in found["rows"].as_array().context("no rows")? {
            let access = Access::parse(row, tick)?;
            println!("{}", access.line());
            series.push(access.series(place));
            rows.push(access.json(place, source));
        }
    }
    println!("\npaper (figure 5, 2.13 GHz):");
    for (what, took) in paper::LATENCY {
        println!("  {what}: {took}");
    }
    // The overhead of the method is in the table; the picture shows only clocks.
    series.retain(|s| !s.name.starts_with("nothing"));
    let axes = ["ns an access", "share of accesses within this"];
    plot::write(NAME, &plot::lines(NAME, axes, series, true))?;
    report::write(NAME, rows)
}

fn host(ctx: &Context) -> anyhow::Result<(Host, Chronyd)> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    Ok((host, server))
}

fn in_guest(
    ctx: &Context,
    host: &Host,
    span: Duration,
    name: &str,
    append: &str,
) -> anyhow::Result<Value> {
    let fleet = Fleet::new(ctx, &[PROGRAM])?.with(|builder| builder.append(append));
    let mut guest = fleet.launch(host, name, &[])?;
    host.wait_vm(name, "synchronized")?;
    interrupt::sleep(SETTLE)?;
    job::begin(
        &mut guest,
        &format!("{PROGRAM} {} {READS} page=/dev/vmclock0", span.as_secs_f64()),
    )?;
    interrupt::sleep(span)?;
    let found = job::end(&mut guest)?;
    ensure!(
        found["clocksource"] == name,
        "the guest runs on {}, not on the {name}",
        found["clocksource"]
    );
    Ok(found)
}

const HEAD: &str = "access to              n      min   5 %    p25  median    p75    IQR    95 %     p99       max, ns  | median, ticks";

/// One clock's accesses.
struct Access {
    clock: String,
    count: u64,
    tick_ns: f64,
    /// Ranks in per mille, and ticks.
    ticks: Vec<(u64, u64)>,
}

impl Access {
    fn parse(row: &Value, tick_ns: f64) -> anyhow::Result<Self> {
        // The ranks that lab-access reports.
        const RANKS: [u64; 9] = [0, 10, 50, 250, 500, 750, 950, 990, 1000];
        let ticks = row["ticks"].as_array().context("no ticks")?;
        ensure!(ticks.len() == RANKS.len(), "other ranks than here: {row}");
        let ticks = RANKS.iter().zip(ticks).map(|(rank, t)| Some((*rank, t.as_u64()?)));
        Ok(Self {
            clock: row["clock"].as_str().context("a row without a clock")?.to_owned(),
            count: row["count"].as_u64().context("no count")?,
            tick_ns,
            ticks: ticks.collect::<Option<_>>().context("ticks that are no numbers")?,
        })
    }

    fn ticks_at(&self, per_mille: u64) -> u64 {
        self.ticks.iter().find(|(rank, _)| *rank == per_mille).map_or(0, |(_, ticks)| *ticks)
    }

    fn ns(&self, per_mille: u64) -> f64 {
        self.ticks_at(per_mille) as f64 * self.tick_ns
    }

    fn line(&self) -> String {
        let iqr = self.ns(750) - self.ns(250);
        let [min, low, p25, median, p75, high, p99, max] =
            [0, 50, 250, 500, 750, 950, 990, 1000].map(|rank| self.ns(rank));
        format!(
            "{:<19} {:>7} {min:>6.0} {low:>6.0} {p25:>6.0} {median:>7.0} {p75:>6.0} {iqr:>6.0} {high:>7.0} {p99:>7.0} {max:>13.0}  | {}",
            self.clock,
            self.count,
            self.ticks_at(500)
        )
    }

    /// The distribution without its longest percent.
    fn series(&self, place: &str) -> Series {
        let points = self.ticks.iter().filter(|(rank, _)| *rank <= 990);
        // A logarithmic axis has no zero.
        let points =
            points.map(|(rank, t)| ((*t as f64 * self.tick_ns).max(1.0), *rank as f64 / 1e3));
        Series { name: format!("{}, {place}", self.clock), points: points.collect() }
    }

    fn json(&self, place: &str, clocksource: &str) -> Value {
        json!({"place": place, "clocksource": clocksource, "clock": self.clock, "count": self.count,
               "tick_ns": self.tick_ns, "per_mille_and_ticks": self.ticks})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_lab_access() {
        let row =
            json!({"clock": "TSC", "count": 9, "ticks": [20, 20, 20, 40, 60, 80, 100, 120, 9000]});
        let access = Access::parse(&row, 0.5).unwrap();
        assert_eq!((access.ticks_at(500), access.ns(250), access.ns(1000)), (60, 20.0, 4500.0));
        assert_eq!(access.series("native").points.last(), Some(&(60.0, 0.99)));
        assert!(access.line().contains("| 60"), "{}", access.line());
        assert!(Access::parse(&json!({"clock": "TSC", "count": 9, "ticks": [1]}), 0.5).is_err());
    }
}
