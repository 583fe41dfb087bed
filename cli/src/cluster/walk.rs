//! `timevisor cluster nodes, tree`: walks through a cluster by asking each host whom else it answers.
//! Needs no rights, and no daemon where a host is named.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use timevisor_cluster::wire::{Query, Said};
use timevisor_protocols::ntp::ERA_PIVOT;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::shared::Sealer;

use super::key::sealer;
use super::random;
use super::status::clusters;
use crate::plot::{Line, Marks, svg_with_marks};

/// How long an answer is waited for.
const PATIENCE: StdDuration = StdDuration::from_millis(300);
/// How often a host is asked that does not answer.
const TRIES: u32 = 3;
/// A host names 8 others at a time, other ones each time; it is asked so often at most.
const MOST_QUESTIONS: u32 = 200;
/// Between two questions to one host, so that its rate limit is kept.
const SPACING: StdDuration = StdDuration::from_millis(20);
/// Hosts that one walk visits.
const MOST_HOSTS: usize = 10_000;
/// How often a long walk says how far it is, on stderr.
const PROGRESS: StdDuration = StdDuration::from_secs(5);

#[derive(Args)]
pub struct Options {
    /// The cluster's name, or that of its own timeline; without it, the first of this host's daemon
    #[arg(long, value_name = "NAME")]
    timeline: Option<String>,
    /// Begin at this host, such as 10.0.0.1 or 10.0.0.1:1123; without it, where this host's
    /// daemon begins
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "timeline")]
    host: Vec<SocketAddr>,
    /// The cluster's key, if it has one
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Draw who is answered by whom, with half-widths, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let host = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 123));
    let found = text.parse::<SocketAddr>().ok().or_else(host);
    found.ok_or_else(|| "write 192.0.2.1, 192.0.2.1:123 or [2001:db8::1]:123".to_owned())
}

/// What hosts are asked about.
struct Asking {
    timeline: Name,
    sealer: Option<Sealer>,
}

/// A host, as it answered.
#[derive(Clone, Debug, Serialize)]
struct Node {
    address: SocketAddr,
    /// Of the hosts that named it, the one nearest to the master, if that is nearer than itself.
    named_by: Option<SocketAddr>,
    /// Whether it answered, and what is wrong otherwise.
    status: String,
    level: Option<u8>,
    origin: Option<String>,
    /// Of its bounds when it answered.
    half_width_us: Option<f64>,
    /// Seconds since it, or anybody, heard the timeline's master.
    master_heard_s: Option<f64>,
}

pub fn nodes(directory: &Path, options: &Options) -> Result<()> {
    show(directory, options, |found| {
        let mut out = format!(
            "{:<40} {:>5} {:>14} {:>10}  {:<24} {}\n",
            "host", "level", "half-width us", "master", "origin", "named by"
        );
        for node in found {
            let named_by = node.named_by.map_or_else(|| "-".to_owned(), |at| at.to_string());
            out += &format!("{:<40} {}  {named_by}\n", node.address.to_string(), columns(node));
        }
        out
    })
}

pub fn tree(directory: &Path, options: &Options) -> Result<()> {
    show(directory, options, |found| {
        let mut out = String::new();
        let roots = found.iter().filter(|node| node.named_by.is_none());
        roots.for_each(|root| branch(found, root, 0, &mut out));
        out
    })
}

fn branch(all: &[Node], node: &Node, depth: usize, out: &mut String) {
    let name = format!("{}{}", "  ".repeat(depth), node.address);
    *out += &format!("{name:<40} {}\n", columns(node).trim_end());
    let children = all.iter().filter(|child| child.named_by == Some(node.address));
    children.for_each(|child| branch(all, child, depth + 1, out));
}

fn columns(node: &Node) -> String {
    if node.level.is_none() {
        return node.status.clone();
    }
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    format!(
        "{:>5} {:>14} {:>10}  {:<24}",
        text(node.level.map(|level| level.to_string())),
        text(node.half_width_us.map(|us| format!("{us:.1}"))),
        text(node.master_heard_s.map(|s| format!("{s:.1} s"))),
        text(node.origin.clone()),
    )
}

