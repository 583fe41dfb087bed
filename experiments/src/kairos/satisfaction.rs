//! Figures 7 and 8, table I: the share of deadlines that many tasks of a guest meet while it is
//! introspected, beside a busy thread or bonnie++, and how much work bonnie++ completes.
//!
//! Differences from the paper: the guest is emulated, its scheduler is Linux's own, and bonnie++
//! writes to memory. `kairos-edf` has the paper's sets: 20 for each point, of 20 to 60 tasks under
//! EDF (SCHED_DEADLINE, whose admission is off and whose budgets are whole periods).
//! `kairos-satisfaction` has the same 40 tasks with fixed priorities in each turn.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_lab::client::Client;
use timevisor_lab::host::Host;
use timevisor_lab::image::Image;
use timevisor_lab::introspection::emulated::booted;
use timevisor_lab::packages;
use timevisor_lab::real_time::{Responses, run_tasks, turns};
use timevisor_lab::scenario::Context;

use super::super::report;
use super::super::rtvm::satisfaction::{draw, words};
use super::super::statistics::Summary;
use super::WAYS;
use super::attached::Attached;

const COUNT: u32 = 40;
/// The fewest and the most tasks of the paper's sets.
const COUNTS: (u32, u32) = (20, 60);
/// SCHED_DEADLINE refuses a utilization above 95 %, and slows down who takes more than it asked for.
const NO_ADMISSION: &str = "echo -1 >/proc/sys/kernel/sched_rt_runtime_us";
const PERCENT: [u32; 4] = [25, 50, 75, 100];
const BONNIE: &str = "/usr/sbin/bonnie++";
/// Rewrites a file in memory repeatedly; it prints nothing until its end.
const BEGIN: &str = "mkdir -p /run/bonnie; (exec bonnie++ -d /run/bonnie -s 16m -r 8m -n 1 -u 0:0 -x 100000 -q >/run/bonnie.log 2>&1) & echo $!; sleep 1";
const END: &str = "killall -9 bonnie++; rm -rf /run/bonnie";

/// What is measured.
struct Plan {
    name: &'static str,
    /// How often each way is measured; the ways take turns.
    repeats: usize,
    /// How long it is at least measured, s: several periods of each task.
    least_s: u64,
    /// What is printed of the tasks.
    about: &'static str,
    /// A command of the guest's before.
    first: &'static str,
    /// Words for lab-rt, by turn and utilization in per cent.
    tasks: fn(usize, u32) -> Vec<String>,
}

const FIXED: Plan = Plan {
    name: "kairos-satisfaction",
    repeats: 6,
    least_s: 5,
    about: "40 tasks with fixed priorities",
    first: "true",
    tasks: |_, percent| words(&draw(COUNT, percent)),
};
const EDF: Plan = Plan {
    name: "kairos-edf",
    repeats: 20,
    least_s: 2,
    about: "20 to 60 tasks under EDF, others in each turn",
    first: NO_ADMISSION,
    tasks: edf,
};

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    measure(ctx, span, &FIXED)
}

pub(crate) fn run_edf(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    measure(ctx, span, &EDF)
}

/// A set for each turn, the same in every run, with whole periods as budgets: a smaller one would be used up
/// when this machine has the emulated processor stand still, as the guest counts that as execution, and a
/// thread without a budget waits for its next period.
fn edf(turn: usize, percent: u32) -> Vec<String> {
    let turn = u32::try_from(turn).unwrap_or(0);
    // 13 has no divisor in common with 41: all counts occur before one does again.
    let count = COUNTS.0 + turn * 13 % (COUNTS.1 - COUNTS.0 + 1);
    let tasks = draw(count, percent);
    words(&tasks).iter().zip(&tasks).map(|(word, (_, period))| format!("{word}/{period}")).collect()
}

