//! Figures 6 and 8 and table 1: what a processor's idle states cost an exchange with the server,
//! and the clock that is synchronized by such exchanges.
//!
//! The paper enables C0 to C3 one after another. A virtual machine's processor has two ways to be
//! idle: it polls (C0), or it halts and its hypervisor wakes it. `/dev/cpu_dma_latency` chooses,
//! as long as it is open. In a third case, a program under SCHED_IDLE keeps every processor awake.
//! The cases take turns, so that the load of the machine is the same for all.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::plot;
use timevisor_lab::progress;
use timevisor_lab::reader::HostPage;
use timevisor_lab::scenario::Context;

use super::busy::Busy;
use super::look::{self, Look, Moment};
use super::paper;
use crate::job;
use crate::pictures;
use crate::report;
use crate::spread::Spread;

const NAME: &str = "vebt-idle";
const PROGRAM: &str = "lab-exchange";
/// How often each case has its turn.
const ROUNDS: u32 = 3;
/// Time between two exchanges, ms.
const PAUSE: &str = "20";
/// Time between two looks at the page.
const INTERVAL: Duration = Duration::from_millis(250);
const WARM_UP: Duration = Duration::from_secs(60);
const LATENCY: &str = "/dev/cpu_dma_latency";

/// What a processor without work does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Halts,
    Polls,
    Spins,
}

const CASES: [Case; 3] = [Case::Polls, Case::Halts, Case::Spins];

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Halts => "halts (the default)",
            Self::Polls => "polls (C0 only)",
            Self::Spins => "runs a SCHED_IDLE program",
        }
    }
}

/// Keeps a case in force until it is dropped.
#[derive(Debug, Default)]
struct InForce {
    _latency: Option<File>,
    _programs: Vec<Busy>,
}

impl InForce {
    fn new(ctx: &Context, case: Case) -> anyhow::Result<Self> {
        let mut all = Self::default();
        match case {
            Case::Halts => {}
            Case::Polls => {
                let file = File::options().write(true).open(LATENCY);
                let mut file = file.with_context(|| format!("cannot open {LATENCY}"))?;
                // No state with any exit latency, in us (Documentation/power/pm_qos_interface.rst).
                file.write_all(&0_i32.to_ne_bytes())?;
                all._latency = Some(file);
            }
            Case::Spins => {
                for _ in 0..processors()? {
                    all._programs.push(Busy::below_all(ctx)?);
                }
            }
        }
        Ok(all)
    }
}

/// All turns of one case.
#[derive(Debug, Default)]
struct Found {
    exchanges_us: Vec<f64>,
    looks: Vec<(f64, Look)>,
    /// Time of all processors, and the part of it spent in each idle state, us.
    whole_us: f64,
    idle_us: Vec<f64>,
}

impl Found {
    /// In percent: awake, then each idle state.
    fn residency(&self) -> Vec<f64> {
        let part = |us: f64| us / self.whole_us.max(1.0) * 100.0;
        let idle: Vec<f64> = self.idle_us.iter().map(|us| part(*us)).collect();
        std::iter::once((100.0 - idle.iter().sum::<f64>()).max(0.0)).chain(idle).collect()
    }
}

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let states = states()?;
    let server = ctx.chronyd("server")?;
    let program = ctx.program("timevisor-lab-guest", PROGRAM)?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    progress::step("the clock settles", || {
        host.wait_synchronized(500)?;
        interrupt::sleep(WARM_UP)
    })?;
    let page = HostPage::open(host.directory())?;
    let each = span / (ROUNDS * u32::try_from(CASES.len())?);
    println!(
        "  an exchange every {PAUSE} ms, {ROUNDS} turns of {:.0} s for each case; idle states: {}",
        each.as_secs_f64(),
        states.join(", ")
    );
    let arguments = [server.address().to_string(), each.as_secs_f64().to_string(), PAUSE.into()];
    let mut all = CASES.map(|_| Found::default());
    let began = Instant::now();
    for _ in 0..ROUNDS {
        for (case, found) in CASES.into_iter().zip(&mut all) {
            let _in_force = InForce::new(ctx, case)?;
            progress::step(&format!("a processor without work {}", case.name()), || {
                turn(&program, &arguments, &page, began, found)
            })?;
        }
    }
    let rows = table(&states, &all);
    let sets = CASES.into_iter().zip(&all);
    let sets: Vec<_> =
        sets.map(|(c, found)| (c.name().to_owned(), &found.exchanges_us[..])).collect();
    plot::write(NAME, &pictures::shares(NAME, "us an exchange", &sets))?;
    report::write(NAME, rows)
}

