//! `timevisor cluster simulate`: clusters of the nodes that production runs, on simulated links.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use timevisor_results::Results;
use timevisor_simulation::cluster::{Link, Plan, Report, World};
use timevisor_time::{Duration, RateError};

use crate::plot::{Line, svg};

mod published;

/// A world of this many nodes takes some gigabytes of memory.
const MOST_NODES: u32 = 2_000_000;

#[derive(Args)]
pub struct Options {
    /// How many nodes, the root included; several clusters are separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000", value_parser = clap::value_parser!(u32).range(2..=i64::from(MOST_NODES)))]
    nodes: Vec<u32>,
    /// Each link's shortest one-way delay and mean queueing
    #[arg(long, value_enum, default_value_t = Network::DataCentre)]
    link: Network,
    /// The share of messages that are lost
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    loss: f64,
    /// Addresses that every node knows at first: the root, and the nodes after it
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    seeds: u32,
    /// How many children a server has room for
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    children: u32,
    /// Answers of one burst, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    exchanges: u32,
    /// Requests that a server answers in a second
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    server_rate: u32,
    /// Peers that each node asks afterwards, once a second each
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=8))]
    peers: u32,
    /// So many servers may lie
    #[arg(long, value_name = "F", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=3))]
    liars: u32,
    /// One node's clock is wrong by this many us, and it vouches for it
    #[arg(long, value_name = "US", allow_negative_numbers = true, value_parser = clap::value_parser!(i32))]
    liar: Option<i32>,
    /// The share of nodes that start anew once within the first second
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    restarts: f64,
    /// Counters are off by up to this many parts per million, which is also what nodes state
    #[arg(long, value_name = "PPM", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=500))]
    rate: u16,
    /// Nodes start at random moments of the first so many ms; the seeds start at 0
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=3_600_000))]
    start_within: u32,
    /// Simulated seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    span: u32,
    /// Decides delays, losses and counters
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Start the same clusters by the algorithm of HPGC as it was published, too
    #[arg(long)]
    published: bool,
    /// Draw how many nodes are done by when, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Write the JSON to a file, beside the table
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Network {
    /// 5 us, 2 us of queueing
    DataCentre,
    /// 30 us, 20 us of queueing
    Lan,
    /// 98 us, 2 us of queueing: a round trip of 200 us
    Rack,
    /// 1 ms, 0.3 ms of queueing
    Wan,
}

