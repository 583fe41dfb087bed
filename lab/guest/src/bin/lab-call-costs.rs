//! lab-call-costs: the cost of one system call, in ticks of the TSC, for calls that introspection
//! traps and for others.
//!
//! `lab-call-costs TIMES [prefix]` becomes SCHED_FIFO, whose yields are trapped, and makes each of
//! six calls TIMES times. For each call, it prints whether it is trapped, and the minimum, median,
//! mean and maximum. With `prefix`, it also measures `bare`: an exit to KVM of the kind that
//! `--backend kvm` causes, and nothing else. `lab-call-costs work TIMES` makes TIMES calls, one in
//! a hundred of which is trapped, and prints the total cost.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read as _, Write as _};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};
use timevisor_clock_page::Counter as _;
use timevisor_linux::counter::Tsc;
use timevisor_linux::kvm::exits::forced_nop;
use timevisor_linux::scheduling::Attributes;

const PRIORITY: u32 = 7;
/// One call in this many is trapped.
const SHARE: usize = 100;

type Code = Box<dyn FnMut() -> std::io::Result<()>>;
/// Name, whether it is trapped, and the call.
type Call = (&'static str, bool, Code);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: lab-call-costs TIMES [prefix] | work TIMES";
    Attributes::fifo(PRIORITY).set(0)?;
    let told = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["work", times] => work(times.parse()?),
        [times] => each(times.parse().context(usage)?, calls()?)?,
        [times, "prefix"] => {
            let mut all = calls()?;
            all.push(("bare", false, always(forced_nop)));
            each(times.parse()?, all)?
        }
        _ => bail!(usage),
    };
    println!("{told}");
    Ok(())
}

fn calls() -> Result<Vec<Call>> {
    let (mut zero, mut null) = (File::open("/dev/zero")?, File::create("/dev/null")?);
    Ok(vec![
        ("sched_setattr", true, Box::new(|| Attributes::fifo(PRIORITY).set(0))),
        ("sched_yield", true, always(std::thread::yield_now)),
        ("sched_getattr", false, Box::new(|| Attributes::of(0).map(drop))),
        ("getppid", false, always(parent)),
        ("read", false, Box::new(move || zero.read_exact(&mut [0]))),
        ("write", false, Box::new(move || null.write_all(&[0]))),
    ])
}

fn always(mut code: impl FnMut() + 'static) -> Code {
    Box::new(move || {
        code();
        Ok(())
    })
}

fn parent() {
    std::hint::black_box(std::os::unix::process::parent_id());
}

fn each(times: usize, calls: Vec<Call>) -> Result<Value> {
    ensure!(times > 0, "TIMES: at least 1");
    let mut all = Map::new();
    for (name, trapped, mut call) in calls {
        all.insert(name.to_owned(), costs(times, trapped, &mut *call)?);
    }
    Ok(Value::Object(all))
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
    let (min, median, max) = (ticks[0], ticks[times / 2], ticks[times - 1]);
    Ok(json!({"trapped": trapped, "min": min, "median": median, "mean": mean, "max": max}))
}

fn work(times: usize) -> Value {
    let tsc = Tsc::unchecked();
    let before = tsc.read_ordered();
    for call in 0..times {
        if call % SHARE == 0 { std::thread::yield_now() } else { parent() }
    }
    json!({"calls": times, "trapped": times.div_ceil(SHARE), "ticks": tsc.read_ordered().wrapping_sub(before)})
}
