//! lab-ages: threads whose ages a timevisord in this machine keeps, as unprivileged programs see
//! them.
//!
//! | command | does |
//! | --- | --- |
//! | `moves N` | as nobody, moves N times between two processors and keeps reading; meanwhile root announces frequencies to timevisord's programs |
//! | `hold` | as nobody, reads until that fails, then begins again |
//! | `many N` | as nobody, begins the ages of N threads |
//! | `announce PERMILLE` | announces that each core runs at so much of its frequency |
//! | `clock N` | reads timevisord's page N times, each between two readings of the TSC |
//! | `nobody COMMAND ...` | runs a command as nobody |
//!
//! Announcements are trial runs of the attached program (BPF_PROG_TEST_RUN): a virtual machine has
//! no cpufreq driver, and its real frequency does not change.
#![forbid(unsafe_code)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use timevisor::{ThreadAge, ThreadAgeError};
use timevisor_clock_page::Reader;
use timevisor_clock_page::reader::counter_of;
use timevisor_linux::affinity;
use timevisor_linux::bpf::elapsed::announce_frequency_to_all;
use timevisor_linux::clock::monotonic_raw_nanos;
use timevisor_linux::counter::{HostCounter, Tsc, calibrate};

#[path = "../beside.rs"]
mod beside;
#[path = "../pages.rs"]
mod pages;

const NOBODY: u32 = 65_534;
const PAGE: &str = "/run/timevisor/clock";
const READS_A_MOVE: u32 = 100;
/// A frequency is announced after so many moves.
const MOVES_A_FREQUENCY: u32 = 6;
const FREQUENCIES: u32 = 80;
/// Announced frequencies are this far from the true one, so that ages stay beside
/// CLOCK_MONOTONIC_RAW: timevisord stops at 1 %.
const PERMILLE: [u64; 2] = [1004, 996];
const PAUSE: Duration = Duration::from_millis(3);
/// So many failed readings in a row are no moment.
const ERRORS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(90);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u32>().with_context(|| format!("odd number {text:?}"));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["moves", moves] => println!("{}", moves_and_frequencies(moves)?),
        ["thread", moves] => println!("{}", thread(number(moves)?)?),
        ["hold"] => run_as_nobody("holding")?,
        ["holding"] => hold()?,
        ["many", count] => println!("{}", many(number(count)?)?),
        ["announce", permille] => {
            let khz = khz()? * u64::from(number(permille)?) / 1000;
            for core in cores()? {
                ensure!(announce_frequency_to_all(khz, core, core)? == 1, "no programs");
            }
        }
        ["clock", times] => {
            for _ in 0..number(times)? {
                println!("{}", clock()?);
            }
        }
        ["nobody", program, ..] => {
            let mut command = Command::new(program);
            return Err(command.args(&arguments[2..]).uid(NOBODY).gid(NOBODY).exec().into());
        }
        _ => bail!("usage: see the source"),
    }
    Ok(())
}

fn cores() -> Result<Vec<u32>> {
    affinity::online()?.into_iter().map(|core| Ok(u32::try_from(core)?)).collect()
}

/// The frequency that timevisord's programs have measured, too.
fn khz() -> Result<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
    Ok((calibrate(&Tsc::unchecked())?.period.hz() / 1e3).round() as u64)
}

/// This program once more, as nobody.
fn nobody(argument: &str, moves: &str) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args([argument, moves]).uid(NOBODY).gid(NOBODY).stdout(Stdio::piped());
    Ok(command.spawn()?)
}

fn run_as_nobody(argument: &str) -> Result<()> {
    Err(Command::new("/proc/self/exe").arg(argument).uid(NOBODY).gid(NOBODY).exec().into())
}

