//! How many NTP requests a core answers: timevisord's server beside chronyd's, under the same load
//! in the same run. Without and with the field of precise bounds (docs/reference/precise-ntp.md),
//! each without and with NTS; and as members of a cluster ask, without a key and with one. chronyd gets
//! what members of a cluster without a key send, and for one with a key its own NTS.
//!
//! | file | owns |
//! | --- | --- |
//! | `servers.rs` | the two servers: started, pinned, found ready; keys from them |
//! | `requests.rs` | requests of each kind, made beforehand; are answers complete and authentic? |
//! | `load.rs` | the client: requests and answers in batches, a fixed number in flight |
//! | `check.rs` | is the root distance that an answer states the page's half-width? |
//! | `cpu_time.rs` | which processor runs what, and how long |
//!
//! Method: both servers are pinned to one processor, the client to another; they take turns, so
//! that a noisy second hits both. The figure that counts is answers per second of the *server's
//! own* processor time (user and system, all threads, from /proc/PID/stat): the rate by the clock
//! is bounded by the client and by whoever else uses the machine. A ratio is the median over the
//! rounds, each with what chronyd did in the same round with the same requests. (chronyd answers one
//! with the field as if it had none: shorter than we do.) Limitations:
//! the loopback has no device driver; a client's own share of the kernel's work (delivering to the
//! server's socket) is not the server's, which is the same for both.

mod check;
mod cpu_time;
mod load;
mod requests;
mod servers;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use timevisor_benches::report::{Column, Report, Row};
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::Established;
use timevisor_protocols::nts::shared::Sealer;

use crate::check::Checker;
use crate::load::Client;
use crate::requests::{Cluster, Kind};
use crate::servers::Server;

/// One core has to answer this many requests a second.
const MIN_RATE: f64 = 100_000.0;
/// And at least as many as chronyd. Five runs on a loaded machine gave ratios of 1.10 to 1.12
/// (docs/decisions/0038-scenario-limits-over-20-seeds.md).
const MIN_RATIO: f64 = 1.0;

const COLUMNS: [Column; 6] = [
    Column { key: "answers_per_cpu_s", heading: "per CPU s", decimals: 0 },
    Column { key: "cpu_us_per_answer", heading: "CPU us", decimals: 2 },
    Column { key: "answers_per_s", heading: "per s", decimals: 0 },
    Column { key: "ratio_to_chronyd", heading: "x chronyd", decimals: 2 },
    Column { key: "lost", heading: "lost", decimals: 0 },
    Column { key: "checked", heading: "checked", decimals: 0 },
];

/// Loads timevisord's NTP server and chronyd.
#[derive(Parser)]
#[command(name = "bench-ntp-server")]
struct Arguments {
    /// How often the servers take turns.
    #[arg(long, default_value_t = 6)]
    rounds: u32,
    /// How long a turn is, milliseconds.
    #[arg(long, default_value_t = 1500)]
    turn_ms: u64,
    /// Exit with failure beyond the limits.
    #[arg(long)]
    check: bool,
}

/// What is asked for.
#[derive(Clone, Copy)]
struct Mode {
    nts: bool,
    precise: bool,
    cluster: bool,
}

const MODES: [Mode; 6] = [
    Mode { nts: false, precise: false, cluster: false },
    Mode { nts: false, precise: true, cluster: false },
    Mode { nts: true, precise: false, cluster: false },
    Mode { nts: true, precise: true, cluster: false },
    Mode { nts: false, precise: true, cluster: true },
    Mode { nts: true, precise: true, cluster: true },
];

impl Mode {
    /// What timevisord is asked.
    fn kind<'a>(self, keys: &'a Established, sealer: &'a Sealer) -> Result<Kind<'a>> {
        if !self.cluster {
            return Ok(Kind {
                precise: self.precise,
                nts: self.nts.then_some(keys),
                cluster: None,
            });
        }
        let name = if self.nts { servers::SEALED } else { servers::OPEN };
        let name = Name::new(name).context("a short name")?;
        let sealer = self.nts.then_some(sealer);
        Ok(Kind { precise: true, nts: None, cluster: Some(Cluster { name, sealer }) })
    }

    /// What chronyd is asked: the same, but it has no clusters' keys.
    fn peers_kind<'a>(self, keys: &'a Established, sealer: &'a Sealer) -> Result<Kind<'a>> {
        Self { cluster: self.cluster && !self.nts, ..self }.kind(keys, sealer)
    }
}

/// The turns of one server in one mode, one a round.
struct Series {
    mode: Mode,
    turns: Vec<Sum>,
    checked: u64,
}

impl Series {
    fn sum(&self) -> Sum {
        self.turns.iter().fold(Sum::default(), |all, turn| Sum {
            answers: all.answers + turn.answers,
            lost: all.lost + turn.lost,
            wall: all.wall + turn.wall,
            cpu: all.cpu + turn.cpu,
        })
    }

    /// The median of the rounds' ratios to `peer`; not a number without one.
    fn ratio(&self, peer: &Self) -> f64 {
        let pairs = self.turns.iter().zip(&peer.turns);
        let mut ratios: Vec<_> =
            pairs.map(|(turn, peer)| turn.per_cpu_second() / peer.per_cpu_second()).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        match (ratios.get(ratios.len().saturating_sub(1) / 2), ratios.get(ratios.len() / 2)) {
            (Some(low), Some(high)) => (low + high) / 2.0,
            _ => f64::NAN,
        }
    }

