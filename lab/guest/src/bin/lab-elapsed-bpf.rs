//! lab-elapsed-bpf: the elapsed clock of a machine whose counter is not invariant.
//!
//! `lab-elapsed-bpf MOVES` registers itself, moves MOVES times back and forth between the first two
//! processors, keeps reading its age, and prints its results as one JSON object. Then it announces
//! core frequencies (BPF_PROG_TEST_RUN of the attached program, because a virtual machine has no
//! cpufreq driver to do so) and continues reading, and times blocks of instructions at a full and at
//! half a frequency (table 3 of the paper "RVEC and HPGC"). `lab-elapsed-bpf refused` prints the message
//! that a user without privileges gets.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use timevisor_clock_page::Counter as _;
use timevisor_linux::affinity;
use timevisor_linux::bpf::elapsed::announce_frequency_to_all;
use timevisor_linux::bpf::record::FineAge;
use timevisor_linux::bpf::{ElapsedBpf, OwnAge};
use timevisor_linux::clock::monotonic_raw_nanos;
use timevisor_linux::counter::{Tsc, calibrate};
use timevisor_linux::elapsed_source::{ElapsedSource, elapsed_source};

/// A user without privileges.
const NOBODY: u32 = 65_534;
const READS_A_MOVE: u32 = 200;
/// Announced frequencies. The real frequency does not change with them, so from then on only the
/// order of the ages counts.
const KHZ: [u64; 4] = [800_000, 3_200_000, 1_000_000, 2_000_000];

/// Readings, each later than the one before.
struct Readings {
    last: FineAge,
    reads: u64,
    backward: u64,
    failed: u64,
}

impl Readings {
    fn take(&mut self, own: &OwnAge<'_>) {
        for _ in 0..READS_A_MOVE {
            self.reads += 1;
            match own.read() {
                Ok(age) => {
                    self.backward += u64::from(age <= self.last);
                    self.last = age;
                }
                Err(_) => self.failed += 1,
            }
        }
    }
}

fn main() -> Result<()> {
    let moves = std::env::args().nth(1).context("usage: lab-elapsed-bpf MOVES|refused")?;
    if moves == "refused" {
        let out = Command::new("/proc/self/exe").arg("1").uid(NOBODY).gid(NOBODY).output()?;
        ensure!(!out.status.success(), "it was not refused");
        print!("{}", String::from_utf8_lossy(&out.stderr));
        return Ok(());
    }
    let moves: u32 = moves.parse()?;
    let (source, reason) = elapsed_source();
    let name = source.name();
    let ElapsedSource::Bpf(mut programs) = source else { bail!("no BPF here: {name}: {reason}") };
    let cores = affinity::online()?;
    ensure!(cores.len() >= 2, "two processors are needed");
    let (first, second) = (cores[0], cores[1]);
    affinity::pin(first)?;

    let own = programs.register_self(FineAge::default())?;
    let zero = Readings { last: FineAge::default(), reads: 0, backward: 0, failed: 0 };
    let mut readings = zero;
    let begin = (monotonic_raw_nanos(), own.read()?);
    for turn in 0..moves {
        affinity::pin(if turn % 2 == 0 { second } else { first })?;
        readings.take(&own);
    }
    let end = (own.read()?, monotonic_raw_nanos());
    let task = own.task().context("no record")?;
    let arrivals_missed = own.missed();
    let offset_error = own.core().map_or(0, |core| core.offset_error);
    drop(own);
    let announced = announce(&mut programs, first, second)?;
    let blocks =
        [("pinned", blocks(&programs, &[first])?), ("moves", blocks(&programs, &[first, second])?)];
    let blocks: serde_json::Map<_, _> =
        blocks.into_iter().map(|(name, said)| (name.to_owned(), said)).collect();
    println!(
        "{}",
        json!({
            "source": name, "reason": reason, "moves": moves, "migrations": task.migrations, "missed": task.missed,
            "arrivals_missed": arrivals_missed,
            "reads": readings.reads, "backward": readings.backward, "failed": readings.failed,
            "age_ns": end.0.nanos() - begin.1.nanos(), "raw_ns": end.1 - begin.0, "bridged_ns": task.bridged_ns,
            "offset_error_ticks": offset_error, "announced": announced, "blocks": blocks,
        })
    );
    Ok(())
}

