//! lab-elapsed-bpf: the elapsed clock of a machine whose counter is not invariant.
//!
//! `lab-elapsed-bpf MOVES` registers itself, moves MOVES times back and forth between the first two
//! processors, keeps reading its age, and prints its results as one JSON object. Then it announces
//! core frequencies (BPF_PROG_TEST_RUN of the attached program, because a virtual machine has no
//! cpufreq driver to do so) and continues reading. `lab-elapsed-bpf refused` prints the message
//! that a user without privileges gets.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use timevisor_linux::affinity;
use timevisor_linux::bpf::record::FineAge;
use timevisor_linux::bpf::{ElapsedBpf, OwnAge};
use timevisor_linux::clock::monotonic_raw_nanos;
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
    println!(
        "{}",
        json!({
            "source": name, "reason": reason, "moves": moves, "migrations": task.migrations, "missed": task.missed,
            "arrivals_missed": arrivals_missed,
            "reads": readings.reads, "backward": readings.backward, "failed": readings.failed,
            "age_ns": end.0.nanos() - begin.1.nanos(), "raw_ns": end.1 - begin.0, "bridged_ns": task.bridged_ns,
            "offset_error_ticks": offset_error, "announced": announced,
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
