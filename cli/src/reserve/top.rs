//! `timevisor reserve top`: what each reservation uses now, again and again.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use timevisor_protocols::control::{Request, ReserveRow, Response};

use super::span;
use crate::connection::{ask, unexpected};

#[derive(Args)]
pub struct Options {
    /// How often
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "1s")]
    every: Duration,
    /// Stop after so many looks [default: never]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// One JSON object for each look
    #[arg(long)]
    json: bool,
}

/// A look at a thread.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    ran: u64,
    waited: u64,
    broken: u64,
    exhausted: u64,
}

/// What happened to it since the look before; shares of the time between.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Since {
    /// It ran.
    used: f64,
    /// Of its budget, what it did not use.
    slack: f64,
    /// It wanted to run and did not: out of budget, or behind others.
    waited: f64,
    /// Seconds in which the host owed it something, and in which it wanted more than its budget.
    broken: u64,
    exhausted: u64,
}

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    ensure!(
        !options.every.is_zero(),
        "--every 0 leaves no time between two looks; 1s is the default"
    );
    let is_screen = std::io::stdout().is_terminal() && !options.json;
    let mut before: BTreeMap<u32, Seen> = BTreeMap::new();
    let mut looks = 0;
    loop {
        let rows = match ask(directory, &Request::ReserveList)? {
            Response::Reservations(answer) => answer.reservations,
            response => return Err(unexpected(&response)),
        };
        let now = Instant::now();
        let seen: BTreeMap<u32, Seen> =
            rows.iter().filter_map(|row| Some((row.tid, look(row, now)?))).collect();
        let since = |row: &ReserveRow| {
            let (before, now) = (before.get(&row.tid)?, seen.get(&row.tid)?);
            between(row, before, now)
        };
        let text = if options.json {
            let rows: Vec<Value> = rows.iter().map(|row| as_json(row, since(row))).collect();
            format!("{}\n", json!({ "reservations": rows }))
        } else {
            table(&rows, since)
        };
        let mut out = std::io::stdout().lock();
        if is_screen {
            // Home, and nothing below it.
            out.write_all(b"\x1b[H\x1b[2J")?;
        }
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // Whoever read it has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        drop(out);
        before = seen;
        looks += 1;
        if options.count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
        std::thread::sleep(options.every);
    }
}

fn look(row: &ReserveRow, at: Instant) -> Option<Seen> {
    let (broken, exhausted) = row.audit.map_or((0, 0), |audit| (audit.broken, audit.exhausted));
    Some(Seen { at, ran: row.ran_ns?, waited: row.waited_ns?, broken, exhausted })
}

fn between(row: &ReserveRow, before: &Seen, now: &Seen) -> Option<Since> {
    let length = now.at.duration_since(before.at).as_nanos() as f64;
    // A reservation that was made again counts from its own beginning.
    let ran = now.ran.checked_sub(before.ran)? as f64;
    let budget = length * row.budget_ns as f64 / row.period_ns.max(1) as f64;
    (length > 0.0).then(|| Since {
        used: ran / length,
        slack: if budget > 0.0 { (1.0 - ran / budget).max(0.0) } else { 0.0 },
        waited: now.waited.saturating_sub(before.waited) as f64 / length,
        broken: now.broken.saturating_sub(before.broken),
        exhausted: now.exhausted.saturating_sub(before.exhausted),
    })
}

fn table(rows: &[ReserveRow], since: impl Fn(&ReserveRow) -> Option<Since>) -> String {
    if rows.is_empty() {
        return "nothing is reserved\n".to_owned();
    }
    let mut out = format!(
        "{:<16} {:>4} {:>4} {:>18} {:>7} {:>7} {:>7} {:>9} {:>6} {:>14}  status\n",
        "vm",
        "vcpu",
        "core",
        "budget of period",
        "used",
        "slack",
        "waits",
        "exhausted",
        "broken",
        "late (by host)"
    );
    let ms = |ns: u64| ns as f64 / 1e6;
    for row in rows {
        let core = row.core.map_or_else(|| "-".to_owned(), |core| core.to_string());
        let budget = format!("{} of {} ms", ms(row.budget_ns), ms(row.period_ns));
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let now = since(row);
        let of = |value: fn(&Since) -> f64| {
            now.as_ref().map_or_else(|| "-".to_owned(), |now| percent(value(now)))
        };
        let late = row.late.as_ref().map_or_else(
            || "-".to_owned(),
            |late| format!("{} ({})", late.count(), late.host_broke),
        );
        let [broken, exhausted] = row.audit.map_or([0, 0], |audit| [audit.broken, audit.exhausted]);
        out += &format!(
            "{:<16} {:>4} {core:>4} {budget:>18} {:>7} {:>7} {:>7} {exhausted:>9} {broken:>6} {:>14}  {}\n",
            row.vm,
            row.vcpu,
            of(|now| now.used),
            of(|now| now.slack),
            of(|now| now.waited),
            late,
            row.problem.as_deref().unwrap_or("in force")
        );
    }
    out
}

fn as_json(row: &ReserveRow, since: Option<Since>) -> Value {
    let mut out = json!({
        "vm": row.vm, "vcpu": row.vcpu, "tid": row.tid, "core": row.core, "budget_ns": row.budget_ns,
        "period_ns": row.period_ns, "problem": row.problem, "late": row.late,
    });
    if let Some(now) = since {
        out["used"] = json!(now.used);
        out["slack"] = json!(now.slack);
        out["waits"] = json!(now.waited);
        out["broken"] = json!(now.broken);
        out["exhausted"] = json!(now.exhausted);
    }
    out
}

#[cfg(test)]
mod tests {
    use timevisor_protocols::control::{LateJobs, Promise, ReserveAudit};

    use super::*;

    fn row(ran_ns: u64, waited_ns: u64, broken: u64) -> ReserveRow {
        ReserveRow {
            vm: "web".into(),
            vcpu: 0,
            tid: 7,
            promise: Promise::Core,
            core: Some(1),
            budget_ns: 20_000_000,
            soft_ns: None,
            deadline_ns: 50_000_000,
            period_ns: 50_000_000,
            alone: true,
            followed: false,
            held_ns: 1,
            ran_ns: Some(ran_ns),
            waited_ns: Some(waited_ns),
            audit: Some(ReserveAudit { broken, ..ReserveAudit::default() }),
            late: Some(LateJobs { host_broke: 1, guest_policy: 2, ..LateJobs::default() }),
            problem: None,
        }
    }

    #[test]
    fn what_happened_between_two_looks() {
        let at = Instant::now();
        let before = look(&row(5_000_000, 0, 1), at).unwrap();
        let later = row(305_000_000, 250_000_000, 3);
        let now = look(&later, at + Duration::from_secs(1)).unwrap();
        let since = between(&later, &before, &now).unwrap();
        assert_eq!((since.used, since.waited, since.broken), (0.3, 0.25, 2));
        assert!((since.slack - 0.25).abs() < 1e-9, "{since:?}");
        let words = table(std::slice::from_ref(&later), |_| Some(since));
        for said in ["20 of 50 ms", "30.0 %", "25.0 %", "3 (1)", "in force"] {
            assert!(words.contains(said), "{words}");
        }
        assert_eq!(as_json(&later, Some(since))["used"], 0.3);
        assert_eq!(between(&later, &now, &before), None, "it began again");
        assert!(table(&[later], |_| None).contains(" - "), "the first look");
        assert_eq!(table(&[], |_| None), "nothing is reserved\n");
    }
}