/// Each frequency is announced on the core itself and from the other one, between readings.
fn announce(programs: &mut ElapsedBpf, first: usize, second: usize) -> Result<serde_json::Value> {
    let word = |core: usize| u32::try_from(core).unwrap_or(u32::MAX);
    let mut readings = Readings { last: FineAge::default(), reads: 0, backward: 0, failed: 0 };
    let changes = |programs: &ElapsedBpf| programs.core(word(first)).map_or(0, |core| core.changes);
    let (before, mut times) = (changes(programs), 0u64);
    affinity::pin(first)?;
    for khz in KHZ.iter().cycle().take(40) {
        for by in [first, second] {
            programs.announce_frequency(*khz, word(first), word(by))?;
            times += 1;
            let own = programs.register_self(readings.last)?;
            readings.take(&own);
        }
    }
    Ok(json!({
        "times": times, "changes": changes(programs) - before, "reads": readings.reads, "backward": readings.backward,
        "failed": readings.failed,
    }))
}

/// Runs of a block at the full and one at half the frequency.
const RUNS: usize = 300;
/// With moves, the thread goes to the other core after so many runs.
const RUNS_A_STAY: usize = 10;
/// Arithmetic instructions of a block, as in the paper.
const INSTRUCTIONS: u64 = 5_000;

/// Table 3: a block at the full frequency, then one at half of it, each timed by this thread's age.
/// The frequencies are announced, so a block takes as long as before, and its age says twice that.
fn blocks(programs: &ElapsedBpf, cores: &[usize]) -> Result<serde_json::Value> {
    let word = |core: usize| u32::try_from(core).unwrap_or(u32::MAX);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
    let khz = (calibrate(&Tsc::unchecked())?.period.hz() / 1e3).round() as u64;
    for core in cores {
        announce_frequency_to_all(khz, word(*core), word(*core))?;
    }
    affinity::pin(cores[0])?;
    let own = programs.register_self(FineAge::default())?;
    let (mut full, mut half, mut backward) = (Vec::new(), Vec::new(), 0u64);
    // What a tick of the processor's counter is worth, which no other program's load changes.
    let (mut full_ticks, mut half_ticks) = (Vec::new(), Vec::new());
    let tsc = Tsc::unchecked();
    let mut last = FineAge::default();
    let mut seed = 1;
    for run in 0..RUNS {
        let core = cores[run / RUNS_A_STAY % cores.len()];
        affinity::pin(core)?;
        let kinds = [(khz, &mut full, &mut full_ticks), (khz / 2, &mut half, &mut half_ticks)];
        for (khz, times, worth) in kinds {
            announce_frequency_to_all(khz, word(core), word(core))?;
            let begin = (own.read()?, tsc.read_ordered());
            seed = block(seed);
            let (ticks, end) = (tsc.read_ordered() - begin.1, own.read()?);
            let begin = begin.0;
            backward += u64::from(begin <= last) + u64::from(end <= begin);
            last = end;
            let ns = (end.0 - begin.0) as f64 / 4_294_967_296.0;
            times.push(ns / 1e3);
            worth.push(ns / ticks as f64);
        }
        announce_frequency_to_all(khz, word(core), word(core))?;
    }
    std::hint::black_box(seed);
    let both: Vec<f64> = full.iter().zip(&half).map(|(full, half)| full + half).collect();
    Ok(json!({
        "runs": RUNS, "backward": backward, "migrations": own.task().map(|task| task.migrations),
        "full_us": figures(full), "half_us": figures(half), "both_us": figures(both),
        "full_ns_a_tick": figures(full_ticks), "half_ns_a_tick": figures(half_ticks),
    }))
}

/// Multiplications and exclusive ors, each of which needs the one before.
fn block(mut value: u64) -> u64 {
    for _ in 0..INSTRUCTIONS / 2 {
        value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d)) ^ 0x1405;
    }
    value
}

fn figures(mut values: Vec<f64>) -> serde_json::Value {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let sd = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    json!({"mean": mean, "sd": sd, "median": values[values.len() / 2]})
}
