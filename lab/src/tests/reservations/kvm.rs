//! Reservations under the real KVM and cgroup v2, on a host inside a guest ([`Inside`]).

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_schedule::Reservation;

use crate::nested::NestedHost;
use crate::real_time::judge::{self, Judgement, Promise};
use crate::real_time::{Inside, Responses, VM, text};
use crate::scenario::Context;
use crate::tests::reservations::reserve::same;

const SECONDS: u64 = 9;
/// Budget in a period of 50 ms; see [`super::reserve`].
const BUDGET_US: u64 = 32_000;

/// Everything that a reservation touches: each thread's policy, priority, processors and cgroup;
/// the cgroups; halt polling.
fn settings(inside: &mut Inside, pid: u64) -> anyhow::Result<BTreeMap<String, String>> {
    settings_of(&mut inside.host, pid)
}

/// The same of any host inside.
pub(crate) fn settings_of(
    host: &mut NestedHost,
    pid: u64,
) -> anyhow::Result<BTreeMap<String, String>> {
    let threads = format!(
        "for t in /proc/{pid}/task/*; do echo \"${{t##*/}} $(sed \'s/.*) //\' $t/stat | cut -d \' \' -f 38,39) \
         $(grep Cpus_allowed_list $t/status) $(cat $t/cgroup)\"; done"
    );
    let files = "for f in $(find /sys/fs/cgroup -type d) /sys/fs/cgroup/cgroup.subtree_control \
                 /sys/module/kvm/parameters/halt_poll_ns; do echo \"$f $(cat $f 2>/dev/null)\"; done";
    let mut all = BTreeMap::new();
    for line in [threads.as_str(), files] {
        for row in host.sh(line)?.lines() {
            let (name, value) = row.split_once(' ').unwrap_or((row, ""));
            all.insert(name.to_owned(), value.to_owned());
        }
    }
    ensure!(all.len() > 4, "nothing was read: {all:?}");
    Ok(all)
}

fn row(inside: &mut Inside) -> anyhow::Result<Value> {
    let rows = inside.host.json("timevisor reserve list --json")?;
    Ok(rows.get(0).cloned().unwrap_or(Value::Null))
}

fn audit(inside: &mut Inside) -> anyhow::Result<Value> {
    Ok(inside.host.json("timevisor reserve audit --json")?[0]["audit"].clone())
}

fn restart(inside: &mut Inside) -> anyhow::Result<()> {
    inside.host.sh("kill -9 $(pidof timevisord); sleep 1")?;
    inside.host.start_daemon()
}

pub(crate) fn reserve_kvm(ctx: &Context) -> anyhow::Result<String> {
    let mut inside = Inside::boot(ctx)?;
    let pid = inside.host.vm(VM)?["pid"].as_u64().context("no pid")?;
    let before = settings(&mut inside, pid)?;
    ensure!(before["/sys/module/kvm/parameters/halt_poll_ns"] != "0", "nothing to restore");

    inside.load()?;
    let without = inside.run(SECONDS, false)?;
    let mut told = vec![format!("without: {}", text(&without.found))];
    let is_late = |task: &Responses| task.misses() * 2 > task.ms.len();
    ensure!(without.found.iter().any(is_late), "in time without a reservation: {told:?}");
    let reservation = Reservation::alone(BUDGET_US * 1000, 50_000_000)?;
    let promise = Promise::unmeasured(reservation, judge::declared(100));
    for hog in [false, true] {
        inside.reserve(BUDGET_US, 50_000)?;
        let before = audit(&mut inside)?;
        let run = inside.run(SECONDS, hog)?;
        let judged = Judgement::of_jobs(&run.jobs, &promise, &run.stalls);
        let guest = if hog { " and a busy guest" } else { "" };
        let budget = BUDGET_US / 1000;
        told.push(format!("{budget} of 50 ms{guest}: {}; {judged}", text(&run.found)));
        judged.check().with_context(|| format!("{told:?}"))?;
        let after = audit(&mut inside)?;
        judge::owes_nothing(&before, &after, &run.stalls)?;
        // A busy guest wants more than its budget.
        ensure!(!hog || after["exhausted"].as_u64().context("no audit")? > 0, "{after}");
    }
    let during = settings(&mut inside, pid)?;
    ensure!(during["/sys/module/kvm/parameters/halt_poll_ns"] == "0", "{during:?}");
    ensure!(during.contains_key("/sys/fs/cgroup/timevisor-cpu1"), "{during:?}");

    // When the daemon dies, the reservation stays in force; the next daemon continues it and
    // restores everything.
    restart(&mut inside)?;
    let held = row(&mut inside)?;
    ensure!(held["budget_ns"] == 32_000_000 && held["problem"].is_null(), "{held}");
    inside.release()?;
    same(&before, &settings(&mut inside, pid)?).context("after the release")?;
    inside.unload()?;

    configured(&mut inside)?;
    inside.host.qmp(VM, "quit")?;
    inside.host.wait("the core to be given back", |host| {
        Ok(host.json("timevisor reserve list --json")?.as_array().is_some_and(Vec::is_empty))
    })?;
    let after = inside.host.sh("ls -d /sys/fs/cgroup/timevisor-* 2>/dev/null || true")?;
    ensure!(after.trim().is_empty(), "left behind: {after}");
    Ok(told.join("; "))
}

/// A configured reservation is applied without a request, and a release by hand takes precedence.
fn configured(inside: &mut Inside) -> anyhow::Result<()> {
    let table = format!("[[guests.vm.{VM}.reserve]]\\nbudget = \"20ms\"\\nperiod = \"50ms\"\\n");
    inside.host.sh(&format!("printf \'\\n{table}\' >>/etc/timevisord.toml"))?;
    restart(inside)?;
    inside.host.wait("the configured reservation", |host| {
        let rows = host.json("timevisor reserve list --json")?;
        Ok(rows[0]["budget_ns"] == 20_000_000 && rows[0]["problem"].is_null())
    })?;
    inside.release()?;
    inside.host.sh("sleep 3")?;
    let held = row(inside)?;
    ensure!(held.is_null(), "it was made again: {held}");
    restart(inside)?;
    inside.host.wait("the configured reservation", |host| {
        let rows = host.json("timevisor reserve list --json")?;
        Ok(rows[0]["budget_ns"] == 20_000_000)
    })
}