fn measure(ctx: &Context, span: Duration, plan: &Plan) -> anyhow::Result<()> {
    let repeats = plan.repeats;
    packages::ensure_installed(&["bonnie++"])?;
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let real_time = ctx.program("timevisor-lab-guest", "lab-rt")?;
    let users = ctx.path("passwd");
    std::fs::write(&users, "root:x:0:0::/:/bin/sh\n")?;
    let image = move |image: Image| {
        let image = image.program(&real_time).file(users.clone(), "/etc/passwd", 0o644);
        image.dynamic_program(BONNIE.as_ref())
    };
    let mut guest = booted(ctx, &host, "trixie-backports", image, &[])?;
    guest.guest.sh(plan.first)?;
    let turns = turns(&guest.guest.sh("lab-rt calibrate")?)?;
    let ways = &WAYS[..3];
    let seconds =
        (span.as_secs() / (PERCENT.len() * 2 * ways.len() * repeats) as u64).max(plan.least_s);
    println!("  {}, {repeats} times {seconds} s each; deadlines met\n", plan.about);
    println!(
        "{:<12} {:>11} {:<28} {:>9} {:>21} {:>24}",
        "beside", "utilization", "", "met", "less than without", "bonnie++'s calls a second"
    );
    let mut rows = Vec::new();
    for bonnie in [false, true] {
        for percent in PERCENT {
            let mut points = [(); 3].map(|()| Point::default());
            // The ways take turns, so that a temporary slowdown of the machine affects all equally.
            for turn in 0..repeats {
                let tasks = (plan.tasks)(turn, percent);
                for (point, (_, attach)) in points.iter_mut().zip(ways) {
                    let attached = Attached::new(&host, attach)?;
                    let calls = bonnie.then(|| Bonnie::begin(&mut guest)).transpose()?;
                    let found = run_tasks(&mut guest, (turns, seconds), !bonnie, 0, &tasks)?;
                    let made = calls.map_or(Ok([0; 2]), |calls| calls.end(&mut guest))?;
                    attached.end()?;
                    point.add(&found, made);
                }
            }
            for (point, (name, _)) in points.iter().zip(ways) {
                let share = 100.0 * point.met() as f64 / point.jobs() as f64;
                let [less, error] = point.less_than(&points[0]);
                let beside = if bonnie { "bonnie++" } else { "a busy thread" };
                let [reads, writes] = point.made.map(|calls| calls / (repeats as u64 * seconds));
                let told =
                    if bonnie { format!("{reads} reads, {writes} writes") } else { String::new() };
                let compared = format!("{less:.2} +-{error:.2} points");
                println!(
                    "{beside:<13} {percent:>9} % {name:<28} {share:>7.2} % {compared:>21} {told:>24}"
                );
                rows.push(json!({
                    "beside": beside, "utilization_percent": percent, "way": name, "jobs": point.jobs(), "met": point.met(),
                    "less_points": less, "standard_error_points": error,
                    "bonnie_reads_writes": point.made,
                }));
            }
        }
    }
    guest.guest.kill();
    println!(
        "\nThe paper (figures 7 and 8, table I): with KairosVM as without introspection, with every call trapped up to 5 % less, and fewer calls of bonnie++."
    );
    report::write(plan.name, rows)
}

/// A row of the table.
#[derive(Default)]
struct Point {
    /// For each turn, the number of jobs that met their deadline, and of all jobs.
    turns: Vec<(usize, usize)>,
    /// Number of reads and writes by bonnie++.
    made: [u64; 2],
}

impl Point {
    fn add(&mut self, found: &[Responses], made: [u64; 2]) {
        let jobs = found.iter().map(|task| task.ms.len()).sum::<usize>();
        let missed = found.iter().map(Responses::misses).sum::<usize>();
        self.turns.push((jobs - missed, jobs));
        self.made = [self.made[0] + made[0], self.made[1] + made[1]];
    }

    fn met(&self) -> usize {
        self.turns.iter().map(|(met, _)| met).sum()
    }

    fn jobs(&self) -> usize {
        self.turns.iter().map(|(_, jobs)| jobs).sum()
    }

    /// How much smaller the share of met deadlines is than in the neighbouring turns of `other`, in
    /// percentage points: the mean and its standard error. A temporary slowdown of the machine
    /// increases the error, but does not shift the mean.
    fn less_than(&self, other: &Self) -> [f64; 2] {
        let share = |(met, jobs): &(usize, usize)| 100.0 * *met as f64 / *jobs as f64;
        let pairs = other.turns.iter().zip(&self.turns);
        let all: Vec<f64> = pairs.map(|(theirs, ours)| share(theirs) - share(ours)).collect();
        let all = Summary::of(&all);
        [all.mean, all.sd / (all.count as f64 - 1.0).sqrt()]
    }
}

/// A running bonnie++.
struct Bonnie {
    pid: String,
    before: [u64; 2],
}

impl Bonnie {
    fn begin(guest: &mut Client) -> anyhow::Result<Self> {
        let said = guest.guest.sh(BEGIN)?;
        let pid = said.trim().to_owned();
        let before = made(guest, &pid)?;
        Ok(Self { pid, before })
    }

    /// Number of reads and writes made while it ran.
    fn end(self, guest: &mut Client) -> anyhow::Result<[u64; 2]> {
        let after = made(guest, &self.pid)?;
        guest.guest.sh(END)?;
        Ok([after[0] - self.before[0], after[1] - self.before[1]])
    }
}

/// syscr and syscw from proc(5).
fn made(guest: &mut Client, pid: &str) -> anyhow::Result<[u64; 2]> {
    let said =
        guest.guest.sh(&format!("cat /proc/{pid}/io || {{ cat /run/bonnie.log; false; }}"))?;
    let of = |name: &str| -> anyhow::Result<u64> {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.with_context(|| said.clone())?.trim().parse()?)
    };
    let all = [of("syscr:")?, of("syscw:")?];
    ensure!(all[1] > 0, "bonnie++ writes nothing: {said}");
    Ok(all)
}