fn turn(
    program: &Path,
    arguments: &[String; 3],
    page: &HostPage,
    began: Instant,
    found: &mut Found,
) -> anyhow::Result<()> {
    let (from, idle) = (Instant::now(), idle_us()?);
    let said = std::thread::scope(|scope| {
        let arguments = arguments.each_ref().map(String::as_str);
        let exchanges = scope.spawn(move || job::native(program, &arguments));
        while !exchanges.is_finished() {
            let moment = Moment::now()?;
            let look = Look::at(page, moment.tsc, &moment)?;
            found.looks.push((began.elapsed().as_secs_f64(), look));
            interrupt::sleep(INTERVAL)?;
        }
        let Ok(said) = exchanges.join() else { bail!("the exchanges' thread has panicked") };
        said
    })?;
    let values = said["host_us"].as_array().context("no host_us")?;
    found.exchanges_us.extend(values.iter().filter_map(Value::as_f64));
    found.whole_us += from.elapsed().as_secs_f64() * 1e6 * processors()? as f64;
    let spent = idle_us()?.into_iter().zip(idle).map(|(now, before)| now - before);
    found.idle_us.resize(spent.len(), 0.0);
    found.idle_us.iter_mut().zip(spent).for_each(|(sum, us)| *sum += us);
    Ok(())
}

fn table(states: &[String], all: &[Found; 3]) -> Vec<Value> {
    println!(
        "\nround trip less what the server held, us (figure 6)\n{:<45} {}",
        "a processor without work",
        Spread::HEAD
    );
    let mut rows = Vec::new();
    for (case, found) in CASES.into_iter().zip(all) {
        let spread = Spread::of(&found.exchanges_us);
        println!("{:<45} {}", case.name(), spread.line());
        rows.push(json!({"case": case.name(), "exchange_us": spread.json()}));
    }
    look::head("error of the host's page (figure 8)");
    for ((case, found), row) in CASES.into_iter().zip(all).zip(&mut rows) {
        let errors: Vec<f64> = found.looks.iter().map(|(_, look)| look.error_us).collect();
        row["page"] = look::row(case.name(), &errors);
        let held = found.looks.iter().filter(|(_, look)| look.holds()).count();
        println!("{:<46} its bounds held the truth {held} of {}", "", errors.len());
        row["page_held"] = json!(held);
    }
    println!("\ntime in each state, % of all processors (table 1): awake, {}", states.join(", "));
    for ((case, found), row) in CASES.into_iter().zip(all).zip(&mut rows) {
        let shares = found.residency();
        let text = shares.iter().map(|share| format!("{share:.2}")).collect::<Vec<_>>();
        println!("{:<45} {}", case.name(), text.join("  "));
        row["residency_percent"] = json!(shares);
    }
    println!("paper: {}\npaper: {}", paper::NOISE, paper::IDLE);
    rows
}

/// The names of the idle states; all processors have the same.
fn states() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    while let Ok(name) = fs::read_to_string(state(0, names.len(), "name")) {
        names.push(name.trim().to_owned());
    }
    ensure!(!names.is_empty(), "this kernel has no idle states to choose from (cpuidle)");
    Ok(names)
}

/// Time spent in each idle state so far, of all processors together.
fn idle_us() -> anyhow::Result<Vec<f64>> {
    let (processors, states) = (processors()?, states()?.len());
    let of = |state_number: usize| {
        (0..processors)
            .map(|processor| {
                let file = state(processor, state_number, "time");
                let text = fs::read_to_string(&file);
                let text = text.with_context(|| format!("cannot read {file}"))?;
                Ok(text.trim().parse::<f64>()?)
            })
            .sum::<anyhow::Result<f64>>()
    };
    (0..states).map(of).collect()
}

fn state(processor: usize, number: usize, what: &str) -> String {
    format!("/sys/devices/system/cpu/cpu{processor}/cpuidle/state{number}/{what}")
}

fn processors() -> anyhow::Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_awake() {
        let found = Found { whole_us: 2e6, idle_us: vec![0.0, 5e5], ..Found::default() };
        assert_eq!(found.residency(), [75.0, 0.0, 25.0]);
        // The kernel accounts for a state when it is left, so a short turn can have more than all.
        let found = Found { whole_us: 1e6, idle_us: vec![1.1e6], ..Found::default() };
        assert_eq!(found.residency()[0], 0.0);
    }
}
