//! Figure 15: read latency in 1 to 8 guests that read simultaneously.

use std::time::Duration;

use serde_json::json;
use timevisor_lab::host::Host;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::scenario::Context;

use super::fleet::Fleet;
use super::latency::{self, Latency, READS};
use super::report;

const NAME: &str = "quartzv-scale-read";
const GUESTS: [usize; 5] = [1, 2, 4, 6, 8];
const CLOCKS: [&str; 3] = ["TSC", "CLOCK_MONOTONIC", "page"];

pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let fleet = Fleet::new(ctx, &["lab-latency"])?;
    let each = span / u32::try_from(GUESTS.len())?;
    println!(
        "  rounds of {READS} reads; a guest that waits for a processor does so in the mean, not in the median"
    );
    println!(
        "\nns a read, over all guests: mean and median\nguests {}",
        CLOCKS.map(|c| format!("{c:>24}")).concat()
    );
    let (mut guests, mut rows) = (Vec::new(), Vec::new());
    let mut series: Vec<Series> = Vec::new();
    for clock in CLOCKS {
        for kind in ["mean", "median"] {
            series.push(Series { name: format!("{clock}, {kind}"), points: Vec::new() });
        }
    }
    for count in GUESTS {
        while guests.len() < count {
            let name = format!("reader-{}", guests.len());
            let guest = fleet.launch(&host, &name, &[])?;
            host.wait_vm(&name, "synchronized")?;
            guests.push(guest);
        }
        // The kernels of the newest guests need time to settle on their clocksource.
        timevisor_lab::interrupt::sleep(Duration::from_secs(4))?;
        for guest in &mut guests {
            latency::begin(guest, each, "page=/dev/vmclock0")?;
        }
        timevisor_lab::interrupt::sleep(each)?;
        let found = guests.iter_mut().map(latency::end).collect::<anyhow::Result<Vec<_>>>()?;
        print!("{count:<6} ");
        let mut row = json!({"guests": count, "reads": READS, "clocksource": found[0].clocksource,
                             "rounds": found.iter().map(|f| f.rounds).sum::<u64>()});
        for (n, clock) in CLOCKS.iter().enumerate() {
            let (mean, median) =
                (over(&found, clock, |r| r.mean)?, over(&found, clock, |r| r.median)?);
            let min = over(&found, clock, |r| r.min)?;
            print!("{mean:>13.1} {median:>10.1}");
            row[*clock] = json!({"mean_ns": mean, "median_ns": median, "min_ns": min});
            for (k, value) in [mean, median].into_iter().enumerate() {
                series[2 * n + k].points.push((count as f64, value));
            }
        }
        println!();
        rows.push(row);
    }
    let axes = ["guests that read at once", "ns a read"];
    plot::write(NAME, &plot::lines(NAME, axes, series, false))?;
    report::write(NAME, rows)
}

/// The mean over all guests.
fn over(found: &[Latency], clock: &str, of: fn(&latency::Row) -> f64) -> anyhow::Result<f64> {
    let values = found.iter().map(|f| f.row(clock).map(of)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(values.iter().sum::<f64>() / values.len().max(1) as f64)
}
