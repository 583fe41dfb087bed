//! The kernel's own ways to keep a floor of processor time, measured without timevisord: the fair server of Linux
//! 6.12 and later, beside SCHED_DEADLINE; and by how much budgets are exceeded with and without HRTICK_DL.
//! Decision 71 and docs/how-to/reserve.md are made of this.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::guest::Guest;
use crate::scenario::Context;

const SECONDS: u64 = 5;
/// 28 of 50 ms.
const WANTED: f64 = 0.56;

pub(crate) fn floors(ctx: &Context) -> anyhow::Result<String> {
    let kernel = ctx.kernel("trixie-backports")?;
    let program = ctx.program("timevisor-lab-guest", "lab-floors")?;
    let cli = ctx.program("timevisor", "timevisor")?;
    let image = ctx.image(&kernel)?.program(&program).program(&cli);
    let mut guest = ctx.guest(&ctx.qemu_10()?, &kernel, &image)?.cpus(2).start()?;
    guest.wait_ready()?;
    guest.sh(
        "mount -t cgroup2 none /sys/fs/cgroup; mount -t debugfs none /sys/kernel/debug; true",
    )?;
    let said =
        guest.sh_within(&format!("lab-floors {SECONDS}"), std::time::Duration::from_secs(120))?;
    let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    let of = |name: &str| -> anyhow::Result<(f64, f64)> {
        let row = said["rows"].as_array().and_then(|rows| rows.iter().find(|r| r["row"] == name));
        let row = row.with_context(|| format!("no {name} in {said}"))?;
        let value = |name: &str| row[name].as_f64().with_context(|| format!("no {name} in {row}"));
        Ok((value("share")?, value("longest_gap_ms")?))
    };
    let told: Vec<String> = ["default", "server", "shared", "weighted", "deadline"]
        .into_iter()
        .map(|name| {
            let (share, gap) = of(name)?;
            Ok(format!("{name} {:.1} %, longest gap {gap:.1} ms", share * 100.0))
        })
        .collect::<anyhow::Result<_>>()?;
    let told = format!("Linux {}: {}", kernel.version, told.join("; "));
    // The floor is one of all ordinary threads together: a VM's part of it depends on the others.
    ensure!(of("default")?.0 < 0.2, "the fair server's default is a floor already: {told}");
    ensure!(of("server")?.0 > WANTED * 0.8, "a fair server of 28 of 50 ms is not kept: {told}");
    ensure!(of("shared")?.0 < WANTED * 0.5, "a fair server is not shared: {told}");
    ensure!(of("deadline")?.0 > WANTED * 0.9, "SCHED_DEADLINE was not kept: {told}");
    let finer = enforced(&mut guest)?;
    Ok(format!("{told}; {finer}"))
}

/// The tick that `reserve measure` finds, as the kernel comes and with budgets that a timer ends.
fn enforced(guest: &mut Guest) -> anyhow::Result<String> {
    let features = guest.sh("cat /sys/kernel/debug/sched/features")?;
    let as_it_comes = features.split_whitespace().find(|name| name.ends_with("HRTICK_DL"));
    let as_it_comes = as_it_comes.with_context(|| format!("no HRTICK_DL in {features}"))?;
    let as_it_comes = as_it_comes.to_owned();
    let mut tick = |feature: &str| -> anyhow::Result<f64> {
        guest.sh(&format!("echo {feature} >/sys/kernel/debug/sched/features"))?;
        let said = guest.sh_within(
            "timevisor reserve measure --core 0 --duration 9s --json 2>/dev/null",
            std::time::Duration::from_secs(120),
        )?;
        let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
        Ok(said["tick_ns"].as_f64().with_context(|| said.to_string())? / 1e6)
    };
    let [by_tick, by_timer] = [tick("NO_HRTICK_DL")?, tick("HRTICK_DL")?];
    let told = format!(
        "{as_it_comes} as it comes; budgets are exceeded by up to {by_tick:.2} ms by ticks, and {by_timer:.2} ms by a timer"
    );
    ensure!(by_timer < by_tick && by_timer < 4.0, "a timer is no finer: {told}");
    Ok(told)
}
