//! The bottom of figure 11: the clocks of both hosts while a guest moves between them, and a
//! chronyd beside them.
//!
//! The moves belong to the lab, which keeps its two hosts for itself. They are watched as any
//! program on such a host could: by the daemon's configuration, its page, and its VMs' sockets.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use timevisor_lab::interrupt;
use timevisor_lab::oscillator::{Oscillator, Parameters};
use timevisor_lab::plot::{COLORS, Line, render};
use timevisor_lab::reader::HostPage;
use timevisor_lab::scenario::Context;

use super::beside::Beside;
use super::look::{self, Look, Moment};

const INTERVAL: Duration = Duration::from_millis(250);
/// How long after the start of a destination's QEMU a sample belongs to the move.
const MOVE_S: f64 = 10.0;
/// The lab's names of the two hosts' folders of logs.
const FOLDERS: [&str; 2] = ["a", "b"];

/// A daemon of the lab.
struct Watched {
    run_directory: PathBuf,
    page: HostPage,
    oscillator: Oscillator,
    server: IpAddr,
}

impl Watched {
    /// `None` until it has a page.
    fn find(logs: &Path, folder: &str) -> anyhow::Result<Option<Self>> {
        let own = logs.join(folder);
        let text = |name: &str| fs::read_to_string(own.join(name)).unwrap_or_default();
        let (config, log) = (text("timevisord.toml"), text("timevisord-1.log"));
        let (Some(directory), Some(server), Some(parameters)) =
            (value(&config, "run_directory"), value(&config, "address"), parameters(&log))
        else {
            return Ok(None);
        };
        let run_directory = PathBuf::from(directory);
        let Ok(page) = HostPage::open(&run_directory) else { return Ok(None) };
        let ctx = Context::with_logs(logs, &own.join("watched"), false)?;
        let oscillator = Oscillator::new(&ctx, parameters)?;
        Ok(Some(Self { run_directory, page, oscillator, server: server.parse()? }))
    }
}

/// The string that a line of the configuration gives to `key`.
fn value<'a>(config: &'a str, key: &str) -> Option<&'a str> {
    let line = config.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
    line.strip_suffix('"')
}

/// The daemon's oscillator, from the command line that its log begins with.
fn parameters(log: &str) -> Option<Parameters> {
    let text = log.lines().next()?.split_once("LAB_OSCILLATOR=")?.1;
    let mut words = text.split_whitespace().map(|word| word.trim_matches('\''));
    Some(Parameters {
        ppb: words.next()?.parse().ok()?,
        offset: words.next()?.parse().ok()?,
        amplitude_ppb: words.next()?.parse().ok()?,
        period: words.next()?.parse().ok()?,
    })
}

/// All clocks at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at_s: f64,
    pages: [Look; 2],
    chronyd_us: f64,
}

/// What the hosts' clocks did.
#[derive(Debug, Default)]
pub(super) struct Seen {
    samples: Vec<Sample>,
    /// When each move began.
    moves: Vec<f64>,
}

/// Watches both hosts whose logs are in `logs` until `done`.
pub(super) fn watch(logs: &Path, done: &AtomicBool) -> anyhow::Result<Seen> {
    let (began, mut seen) = (Instant::now(), Seen::default());
    let mut hosts = Vec::new();
    while hosts.len() < FOLDERS.len() {
        if done.load(Ordering::Relaxed) {
            return Ok(seen);
        }
        if let Some(host) = Watched::find(logs, FOLDERS[hosts.len()])? {
            hosts.push(host);
        }
        interrupt::sleep(INTERVAL)?;
    }
    let chronyd = Beside::following(hosts[0].server, &logs.join("beside.log"))?;
    while !done.load(Ordering::Relaxed) {
        let at_s = began.elapsed().as_secs_f64();
        let next = seen.moves.len() + 1;
        // The destination's QEMU, by its name in the lab: it begins each move.
        if hosts[next % 2].run_directory.join(format!("guest0-{next}.qmp")).exists() {
            seen.moves.push(at_s);
        }
        let chronyd_us = chronyd.error_us()?;
        let moment = Moment::now()?;
        let look =
            |host: &Watched| Look::at(&host.page, host.oscillator.counter(moment.tsc), &moment);
        // A daemon that the lab has just ended leaves its page, which tells the time on.
        let pages = [look(&hosts[0])?, look(&hosts[1])?];
        seen.samples.push(Sample { at_s, pages, chronyd_us });
        interrupt::sleep(INTERVAL)?;
    }
    Ok(seen)
}

