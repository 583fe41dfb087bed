//! What groups cost: from joining to the first message, a thousand members, a message beside plain Zenoh, a proposal.
//!
//! | file | owns |
//! | --- | --- |
//! | `part.rs` | this program once more, as a process of its own that is told what to do line by line |
//! | `ours.rs` | members, their echo, a crowd of them |
//! | `plain.rs` | Zenoh's router, publisher and echo, without anything of ours |
//!
//! Method: a timevisord and a timevisor-bus of the benchmark's own. Round trips between two processes go by way of a
//! third, ours and Zenoh's in turns of 100, both over Unix sockets. Figures are medians.

mod ours;
mod part;
mod plain;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use timevisor_benches::daemon::Daemon;
use timevisor_benches::report::{Column, Report, Row, median};

use crate::part::Part;

/// From joining to the first message.
const MAX_FIRST_MESSAGE: Duration = Duration::from_millis(50);
/// All members of a big group joined.
const MAX_JOIN_ALL: Duration = Duration::from_secs(5);
/// All of them know each other after the last one has joined: a lease.
const MAX_AGREED: Duration = Duration::from_secs(3);
/// A round trip against one of plain Zenoh.
const MAX_RATIO: f64 = 1.2;
/// A proposal among three is decided.
const MAX_DECIDED: Duration = Duration::from_millis(10);

const PROCESSES: usize = 4;
const EACH: usize = 250;

const COLUMNS: [Column; 4] = [
    Column { key: "median_ms", heading: "median ms", decimals: 3 },
    Column { key: "p99_ms", heading: "p99 ms", decimals: 3 },
    Column { key: "limit_ms", heading: "limit ms", decimals: 0 },
    Column { key: "ratio", heading: "ratio", decimals: 3 },
];

/// Measures what groups cost.
#[derive(Parser)]
#[command(name = "bench-groups")]
struct Arguments {
    /// Exit with failure beyond the limits
    #[arg(long)]
    check: bool,
    /// What a process of its own does; for the benchmark itself.
    #[arg(long, hide = true, num_args = 1..)]
    part: Option<Vec<String>>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(words) = &arguments.part {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        return part::run(&words).map(|()| ExitCode::SUCCESS);
    }
    let daemon = Daemon::start()?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("bus");
    let _bus = ours::bus(&socket)?;
    let place = ours::Place { run: daemon.path(""), bus: socket.clone() };
    let first = ours::first_messages(&place)?;
    let decided = ours::proposals(&place)?;
    let (trips, plain) = round_trips(&place, &folder.path().join("zenoh"))?;
    let ratio = median(&trips) / median(&plain);
    let crowd = crowd(&place)?;
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    let rows = vec![
        Row::of(
            "join to the first message of another member",
            &first,
            ms(MAX_FIRST_MESSAGE),
            f64::NAN,
        ),
        Row::of("propose to decided, 3 members", &decided, ms(MAX_DECIDED), f64::NAN),
        Row::of("round trip of 64 bytes by way of the bus", &trips, f64::NAN, ratio),
        Row::of("round trip of 64 bytes by way of Zenoh's router", &plain, f64::NAN, 1.0),
        Row::of(
            "join of 1,000 members in 4 processes",
            &[crowd.joined],
            ms(MAX_JOIN_ALL),
            f64::NAN,
        ),
        Row::of("all of them know all 1,000", &[crowd.agreed], ms(MAX_AGREED), f64::NAN),
    ];
    let caption = vec![
        "one timevisord, one timevisor-bus; round trips in turns of 100".to_owned(),
        format!(
            "with 1,000 members the bus takes {} MiB, a process of 250 {} MiB",
            crowd.bus_mib, crowd.member_mib
        ),
    ];
    let columns = COLUMNS.to_vec();
    let report = Report { name: "bench-groups", subject: "what", caption, columns, rows };
    print!("{}", report.table());
    report.write(&report.default_path())?;
    let slow = median(&first) > ms(MAX_FIRST_MESSAGE)
        || median(&decided) > ms(MAX_DECIDED)
        || ratio > MAX_RATIO
        || crowd.joined > ms(MAX_JOIN_ALL)
        || crowd.agreed > ms(MAX_AGREED);
    if arguments.check && slow {
        println!("FAILED: beyond a limit of the table, or a ratio above {MAX_RATIO}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Milliseconds of round trips, ours and plain Zenoh's.
fn round_trips(place: &ours::Place, zenoh: &std::path::Path) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut echo = Part::start(&place.words("echo"))?;
    let mut router = Part::start(&plain::words("router", zenoh))?;
    router.expect("ready")?;
    let mut plain_echo = Part::start(&plain::words("echo", zenoh))?;
    echo.expect("ready")?;
    plain_echo.expect("ready")?;
    let (ours, plain) = (ours::Pinger::new(place)?, plain::Pinger::new(zenoh)?);
    let (mut of_ours, mut of_plain) = (Vec::new(), Vec::new());
    let time = |trip: &dyn Fn() -> Result<()>| -> Result<f64> {
        let began = Instant::now();
        trip()?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    for turn in 0..40 {
        for _ in 0..100 {
            let taken = time(&|| ours.trip())?;
            // The first turn warms up.
            if turn > 0 {
                of_ours.push(taken);
            }
        }
        for _ in 0..100 {
            let taken = time(&|| plain.trip())?;
            if turn > 0 {
                of_plain.push(taken);
            }
        }
    }
    Ok((of_ours, of_plain))
}

struct Crowd {
    joined: f64,
    agreed: f64,
    bus_mib: u64,
    member_mib: u64,
}

fn crowd(place: &ours::Place) -> Result<Crowd> {
    let mut processes = Vec::new();
    for number in 0..PROCESSES {
        let (prefix, each, all) =
            (format!("p{number}-"), EACH.to_string(), (PROCESSES * EACH).to_string());
        let mut words = place.words("crowd");
        words.extend([prefix, each, all]);
        let mut process = Part::start(&words)?;
        process.expect("ready")?;
        processes.push(process);
    }
    let began = Instant::now();
    processes.iter_mut().try_for_each(|process| process.say("join"))?;
    processes.iter_mut().try_for_each(|process| process.expect("joined"))?;
    let joined = began.elapsed();
    processes.iter_mut().try_for_each(|process| process.expect("agreed"))?;
    let agreed = began.elapsed() - joined;
    let member_mib = processes.first().context("no process")?.memory_mib()?;
    let bus_mib = ours::memory_of_bus(place)?;
    ensure!(processes.iter_mut().all(Part::is_alive), "a process has ended");
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    Ok(Crowd { joined: ms(joined), agreed: ms(agreed), bus_mib, member_mib })
}