/// A thread that moves, and announced frequencies in between.
fn moves_and_frequencies(moves: &str) -> Result<Value> {
    let (cores, khz) = (cores()?, khz()?);
    ensure!(cores.len() >= 2, "two processors are needed");
    let mut child = nobody("thread", moves)?;
    let mut announced = 0u32;
    let mut last = String::new();
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        last = line?;
        if last != "moved" || announced == FREQUENCIES {
            continue;
        }
        let turn = announced as usize;
        let (of, by) = (cores[turn / 2 % 2], cores[turn % 2]);
        // The last one of each core is the truth.
        let permille = if announced + 4 < FREQUENCIES { PERMILLE[turn / 4 % 2] } else { 1000 };
        let programs = announce_frequency_to_all(khz * permille / 1000, of, by)?;
        ensure!(programs == 1, "{programs} programs hear of frequencies");
        announced += 1;
    }
    ensure!(child.wait()?.success(), "the thread failed");
    let mut said: Value = serde_json::from_str(&last).with_context(|| last.clone())?;
    said["announced"] = json!(announced);
    Ok(said)
}

/// An unprivileged thread that moves between two processors and reads its age.
fn thread(moves: u32) -> Result<Value> {
    let cores = affinity::online()?;
    let (first, second) = (cores[0], cores[1]);
    affinity::pin(first)?;
    let age = ThreadAge::begin()?;
    let (mut reads, mut backward, mut failed) = (0u64, 0u64, 0u64);
    let begin = (monotonic_raw_nanos(), age.now()?);
    let mut last = begin.1;
    for turn in 1..=moves {
        affinity::pin(if turn % 2 == 1 { second } else { first })?;
        for _ in 0..READS_A_MOVE {
            reads += 1;
            match age.now() {
                Ok(now) => {
                    backward += u64::from(now <= last);
                    last = now;
                }
                Err(_) => failed += 1,
            }
        }
        if turn % MOVES_A_FREQUENCY == 0 {
            println!("moved");
            std::io::stdout().flush()?;
        }
        std::thread::sleep(PAUSE);
    }
    let end = (age.now()?, monotonic_raw_nanos());
    Ok(json!({
        "moves": moves, "counted": age.moves(), "reads": reads, "backward": backward, "failed": failed,
        "age_ns": u64::try_from((end.0 - begin.1).as_nanos())?, "raw_ns": end.1 - begin.0,
    }))
}

/// Reads until that fails, then begins again. Each step is a line.
fn hold() -> Result<()> {
    let say = |line: Value| -> Result<()> {
        println!("{line}");
        Ok(std::io::stdout().flush()?)
    };
    let cores = affinity::online()?;
    let age = ThreadAge::begin()?;
    say(json!({"held": true}))?;
    let begun = Instant::now();
    let (mut reads, mut failed) = (0u64, 0);
    let error = loop {
        affinity::pin(cores[usize::from(reads % 2 == 1)])?;
        match age.now() {
            Ok(_) => (reads, failed) = (reads + 1, 0),
            // What is not known for a moment is known later: programs of a killed timevisord are
            // detached a moment before its connections end.
            Err(error) if failed == ERRORS => break error,
            Err(_) => failed += 1,
        }
        ensure!(begun.elapsed() < PATIENCE, "nothing happened in {reads} reads");
        std::thread::sleep(Duration::from_millis(20));
    };
    let kind = if matches!(error, ThreadAgeError::Ended) { "ended" } else { "unknown" };
    say(json!({"reads": reads, "kind": kind, "error": error.to_string()}))?;
    drop(age);
    loop {
        match ThreadAge::begin().and_then(|age| age.now()) {
            Ok(_) => return say(json!({"again": true})),
            Err(error) if begun.elapsed() > PATIENCE => bail!("not again: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Threads that all have an age at once, and what the others are told.
fn many(count: u32) -> Result<Value> {
    let all = Barrier::new(usize::try_from(count)?);
    let begun: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|_| {
                scope.spawn(|| {
                    let age = ThreadAge::begin();
                    all.wait();
                    age.map(drop).map_err(|error| error.to_string())
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let refused: Vec<_> = begun.iter().filter_map(|begun| begun.as_ref().err()).collect();
    Ok(
        json!({"begun": begun.len() - refused.len(), "refused": refused.len(), "reason": refused.first()}),
    )
}

/// A reading of the page in ns of UTC, and the TSC before and after it; the narrowest of a few.
fn clock() -> Result<Value> {
    let page = pages::open(Path::new(PAGE))?;
    let counter = HostCounter::for_reader(counter_of(&page, 0)).context("a foreign counter")?;
    beside::page(&Reader::open(page, counter, 0)?)
}
