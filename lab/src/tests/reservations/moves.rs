//! A reservation moves from core to core on a host inside a guest, with four cores, the real KVM, Linux 7.3
//! and cgroup v2; the vCPU does not leave SCHED_DEADLINE.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::host::mentions;
use crate::nested::NestedHost;
use crate::scenario::Context;
use crate::tests::reservations::kvm::settings_of;
use crate::tests::reservations::reserve::same;

const VM: &str = "guest";
const CORES: u32 = 4;
/// One second in the VM may take several seconds.
const PATIENCE: Duration = Duration::from_secs(600);
/// Asleep and busy by turns.
const WAY: [u64; 6] = [2, 3, 1, 3, 2, 1];
/// SCHED_DEADLINE.
const DEADLINE: u64 = 6;

fn row(host: &mut NestedHost) -> anyhow::Result<Value> {
    Ok(host.json("timevisor reserve list --json")?[0].clone())
}

/// How long the thread has run, ns, and its policy and last core.
fn thread(host: &mut NestedHost, pid: u64, tid: u64) -> anyhow::Result<(u64, u64, u64)> {
    let said = host.sh(&format!(
        "cut -d ' ' -f 1 /proc/{pid}/task/{tid}/schedstat; sed 's/.*) //' /proc/{pid}/task/{tid}/stat | cut -d ' ' -f 37,39"
    ))?;
    let mut words = said.split_whitespace().map(str::parse);
    let mut next = || anyhow::Ok(words.next().context("too few")??);
    let (ran, core) = (next()?, next()?);
    Ok((ran, next()?, core))
}

pub(crate) fn moves(ctx: &Context) -> anyhow::Result<String> {
    let (kernel, qemu) = (ctx.kernel("trixie-backports")?, ctx.qemu_10()?);
    let kernels = [&kernel, &kernel];
    let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, kernels, CORES, "", Ok)?;
    host.sh("mount -t cgroup2 none /sys/fs/cgroup")?;
    host.launch(VM, "vmclock", 1)?;
    host.qmp(VM, "cont")?;
    host.wait_ready(VM, 1)?;
    let pid = host.vm(VM)?["pid"].as_u64().context("no pid")?;
    let before = settings_of(&mut host, pid)?;

    host.sh(&format!("timevisor reserve apply {VM} --core 1 --budget 20ms/50ms"))?;
    let held = row(&mut host)?;
    ensure!(held["core"] == 1 && held["problem"].is_null(), "{held}");
    let tid = held["tid"].as_u64().context("no tid")?;
    let refused = |host: &mut NestedHost, core: u64| {
        host.sh(&format!("timevisor reserve move {VM} --core {core} 2>&1; true"))
    };
    mentions(&refused(&mut host, 1)?, &["on core 1 already"])?;
    mentions(&refused(&mut host, 9)?, &["not moved to core 9", "0-3"])?;
    ensure!(row(&mut host)?["core"] == 1, "it moved");

    // What the thread's policy is, a thousand times and more, while it moves.
    host.sh(&format!(
        "while [ -d /proc/{pid}/task/{tid} ]; do sed 's/.*) //' /proc/{pid}/task/{tid}/stat | cut -d ' ' -f 39; done \
         >/run/policies 2>/dev/null & echo $! >/run/watch"
    ))?;
    let mut took = Vec::new();
    for (n, core) in WAY.into_iter().enumerate() {
        let busy = n % 2 == 1;
        if busy {
            host.inner_sh(
                VM,
                "(while :; do :; done) >/dev/null 2>&1 & echo $! >/run/busy",
                PATIENCE,
            )?;
        }
        let said = host.sh(&format!(
            "cat /proc/uptime; timevisor reserve move {VM} --core {core} 2>&1; cat /proc/uptime"
        ))?;
        let uptimes: Vec<f64> =
            said.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok()).collect();
        ensure!(uptimes.len() == 2, "{said}");
        took.push((uptimes[1] - uptimes[0]) * 1e3);
        let held = row(&mut host)?;
        ensure!(held["core"] == core && held["problem"].is_null(), "{held}; {said}");
        let (ran, policy, on) = thread(&mut host, pid, tid)?;
        ensure!(policy == DEADLINE && on == core, "policy {policy} on core {on}, not {core}");
        // It goes on there.
        host.wait("the vCPU to run on its new core", |host| Ok(thread(host, pid, tid)?.0 > ran))?;
        let groups = host.sh("ls -d /sys/fs/cgroup/timevisor-cpu*")?;
        ensure!(groups.trim() == format!("/sys/fs/cgroup/timevisor-cpu{core}"), "{groups}");
        if busy {
            host.inner_sh(VM, "kill $(cat /run/busy)", PATIENCE)?;
        }
    }
    let policies = host.sh("kill $(cat /run/watch); sort /run/policies | uniq -c")?;
    let words: Vec<&str> = policies.split_whitespace().collect();
    let [count, "6"] = words[..] else { anyhow::bail!("other policies: {policies}") };
    let audit = host.json("timevisor reserve audit --json")?[0]["audit"].clone();
    mentions(&host.logs(400), &["moved from core 1 to core 2", "moved from core 2 to core 1"])?;

    // The next daemon goes on with it where it is.
    host.sh("kill -9 $(pidof timevisord); sleep 1")?;
    host.start_daemon()?;
    ensure!(row(&mut host)?["core"] == 1, "{}", row(&mut host)?);
    host.sh(&format!("timevisor reserve release {VM}"))?;
    same(&before, &settings_of(&mut host, pid)?).context("after the release")?;
    Ok(format!(
        "{} moves, each at once on its new core; the policy read {count} times was SCHED_DEADLINE; the command took {took:.0?} ms \
         under emulation; audit {audit}",
        WAY.len()
    ))
}
