//! Table I: the cost of reading each clock natively, in a guest with the page, and in a guest whose
//! clocksource is an emulated HPET and whose clock is synchronized inside.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use timevisor_lab::host::Host;
use timevisor_lab::scenario::Context;

use super::fleet::Fleet;
use super::latency::{self, Latency, READS};
use super::paper::{PAGE, TABLE_1};
use super::report;
use super::subject::{Options, Subject};

const PROGRAM: &str = "lab-latency";

pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let each = span / 3;
    println!(
        "  method: adjacent reads in a loop; rounds of {READS} reads (paper: 1000 rounds of 1000000)"
    );
    let places = [native(ctx, each)?, with_page(ctx, each)?, with_hpet(ctx, each)?];
    let titles = ["native", "guest with the page", "guest with emulated HPET"];
    let mut rows = Vec::new();
    for ((place, title), paper) in places.iter().zip(titles).zip(&TABLE_1) {
        println!("\n{title}: clocksource {}, {} rounds", place.clocksource, place.rounds);
        println!(
            "clock                           min     mean   median        sd  x native  | paper: min     mean        sd  x native"
        );
        for row in &place.rows {
            let native = places[0].rows.iter().find(|r| r.clock == row.clock);
            let ratio = native.map(|native| row.mean / native.mean);
            let beside = paper.iter().zip(&TABLE_1[0]).find(|(p, _)| p.clock == row.clock);
            println!(
                "{:<28} {:>6.1} {:>8.1} {:>8.1} {:>9.1} {:>9}  | {}",
                described(&row.clock),
                row.min,
                row.mean,
                row.median,
                row.sd,
                ratio.map_or("-".into(), |r| format!("{r:.1}")),
                beside.map_or("-".into(), |(p, n)| format!(
                    "{:>10.0} {:>8.2} {:>9.2} {:>9.1}",
                    p.min,
                    p.mean,
                    p.sd,
                    p.mean / n.mean
                ))
            );
            let mut out = row.json();
            out["place"] = json!(title);
            out["clocksource"] = json!(place.clocksource);
            out["rounds"] = json!(place.rounds);
            out["reads"] = json!(READS);
            out["times_native"] = json!(ratio);
            out["paper"] = beside.map_or(Value::Null, |(p, n)| {
                json!({"min_ns": p.min, "mean_ns": p.mean, "sd_ns": p.sd, "times_native": p.mean / n.mean})
            });
            rows.push(out);
        }
        print_ratio(place, paper)?;
    }
    report::write("quartzv-table1", rows)
}

/// Prints how much more expensive the timeline clock is than the kernel's.
fn print_ratio(place: &Latency, paper: &[super::paper::Latency; 4]) -> anyhow::Result<()> {
    let ours = place.row(PAGE)?.mean / place.row("CLOCK_MONOTONIC")?.mean;
    println!("page / CLOCK_MONOTONIC: {ours:.2}, paper {:.2}", paper[3].mean / paper[2].mean);
    Ok(())
}

fn described(clock: &str) -> String {
    match clock {
        PAGE => "page (timevisor read)".into(),
        "vmclock" => "host's page, from the TSC".into(),
        other => other.into(),
    }
}

fn host(ctx: &Context) -> anyhow::Result<(Host, timevisor_lab::chronyd::Chronyd)> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    Ok((host, server))
}

fn native(ctx: &Context, span: Duration) -> anyhow::Result<Latency> {
    let (host, _server) = host(ctx)?;
    let program = ctx.program("timevisor-lab-guest", PROGRAM)?;
    latency::native(&program, span, &host.directory().join("clock"))
}

fn with_page(ctx: &Context, span: Duration) -> anyhow::Result<Latency> {
    let (host, _server) = host(ctx)?;
    let mut guest = Fleet::new(ctx, &[PROGRAM])?.launch(&host, "page", &[])?;
    host.wait_vm("page", "synchronized")?;
    // The kernel switches from its early clocksource to the final one about 2 s after the boot.
    timevisor_lab::interrupt::sleep(Duration::from_secs(5))?;
    latency::begin(&mut guest, span, "page=/dev/vmclock0")?;
    timevisor_lab::interrupt::sleep(span)?;
    latency::end(&mut guest)
}

/// In its fully virtual guest, QuartzV's timeline clock is a projection of CLOCK_MONOTONIC, which
/// here reads the HPET. So is the page of a timevisord inside the guest that uses
/// CLOCK_MONOTONIC_RAW. The host's page uses the TSC, whatever the kernel does.
fn with_hpet(ctx: &Context, span: Duration) -> anyhow::Result<Latency> {
    let options =
        Options { append: "clocksource=hpet", programs: &[PROGRAM], ..Options::default() };
    let mut subject = Subject::start(ctx, options)?;
    let guest = subject.guest();
    latency::begin(guest, span, "page=/run/timevisor/clock vmclock=/dev/vmclock0")?;
    timevisor_lab::interrupt::sleep(span)?;
    let latency = latency::end(guest)?;
    ensure!(
        latency.clocksource == "hpet",
        "the guest runs on {}, not on the HPET; has this QEMU an HPET (-machine hpet=on)?",
        latency.clocksource
    );
    Ok(latency)
}