impl Network {
    fn link(self) -> Link {
        match self {
            Self::DataCentre => Link::DATA_CENTRE,
            Self::Lan => Link::LAN,
            Self::Rack => Link::RACK,
            Self::Wan => Link::WAN,
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a number from 0 to 1".to_owned())
}

/// Exit code 1: a node vouched for bounds without the truth.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut outside = 0;
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    if !options.json {
        println!("{HEAD}");
    }
    for nodes in &options.nodes {
        let plan = plan(options, *nodes)?;
        let began = Instant::now();
        let mut world = World::new(&plan, options.seed);
        let until = options.span;
        world.run_with(|at| {
            // A million nodes take a minute.
            if began.elapsed().as_secs() >= 5 {
                eprint!("\r  {nodes} nodes: {:.2} of {until} s simulated ", at.as_secs_f64());
            }
        });
        if began.elapsed().as_secs() >= 5 {
            eprintln!();
        }
        let report = world.report();
        outside += report.outside;
        if !options.json {
            print!("{}", lines(&report));
        }
        rows.extend(objects(&report));
        curves.push(ours(&report));
    }
    if options.published {
        if !options.json {
            println!("\n{}", published::HEAD);
        }
        for nodes in &options.nodes {
            for (serving, found) in published::start(options, *nodes) {
                if !options.json {
                    print!("{}", published::lines(*nodes, serving, &found));
                }
                rows.extend(published::objects(*nodes, serving, &found));
                curves.push(published::curve_of(*nodes, serving, &found));
            }
        }
        curves.extend(published::as_published(&curves));
    }
    if let Some(path) = &options.plot {
        let (x, y) = ("log10 of ms since the start", "log10 of nodes that are done");
        let drawn = svg("A cluster's cold start", x, y, curves);
        std::fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let results = Results::new("cluster-simulate", rows).with_caption(caption(options));
    if options.json {
        print!("{}", results.text()?);
    }
    if let Some(path) = &options.results {
        results.write(path)?;
    }
    Ok(if outside == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plan(options: &Options, nodes: u32) -> Result<Plan> {
    let liar = options.liar.map(|us| (nodes / 2, i64::from(us) * 1000));
    ensure!(
        liar.is_none() || nodes > 2,
        "a cluster of two nodes has the root and one that asks it: nobody asks a liar"
    );
    let link = Link { loss: options.loss, ..options.link.link() };
    Ok(Plan {
        seeds: options.seeds,
        service_ns: 1_000_000_000 / options.server_rate,
        burst: timevisor_cluster::settle::Limits { wanted: None, most: options.exchanges },
        children: usize::try_from(options.children)?,
        peers: usize::try_from(options.peers)?,
        liars: usize::try_from(options.liars)?,
        liar,
        restarts: options.restarts,
        rate: RateError::from_ppm(u32::from(options.rate)),
        start: Duration::from_millis(i64::from(options.start_within)),
        until: Duration::from_secs(i64::from(options.span)),
        ..Plan::cold(nodes, link)
    })
}

const HEAD: &str = "    nodes  bounded      last     median  questions  exchanges      busiest   messages    outside  named | level  nodes  half-width
                         ms         ms  median/p99  median/p99   server's                 of judged        |              median/p99, at the end us";

fn lines(report: &Report) -> String {
    let ms = |ns: f64| ns * 1e-6;
    let mut out = format!(
        "{:>9} {:>8} {:>9.1} {:>10.1} {:>6.0}/{:<3.0} {:>6.0}/{:<3.0} {:>12} {:>10} {:>4} of {} {:>4}",
        report.nodes,
        report.vouching(),
        ms(report.vouching_ns(1000)),
        ms(report.vouching_ns(500)),
        report.questions(500),
        report.questions(990),
        report.exchanges(500),
        report.exchanges(990),
        report.busiest,
        report.messages,
        report.outside,
        report.judged,
        report.named.len(),
    );
    let indent = out.chars().count();
    for (index, (level, at)) in report.levels.iter().enumerate() {
        if index > 0 {
            out += &" ".repeat(indent);
        }
        let us = |permille| at.half_width_ns(permille) * 1e-3;
        let late = |permille| at.half_width_at_end_ns(permille) * 1e-3;
        out += &format!(
            " | {level:>5} {:>6} {:>8.1}/{:.1}, {:.0}/{:.0}\n",
            at.nodes(),
            us(500),
            us(990),
            late(500),
            late(990)
        );
    }
    out
}

fn ours(report: &Report) -> Line {
    let name = format!("{} nodes", report.nodes);
    curve(report.all_vouching_ns(), "crimson", name)
}

/// How many nodes are done by when, both as logarithms.
fn curve(done_ns: &[f64], color: &'static str, name: String) -> Line {
    let points = (1_u32..).zip(done_ns);
    let points = points.map(|(count, ns)| ((ns * 1e-6).log10(), f64::from(count).log10()));
    Line { points: thinned(points), color, width: 2.0, dashed: false, name }
}

/// The first and the last point, and those in between that are 1 % higher than the one before.
fn thinned(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let mut last = None;
    for point in points {
        if kept.last().is_none_or(|before| point.1 - before.1 > 0.005) {
            kept.push(point);
        }
        last = Some(point);
    }
    kept.extend(last);
    kept
}

/// One object for each level.
fn objects(report: &Report) -> Vec<Value> {
    let level = |(level, at): (&u8, &timevisor_simulation::cluster::Level)| {
        json!({
            "nodes": report.nodes,
            "bounded": report.vouching(),
            "bounded_last_ms": report.vouching_ns(1000) * 1e-6,
            "bounded_median_ms": report.vouching_ns(500) * 1e-6,
            "questions_median": report.questions(500),
            "questions_p99": report.questions(990),
            "exchanges_median": report.exchanges(500),
            "exchanges_p99": report.exchanges(990),
            "busiest_server_questions": report.busiest,
            "messages": report.messages,
            "judged": report.judged,
            "outside": report.outside,
            "named": report.named.len(),
            "level": level,
            "level_nodes": at.nodes(),
            "half_width_median_us": at.half_width_ns(500) * 1e-3,
            "half_width_p99_us": at.half_width_ns(990) * 1e-3,
            "half_width_at_end_median_us": at.half_width_at_end_ns(500) * 1e-3,
            "half_width_at_end_p99_us": at.half_width_at_end_ns(990) * 1e-3,
        })
    };
    report.levels.iter().map(level).collect()
}

fn caption(options: &Options) -> Vec<String> {
    let link = options.link.link();
    vec![
        format!(
            "one-way delay {} us + Exp({} us), losses {}",
            f64::from(link.minimum_ns) / 1e3,
            f64::from(link.queueing_ns) / 1e3,
            options.loss
        ),
        format!(
            "{} questions a second and server, {} children, {} seeds; {} peers afterwards",
            options.server_rate, options.children, options.seeds, options.peers
        ),
        format!("counters off by up to {} ppm; seed {}", options.rate, options.seed),
    ]
}
