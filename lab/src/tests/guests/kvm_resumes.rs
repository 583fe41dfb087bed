//! A guest under real KVM is stopped and resumed many times: how long it runs until its page vouches for
//! the time again. Beside it stands how late this host wakes up a program that sleeps for 1 ms, before and
//! after: timevisord cannot answer QEMU faster than the host runs it.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::interrupt;
use crate::nested::{NestedHost, PERIODIC};
use crate::scenario::Context;
use crate::tests::cycles;

/// The default for the environment variable CYCLES.
const CYCLES: u32 = 100;
const NAME: &str = "resumes";
/// What issue and theory ask for, us.
const MEDIAN_US: f64 = 5000.0;
/// It is resumed at most so many times as often.
const MOST: u32 = 3;
/// Sleeps of 1 ms before, and after.
const NAPS: u32 = 500;

pub(crate) fn kvm_resumes(ctx: &Context) -> anyhow::Result<String> {
    let wanted = cycles(CYCLES)?;
    let kernel = ctx.kernel("trixie-backports")?;
    let qemu = ctx.qemu_10()?;
    let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, [&kernel, &kernel], 1, PERIODIC, Ok)?;
    host.launch(NAME, "vmclock", 1)?;
    host.qmp(NAME, "cont")?;
    host.wait_ready(NAME, 1)?;
    host.wait("its time", |host| Ok(host.vm(NAME)?["status"] == "synchronized"))?;
    let mut late = naps(&mut host)?;

    let begun =
        host.json(&format!("lab-compare ask /run/{NAME}.reader \"resumes {wanted} 1200\""))?;
    ensure!(begun["begun"] == true, "{begun}");
    // QEMU has one connection at a time.
    host.sh(&format!("lab-compare answer /run/{NAME}.reader >/run/report 2>&1 &"))?;
    // A guest that is stopped again before it has run sees one resume instead of two.
    let mut cycle = 0;
    while host.sh("test -s /run/report").is_err() {
        interrupt::check()?;
        cycle += 1;
        ensure!(cycle <= MOST * wanted, "the guest has not seen {wanted} resumes of {cycle}");
        host.qmp(NAME, "stop")?;
        host.wait("the page to be withdrawn", |host| Ok(host.vm(NAME)?["status"] == "unknown"))
            .with_context(|| format!("stop {cycle}"))?;
        host.qmp(NAME, "cont")?;
        host.wait("its time", |host| Ok(host.vm(NAME)?["status"] == "synchronized"))
            .with_context(|| format!("cont {cycle}"))?;
    }
    let report = host.json("cat /run/report")?;
    late.extend(naps(&mut host)?);
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads: {report}");
    }
    let us = numbers(&report["us"])?;
    let inside = report["inside"].as_u64().context("no count")?;
    let seen = us.len() as u64 + inside;
    ensure!(seen == u64::from(wanted), "{seen} resumes of {wanted} were seen: {report}");
    ensure!(us.len() as u64 >= inside, "most pauses were in the middle of a reading: {report}");
    let [median, most] = [50, 99].map(|percent| quantile(&us, percent));
    ensure!(median < MEDIAN_US, "half of the resumes took more than {median:.0} us: {us:?}");
    Ok(format!(
        "{wanted} resumes of {cycle}, {inside} of them in the middle of a reading; {} reads, none back or outside, {} said \
         unknown; until the page vouched again {:.3} ms (p50), {:.3} ms (p99), {:.3} ms at most; a program of the \
         host's that sleeps for 1 ms woke up late by {:.2} ms (p50), {:.2} ms (p99), {:.2} ms at most",
        report["reads"],
        report["unknown"],
        median / 1e3,
        most / 1e3,
        us[us.len() - 1] / 1e3,
        quantile(&late, 50) / 1e3,
        quantile(&late, 99) / 1e3,
        late.iter().copied().fold(0.0, f64::max) / 1e3,
    ))
}

/// How late the host wakes up a program, us.
fn naps(host: &mut NestedHost) -> anyhow::Result<Vec<f64>> {
    let said = host.json(&format!("lab-compare naps {NAPS}"))?;
    numbers(&said["late_us"])
}

/// In order.
fn numbers(found: &Value) -> anyhow::Result<Vec<f64>> {
    let all = found.as_array().with_context(|| format!("no numbers: {found}"))?;
    let mut all: Vec<f64> = all.iter().filter_map(Value::as_f64).collect();
    ensure!(!all.is_empty(), "no numbers: {found}");
    all.sort_by(f64::total_cmp);
    Ok(all)
}

/// Of numbers in any order.
fn quantile(all: &[f64], percent: usize) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all[(all.len() - 1) * percent / 100]
}
