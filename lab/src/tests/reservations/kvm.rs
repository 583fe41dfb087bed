//! Reservations under the real KVM and cgroup v2, on a host inside a guest ([`Inside`]).

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::interrupt::in_time;
use crate::real_time::{Inside, Responses, VM, text};
use crate::scenario::Context;
use crate::tests::reservations::reserve::same;

const SECONDS: u64 = 9;
/// Everything that a reservation touches: of each thread policy and priority, processors, cgroup; cgroups; halt polling.
fn settings(inside: &mut Inside, pid: u64) -> anyhow::Result<BTreeMap<String, String>> {
    let threads = format!(
        "for t in /proc/{pid}/task/*; do echo \"${{t##*/}} $(sed \'s/.*) //\' $t/stat | cut -d \' \' -f 38,39) \
         $(grep Cpus_allowed_list $t/status) $(cat $t/cgroup)\"; done"
    );
    let files = "for f in $(find /sys/fs/cgroup -type d) /sys/fs/cgroup/cgroup.subtree_control \
                 /sys/module/kvm/parameters/halt_poll_ns; do echo \"$f $(cat $f 2>/dev/null)\"; done";
    let mut all = BTreeMap::new();
    for line in [threads.as_str(), files] {
        for row in inside.host.sh(line)?.lines() {
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
    let mut without = inside.run(SECONDS, false)?;
    let mut told = vec![format!("without: {}", text(&without))];
    let is_loaded = |run: &[Responses]| run[1].misses() * 2 > run[1].ms.len();
    for _ in 0..2 {
        if !is_loaded(&without) {
            // Jobs are shorter than they were declared: this machine was slow when they were measured.
            inside.unload()?;
            inside.calibrate()?;
            inside.load()?;
            without = inside.run(SECONDS, false)?;
            told.push(format!("measured anew, without: {}", text(&without)));
        }
    }
    let missed = |run: &[Responses]| run.iter().map(Responses::misses).sum::<usize>();
    for (budget, hog) in [(28_000, false), (32_000, true)] {
        inside.reserve(budget, 50_000)?;
        let guest = if hog { " and a busy guest" } else { "" };
        // What else this machine does may make the whole host inside slow for a while; a reservation that is of no use is so always.
        let kept = (0..3).try_fold(false, |kept, _| -> anyhow::Result<bool> {
            if kept {
                return Ok(true);
            }
            let found = inside.run(SECONDS, hog)?;
            told.push(format!("{} of 50 ms{guest}: {}", budget / 1000, text(&found)));
            Ok(missed(&found) * 4 < missed(&without))
        })?;
        in_time(kept, || format!("the reservation is of no use: {told:?}"))?;
    }
    in_time(is_loaded(&without), || format!("the host was not loaded: {told:?}"))?;
    let audit = inside.host.json("timevisor reserve audit --json")?[0]["audit"].clone();
    let of = |name: &str| audit[name].as_u64().context("no audit");
    // The host inside stands still whenever the one outside does, and owes its guest what it could not give.
    ensure!(of("exhausted")? > 0, "{audit}");
    in_time(of("broken")? * 4 <= of("exhausted")?, || format!("the host inside owes: {audit}"))?;
    let during = settings(&mut inside, pid)?;
    ensure!(during["/sys/module/kvm/parameters/halt_poll_ns"] == "0", "{during:?}");
    ensure!(during.contains_key("/sys/fs/cgroup/timevisor-cpu1"), "{during:?}");

    // A daemon that dies leaves it in force, the next one goes on with it, and brings everything back.
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

/// What is configured is there without being asked for, and a release by hand has the last word.
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
