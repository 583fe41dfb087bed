//! What the import of ptp4l's measurements costs: the half-width by term, at several polls, and what
//! an implementation of our own could gain at most.
//!
//! The gain's limit is measured with NTP over the same pair: exchanges of our own, stamped by the
//! same kernel on the same interfaces, of which each proves half its round trip. PTP's messages
//! carry no more than that.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_time::Duration as Span;

use super::ptp::{NAME, reference, slave};
use super::watch::{Watched, watch_for};
use crate::chronyd::Chronyd;
use crate::host::Host;
use crate::netns::Namespace;
use crate::programs;
use crate::ptp4l::Ptp4l;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::reference_row;

/// More than the 16 s for which the import remembers offsets.
const WARM_UP: Duration = Duration::from_secs(20);
const WATCH: Duration = Duration::from_secs(10);

struct Line {
    name: String,
    seen: Watched,
}

impl Line {
    fn json(&self) -> serde_json::Value {
        json!({"reference": self.name, "halfwidth_median_us": self.seen.median_half_ns() as f64 / 1e3,
               "worst_error_us": self.seen.worst_ns as f64 / 1e3, "readings": self.seen.readings})
    }
}

pub(crate) fn cost(ctx: &Context) -> anyhow::Result<String> {
    let namespace = Namespace::create()?;
    let dir = scratch::directory()?;
    let _master = Ptp4l::master(ctx, &namespace, dir.path(), "master", "")?;
    let slave = slave(ctx, dir.path(), &[&namespace])?;
    let mut lines = Vec::new();
    let mut delays = Vec::new();
    for poll in ["1s", "200ms", "50ms"] {
        let more = "timescale = \"utc\"\n";
        let config = format!("{}{more}", reference(&slave, poll));
        let host = started(ctx, &format!("ptp-{poll}"), &config)?;
        let seen = watch_for(&host, Span::ZERO, WATCH)?;
        delays.push(path_delay_ns(&host)?);
        lines.push(Line { name: format!("ptp4l, poll {poll}"), seen });
    }
    let server = Chronyd::start_in(namespace, 123, "server", ctx.log_dir(), "local stratum 1\n")?;
    for poll in ["1s", "200ms"] {
        let address = server.address().ip();
        let config = format!(
            "[[reference]]\ntype = \"ntp\"\naddress = \"{address}\"\npoll = \"{poll}\"\n\
             burst_spacing = \"{poll}\"\n"
        );
        let host = started(ctx, &format!("ntp-{poll}"), &config)?;
        let seen = watch_for(&host, Span::ZERO, WATCH)?;
        lines.push(Line { name: format!("NTP, poll {poll}"), seen });
    }
    // Whatever the machine: the path delay is part of every bound.
    for (line, delay) in lines.iter().zip(&delays) {
        let half = line.seen.median_half_ns();
        ensure!(half >= *delay, "{}: +-{half} ns beside a path delay of {delay} ns", line.name);
    }
    let rows: Vec<_> = lines.iter().map(Line::json).collect();
    programs::write_result("ptp4l-cost", &rows)?;
    let texts: Vec<String> = lines
        .iter()
        .map(|line| {
            let half = line.seen.median_half_ns() as f64 / 1e3;
            format!("{} +-{half:.1} us (error {:.1})", line.name, line.seen.worst_ns as f64 / 1e3)
        })
        .collect();
    let delay = delays.iter().max().copied().unwrap_or(0);
    Ok(format!("{}; mean path delay {:.1} us", texts.join(", "), delay as f64 / 1e3))
}

fn started(ctx: &Context, name: &str, config: &str) -> anyhow::Result<Host> {
    let mut host = Host::further(ctx, name)?;
    host.start(config)?;
    host.wait_synchronized(20_000)?;
    watch_for(&host, Span::ZERO, WARM_UP)?;
    Ok(host)
}

/// As ptp4l tells it, in the status: `path delay 12.345 us`.
fn path_delay_ns(host: &Host) -> anyhow::Result<i64> {
    let row = reference_row(host, NAME)?;
    let text = row["detail"].as_str().unwrap_or_default();
    let mut words = text.split("path delay ").nth(1).unwrap_or_default().split([' ', ';']);
    let (number, unit) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let factor = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        _ => anyhow::bail!("no path delay in {text}"),
    };
    let number: f64 = number.parse().with_context(|| text.to_owned())?;
    #[expect(clippy::cast_possible_truncation, reason = "a path delay in ns")]
    Ok((number * factor) as i64)
}