fn show(directory: &Path, options: &Options, text: impl Fn(&[Node]) -> String) -> Result<()> {
    let (timeline, starts) = start(directory, options)?;
    let name = Name::new(&timeline)
        .with_context(|| format!("{timeline} is no cluster's name: it has 1 to 16 bytes"))?;
    let asking = Asking { timeline: name, sealer: sealer(options.key.as_deref(), name)? };
    let found = walk(&asking, &starts)?;
    ensure!(
        found.iter().any(|node| node.level.is_some()),
        "no host of {timeline} answered: {}",
        found.iter().map(|n| format!("{}: {}", n.address, n.status)).collect::<Vec<_>>().join("; ")
    );
    if options.json {
        println!("{}", serde_json::to_string(&found)?);
    } else {
        print!("{}", text(&found));
    }
    if let Some(path) = &options.plot {
        let drawn = plot(&timeline, &found);
        fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Which timeline, and where to begin.
fn start(directory: &Path, options: &Options) -> Result<(String, Vec<SocketAddr>)> {
    if let (Some(timeline), false) = (&options.timeline, options.host.is_empty()) {
        return Ok((timeline.clone(), options.host.clone()));
    }
    let clusters = clusters(directory)?.clusters;
    let on_wire = |clock: &timevisor_protocols::control::ClusterClock| match &*clock.timeline {
        "utc" => clock.cluster.clone(),
        own => own.to_owned(),
    };
    let wanted = options.timeline.as_ref();
    let clock = clusters.iter().find(|clock| wanted.is_none_or(|name| *name == on_wire(clock)));
    let clock = clock.with_context(|| {
        let all: Vec<String> = clusters.iter().map(on_wire).collect();
        format!("this host has no such cluster; it has: {}", all.join(", "))
    })?;
    let own = clock.serves.iter().filter_map(|at| at.parse::<SocketAddr>().ok());
    let own = own.map(|at| match at.ip() {
        ip if !ip.is_unspecified() => at,
        IpAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], at.port())),
        IpAddr::V6(_) => SocketAddr::new(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), at.port()),
    });
    let mut starts: Vec<SocketAddr> =
        clock.seeds.iter().filter_map(|seed| seed.parse().ok()).collect();
    if starts.is_empty() {
        starts.extend(own);
    }
    ensure!(!starts.is_empty(), "this host knows no other, and serves none: name one with --host");
    Ok((on_wire(clock), starts))
}

fn walk(asking: &Asking, starts: &[SocketAddr]) -> Result<Vec<Node>> {
    let mut queue: VecDeque<SocketAddr> = starts.iter().copied().collect();
    let mut seen: BTreeSet<SocketAddr> = starts.iter().copied().collect();
    let mut namers: BTreeMap<SocketAddr, Vec<SocketAddr>> = BTreeMap::new();
    let mut found = Vec::new();
    let mut told = Instant::now();
    while let Some(address) = queue.pop_front() {
        let (node, others) = visit(asking, address)?;
        found.push(node);
        for other in others {
            namers.entry(other).or_default().push(address);
            if seen.len() < MOST_HOSTS && seen.insert(other) {
                queue.push_back(other);
            }
        }
        if told.elapsed() >= PROGRESS {
            eprintln!("{} hosts asked, {} known", found.len(), seen.len());
            told = Instant::now();
        }
    }
    join(&mut found, &namers);
    Ok(found)
}

/// Says of each host who named it.
fn join(found: &mut [Node], namers: &BTreeMap<SocketAddr, Vec<SocketAddr>>) {
    let levels: BTreeMap<SocketAddr, u8> =
        found.iter().filter_map(|node| Some((node.address, node.level?))).collect();
    for node in found {
        let namers = namers.get(&node.address).into_iter().flatten();
        let ranked = namers.filter_map(|at| Some((*levels.get(at)?, *at)));
        let nearest = ranked.min().filter(|(level, _)| node.level.is_none_or(|own| *level < own));
        node.named_by = nearest.map(|(_, at)| at);
    }
}

