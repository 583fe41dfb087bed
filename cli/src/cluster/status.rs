//! `timevisor cluster status, watch`: the clusters of this host, as its daemon knows them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use timevisor_protocols::control::{ClusterClock, ClusterHost, Clusters, Request, Response};
use timevisor_time::Duration;

use crate::bound::sides_ns;
use crate::connection::{ask, unexpected};
use crate::exit::Found;
use crate::plot::{Line, svg};

#[derive(Args)]
pub struct Options {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct WatchOptions {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    every: f64,
    /// End after this many seconds; without it when interrupted
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    span: Option<f64>,
    /// Plot the half-width of each clock over time as SVG at the end; needs --for
    #[arg(long, value_name = "FILE", requires = "span")]
    plot: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.01..=31_536_000.0).contains(s));
    seconds.ok_or_else(|| "give seconds, from 0.01 to 31536000".to_owned())
}

pub fn status(directory: &Path, options: &Options) -> Result<Found> {
    let clusters = clusters(directory)?;
    if options.json {
        println!("{}", serde_json::to_string(&clusters)?);
    } else {
        print!("{}", text(&clusters));
    }
    Ok(Found::when(clusters.clusters.iter().all(|clock| clock.below_ns.is_some())))
}

/// What the daemon knows; an error where it has no cluster.
pub fn clusters(directory: &Path) -> Result<Clusters> {
    let clusters = match ask(directory, &Request::Clusters)? {
        Response::Clusters(clusters) => clusters,
        other => return Err(unexpected(&other)),
    };
    ensure!(
        !clusters.clusters.is_empty(),
        "this host belongs to no cluster; see [[cluster]] in the configuration file"
    );
    Ok(clusters)
}

pub fn watch(directory: &Path, options: &WatchOptions) -> Result<()> {
    let began = Instant::now();
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    loop {
        let now = began.elapsed().as_secs_f64();
        let clusters = clusters(directory)?;
        for clock in &clusters.clusters {
            if options.json {
                println!("{}", serde_json::to_string(clock)?);
            } else {
                println!("{now:>8.1} s  {}", line(clock));
            }
            let Some(half_width) = half_width_us(clock) else { continue };
            let name = format!("{} {}", clock.cluster, clock.timeline);
            match curves.iter_mut().find(|(known, _)| *known == name) {
                Some((_, points)) => points.push((now, half_width)),
                None => curves.push((name, vec![(now, half_width)])),
            }
        }
        if options.span.is_some_and(|span| began.elapsed().as_secs_f64() + options.every > span) {
            break;
        }
        std::thread::sleep(StdDuration::from_secs_f64(options.every));
    }
    let Some(path) = &options.plot else { return Ok(()) };
    const COLORS: [&str; 4] = ["steelblue", "darkorange", "seagreen", "crimson"];
    let lines = curves.into_iter().enumerate().map(|(index, (name, points))| Line {
        points,
        color: COLORS[index % COLORS.len()],
        width: 1.5,
        dashed: false,
        name,
    });
    let drawn = svg("Clusters of this host", "s", "half-width, us", lines.collect());
    fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))
}

fn half_width_us(clock: &ClusterClock) -> Option<f64> {
    let (below, above) = clock.below_ns.zip(clock.above_ns)?;
    Some(Duration::from_nanos(i64::try_from(below.saturating_add(above)).ok()?).as_secs_f64() * 5e5)
}

fn text(clusters: &Clusters) -> String {
    let mut out = String::new();
    for clock in &clusters.clusters {
        out += &format!("{}\n", line(clock));
        if !clock.serves.is_empty() {
            out += &format!("  serves others at {}\n", clock.serves.join(", "));
        }
        for host in &clock.hosts {
            out += &format!("  {}\n", row(host));
        }
    }
    out
}

/// One clock.
fn line(clock: &ClusterClock) -> String {
    let ClusterClock { cluster, timeline, role, .. } = clock;
    let level = clock.level.map(|level| format!(", level {level}")).unwrap_or_default();
    let origin = clock.origin.as_ref().map(|o| format!(", origin {o}")).unwrap_or_default();
    let heard = match clock.master_heard_s {
        Some(seconds) if role == "member" => format!(", master heard {seconds:.1} s ago"),
        _ => String::new(),
    };
    format!(
        "{cluster} {timeline}: {role}{level}, {}{origin}{heard}",
        sides_ns(clock.below_ns, clock.above_ns)
    )
}

fn row(host: &ClusterHost) -> String {
    let level = host.level.map_or_else(|| "-".to_owned(), |level| level.to_string());
    let width = host.width_ns.map_or_else(
        || "-".to_owned(),
        |ns| {
            format!(
                "{:.1} us wide",
                Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX)).as_secs_f64() * 1e6
            )
        },
    );
    let reason = host.reason.as_ref().map(|why| format!("  {why}")).unwrap_or_default();
    format!("{:<40} {:<8} level {level:<4} {width}{reason}", host.address, host.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_a_line_and_a_host_is_one_below_it() {
        let host = ClusterHost {
            address: "10.0.0.1:123".to_owned(),
            status: "heard".to_owned(),
            level: Some(0),
            width_ns: Some(61_000),
            reason: None,
        };
        let clock = ClusterClock {
            cluster: "lab".to_owned(),
            timeline: "cell".to_owned(),
            role: "member".to_owned(),
            level: Some(1),
            origin: Some("2.00000000000000ff".to_owned()),
            below_ns: Some(30_000),
            above_ns: Some(31_000),
            master_heard_s: Some(1.24),
            serves: vec!["0.0.0.0:123".to_owned()],
            hosts: vec![host],
            ..ClusterClock::default()
        };
        assert!((half_width_us(&clock).unwrap() - 30.5).abs() < 1e-9);
        let said = text(&Clusters { clusters: vec![clock] });
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines[0],
            "lab cell: member, level 1, -30.000 us +31.000 us, origin 2.00000000000000ff, master heard 1.2 s ago"
        );
        assert_eq!(lines[1], "  serves others at 0.0.0.0:123");
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(words, ["10.0.0.1:123", "heard", "level", "0", "61.0", "us", "wide"]);
    }
}
