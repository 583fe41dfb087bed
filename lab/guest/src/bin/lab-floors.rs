//! lab-floors SECONDS: what the kernel's ways to keep a floor give one busy thread on processor 1, beside a
//! busy thread under SCHED_FIFO. Prints one line of JSON.
//!
//! | row | the thread | other ordinary threads | the fair server |
//! | --- | --- | --- | --- |
//! | `default` | ordinary | none | as the kernel has it |
//! | `server` | ordinary | none | 28 of 50 ms |
//! | `shared` | ordinary | three | 28 of 50 ms |
//! | `weighted` | ordinary, nice -20 | three | 28 of 50 ms |
//! | `deadline` | SCHED_DEADLINE, 28 of 50 ms, in a partition of its own | three | as the kernel has it |

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use timevisor_linux::affinity::pin;
use timevisor_linux::clock::{monotonic, thread_cpu_time};
use timevisor_linux::scheduling::Attributes;

const CORE: usize = 1;
const SERVER: &str = "/sys/kernel/debug/sched/fair_server/cpu1";
const PARTITION: &str = "/sys/fs/cgroup/floor";
const BUDGET: u64 = 28_000_000;
const PERIOD: u64 = 50_000_000;
/// A shorter time between two readings of the clock is the reading itself, ns.
const GAP: i64 = 500_000;

/// How the thread asks for its floor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Ordinary,
    Nice,
    Deadline,
}

fn main() -> Result<()> {
    let seconds: i64 = std::env::args().nth(1).context("usage: lab-floors SECONDS")?.parse()?;
    let read = |name: &str| -> Result<u64> {
        let path = format!("{SERVER}/{name}");
        Ok(fs::read_to_string(&path).with_context(|| path.clone())?.trim().parse()?)
    };
    let before = (read("runtime")?, read("period")?);
    let mut rows = vec![row("default", How::Ordinary, 0, seconds)?];
    // The period first: a runtime must fit in it.
    set(PERIOD, BUDGET)?;
    rows.push(row("server", How::Ordinary, 0, seconds)?);
    rows.push(row("shared", How::Ordinary, 3, seconds)?);
    rows.push(row("weighted", How::Nice, 3, seconds)?);
    fs::write(format!("{SERVER}/runtime"), before.0.to_string())?;
    fs::write(format!("{SERVER}/period"), before.1.to_string())?;
    // A partition, as timevisord makes one.
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset").context("no cgroup v2")?;
    fs::create_dir(PARTITION)?;
    fs::write(format!("{PARTITION}/cpuset.cpus"), CORE.to_string())?;
    fs::write(format!("{PARTITION}/cpuset.cpus.partition"), "root")?;
    fs::write(format!("{PARTITION}/cgroup.procs"), std::process::id().to_string())?;
    rows.push(row("deadline", How::Deadline, 3, seconds)?);
    println!("{}", json!({"server_ns": [before.0, before.1], "rows": rows}));
    Ok(())
}

fn set(period: u64, runtime: u64) -> Result<()> {
    for (name, value) in [("period", period), ("runtime", runtime)] {
        let path = format!("{SERVER}/{name}");
        fs::write(&path, value.to_string()).with_context(|| path.clone())?;
    }
    Ok(())
}

fn row(name: &str, how: How, others: usize, seconds: i64) -> Result<Value> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = |attributes: Option<Attributes>| {
            let stop = &stop;
            scope.spawn(move || -> Result<()> {
                pin(CORE)?;
                if let Some(attributes) = attributes {
                    attributes.set(0)?;
                }
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                Ok(())
            })
        };
        let watched = scope.spawn(|| {
            let watched = watch(how, seconds);
            stop.store(true, Ordering::Relaxed);
            watched
        });
        let mut all: Vec<_> = (0..others).map(|_| busy(None)).collect();
        all.push(busy(Some(Attributes::fifo(50))));
        let (share, longest) = watched.join().ok().context("it panicked")??;
        for thread in all {
            thread.join().ok().context("a busy thread panicked")??;
        }
        Ok(json!({"row": name, "share": share, "longest_gap_ms": longest}))
    })
}

/// The share of the processor that this thread gets, and the longest time without it, ms.
fn watch(how: How, seconds: i64) -> Result<(f64, f64)> {
    pin(CORE)?;
    match how {
        How::Ordinary => {}
        How::Nice => Attributes { nice: -20, ..Attributes::other() }.set(0)?,
        How::Deadline => Attributes::deadline(BUDGET, PERIOD, PERIOD).set(0)?,
    }
    // The others need a moment to be there.
    let begin = monotonic().floor_nanos() + 500_000_000;
    let (mut from, mut ran, mut longest) = (0, 0, 0);
    let mut last = monotonic().floor_nanos();
    loop {
        let now = monotonic().floor_nanos();
        if from == 0 && now >= begin {
            (from, ran) = (now, thread_cpu_time().floor_nanos());
        } else if from > 0 && now - last > GAP {
            longest = longest.max(now - last);
        }
        last = now;
        if from > 0 && now - from >= seconds * 1_000_000_000 {
            let ran = thread_cpu_time().floor_nanos() - ran;
            return Ok((ran as f64 / (now - from) as f64, longest as f64 / 1e6));
        }
    }
}
