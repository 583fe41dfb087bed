//! `timevisor status`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use timevisor_protocols::control::{NtsSummary, Reference, Request, Response, Status, ThreadAges};
use timevisor_time::Duration;

use crate::again::Again;
use crate::bound::sides;
use crate::connection::{ask, unexpected};
use crate::exit::Found;
use crate::sources::{polls, shared};

#[derive(Args)]
pub struct Options {
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    again: Again,
}

pub fn run(directory: &Path, options: &Options) -> Result<Found> {
    options.again.show(options.json, || {
        let response = ask(directory, &Request::Status)?;
        let Response::Status(status) = &response else { return Err(unexpected(&response)) };
        let shown = if options.json {
            format!("{}\n", serde_json::to_string(status)?)
        } else {
            text(status)
        };
        Ok((shown, Found::of_clock(status.clock.status)))
    })
}

fn text(status: &Status) -> String {
    let clock = &status.clock;
    let state = serde_json::to_value(clock.status)
        .ok()
        .and_then(|v| v.as_str().map(ToOwned::to_owned))
        .unwrap_or_default();
    let span = |ns: Option<i64>| {
        ns.map_or("unknown".to_owned(), |ns| Duration::from_nanos(ns).to_string())
    };
    let mut out = format!(
        "clock        {state}{}\n",
        clock.reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default()
    );
    let bound = match clock.below_ns.zip(clock.above_ns) {
        Some((below, above)) => sides(Duration::from_nanos(below), Duration::from_nanos(above)),
        None => "unknown".to_owned(),
    };
    out += &format!("bound        {bound}\n");
    out += &format!("estimate     one sigma {}\n", span(clock.estimated_error_ns));
    if let Some(rate) = clock.rate_bound_ppb {
        out += &format!("rate         within {:.1} ppm\n", rate / 1000.0);
    }
    if let Some(assumption) = &clock.assumption {
        out += &format!("assumption   {assumption}\n");
    }
    if let Some(problem) = &clock.oscillator_problem {
        out += &format!("oscillator   {problem}\n");
    }
    if let Some(age) = clock.since_update_s {
        out += &format!("last update  {age:.1} s ago\n");
    }
    out += &format!(
        "counter      {} at {:.6} MHz\n",
        status.counter.name,
        status.counter.hz.unwrap_or(0.0) / 1e6
    );
    if let Some(reason) = &status.counter.reason {
        out += &format!("             {reason}\n");
    }
    if let Some(problem) = &status.counter.problem {
        out += &format!("             not trusted: {problem}\n");
    }
    match (&status.leap_table.problem, status.leap_table.tai_offset) {
        (Some(problem), _) => out += &format!("TAI - UTC    unknown: {problem}\n"),
        (None, Some(offset)) => out += &format!("TAI - UTC    {offset} s\n"),
        (None, None) => out += "TAI - UTC    unknown until the time is known\n",
    }
    if let Some(warning) = &status.leap_table.warning {
        out += &format!("             {warning}\n");
    }
    if let Some(discipline) = &status.discipline {
        out += &format!(
            "discipline   {}: {}, offset {}, frequency {:+.3} ppm\n",
            discipline.state,
            discipline.detail,
            span(discipline.offset_ns),
            discipline.frequency_ppm
        );
    }
    if let Some(server) = &status.server {
        let list = match &server.problem {
            Some(problem) => format!("does not run: {problem}"),
            None => counted(&server.requests, "no requests yet"),
        };
        out += &format!("NTP server   {}: {list}\n", server.listen.join(", "));
        if let Some(nts) = &server.nts {
            out += &key_establishment(nts);
        }
    }
    if let Some(ages) = &status.thread_ages {
        out += &thread_ages(ages);
    }
    out += &format!("VMs          {}\n", status.vms);
    out += &format!(
        "daemon       {} pid {}, up {} s\n\n",
        status.version, status.pid, status.uptime_s
    );
    out += &format!(
        "{:<24} {:<6} {:<14} {:>7} {:>8} {:>12} {:>12} {:>5}\n",
        "reference", "kind", "status", "stratum", "poll", "offset", "rtt", "reach"
    );
    for reference in &status.references {
        out += &row(reference);
    }
    out
}

/// Ages of threads, and how far they are from the counter that bounds are counted by.
fn thread_ages(ages: &ThreadAges) -> String {
    let mut out = format!("thread ages  {} by {}: {}\n", ages.state, ages.source, ages.reason);
    if ages.state == "serving" {
        let ppm =
            |ppm: Option<f64>| ppm.map_or("unknown".to_owned(), |ppm| format!("{ppm:+.1} ppm"));
        out += &format!(
            "             {} threads, {} moves, {} changes of frequencies, {} events missed\n",
            ages.threads, ages.moves, ages.frequency_changes, ages.events_missed
        );
        out += &format!(
            "             beside CLOCK_MONOTONIC_RAW: {} since the start, {} in the last second, {} at worst, {:.0} ppm allowed\n",
            ppm(ages.apart_ppm),
            ppm(ages.last_apart_ppm),
            ppm(ages.worst_apart_ppm),
            ages.limit_ppm
        );
    }
    out
}

/// What happened, and how often.
fn counted(counts: &BTreeMap<String, u64>, nothing: &str) -> String {
    let counted = counts.iter().filter(|(_, count)| **count > 0);
    let list: Vec<_> = counted.map(|(what, count)| format!("{what} {count}")).collect();
    if list.is_empty() { nothing.to_owned() } else { list.join(", ") }
}

