//! A timevisord inside a guest: its start, what it says of itself, and its readings beside the truth.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use timevisor_linux::counter::Tsc;

use crate::guest::Guest;
use crate::interrupt;
use crate::truth::Truth;

/// Everything in an emulated guest takes several times as long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The first lines of its configuration. It counts the TSC, in which the truth is known.
pub(crate) const KEYS: &str = "run_directory = \"/run/timevisor\"\ncounter = \"tsc\"\n[clock]\ntai_offset = 37\n\
                               [guests]\ndiscover = false\n";
/// QEMU's arguments for a guest whose daemon insists that its TSC is invariant.
pub(crate) const CPU: [&str; 2] = ["-cpu", "max,la57=off,+invtsc,x-force-features=on"];

/// Starts the daemon with a file of the image.
pub(crate) fn start(guest: &mut Guest, config: &str) -> anyhow::Result<()> {
    guest.sh(&format!("timevisord --config {config} >>/run/timevisord.log 2>&1 &"))?;
    wait(guest, "the guest's daemon answers", |_| Ok(true)).map(drop)
}

/// Ends it.
pub(crate) fn end(guest: &mut Guest) -> anyhow::Result<()> {
    guest.sh("kill $(pidof timevisord); while pidof timevisord; do sleep 0.1; done").map(drop)
}

/// Waits until the guest's `timevisor status` satisfies `done`, and returns it.
pub(crate) fn wait(
    guest: &mut Guest,
    what: &str,
    mut done: impl FnMut(&Value) -> anyhow::Result<bool>,
) -> anyhow::Result<Value> {
    let mut last = String::new();
    let found = interrupt::poll_until(PATIENCE, || {
        last = guest.sh("timevisor status --json 2>&1 || true")?;
        match serde_json::from_str::<Value>(&last) {
            Ok(status) if done(&status)? => Ok(Some(status)),
            _ => Ok(None),
        }
    })?;
    let Some(found) = found else {
        let log = guest.sh("tail -n 12 /run/*.log").unwrap_or_default();
        bail!("{what}: not within {PATIENCE:?}; last: {last}; the guest's logs:\n{log}");
    };
    Ok(found)
}

/// What readings of a guest's clock were like.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Half-width of the last one, ns.
    pub(crate) half_ns: i64,
    /// The largest error of an estimate, ns.
    pub(crate) worst_ns: i64,
}

/// The guest's bounds beside the truth at the counter value at which they were read. `offset` is what the
/// guest's counter is ahead of this machine's, `tai_offset_s` what TAI is ahead of CLOCK_REALTIME, s.
pub(crate) fn readings(
    guest: &mut Guest,
    (offset, tai_offset_s): (i64, i64),
    count: usize,
) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    for _ in 0..count {
        let (text, truth) =
            Truth::around(&Tsc::unchecked(), || guest.sh("timevisor now --json || [ $? = 1 ]"))?;
        let now: Value = serde_json::from_str(text.trim()).with_context(|| text.clone())?;
        let ns = |name: &str| now[name].as_i64().with_context(|| format!("no {name} in {now}"));
        let counter = now["counter"].as_u64().with_context(|| format!("no counter in {now}"))?;
        ensure!(now["timescale"] == "tai", "{now}");
        let true_ns = truth.at(counter.wrapping_add_signed(-offset)) + tai_offset_s * 1_000_000_000;
        let slack = truth.uncertainty_ns();
        let (earliest, latest) = (ns("earliest_ns")?, ns("latest_ns")?);
        ensure!(
            earliest - slack <= true_ns && true_ns <= latest + slack,
            "truth {true_ns} is not in {earliest}..{latest}: {} ns outside; {now}",
            (earliest - true_ns).max(true_ns - latest)
        );
        seen.half_ns = (latest - earliest) / 2;
        seen.worst_ns = seen.worst_ns.max((ns("estimate_ns")? - true_ns).abs());
    }
    Ok(seen)
}
