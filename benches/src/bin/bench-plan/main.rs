//! How long `timevisor reserve plan` takes for a hundred tasks: processor time of the whole
//! program, from the file to the answer, with a period that is given and with the best one looked
//! for.
//!
//! | file | owns |
//! | --- | --- |
//! | `sets.rs` | random tasks |
//!
//! Method: the program beside this one, once for each set. What it took is also told as a number of
//! looks at an interval, each the textbook's sum over all tasks, timed here in the same run: a
//! slower machine is slower at both. The limit is on these.

mod sets;

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use timevisor_benches::report::{Column, Report, Row};

use crate::sets::{KINDS, Kind, Task};

const TASKS: u32 = 100;
/// Looks that the longest of all plans may take: 0.1 s where one takes half a microsecond.
const MOST_LOOKS: f64 = 200_000.0;

const COLUMNS: [Column; 4] = [
    Column { key: "median_ms", heading: "median ms", decimals: 1 },
    Column { key: "worst_ms", heading: "worst ms", decimals: 1 },
    Column { key: "worst_looks", heading: "in looks", decimals: 0 },
    Column { key: "with_plan", heading: "with plan", decimals: 0 },
];

/// Measures how long plans take.
#[derive(Parser)]
#[command(name = "bench-plan")]
struct Arguments {
    /// Exit with failure beyond the limit
    #[arg(long)]
    check: bool,
    /// Sets of each kind
    #[arg(long, default_value_t = 20)]
    sets: u64,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    ensure!(arguments.sets > 0, "at least one set");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tasks.toml");
    let look = look(&sets::tasks(&KINDS[0], TASKS, 0));
    let mut rows = Vec::new();
    let mut most = 0.0f64;
    for policy in ["edf", "deadline-monotonic"] {
        for kind in &KINDS {
            let mut took = [Vec::new(), Vec::new()];
            let mut plans = [0.0, 0.0];
            for seed in 0..arguments.sets {
                let tasks = sets::tasks(kind, TASKS, seed);
                std::fs::write(&path, sets::file(&tasks, policy))?;
                for (given, (took, plans)) in took.iter_mut().zip(&mut plans).enumerate() {
                    let (time, found) = plan(&path, kind, given == 1)?;
                    took.push(time.as_secs_f64() * 1e3);
                    *plans += f64::from(u8::from(found));
                }
            }
            for (which, (mut took, plans)) in
                ["best period", kind.period].into_iter().zip(took.into_iter().zip(plans))
            {
                took.sort_by(f64::total_cmp);
                let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
                let looks = worst * 1e6 / look;
                most = most.max(looks);
                let name = format!("{policy}, {}, {which}", kind.name);
                rows.push(Row { name, values: Ok(vec![median, worst, looks, plans]) });
            }
        }
    }
    let report = Report {
        name: "bench-plan",
        subject: "tasks",
        caption: vec![
            format!(
                "{TASKS} tasks of 30 to 90 %, constrained deadlines, jitter and blocking; {} sets a row, processor time of the program",
                arguments.sets
            ),
            format!("a look, the sum over all tasks: {look:.0} ns; at most {MOST_LOOKS} of them"),
        ],
        columns: COLUMNS.to_vec(),
        rows,
    };
    print!("{}", report.table());
    report.write(&report.default_path())?;
    if arguments.check && most > MOST_LOOKS {
        println!("FAILED: a plan takes as long as more than {MOST_LOOKS} looks");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// What a plan takes, and whether there is one.
fn plan(file: &Path, kind: &Kind, given: bool) -> Result<(Duration, bool)> {
    let program = std::env::current_exe()?.with_file_name("timevisor");
    let mut command = Command::new(&program);
    command.args(["reserve", "plan", "--json", "--tick", kind.tick]).arg(file);
    if given {
        command.args(["--period", kind.period]);
    }
    let before = children()?;
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}; use make bench-plan", program.display()))?;
    let took = children()?.saturating_sub(before);
    let answer: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("no answer from timevisor")?;
    let found = answer["schedulable"].as_bool().context("an answer without a verdict")?;
    Ok((took, found))
}

/// User and system time of all children that have ended.
fn children() -> Result<Duration> {
    // SAFETY: rusage is plain numbers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage for the call to fill.
    let result = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    ensure!(result == 0, "getrusage: {}", std::io::Error::last_os_error());
    let span = |time: libc::timeval| -> Result<Duration> {
        Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_usec)? * 1000))
    };
    Ok(span(usage.ru_utime)? + span(usage.ru_stime)?)
}

/// ns for what is due within an interval: the median of many turns.
fn look(tasks: &[Task]) -> f64 {
    const LOOKS: u32 = 1000;
    let due = |t: u64| {
        let each = tasks
            .iter()
            .filter_map(|task| Some((t.checked_sub(task.deadline)? / task.period + 1) * task.cost));
        each.sum::<u64>()
    };
    let turn = |_| {
        let began = Instant::now();
        for n in 0..LOOKS {
            black_box(due(black_box(1_000_000_000 + u64::from(n) * 1_234_567)));
        }
        began.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKS)
    };
    let mut turns: Vec<f64> = (0..101).map(turn).collect();
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}
