//! `timevisor reserve apply, move, list, release`: asking timevisord.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::{Args, ValueEnum};
use timevisor_linux::crash_file::CrashFile;
use timevisor_linux::scheduling::{self, Change};
use timevisor_protocols::control::{
    ErrorCode, Promise, Request, Reservations, ReserveApply, ReserveMove, ReserveRelease,
    ReserveRow, Response,
};
use timevisor_reservation::held::JOURNAL;
use timevisor_reservation::{Held, Restore, Step, release_all};
use timevisor_schedule::synthesis::Sharing;

use super::{ns, plan, span};
use crate::connection::{Refused, ask, unexpected};
use crate::exit::Found;

/// An idle Linux guest's vCPU runs now and then.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct Apply {
    /// The VM, as `timevisor vm list` shows it
    vm: String,
    /// Its vCPU, from 0
    #[arg(long, default_value_t = 0)]
    vcpu: u32,
    /// Budget and period, for example 28ms/50ms
    #[arg(long, value_name = "BUDGET/PERIOD", value_parser = budget, required_unless_present = "plan")]
    budget: Option<Budget>,
    /// Soft: the budget follows what the VM uses, from --budget's up to this
    #[arg(long, value_name = "BUDGET", value_parser = span, requires = "budget", conflicts_with = "alone")]
    at_most: Option<Duration>,
    /// What `reserve plan` recommends for the tasks of this file
    #[arg(long, value_name = "FILE", conflicts_with = "budget")]
    plan: Option<PathBuf>,
    /// With --plan: the reservation's period; by default the one that costs least
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "plan")]
    period: Option<Duration>,
    #[command(flatten)]
    host: super::overheads::Options,
    #[command(flatten)]
    costs: super::costs::CostsFrom,
    /// The budget is there within this after the beginning of a period [default: the period]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    deadline: Option<Duration>,
    /// No other reservation may come to its core
    #[arg(long)]
    alone: bool,
    /// The core to set apart [default: a free one]
    #[arg(long, value_name = "N")]
    core: Option<u32>,
    /// What is promised; the others are weaker
    #[arg(long, value_enum, default_value = "core")]
    promise: PromiseName,
    /// Print what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Move {
    /// The VM, as `timevisor vm list` shows it
    vm: String,
    /// Its vCPU, from 0
    #[arg(long, default_value_t = 0)]
    vcpu: u32,
    /// The core to set apart for it
    #[arg(long, value_name = "N")]
    core: u32,
    /// Print what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct List {
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Release {
    /// The VM
    #[arg(required_unless_present = "all")]
    vm: Option<String>,
    /// One of its vCPUs [default: all]
    #[arg(long, requires = "vm")]
    vcpu: Option<u32>,
    /// Release those of every VM, also where timevisord does not run
    #[arg(long, conflicts_with = "vm")]
    all: bool,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PromiseName {
    /// The budget in every period: SCHED_DEADLINE on a core set apart
    Core,
    /// Bounded tardiness only: SCHED_DEADLINE on all cores
    Global,
    /// No budget, only priority over everything that is not real-time: SCHED_FIFO
    Fifo,
    /// No minimum: at most the budget, with the greatest weight in its cgroup: cpu.max
    Limit,
}

#[derive(Clone, Copy)]
struct Budget {
    budget: u64,
    period: u64,
}

fn budget(text: &str) -> Result<Budget> {
    let (budget, period) =
        text.split_once('/').context("a budget and a period, for example 28ms/50ms")?;
    let [budget, period] = [span(budget), span(period)].map(|span| span.map_err(Error::msg));
    Ok(Budget { budget: ns(budget?), period: ns(period?) })
}

pub fn apply(directory: &Path, options: &Apply) -> Result<()> {
    ensure!(
        options.plan.is_some() || !(options.host.is_given() || options.costs.costs_from.is_some()),
        "what the host takes matters to a plan: give it to `reserve plan`, or with --plan FILE; --budget is reserved as it is"
    );
    let Budget { budget, period } = match (&options.plan, options.budget) {
        (Some(path), _) => recommended(path, options)?,
        (None, Some(budget)) => budget,
        (None, None) => bail!("give --budget or --plan"),
    };
    let request = Request::ReserveApply(ReserveApply {
        vm: options.vm.clone(),
        vcpu: options.vcpu,
        budget_ns: budget,
        at_most_ns: options.at_most.map(ns),
        deadline_ns: options.deadline.map(ns),
        period_ns: period,
        promise: match options.promise {
            PromiseName::Core => Promise::Core,
            PromiseName::Global => Promise::Global,
            PromiseName::Fifo => Promise::Fifo,
            PromiseName::Limit => Promise::Limit,
        },
        core: options.core,
        alone: options.alone,
        dry_run: options.dry_run,
    });
    let answer = admitted(directory, &request)?;
    let answer = if options.dry_run { answer } else { awaited(directory, options, answer)? };
    if options.json {
        println!("{}", serde_json::to_string(&answer)?);
        return Ok(());
    }
    if options.dry_run {
        answer.changes.iter().for_each(|change| println!("{change}"));
        return Ok(());
    }
    print(&answer);
    Ok(())
}

pub fn relocate(directory: &Path, options: &Move) -> Result<()> {
    let request = Request::ReserveMove(ReserveMove {
        vm: options.vm.clone(),
        vcpu: options.vcpu,
        core: options.core,
        dry_run: options.dry_run,
    });
    let answer = reserve(directory, &request)?;
    if options.json {
        println!("{}", serde_json::to_string(&answer)?);
    } else if options.dry_run {
        answer.changes.iter().for_each(|change| println!("{change}"));
    } else {
        print(&answer);
    }
    Ok(())
}

/// Soft reservations make room: that is waited for.
pub fn admitted(directory: &Path, request: &Request) -> Result<Reservations> {
    let began = Instant::now();
    loop {
        let answer = reserve(directory, request);
        let refused = answer.as_ref().err().and_then(|error| error.downcast_ref::<Refused>());
        let making_room = refused.is_some_and(|r| r.0.code == ErrorCode::MakingRoom);
        if !making_room || began.elapsed() > PATIENCE {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A vCPU that sleeps has its budget when it runs again: that is waited for, a little.
fn awaited(directory: &Path, options: &Apply, mut answer: Reservations) -> Result<Reservations> {
    let began = Instant::now();
    loop {
        let meant = |row: &&ReserveRow| row.vm == options.vm && row.vcpu == options.vcpu;
        let Some(row) = answer.reservations.iter().find(meant) else {
            bail!("{}: nothing has been changed", answer.problems.join("; "));
        };
        if row.problem.is_none() || began.elapsed() > PATIENCE {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(10));
        answer = reserve(directory, &Request::ReserveList)?;
    }
}

fn recommended(path: &Path, options: &Apply) -> Result<Budget> {
    let host = options.host.known()?;
    let set = options.costs.read(path, &host)?.tasks.on_vcpu(options.vcpu)?;
    let question = plan::Question {
        period: options.period.map(ns),
        budget: None,
        sharing: if options.alone { Sharing::Alone } else { Sharing::Shared },
        overheads: host.overheads,
        switch: ns(super::SWITCH),
        on: plan::On::One,
    };
    let plan::Plan::Found(found) = plan::make(&set, &question)? else {
        bail!("the tasks fit into no reservation; see `timevisor reserve plan {}`", path.display());
    };
    Ok(Budget { budget: found.recommended.budget(), period: found.recommended.period() })
}

pub fn list(directory: &Path, options: &List) -> Result<Found> {
    let answer = reserve(directory, &Request::ReserveList)?;
    if options.json {
        println!("{}", serde_json::to_string(&answer.reservations)?);
    } else {
        print(&answer);
        answer.problems.iter().for_each(|problem| eprintln!("not reserved: {problem}"));
    }
    let is_well = |row: &ReserveRow| row.problem.is_none();
    Ok(Found::when(answer.problems.is_empty() && answer.reservations.iter().all(is_well)))
}

pub fn audit(directory: &Path, options: &List) -> Result<Found> {
    let answer = reserve(directory, &Request::ReserveList)?;
    let is_kept = |row: &ReserveRow| row.audit.is_none_or(|audit| audit.broken == 0);
    let found = Found::when(answer.reservations.iter().all(is_kept));
    if options.json {
        println!("{}", serde_json::to_string(&answer.reservations)?);
        return Ok(found);
    }
    println!(
        "{:<16} {:>4} {:>10} {:>10} {:>8} {:>8}  missing at most",
        "vm", "vcpu", "satisfied", "exhausted", "broken", "unclear"
    );
    for row in &answer.reservations {
        let audit = row.audit.unwrap_or_default();
        println!(
            "{:<16} {:>4} {:>10} {:>10} {:>8} {:>8}  {:.1} ms",
            row.vm,
            row.vcpu,
            audit.satisfied,
            audit.exhausted,
            audit.broken,
            audit.unclear,
            audit.most_missing_ns as f64 / 1e6
        );
    }
    Ok(found)
}

/// Exit status 1 where something could not be brought back.
pub fn release(directory: &Path, options: &Release) -> Result<ExitCode> {
    let request = ReserveRelease { vm: options.vm.clone(), vcpu: options.vcpu };
    let answer = match reserve(directory, &Request::ReserveRelease(request)) {
        Err(_) if options.all && UnixStream::connect(directory.join("control")).is_err() => {
            without_daemon(directory)?
        }
        answer => answer?,
    };
    if options.json {
        println!("{}", serde_json::to_string(&answer)?);
    }
    for problem in &answer.problems {
        eprintln!("not brought back: {problem}");
    }
    Ok(if answer.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Undoes what a daemon that no longer runs has left.
fn without_daemon(directory: &Path) -> Result<Reservations> {
    let journal: CrashFile<Vec<Held<Change>>> = CrashFile::new(directory, JOURNAL);
    let problems = release_all(&mut ThisHost, &journal.read()?);
    if problems.is_empty() {
        journal.write(&Vec::new())?;
    }
    Ok(Reservations { problems, ..Reservations::default() })
}

/// This machine, as far as a release needs it.
struct ThisHost;

impl Restore for ThisHost {
    type Change = Change;

    fn is_alive(&self, pid: u32, start_time: u64, tid: u32) -> bool {
        scheduling::is_alive(pid, start_time, tid)
    }

    fn is_thread(&self, pid: u32, tid: u32, started: Option<u64>) -> bool {
        scheduling::is_thread(pid, tid, started)
    }

    fn thread_started(&self, pid: u32, tid: u32) -> Option<u64> {
        scheduling::started(pid, tid).ok()
    }

    fn thread(&self, change: &Change) -> Option<u32> {
        change.tid()
    }

    fn undo(&mut self, change: &Change) -> Result<(), String> {
        change.undo().map_err(|error| error.to_string())
    }

    fn widen(&mut self, pid: u32, undone: &[Step<Change>]) {
        for (_, change) in undone.iter().rev() {
            if let Change::Affinity { tid, allow, before } = change
                && *tid == pid
            {
                scheduling::widen_new_threads(pid, allow, before);
            }
        }
    }
}

pub fn reserve(directory: &Path, request: &Request) -> Result<Reservations> {
    match ask(directory, request)? {
        Response::Reservations(answer) => Ok(answer),
        response => Err(unexpected(&response)),
    }
}

fn print(answer: &Reservations) {
    if answer.reservations.is_empty() {
        println!("nothing is reserved");
        return;
    }
    println!(
        "{:<16} {:>4} {:<7} {:>4}  {:<24} {:>8}  status",
        "vm", "vcpu", "promise", "core", "budget", "used"
    );
    answer.reservations.iter().for_each(|row| println!("{}", line(row)));
}

/// A reservation on one line.
pub fn line(row: &ReserveRow) -> String {
    let promise = match row.promise {
        Promise::Core => "core",
        Promise::Global => "global",
        Promise::Fifo => "fifo",
        Promise::Limit => "limit",
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    let budget = match row.promise {
        Promise::Fifo => "none".to_owned(),
        Promise::Limit => format!("at most {} ms of {} ms", ms(row.budget_ns), ms(row.period_ns)),
        _ => format!("{} ms of {} ms", ms(row.budget_ns), ms(row.period_ns)),
    };
    let budget = match row.soft_ns {
        Some((least, most)) => format!("{budget} (soft, {} to {} ms)", ms(least), ms(most)),
        None => budget,
    };
    let used = row.ran_ns.filter(|_| row.held_ns > 0).map_or_else(
        || "unknown".to_owned(),
        |ran| format!("{:.1} %", 100.0 * ran as f64 / row.held_ns as f64),
    );
    format!(
        "{:<16} {:>4} {:<7} {:>4}  {:<24} {:>8}  {}",
        row.vm,
        row.vcpu,
        promise,
        row.core.map_or_else(|| "-".to_owned(), |core| core.to_string()),
        budget,
        used,
        row.problem.as_deref().unwrap_or("in force")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_as_people_write_them() {
        let read = budget("28ms/50ms").unwrap();
        assert_eq!((read.budget, read.period), (28_000_000, 50_000_000));
        for bad in ["28ms", "28/50", "/", "28ms/", "a/b"] {
            assert!(budget(bad).is_err(), "{bad}");
        }
    }
}
