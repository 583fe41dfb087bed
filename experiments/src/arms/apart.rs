//! Keeps all other programs of an experiment off the processor that a guest's vCPU has reserved.
//!
//! With cgroup v2 the kernel does that. With cgroup v1 programs stay where they were started, and no load is balanced
//! any more: those on the reserved processor get what the reservation leaves, while the other one may be idle.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;

use anyhow::{Context as _, ensure};
use timevisor_lab::command;
use timevisor_linux::affinity;
use timevisor_linux::scheduling::{Attributes, Policy, threads};

/// Moves this process and all that it started to the processors that no thread of `qemu` has reserved.
pub(super) fn leave_reserved(qemu: u32) -> anyhow::Result<()> {
    let online = affinity::online()?;
    let mut rest = online.clone();
    for thread in threads(qemu)? {
        if is_reserved(thread.tid) {
            let reserved = affinity::allowed_of(thread.tid)?;
            rest.retain(|processor| !reserved.contains(processor));
        }
    }
    ensure!(rest.len() < online.len(), "no processor is reserved for {qemu}");
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
        match affinity::allow(pid, &[*processor]) {
            // With cgroup v2 nobody else may use the reserved one.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {}
            done => done?,
        }
    }
    Ok(())
}

/// Sets a process's nice value, of all of its threads. (With a real-time priority instead, a guest's processor would
/// keep QEMU's main loop from running, which its timer's interrupts come from.)
pub(super) fn renice(pid: u32, nice: i32) -> anyhow::Result<()> {
    for thread in threads(pid)? {
        let tid = thread.tid.to_string();
        let done = command::run("renice", &["-n", &nice.to_string(), "-p", &tid]);
        if let Err(error) = done {
            ensure!(has_ended(thread.tid)?, "thread {tid} of {pid}: {error}");
        }
    }
    Ok(())
}

fn has_ended(tid: u32) -> anyhow::Result<bool> {
    Ok(!fs::exists(format!("/proc/{tid}"))?)
}

fn is_reserved(tid: u32) -> bool {
    Attributes::of(tid).is_ok_and(|it| it.policy == Policy::DEADLINE)
}

fn allow(processors: &[usize]) -> anyhow::Result<()> {
    for pid in family(std::process::id())? {
        let Ok(threads) = threads(pid) else { continue };
        for thread in threads.into_iter().filter(|thread| !is_reserved(thread.tid)) {
            if let Err(error) = affinity::allow(thread.tid, processors) {
                ensure!(has_ended(thread.tid)?, "thread {} of {pid} stays: {error}", thread.tid);
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
