//! Threads that QEMU starts while one of its vCPUs is reserved (a plugged vCPU, a worker that writes
//! blocks) inherit nothing from it, and afterwards all threads are as before.

use std::collections::BTreeMap;
use std::fs::File;

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_linux::affinity::allowed_of;
use timevisor_linux::scheduling::{Attributes, Policy, threads};

use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::real_time::Restore;
use crate::scenario::Context;
use crate::tests::faults::common::reference;
use crate::tests::faults::qemu::Bare;

const DISK: u64 = 64 << 20;
/// A second vCPU of -smp 1,maxcpus=2.
const CPU: &str = "qemu64-x86_64-cpu";

/// Policy and processors of each thread.
type Threads = BTreeMap<u32, (Policy, Vec<usize>)>;

fn all(pid: u32) -> anyhow::Result<Threads> {
    let mut all = Threads::new();
    for thread in threads(pid)? {
        // A worker may end meanwhile.
        if let (Ok(attributes), Ok(allowed)) = (Attributes::of(thread.tid), allowed_of(thread.tid))
        {
            all.insert(thread.tid, (attributes.policy, allowed));
        }
    }
    Ok(all)
}

pub(crate) fn inherits(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    host.start(&reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let _restore = Restore::of(&host);
    let disk = ctx.path("disk.raw");
    File::create(&disk)?.set_len(DISK)?;
    let printed = host.json(&["vm", "args", "--name", "web", "--memory", "64"])?;
    let words = printed["arguments"].as_array().context("no arguments")?;
    let mut words: Vec<&str> = words.iter().filter_map(serde_json::Value::as_str).collect();
    let device = format!("driver=file,node-name=disk,filename={}", disk.display());
    words.extend(["-cpu", "qemu64", "-smp", "1,maxcpus=2", "-blockdev", &device]);
    let qemu = Bare::start(ctx, &ctx.qemu()?, "web", &words)?;
    let pid: u32 = qemu.pid().parse()?;
    host.cli(&["vm", "add", "--qmp", &qemu.qmp_path().display().to_string(), "--name", "web"])?;
    host.wait_vm("web", "synchronized")?;
    let before = all(pid)?;

    host.cli(&["reserve", "apply", "web", "--budget", "10ms/50ms"])?;
    let reserved = all(pid)?;
    let deadline = |found: &Threads| {
        let is = |(_, (policy, _)): &(&u32, &(Policy, Vec<usize>))| *policy == Policy::DEADLINE;
        found.iter().find(is).map(|(tid, (_, allowed))| (*tid, allowed.clone()))
    };
    let (vcpu, core) = deadline(&reserved).context("no thread has a reservation")?;
    let mut qmp = qemu.qmp()?;
    let plugged = json!({"driver": CPU, "id": "c1", "socket-id": 0, "core-id": 1, "thread-id": 0});
    qmp.execute("device_add", &plugged)?;
    let write = json!({"command-line": "qemu-io disk \"write 0 1M\""});
    qmp.execute("human-monitor-command", &write)?;
    let born = interrupt::poll_until(std::time::Duration::from_secs(30), || {
        let now = all(pid)?;
        let new: Threads = now.into_iter().filter(|(tid, _)| !reserved.contains_key(tid)).collect();
        Ok((!new.is_empty()).then_some(new))
    })?;
    let born = born.context("QEMU has started no thread")?;
    for (tid, (policy, allowed)) in &born {
        ensure!(*policy == Policy::OTHER, "thread {tid} was born as {policy:?}");
        let shares = allowed.iter().any(|processor| core.contains(processor));
        ensure!(!shares, "thread {tid} may use {allowed:?}, and vCPU {vcpu} has {core:?}");
    }

    host.cli(&["reserve", "release", "web"])?;
    let after = all(pid)?;
    let usual = &before.get(&pid).context("no main thread")?.1;
    for (tid, (policy, allowed)) in &after {
        ensure!(*policy == Policy::OTHER, "thread {tid} stays {policy:?}");
        ensure!(allowed == usual, "thread {tid} may use {allowed:?} and not {usual:?}");
    }
    Ok(format!("{} threads were born during a reservation, each an ordinary one", born.len()))
}
