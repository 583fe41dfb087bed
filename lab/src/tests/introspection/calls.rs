//! What introspection has to report about lab-calls, whichever way lab-calls was started.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::host::Host;

pub(crate) const JOBS: usize = 20;
pub(crate) const YIELDS: usize = 50;

/// The shell command line that runs lab-calls in a guest.
pub(crate) fn line() -> String {
    format!("lab-calls {JOBS} {YIELDS}; [ $? = 3 ]")
}

/// All events, from number `from` on, of the program that printed `said`; waits until it has
/// exited.
pub(crate) fn told(host: &Host, from: u64, said: &Value) -> anyhow::Result<Vec<Value>> {
    let from = from.to_string();
    let words = ["introspect", "trace", "web", "--once", "--json", "--from", &from];
    let mut events = Vec::new();
    host.wait_until("the program's end", |host| {
        let found = of_program(&host.cli(&words)?, said)?;
        let ended = found.is_some();
        events = found.unwrap_or_default();
        Ok(ended)
    })?;
    Ok(events)
}

/// From the output of `trace --json`, the events of the program that printed `said`; `None` until
/// its exit is among them.
pub(crate) fn of_program(told: &str, said: &Value) -> anyhow::Result<Option<Vec<Value>>> {
    let all = told.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let events: Vec<Value> =
        all.into_iter().filter(|e| e["thread"]["tid"] == said["pid"]).collect();
    let ended = events.last().is_some_and(|event| event["kind"] == "exit");
    Ok(ended.then_some(events))
}

/// Checks every call with its arguments, and that its time lies between the two moments. Returns
/// the number of events.
pub(crate) fn exact(events: &[Value], before: i64, after: i64) -> anyhow::Result<usize> {
    for event in events {
        let at = |bound: &str| event[bound].as_i64().with_context(|| format!("no time: {event}"));
        let (earliest, latest) = (at("earliest_ns")?, at("latest_ns")?);
        ensure!(before <= latest && earliest <= after, "not in {before} to {after}: {event}");
    }
    counts(events)
}

/// Like [`exact`], without the times.
pub(crate) fn counts(events: &[Value]) -> anyhow::Result<usize> {
    let count = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
    ensure!(count("yield") == JOBS + YIELDS, "{} yields of {}", count("yield"), JOBS + YIELDS);
    ensure!(count("sleep") == 3 && count("set_scheduler") >= 2, "{events:?}");
    let first = events.iter().find(|event| event["kind"] == "set_scheduler").context("none")?;
    let asked = &first["attributes"];
    ensure!(asked["runtime_ns"] == 2_000_000 && asked["period_ns"] == 20_000_000, "{asked}");
    ensure!(events.last().is_some_and(|event| event["status"] == 3 << 8), "{events:?}");
    Ok(events.len())
}