/// Where clients get keys, and what became of it.
fn key_establishment(nts: &NtsSummary) -> String {
    let list = counted(&nts.sessions, "no clients yet");
    let mut out = format!("NTS keys     {}: {list}\n", nts.listen.join(", "));
    if let Some(problem) = &nts.problem {
        out += &format!("             {problem}\n");
    }
    out
}

fn row(r: &Reference) -> String {
    let span =
        |ns: Option<i64>| ns.map_or("-".to_owned(), |ns| Duration::from_nanos(ns).to_string());
    let stratum = r.stratum.map_or("-".to_owned(), |s| s.to_string());
    let mut out = format!(
        "{:<24} {:<6} {:<14} {:>7} {:>7}s {:>12} {:>12} {:>5}\n",
        r.name,
        r.kind,
        r.status,
        stratum,
        r.poll_s,
        span(r.offset_ns),
        span(r.rtt_ns),
        r.reach
    );
    if !matches!(r.status.as_str(), "selected" | "reachable") {
        out += &format!("    {}\n", r.detail);
    }
    if !r.shares_vote_with.is_empty() {
        out += &format!("    {}\n", shared(&r.shares_vote_with));
    }
    if let Some(polling) = &r.polling {
        out += &format!("    {}\n", polls(r.poll_s, polling));
    }
    if let Some(suggestion) = &r.suggestion {
        out += "\n";
        for line in suggestion.lines() {
            out += &format!("        {line}\n");
        }
        out += "\n";
    }
    if !r.rejected.is_empty() {
        let list: Vec<_> = r.rejected.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        out += &format!("    {} accepted; rejected: {}\n", r.accepted, list.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a status with these fields of `counter`, `clock` and `leap_table`.
    fn said(counter: &str, clock: &str, leap: &str) -> String {
        let json = format!(
            r#"{{"version":"0","pid":1,"uptime_s":1,"host_id":"0","counter":{{"name":"x86-tsc","hz":1e9{counter}}},
            "clock":{{"status":"synchronized","reason":null,"timescale":"tai","estimated_error_ns":null,
            "rate_bound_ppb":null,"since_update_s":null,"contradictions":0,{clock}}},"references":[],
            "leap_table":{{"expires_unix":null,{leap}}},"vms":0}}"#
        );
        text(&serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn key_establishment_is_one_line_and_the_problem() {
        let mut nts = NtsSummary {
            listen: vec!["[::]:4460".to_owned()],
            sessions: [("established", 3), ("late", 0), ("failed", 1)]
                .map(|(name, count)| (name.to_owned(), count))
                .into(),
            problem: None,
        };
        assert_eq!(key_establishment(&nts), "NTS keys     [::]:4460: established 3, failed 1\n");
        nts.problem = Some("it has expired".to_owned());
        assert!(key_establishment(&nts).ends_with("\n             it has expired\n"));
    }

    #[test]
    fn problems_of_the_counter_and_the_leap_table_are_told() {
        let width = r#""half_width_ns":null"#;
        let fine = said("", width, r#""tai_offset":37,"problem":null"#);
        assert!(fine.contains("MHz\nTAI - UTC    37 s\nVMs"), "{fine}");
        let counter = r#","problem":"the kernel dropped it""#;
        let leap = r#""tai_offset":37,"problem":null,"warning":"it expires in 5 days""#;
        let both = said(counter, width, leap);
        assert!(both.contains("MHz\n             not trusted: the kernel dropped it\n"), "{both}");
        assert!(both.contains("37 s\n             it expires in 5 days\n"), "{both}");
        let early = said("", width, r#""tai_offset":null,"problem":null"#);
        assert!(early.contains("TAI - UTC    unknown until the time is known\n"), "{early}");
    }

    #[test]
    fn ages_of_threads_are_told_where_they_are_served() {
        let mut ages = ThreadAges {
            state: "serving".to_owned(),
            source: "bpf".to_owned(),
            reason: "bpf, because X".to_owned(),
            threads: 2,
            moves: 500,
            frequency_changes: 80,
            events_missed: 0,
            apart_ppm: Some(-3.25),
            last_apart_ppm: None,
            worst_apart_ppm: Some(40.0),
            limit_ppm: 10_000.0,
        };
        assert_eq!(
            thread_ages(&ages),
            "thread ages  serving by bpf: bpf, because X\n             \
             2 threads, 500 moves, 80 changes of frequencies, 0 events missed\n             \
             beside CLOCK_MONOTONIC_RAW: -3.2 ppm since the start, unknown in the last second, +40.0 ppm at worst, 10000 ppm allowed\n"
        );
        ages.state = "stopped".to_owned();
        assert_eq!(thread_ages(&ages).lines().count(), 1);
    }

    #[test]
    fn the_bound_has_two_sides() {
        let status = |clock: &str| said("", clock, r#""tai_offset":37,"problem":null"#);
        let known = status(r#""half_width_ns":40000,"below_ns":30000,"above_ns":50000"#);
        assert!(known.contains("\nbound        -30.000 us +50.000 us\n"), "{known}");
        let unknown = status(r#""half_width_ns":null"#);
        assert!(unknown.contains("\nbound        unknown\n"), "{unknown}");
    }
}
