//! lab-call-costs: what one system call takes, in ticks of the TSC, for calls that introspection traps and for others.
//!
//! `lab-call-costs TIMES` becomes SCHED_FIFO, whose yields are trapped, and makes each of six calls TIMES times. It prints, for each, whether it is
//! one that is trapped, and the least, median and mean.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read as _, Write as _};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use timevisor_clock_page::Counter as _;
use timevisor_linux::counter::Tsc;
use timevisor_linux::scheduling::Attributes;

const PRIORITY: u32 = 7;

/// Name, whether it is trapped, and the call.
type Call = (&'static str, bool, Box<dyn FnMut() -> std::io::Result<()>>);

fn main() -> Result<()> {
    let times = std::env::args().nth(1).context("usage: lab-call-costs TIMES")?.parse()?;
    ensure!(times > 0, "TIMES: at least 1");
    Attributes::fifo(PRIORITY).set(0)?;
    let (mut zero, mut null) = (File::open("/dev/zero")?, File::create("/dev/null")?);
    let calls: [Call; 6] = [
        ("sched_setattr", true, Box::new(|| Attributes::fifo(PRIORITY).set(0))),
        (
            "sched_yield",
            true,
            Box::new(|| {
                std::thread::yield_now();
                Ok(())
            }),
        ),
        ("sched_getattr", false, Box::new(|| Attributes::of(0).map(drop))),
        (
            "getppid",
            false,
            Box::new(|| {
                std::hint::black_box(std::os::unix::process::parent_id());
                Ok(())
            }),
        ),
        ("read", false, Box::new(move || zero.read_exact(&mut [0]))),
        ("write", false, Box::new(move || null.write_all(&[0]))),
    ];
    let mut all = Map::new();
    for (name, trapped, mut call) in calls {
        all.insert(name.to_owned(), costs(times, trapped, &mut *call)?);
    }
    println!("{}", Value::Object(all));
    Ok(())
}

fn costs(
    times: usize,
    trapped: bool,
    call: &mut dyn FnMut() -> std::io::Result<()>,
) -> Result<Value> {
    let tsc = Tsc::unchecked();
    let mut ticks = Vec::with_capacity(times);
    for _ in 0..times {
        let before = tsc.read_ordered();
        call()?;
        ticks.push(tsc.read_ordered().wrapping_sub(before));
    }
    ticks.sort_unstable();
    let mean = ticks.iter().sum::<u64>() / ticks.len() as u64;
    Ok(json!({"trapped": trapped, "min": ticks[0], "median": ticks[times / 2], "mean": mean}))
}
