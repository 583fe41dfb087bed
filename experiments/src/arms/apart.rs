//! Keeps all other programs of an experiment off the processor that a guest's vCPU has reserved.
//!
//! With cgroup v2 the kernel does that. With cgroup v1 programs stay where they were started, and no load is balanced
//! any more: those on the reserved processor get what the reservation leaves, while the other one may be idle.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Context as _;
use timevisor_lab::command;
use timevisor_linux::affinity;
use timevisor_linux::scheduling::{Attributes, Policy, threads};

const NICE: &str = "-15";

/// Moves this process and all that it started to the processors that no thread of `qemu` has reserved.
pub(super) fn leave_reserved(qemu: u32) -> anyhow::Result<()> {
    let mut rest = affinity::online()?;
    for thread in threads(qemu)? {
        if is_reserved(thread.tid) {
            let reserved = affinity::allowed_of(thread.tid)?;
            rest.retain(|processor| !reserved.contains(processor));
        }
    }
    allow(&rest)
}

/// Lets them use all processors.
pub(super) fn spread() -> anyhow::Result<()> {
    allow(&affinity::online()?)
}

/// Puts these processes on the processors in turn.
pub(super) fn deal(pids: impl Iterator<Item = u32>) -> anyhow::Result<()> {
    let online = affinity::online()?;
    for (pid, processor) in pids.zip(online.iter().cycle()) {
        affinity::allow(pid, &[*processor])?;
    }
    Ok(())
}

/// Prefers a process to others without a real-time priority. (With one, a guest's processor would keep QEMU's main loop
/// from running, which its timer's interrupts come from.)
pub(super) fn prefer(pid: u32) -> anyhow::Result<()> {
    let tids = threads(pid)?.into_iter().map(|thread| thread.tid.to_string());
    let words = ["-n", NICE, "-p"].into_iter().map(str::to_owned).chain(tids);
    command::run("renice", &words.collect::<Vec<_>>()).map(drop)
}

fn is_reserved(tid: u32) -> bool {
    Attributes::of(tid).is_ok_and(|it| it.policy == Policy::DEADLINE)
}

fn allow(processors: &[usize]) -> anyhow::Result<()> {
    for pid in family(std::process::id())? {
        let Ok(threads) = threads(pid) else { continue };
        for thread in threads.into_iter().filter(|thread| !is_reserved(thread.tid)) {
            if let Err(error) = affinity::allow(thread.tid, processors) {
                let has_ended = !fs::exists(format!("/proc/{}", thread.tid))?;
                anyhow::ensure!(has_ended, "thread {} of {pid} stays: {error}", thread.tid);
            }
        }
    }
    Ok(())
}

/// A process and all that it and those have started.
fn family(first: u32) -> anyhow::Result<BTreeSet<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name is in parentheses and may contain any character; the state and the parent follow.
        let rest = stat.rsplit_once(')').context("a process without a name")?.1;
        parents.push((pid, rest.split_whitespace().nth(1).and_then(|it| it.parse().ok())));
    }
    let mut found = BTreeSet::from([first]);
    while parents.iter().any(|(pid, parent)| {
        parent.is_some_and(|it: u32| found.contains(&it)) && found.insert(*pid)
    }) {}
    Ok(found)
}