/// Asks one host until it names nobody new.
fn visit(asking: &Asking, address: SocketAddr) -> Result<(Node, BTreeSet<SocketAddr>)> {
    let node = |status: String| Node {
        address,
        named_by: None,
        status,
        level: None,
        origin: None,
        half_width_us: None,
        master_heard_s: None,
    };
    let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).context("no socket")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    if let Err(error) = socket.connect(address) {
        return Ok((node(format!("unreachable: {error}")), BTreeSet::new()));
    }
    let mut others = BTreeSet::new();
    let mut last: Option<Said> = None;
    for _ in 0..MOST_QUESTIONS {
        match question(&socket, asking)? {
            Ok(said) => {
                let before = others.len();
                others.extend(said.others.iter().flatten().copied());
                last = Some(said);
                if others.len() == before {
                    break;
                }
            }
            Err(why) if last.is_none() => return Ok((node(why), BTreeSet::new())),
            Err(_) => break,
        }
        std::thread::sleep(SPACING);
    }
    let Some(said) = last else { return Ok((node("no answer".to_owned()), others)) };
    let width = said.intervals.map(|[_, left]| left.width().as_secs_f64() * 5e5);
    let of_own_timeline = said.origin.generation > 0;
    let bounded = said.intervals.is_some();
    Ok((
        Node {
            status: if bounded { "bounded" } else { "no bounds yet" }.to_owned(),
            level: bounded.then_some(said.level),
            origin: of_own_timeline.then(|| said.origin.to_string()),
            half_width_us: width,
            master_heard_s: said.silence.map(timevisor_time::Duration::as_secs_f64),
            ..node(String::new())
        },
        others,
    ))
}

/// One question, asked again if it is lost. The inner error says what is wrong with the host.
fn question(socket: &UdpSocket, asking: &Asking) -> Result<Result<Said, String>> {
    for _ in 0..TRIES {
        let made = Query::made(asking.timeline, None, asking.sealer.as_ref(), &random()?);
        let (query, datagram) = made.context("the question cannot be sealed")?;
        if let Err(error) = socket.send(&datagram) {
            return Ok(Err(format!("unreachable: {error}")));
        }
        let mut buffer = [0; 2048];
        match socket.recv(&mut buffer) {
            Ok(len) => match query.read(&buffer[..len], ERA_PIVOT) {
                Ok(said) => return Ok(Ok(said)),
                Err(why) => return Ok(Err(why.to_string())),
            },
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                return Ok(Err("nobody listens there".to_owned()));
            }
            Err(_) => {}
        }
    }
    Ok(Err("no answer".to_owned()))
}

/// Each host at its half-width, joined to the one that named it.
fn plot(timeline: &str, found: &[Node]) -> String {
    let place: BTreeMap<SocketAddr, (f64, f64)> = found
        .iter()
        .filter(|node| node.level.is_some())
        .enumerate()
        .map(|(index, node)| (node.address, (index as f64, node.half_width_us.unwrap_or(0.0))))
        .collect();
    let edges = found.iter().filter_map(|node| {
        let ends = (place.get(&node.named_by?)?, place.get(&node.address)?);
        Some(Line {
            points: vec![*ends.0, *ends.1],
            color: "lightgray",
            width: 1.0,
            dashed: false,
            name: String::new(),
        })
    });
    let levels: BTreeSet<u8> = found.iter().filter_map(|node| node.level).collect();
    const COLORS: [&str; 4] = ["crimson", "steelblue", "seagreen", "darkorange"];
    let marks = levels.into_iter().enumerate().map(|(index, level)| Marks {
        points: found
            .iter()
            .filter(|node| node.level == Some(level))
            .filter_map(|node| place.get(&node.address).copied())
            .collect(),
        color: COLORS[index % COLORS.len()],
        name: format!("level {level}"),
    });
    let title = format!("Hosts of {timeline}");
    svg_with_marks(&title, "host", "half-width, us", edges.collect(), marks.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_stands_below_the_nearest_of_those_that_named_it() {
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let node = |port: u16, level: Option<u8>| Node {
            address: at(port),
            named_by: None,
            status: "bounded".to_owned(),
            level,
            origin: None,
            half_width_us: Some(f64::from(port)),
            master_heard_s: None,
        };
        let mut all = [node(1, Some(0)), node(2, Some(1)), node(3, Some(2)), node(4, None)];
        let namers = BTreeMap::from([
            (at(1), vec![at(2)]),
            (at(2), vec![at(3), at(1)]),
            (at(3), vec![at(2), at(1)]),
            (at(4), vec![at(2)]),
        ]);
        join(&mut all, &namers);
        let named: Vec<_> = all.iter().map(|node| node.named_by).collect();
        assert_eq!(named, [None, Some(at(1)), Some(at(1)), Some(at(2))]);
        let mut out = String::new();
        branch(&all, &all[0], 0, &mut out);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[0].starts_with("10.0.0.1:1 ") && lines[1].starts_with("  10.0.0.1:2 "));
        assert!(lines[2].starts_with("    10.0.0.1:4 ") && lines[3].starts_with("  10.0.0.1:3 "));
        assert!(plot("cell", &all).contains("level 2"));
    }
}
