//! How many NTP requests a core answers: timevisord's server beside chronyd's, under the same load
//! in the same run, without and with the field of precise bounds (docs/reference/precise-ntp.md).
//!
//! | file | owns |
//! | --- | --- |
//! | `servers.rs` | the two servers: started, pinned, found ready |
//! | `load.rs` | the client: requests and answers in batches, a fixed number in flight |
//! | `check.rs` | is the root distance that an answer states the page's half-width? |
//! | `cpu_time.rs` | which processor runs what, and how long |
//!
//! Method: both servers are pinned to one processor, the client to another; they take turns, so
//! that a noisy second hits both. The figure that counts is answers per second of the *server's
//! own* processor time (user and system, all threads, from /proc/PID/stat): the rate by the clock
//! is bounded by the client and by whoever else uses the machine. Limitations: the loopback has no
//! device driver; a client's own share of the kernel's work (delivering to the server's socket) is
//! not the server's, which is the same for both.

mod check;
mod cpu_time;
mod load;
mod servers;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use timevisor_benches::report::{Column, Report, Row};

use crate::check::Checker;
use crate::load::Client;
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

/// What one server has done in all its turns.
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
    // Plain requests, and requests for precise bounds, which chronyd answers as plain ones.
    let [mut ours, mut theirs] = [[(Sum::default(), 0); 2]; 2];
    for _ in 0..arguments.rounds {
        for precise in [false, true] {
            let (sum, checked) = &mut ours[usize::from(precise)];
            let before = checker.checked();
            load(&ours_server, sum, turn, precise, Some(&mut checker))?;
            *checked += checker.checked() - before;
            if let Ok(chronyd) = &chronyd {
                load(chronyd, &mut theirs[usize::from(precise)].0, turn, precise, None)?;
            }
        }
    }
    let base = if chronyd.is_ok() { theirs[0].0.per_cpu_second() } else { f64::NAN };
    let mut rows =
        vec![row("timevisord", &ours[0], base), row("timevisord, precise bounds", &ours[1], base)];
    match &chronyd {
        Ok(_) => {
            rows.push(row("chronyd", &theirs[0], base));
            rows.push(row("chronyd, asked for them", &theirs[1], base));
        }
        Err(why) => {
            rows.push(Row { name: "chronyd".into(), values: Err(format!("{why:#}")) });
        }
    }
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
        ],
        columns: COLUMNS.to_vec(),
        rows,
    };
    print!("{}", report.table());
    report.write(&report.default_path())?;
    let slow = ours.iter().any(|(sum, _)| {
        let rate = sum.per_cpu_second();
        rate < MIN_RATE || base.is_finite() && rate / base < MIN_RATIO
    });
    if arguments.check && slow {
        println!("FAILED: below {MIN_RATE} answers per CPU second, or below {MIN_RATIO} x chronyd");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn load(
    server: &Server,
    sum: &mut Sum,
    turn: Duration,
    precise: bool,
    checker: Option<&mut Checker>,
) -> Result<()> {
    let mut client = Client::connect(server.address(), precise)?;
    // Warm: caches, and the scheduler's idea of the server.
    client.run(Duration::from_millis(50), None)?;
    let before = cpu_time::time_of(server.pid())?;
    let done = client.run(turn, checker)?;
    sum.cpu += cpu_time::time_of(server.pid())?.saturating_sub(before);
    sum.answers += done.answers;
    sum.lost += done.lost;
    sum.wall += done.wall;
    Ok(())
}

fn row(name: &str, (sum, checked): &(Sum, u64), base: f64) -> Row {
    let rate = sum.per_cpu_second();
    let values = vec![
        rate,
        1e6 / rate,
        sum.answers as f64 / sum.wall.as_secs_f64(),
        rate / base,
        sum.lost as f64,
        *checked as f64,
    ];
    Row { name: name.to_owned(), values: Ok(values) }
}