/// A clock's name and its error.
type Clock = (&'static str, fn(&Sample) -> f64);

const CLOCKS: [Clock; 3] = [
    ("page, first host", |s| s.pages[0].error_us),
    ("page, second host", |s| s.pages[1].error_us),
    ("chronyd on the host", |s| s.chronyd_us),
];

impl Seen {
    /// Whether a sample was taken during a move.
    fn is_moving(&self, at_s: f64) -> bool {
        self.moves.iter().any(|began| (*began..began + MOVE_S).contains(&at_s))
    }

    /// Prints every clock's errors at rest and during moves; `stay` is how long the guest was
    /// watched before the first move, after its chronyd had settled.
    pub(super) fn table(&self, stay: Duration) -> Vec<Value> {
        let first = self.moves.first().map_or(f64::MAX, |first| first - stay.as_secs_f64());
        look::head("error of the hosts' own clocks");
        let mut rows = Vec::new();
        for (name, of) in CLOCKS {
            for (when, moving) in [("between moves", false), ("during moves", true)] {
                let these = self.samples.iter().filter(|s| s.at_s >= first);
                let these = these.filter(|s| self.is_moving(s.at_s) == moving);
                let errors: Vec<f64> = these.map(of).collect();
                rows.push(look::row(&format!("{name}, {when}"), &errors));
            }
        }
        let held = |n: usize| self.samples.iter().filter(|s| s.pages[n].holds()).count();
        println!("bounds held the truth: {} and {} of {}", held(0), held(1), self.samples.len());
        rows.push(json!({"row": "bounds of the hosts", "held": [held(0), held(1)], "count": self.samples.len()}));
        rows
    }

    /// The errors over time, with a dashed line where each move begins.
    pub(super) fn picture(&self, name: &str) -> String {
        let line = |((name, of), color): (Clock, &&'static str)| Line {
            name: name.to_owned(),
            points: self.samples.iter().map(|s| (s.at_s, of(s))).collect(),
            color,
            dashed: false,
        };
        let mut all: Vec<Line> = CLOCKS.into_iter().zip(&COLORS).map(line).collect();
        let values = || all.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let (low, high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
        all.extend(self.moves.iter().map(|at| Line {
            name: String::new(),
            points: vec![(*at, low), (*at, high)],
            color: "#000000",
            dashed: true,
        }));
        let title = format!("{name}: the hosts' own clocks; a move begins at each dashed line");
        render(&title, ["time, s", "offset from truth, us"], all, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_lab_writes_of_its_daemons() {
        let config = "run_directory = \"/tmp/x\"\n[guests]\ndiscover = false\n[[reference]]\ntype = \"ntp\"\naddress = \"10.213.1.2\"\n";
        assert_eq!(value(config, "run_directory"), Some("/tmp/x"));
        assert_eq!(value(config, "address"), Some("10.213.1.2"));
        assert_eq!(value(config, "poll"), None);
        let log = "$ setpriv --pdeathsig KILL -- env LD_PRELOAD=/o.so 'LAB_OSCILLATOR=40000 7200000000000 20 600000000000' /timevisord\n";
        let found = parameters(log).unwrap();
        assert_eq!((found.ppb, found.offset), (40_000, 7_200_000_000_000));
        assert_eq!((found.amplitude_ppb, found.period), (20.0, 6e11));
        assert!(parameters("$ timevisord\n").is_none());
    }

    #[test]
    fn a_move_takes_a_while() {
        let seen = Seen { moves: vec![100.0], ..Seen::default() };
        assert!(!seen.is_moving(99.0) && seen.is_moving(100.0) && seen.is_moving(105.0));
        assert!(!seen.is_moving(100.0 + MOVE_S));
    }
}
