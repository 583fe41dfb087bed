//! What a call takes in a guest under KVM, by how it is introspected. Exits of a guest on an emulated host are emulated, too, and cost more,
//! beside a call, than a processor's: a trapped call is compared with a bare exit of its kind.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::report;
use super::table::{self, Row};
use crate::nested::NestedHost;
use crate::scenario::Context;
use crate::tests::introspect_kvm::{VM, attach, detach, host_with_guest};

const NAME: &str = "kairos-latency-kvm";
/// Of each kind in a run, as in the paper.
const TIMES: &str = "1000";
/// For one program in the inner guest.
const PATIENCE: Duration = Duration::from_secs(200);
/// At least.
const ROUNDS: usize = 3;

pub(in super::super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let program = ctx.program("timevisor-lab-guest", "lab-call-costs")?;
    let mut host =
        host_with_guest(ctx, "trixie-backports", "", |image| Ok(image.program(&program)))?;
    let line = format!("lab-call-costs {TIMES}");
    let inside = |host: &mut NestedHost, line: &str| -> anyhow::Result<Value> {
        let said = host.inner_sh(VM, line, PATIENCE)?;
        serde_json::from_str(said.trim()).with_context(|| said.clone())
    };
    let names = ["the host itself", "guest", "guest, --backend kvm", "guest, --backend port"];
    let mut rows = names.map(Row::new);
    let end = Instant::now() + span;
    while rows[0].said.len() < ROUNDS || Instant::now() < end {
        rows[0].said.push(host.json(&line)?);
        rows[1].said.push(inside(&mut host, &line)?);
        for (index, way, bare) in [(2, "kvm", " prefix"), (3, "port", "")] {
            attach(&mut host, way)?;
            rows[index].said.push(inside(&mut host, &format!("{line}{bare}"))?);
            detach(&mut host)?;
        }
    }
    let none = &rows[1];
    let mut told = table::print(&rows.each_ref(), none)?;
    let bare = rows[2].median("bare")?;
    println!("\na bare exit by the prefix takes {bare:.0} ticks");
    for row in &rows[2..] {
        let trap = table::trap(row, none)?;
        let [low, high] = table::untrapped(row, none)?;
        println!(
            "{}: a trap adds {trap:.0} ticks to sched_yield, {:.2} times that exit; not trapped, introspected / not: {low:.3} to {high:.3}",
            row.name,
            trap / bare
        );
        told.push(json!({"row": row.name, "bare_ticks": bare, "trap_ticks": trap, "untrapped": [low, high]}));
    }
    println!(
        "\nThe paper, on hardware (figure 6 and its text): calls that KairosVM traps take 7 to 10 times as long as under KVM alone, others the same."
    );
    report::write(NAME, told)
}
