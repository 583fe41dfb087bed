//! A guest under KVM, attached and detached very often while it works.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::interrupt;
use crate::introspection::nested::{PREFIX, VM, attach, detach, host_with_guest, in_place, switch};
use crate::scenario::Context;
use crate::tests::cycles;
use crate::tests::introspection::kvm::{calls, keep_busy, no_trouble};

/// The default for the environment variable CYCLES.
const CYCLES: u32 = 1000;
/// Cycles per run of the program; each run starts by attaching to a kernel that is already known.
const AT_ONCE: u32 = 20;
/// Timeout for one run.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) fn kvm_cycles(ctx: &Context) -> anyhow::Result<String> {
    let wanted = cycles(CYCLES)?;
    let program = ctx.program("timevisor-lab-guest", "lab-introspect")?;
    let mut host = host_with_guest(ctx, "trixie-backports", |image| Ok(image.program(&program)))?;
    ensure!(!switch(&mut host)?, "the switch is on at the beginning");
    attach(&mut host, PREFIX)?;
    let first = calls(&mut host)?;
    detach(&mut host)?;

    keep_busy(&mut host)?;
    let (mut done, mut events, mut last, began) = (0, 0, Value::Null, Instant::now());
    while done < wanted {
        let times = AT_ONCE.min(wanted - done);
        let line = format!("lab-introspect cycles /run/timevisor {VM} {times}");
        host.sh(&format!(
            "rm -f /run/cycles*; ({line} >/run/cycles 2>&1; echo $? >/run/cycles.end) &"
        ))?;
        let ended = interrupt::poll_until(PATIENCE, || {
            interrupt::sleep(Duration::from_millis(500))?;
            let ended = host.sh("cat /run/cycles.end 2>/dev/null || true")?;
            Ok(Some(ended.trim().to_owned()).filter(|text| !text.is_empty()))
        })?;
        let said = host.sh("cat /run/cycles")?;
        if ended.as_deref() != Some("0") {
            bail!("after {done} cycles: {said}; the logs inside end:\n{}", host.logs(40));
        }
        last = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
        events += last["events"].as_u64().context("no events")?;
        done += times;
        ctx.log(&format!("{done} cycles in {:.0} s: {last}", began.elapsed().as_secs_f64()));
    }
    no_trouble(&mut host)?;
    ensure!(!switch(&mut host)? && in_place(&mut host)? == 0, "something stayed in place");

    attach(&mut host, PREFIX)?;
    let second = calls(&mut host)?;
    detach(&mut host)?;
    ensure!(first == second, "{first} events before {done} cycles, {second} after them");
    let ms = |name: &str| last[name].as_f64().unwrap_or(f64::NAN) / 1e6;
    Ok(format!(
        "{done} cycles with {events} events while the guest worked; a program's {first} events before and after; in the last go {:.0} ms to \
         attach and {:.0} ms to detach",
        ms("attach_median_ns"),
        ms("detach_median_ns"),
    ))
}
