//! The cost of a call in a guest under KVM, depending on how it is introspected. Exits of a guest
//! on an emulated host are emulated, too, and cost more relative to a call than on a real
//! processor. A trapped call is therefore compared with a bare exit of the same kind, which is the
//! same trap without an observer.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::introspection::nested::{VM, attach, detach, host_with_guest};
use timevisor_lab::nested::NestedHost;
use timevisor_lab::scenario::Context;

use super::super::report;
use super::super::statistics::quantile;
use super::table::{self, Row};

const NAME: &str = "kairos-latency-kvm";
/// Number of calls of each kind in a run, as in the paper.
const TIMES: &str = "1000";
/// Time limit for one program in the inner guest.
const PATIENCE: Duration = Duration::from_secs(200);
/// Consecutive calls, one in a hundred of which our introspection traps.
const WORK: u32 = 5000;
/// Minimum number of rounds.
const ROUNDS: usize = 5;

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    on_host(ctx, span, "trixie-backports", NAME)
}

pub(crate) fn run_bookworm(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    on_host(ctx, span, "bookworm", "kairos-latency-kvm-bookworm")
}

/// Measures on a host with the kernel of this suite.
fn on_host(ctx: &Context, span: Duration, suite: &str, name: &str) -> anyhow::Result<()> {
    let program = ctx.program("timevisor-lab-guest", "lab-call-costs")?;
    let mut host = host_with_guest(ctx, suite, |image| Ok(image.program(&program)))?;
    let line = format!("lab-call-costs {TIMES}");
    let inside = |host: &mut NestedHost, line: &str| -> anyhow::Result<Value> {
        let said = host.inner_sh(VM, line, PATIENCE)?;
        serde_json::from_str(said.trim()).with_context(|| said.clone())
    };
    let mut rows = [
        "the host itself",
        "guest",
        "guest, --backend kvm",
        "its traps, nobody looks",
        "guest, --backend port",
        "its traps, nobody looks",
    ]
    .map(Row::new);
    let end = Instant::now() + span;
    while rows[0].said.len() < ROUNDS || Instant::now() < end {
        rows[0].said.push(host.json(&line)?);
        rows[1].said.push(inside(&mut host, &line)?);
        for (index, way, more) in [(2, "kvm", " prefix"), (4, "port", "")] {
            attach(&mut host, way)?;
            rows[index].said.push(inside(&mut host, &format!("{line}{more}"))?);
            // The traps stay in place while the host's programs are killed.
            host.sh("kill -9 $(pidof timevisord)")?;
            rows[index + 1].said.push(inside(&mut host, &line)?);
            host.start_daemon()?;
            host.wait("the VM to be found again", |host| Ok(host.vm(VM).is_ok()))?;
        }
    }
    let none = &rows[1];
    let mut told = table::print(&rows.each_ref(), none)?;
    println!();
    for of in rows[2..].chunks_exact(2) {
        let [row, bare] = of else { continue };
        let (trap, exit) = (table::trap(row, none)?, table::trap(bare, none)?);
        let ([least, times, most], [low, high]) =
            (table::times(row, bare, none)?, table::untrapped(row, none)?);
        println!(
            "{}: a trap adds {trap:.0} ticks to sched_yield, in the median round {times:.3} times the bare exit ({exit:.0}; least {least:.3}, most {most:.3}); not trapped, introspected / not: {low:.3} to {high:.3}",
            row.name
        );
        told.push(json!({"row": row.name, "bare_ticks": exit, "trap_ticks": trap, "ratio": times, "ratio_least": least, "ratio_most": most, "untrapped": [low, high]}));
    }
    println!(
        "a NOP behind KVM's prefix, in the guest's program, takes {:.0} ticks",
        rows[2].median("bare")?
    );
    // This comes last, because a guest that exits on every call takes very long on an emulated
    // host.
    let work = format!("lab-call-costs work {WORK}");
    let (mut every, mut works) =
        (Row::new("guest, --backend port, every call"), [(); 3].map(|()| Vec::new()));
    for _ in 0..ROUNDS {
        for (ticks, more) in
            works.iter_mut().zip([None, Some("port"), Some("port --every-system-call")])
        {
            if let Some(way) = more {
                attach(&mut host, way)?;
            }
            let said = inside(&mut host, &work)?;
            ticks.push(said["ticks"].as_f64().with_context(|| said.to_string())?);
            if more.is_some_and(|way| way.contains("every")) {
                every.said.push(inside(&mut host, &line)?);
            }
            if more.is_some() {
                detach(&mut host)?;
            }
        }
    }
    println!();
    told.extend(table::print(&[&every], none)?);
    let [without, ours, every] = works.map(|all| quantile(&all, 0.5));
    println!(
        "{WORK} calls, one in a hundred trapped by ours, --backend port: ours adds {:.2} times what they take, every call trapped {:.2} times: {:.1} times as much",
        ours / without - 1.0,
        every / without - 1.0,
        (every - without) / (ours - without)
    );
    told.push(
        json!({"calls": WORK, "ticks": without, "ticks_ours": ours, "ticks_every_call": every}),
    );
    println!(
        "\nThe paper, on hardware (figure 6 and its text): calls that KairosVM traps take 7 to 10 times as long as under KVM alone, others the same."
    );
    report::write(name, told)
}
