//! lab-compare: the lab's comparison inside a guest that is itself a host.
//!
//! `lab-compare RUN_DIRECTORY READER_SOCKET OFFSET TIMES` compares a nested guest with this host's
//! page TIMES times and prints the worst values; it fails as [`Worst::add`] does. It also prints
//! how far OFFSET can be from the truth by causality alone: the guest reads its counter after the
//! request and before the answer. `lab-compare qmp SOCKET COMMAND [ARGUMENTS]` runs one QMP command
//! (its arguments are JSON); `lab-compare sh SOCKET LINE` runs one shell line in a guest that
//! serves its lab port there. `lab-compare clock RUN_DIRECTORY` reads the host's clock between two
//! readings of the page's counter. `lab-compare ask SOCKET REQUEST` asks a guest's reader, and `lab-compare
//! answer SOCKET` waits for what a guest says that arrives there. `lab-compare naps TIMES` sleeps for 1 ms, and
//! prints how late this host woke it up.
#![forbid(unsafe_code)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use comparison::{Worst, compare};
use reader::{GuestReader, HostPage};
use serde_json::{Value, json};
use timevisor_linux::clock::bracket;

// The same comparison code as in the lab's other tests.
#[path = "../../../src/comparison.rs"]
mod comparison;
#[path = "../../../src/reader.rs"]
#[expect(dead_code, reason = "the names of port and program are for the host's side")]
mod reader;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["qmp", socket, command] => println!("{}", qmp(socket, command, json!({}))?),
        ["qmp", socket, command, arguments] => {
            println!("{}", qmp(socket, command, serde_json::from_str(arguments)?)?);
        }
        ["sh", socket, line] => print!("{}", sh(socket, line)?),
        ["ask", socket, request] => {
            println!("{}", GuestReader::connect(Path::new(socket))?.ask(request)?);
        }
        ["naps", times] => println!("{}", naps(times.parse()?)),
        ["answer", socket] => println!("{}", answer(socket)?),
        ["clock", directory] => println!("{}", clock(directory)?),
        [directory, socket, offset, times] => {
            let page = HostPage::open(Path::new(directory))?;
            let mut guest = GuestReader::connect(Path::new(socket))?;
            let (offset, times): (i64, u32) = (offset.parse()?, times.parse()?);
            let mut worst = Worst::default();
            for _ in 0..times {
                let comparison = compare(&page, &mut guest, offset)?;
                ensure!(comparison.ptp.is_some(), "the guest's kernel gives no /dev/ptp0");
                worst.add(&comparison)?;
            }
            let slack = slack(&page, &mut guest, offset, times)?;
            println!("{}", report(&worst, slack));
        }
        _ => bail!(
            "usage: lab-compare RUN_DIRECTORY READER_SOCKET OFFSET TIMES | qmp SOCKET COMMAND [ARGUMENTS] | sh SOCKET LINE | \
             ask SOCKET REQUEST | answer SOCKET | clock RUN_DIRECTORY | naps TIMES"
        ),
    }
    Ok(())
}

/// The shortest time, in ns, from the request to the reading of the guest's counter, and from that
/// to the answer: the offset is wrong by less than the first in one direction and by less than the
/// second in the other. A negative value proves it wrong.
fn slack(page: &HostPage, guest: &mut GuestReader, offset: i64, times: u32) -> Result<[i64; 2]> {
    let mut least = [i64::MAX; 2];
    for _ in 0..times {
        let asked = page.read()?;
        let answer = guest.ask("read")?;
        let answered = page.read()?;
        let counter = answer["counter"].as_u64().context("no counter")?;
        let counter = counter.wrapping_sub(offset.cast_unsigned());
        let at = page.convert(counter)?.estimate;
        least[0] = least[0].min((at - asked.estimate).floor_nanos());
        least[1] = least[1].min((answered.estimate - at).floor_nanos());
    }
    Ok(least)
}

fn report(worst: &Worst, slack: [i64; 2]) -> Value {
    json!({
        "slack_ns": slack,
        "count": worst.count,
        "difference_ns": worst.difference,
        "outside_ns": worst.outside,
        "ptp_ns": worst.ptp,
        "half_width_ns": worst.half_width,
        "text": worst.text(),
    })
}

fn qmp(socket: &str, command: &str, arguments: Value) -> Result<Value> {
    let mut stream = UnixStream::connect(socket).with_context(|| format!("no QMP at {socket}"))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    lines.next().context("no greeting")??;
    let mut result = Value::Null;
    for (command, arguments) in [("qmp_capabilities", json!({})), (command, arguments)] {
        let line = json!({"execute": command, "arguments": arguments});
        stream.write_all(format!("{line}\n").as_bytes())?;
        result = loop {
            let answer: Value = serde_json::from_str(&lines.next().context("QEMU hung up")??)?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refused {command}: {error}");
            }
            if let Some(result) = answer.get("return") {
                break result.clone();
            }
        };
    }
    Ok(result)
}

fn naps(times: u32) -> Value {
    let nap = Duration::from_millis(1);
    let late = |_| {
        let began = Instant::now();
        std::thread::sleep(nap);
        (began.elapsed() - nap).as_secs_f64() * 1e6
    };
    json!({"late_us": (0..times).map(late).collect::<Vec<_>>()})
}

/// Number of tries; the narrowest bracket is kept.
const TRIES: usize = 10;

fn clock(directory: &str) -> Result<Value> {
    let page = HostPage::open(Path::new(directory))?;
    let read = bracket(page.counter(), TRIES);
    let realtime_ns = read.realtime.ceil_nanos();
    Ok(json!({"before": read.before, "realtime_ns": realtime_ns, "after": read.after}))
}

/// How often 40 s may pass without an answer.
const PATIENCE: u32 = 30;

fn answer(socket: &str) -> Result<Value> {
    let mut reader = GuestReader::connect(Path::new(socket))?;
    let silent = |error: &anyhow::Error| {
        let io = error.root_cause().downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::WouldBlock)
    };
    for _ in 1..PATIENCE {
        match reader.answer() {
            Err(error) if silent(&error) => {}
            said => return said,
        }
    }
    reader.answer()
}

/// The guest's side is `serve` in the lab's init.sh.
fn sh(socket: &str, line: &str) -> Result<String> {
    let mut stream = UnixStream::connect(socket).with_context(|| format!("no port at {socket}"))?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = BufReader::new(stream);
    let mut head = String::new();
    answer.read_line(&mut head)?;
    let (status, length) = head.trim().split_once(' ').with_context(|| format!("odd: {head}"))?;
    let mut output = vec![0; length.parse()?];
    answer.read_exact(&mut output)?;
    let output = String::from_utf8_lossy(&output).into_owned();
    ensure!(status == "0", "`{line}` failed with status {status}: {output}");
    Ok(output)
}
