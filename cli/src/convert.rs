//! `timevisor convert`: counter stamps to times, and spans between them, from a recording; without
//! a daemon, on any machine.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use timevisor::{MeasuredSpan, Recording};

use crate::bind::{of_reading, text};

#[derive(Args)]
pub struct Options {
    /// What `timevisor record` wrote
    file: PathBuf,
    /// Counter stamps: `counter` of `timevisor now --json`, or what a program took with `stamp`
    #[arg(value_name = "STAMP", value_parser = stamp)]
    stamps: Vec<u64>,
    /// Instead, how much time went by between two stamps
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], value_parser = stamp, conflicts_with_all = ["stamps", "event"])]
    span: Option<Vec<u64>>,
    /// Instead, the time of an event between two stamps, such as a packet
    #[arg(long, num_args = 2, value_names = ["FIRST", "LAST"], value_parser = stamp, conflicts_with = "stamps")]
    event: Option<Vec<u64>>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Decimal, or hexadecimal with 0x.
fn stamp(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

pub fn run(options: &Options) -> Result<()> {
    let file = options.file.display();
    let recording = Recording::open(&options.file).with_context(|| file.to_string())?;
    if recording.is_torn() {
        eprintln!("timevisor: {file}: the last record is incomplete and was left out");
    }
    match (&options.span, &options.event) {
        (Some(ends), _) => {
            let span = recording.span(ends[0], ends[1])?;
            println!("{}", if options.json { json_of(&span).to_string() } else { line_of(&span) });
        }
        (None, Some(ends)) => {
            say(&recording, &recording.convert_between(ends[0], ends[1])?, options.json);
        }
        (None, None) if options.stamps.is_empty() => overview(&recording, options.json),
        (None, None) => {
            let mut failed = 0;
            for stamp in &options.stamps {
                match recording.convert(*stamp) {
                    Ok(reading) => say(&recording, &reading, options.json),
                    Err(error) => {
                        failed += 1;
                        eprintln!("timevisor: {stamp}: {error}");
                    }
                }
            }
            if failed > 0 {
                bail!("{failed} of {} stamps cannot be converted", options.stamps.len());
            }
        }
    }
    Ok(())
}

fn say(recording: &Recording, reading: &timevisor::Reading, json: bool) {
    let (name, mut object) = (recording.name(), of_reading(recording.name(), reading));
    if json {
        // Nobody required anything of a recording.
        object.as_object_mut().map(|fields| fields.remove("met"));
        println!("{object}");
    } else {
        println!("{}", text(name, reading).trim_end_matches(", met"));
    }
}

/// Without stamps: what can be converted.
fn overview(recording: &Recording, json: bool) {
    let (name, counter) = (recording.name(), recording.counter().name());
    for segment in recording.segments() {
        let (since, until, publications) = (segment.since, segment.until, segment.publications);
        if json {
            let object = json!({
                "timeline": name, "counter": counter, "since": since, "until": until,
                "publications": publications, "disruption": segment.disruption,
            });
            println!("{object}");
        } else {
            println!(
                "{name}: stamps of {counter} from {since} to {until}, {publications} publications"
            );
        }
    }
}

fn json_of(span: &MeasuredSpan) -> Value {
    json!({
        "shortest_ns": span.shortest_ns(),
        "estimate_ns": span.estimate_ns(),
        "longest_ns": span.longest_ns(),
        "width_ns": span.width_ns(),
        "status": span.status().name(),
    })
}

fn line_of(span: &MeasuredSpan) -> String {
    let estimate_ns = span.estimate_ns();
    let (sign, ns) = (if estimate_ns < 0 { "-" } else { "" }, estimate_ns.unsigned_abs());
    // Of the figures as they are printed: the estimate is rounded to the nearest, both ends outward.
    let side = |from: i64, to: i64| Some(from.abs_diff(to));
    let (below, above) =
        (side(span.shortest_ns(), estimate_ns), side(estimate_ns, span.longest_ns()));
    let bound = crate::bound::sides_ns(below, above);
    let (secs, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    format!("{sign}{secs}.{rest:09} s  {bound}  {}", span.status().name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration as Span;
    use timevisor::manual::Clock;

    #[test]
    fn spans_are_printed_with_their_sides() {
        let clock = Clock::new(0);
        clock.set_growth_ppb(15_000);
        clock.step(0);
        let timeline = clock.timeline();
        timeline.observe().unwrap();
        let begin = timeline.stamp();
        clock.advance(Span::from_millis(1_500));
        let end = timeline.stamp();
        for ticks in 0..100 {
            let span = timeline.span(begin, end - ticks).unwrap();
            let (shortest, longest) = (span.shortest_ns(), span.longest_ns());
            let (below, above) =
                (span.estimate_ns().abs_diff(shortest), span.estimate_ns().abs_diff(longest));
            let sides = crate::bound::sides_ns(Some(below), Some(above));
            assert!(line_of(&span).contains(&sides), "{} {sides}", line_of(&span));
        }
        let line = |from, to| line_of(&timeline.span(from, to).unwrap());
        assert_eq!(line(begin, end), "1.500000000 s  -22.501 us +22.500 us  synchronized");
        assert_eq!(line(end, begin), "-1.500000000 s  -22.500 us +22.501 us  synchronized");
        assert_eq!(stamp("0x1f"), Ok(31));
        assert_eq!(stamp("31"), Ok(31));
        assert!(stamp("-1").is_err());
    }
}