    fn row(&self, server: &str, ratio: f64) -> Row {
        let sum = self.sum();
        let rate = sum.per_cpu_second();
        let values = vec![
            rate,
            1e6 / rate,
            sum.answers as f64 / sum.wall.as_secs_f64(),
            ratio,
            sum.lost as f64,
            self.checked as f64,
        ];
        let nts = if self.mode.nts { ", NTS" } else { "" };
        let precise = match self.mode {
            Mode { cluster: true, nts: true, .. } if server == "timevisord" => ", a cluster's key",
            Mode { cluster: true, .. } => ", a cluster's member",
            Mode { precise: true, .. } => ", precise bounds",
            _ => "",
        };
        Row { name: format!("{server}{nts}{precise}"), values: Ok(values) }
    }
}

/// What one server has done in a turn, or in several.
#[derive(Clone, Copy, Default)]
struct Sum {
    answers: u64,
    lost: u64,
    wall: Duration,
    cpu: Duration,
}

impl Sum {
    fn per_cpu_second(&self) -> f64 {
        self.answers as f64 / self.cpu.as_secs_f64()
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    ensure!(arguments.rounds > 0 && arguments.turn_ms >= 100, "at least one turn of 100 ms");
    let (server_core, client_core) = timevisor_benches::cpu::two()?;
    timevisor_benches::cpu::pin(server_core)?;
    let folder = tempfile::tempdir()?;
    let ours_server = Server::timevisord(folder.path())?;
    let chronyd = Server::chronyd(folder.path());
    timevisor_benches::cpu::pin(client_core)?;
    let mut checker = Checker::open(&folder.path().join("run"))?;
    let turn = Duration::from_millis(arguments.turn_ms);
    let our_keys = ours_server.establish().context("timevisord")?;
    let sealer = servers::sealer()?;
    let their_keys = chronyd.as_ref().ok().map(Server::establish).transpose().context("chronyd")?;
    let mut ours = MODES.map(|mode| Series { mode, turns: Vec::new(), checked: 0 });
    let mut theirs = MODES.map(|mode| Series { mode, turns: Vec::new(), checked: 0 });
    for _ in 0..arguments.rounds {
        for (series, their) in ours.iter_mut().zip(&mut theirs) {
            let kind = series.mode.kind(&our_keys, &sealer)?;
            let before = checker.checked();
            series.turns.push(load(&ours_server, turn, kind, Some(&mut checker))?);
            series.checked += checker.checked() - before;
            if let (Ok(chronyd), Some(keys)) = (&chronyd, &their_keys) {
                let kind = their.mode.peers_kind(keys, &sealer)?;
                their.turns.push(load(chronyd, turn, kind, None)?);
            }
        }
    }
    let ratios: Vec<_> = ours.iter().zip(&theirs).map(|(s, their)| s.ratio(their)).collect();
    let rated = || ours.iter().zip(&ratios);
    let mut rows: Vec<_> = rated().map(|(s, ratio)| s.row("timevisord", *ratio)).collect();
    match &chronyd {
        Ok(_) => rows.extend(theirs.iter().map(|s| s.row("chronyd", 1.0))),
        Err(why) => {
            rows.push(Row { name: "chronyd".into(), values: Err(format!("{why:#}")) });
        }
    }
    // A node's burst at the start has eight exchanges.
    let nodes = |mode: usize| ours[mode].sum().per_cpu_second() / 8.0;
    let slow = rated().any(|(series, ratio)| {
        let too_few = !series.mode.nts && series.sum().per_cpu_second() < MIN_RATE;
        too_few || *ratio < MIN_RATIO
    });
    let report = Report {
        name: "bench-ntp-server",
        subject: "server",
        caption: vec![
            format!(
                "{} turns of {turn:?} in each row over the loopback, servers and client on processors {server_core} and {client_core}",
                arguments.rounds
            ),
            format!(
                "{} requests in flight; every {}th answer checked: {}",
                load::WINDOW,
                check::EVERY,
                checker.summary()
            ),
            format!(
                "at 8 exchanges each, a core answers {:.0} nodes of a cluster a second, and {:.0} of one with a key",
                nodes(4),
                nodes(5)
            ),
        ],
        columns: COLUMNS.to_vec(),
        rows,
    };
    print!("{}", report.table());
    report.write(&report.default_path())?;
    if arguments.check && slow {
        println!(
            "FAILED: below {MIN_RATE} answers per CPU second (without NTS), or below {MIN_RATIO} x chronyd"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// One turn of a server.
fn load(
    server: &Server,
    turn: Duration,
    kind: Kind<'_>,
    checker: Option<&mut Checker>,
) -> Result<Sum> {
    let is_ours = checker.is_some();
    let mut client = Client::connect(server.address(), kind, is_ours)?;
    // Warm: caches, and the scheduler's idea of the server.
    client.run(Duration::from_millis(50), None)?;
    let before = cpu_time::time_of(server.pid())?;
    let done = client.run(turn, checker)?;
    let cpu = cpu_time::time_of(server.pid())?.saturating_sub(before);
    Ok(Sum { answers: done.answers, lost: done.lost, wall: done.wall, cpu })
}
