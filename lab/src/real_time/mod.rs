//! Real-time tasks in a guest (lab-rt) and a loaded host, for the tests and experiments with
//! reservations.
//!
//! | file | owns |
//! | --- | --- |
//! | `costs.rs` | the actual cost of each job of a run |
//! | `load.rs` | what keeps the host busy: ordinary processes, or the paper's real-time tasks |
//! | `judge.rs` | whether each job was in time, and which late ones are excused |
//! | `late.rs` | what timevisord tells of late jobs, beside what the guest has measured |
//! | `plan.rs` | what `reserve plan` recommends for a guest's tasks |
//! | `witness.rs` | when a core was taken away |
//! | `runtimes.rs` | when a thread ran |
//! | `stolen.rs` | time that was stolen from this machine during a run |
//! | `inside.rs` | the same under KVM, on a host inside a guest |

pub mod costs;
mod inside;
pub mod judge;
pub mod late;
mod load;
pub mod plan;
pub mod runtimes;
pub mod stolen;
pub mod witness;

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::builder::GuestBuilder;
use crate::client::{Client, Launch, Way};
use crate::host::Host;
use crate::scenario::Context;

pub use inside::{Inside, Observed, VM, prefer};
pub use load::{Load, RealTimeLoad};

/// tau1 and tau2 of the paper's example: cost and period, ms.
pub const TASKS: [&str; 2] = ["30/150", "50/200"];

/// A modifiable copy of [`TASKS`].
#[must_use]
pub fn tasks() -> Vec<String> {
    TASKS.map(str::to_owned).to_vec()
}
/// Releases every reservation on drop, so that this machine is restored however a test ends.
#[derive(Debug)]
pub struct Restore(Command);

impl Restore {
    /// For the reservations of this host's daemon; works even after its end.
    #[must_use]
    pub fn of(host: &Host) -> Self {
        let mut command = Command::new(host.cli_program());
        command.arg("--run-directory").arg(host.directory()).args(["reserve", "release", "--all"]);
        Self(command)
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = self.0.status();
    }
}

/// One task's responses.
#[derive(Debug, Clone, PartialEq)]
pub struct Responses {
    /// The task's period and deadline.
    pub period_ms: f64,
    /// Response times, from release to end, in ascending order.
    pub ms: Vec<f64>,
}

impl Responses {
    /// Number of late jobs.
    #[must_use]
    pub fn misses(&self) -> usize {
        self.ms.iter().filter(|ms| **ms > self.period_ms).count()
    }

    /// The longest response.
    #[must_use]
    pub fn worst_ms(&self) -> f64 {
        self.ms.last().copied().unwrap_or(0.0)
    }

    fn parse(task: &Value) -> Option<Self> {
        let ms =
            task["responses_ms"].as_array()?.iter().map(Value::as_f64).collect::<Option<_>>()?;
        Some(Self { period_ms: task["period_ms"].as_f64()?, ms })
    }
}

/// Each task's misses and worst response.
#[must_use]
pub fn text(tasks: &[Responses]) -> String {
    let one = |t: &Responses| {
        format!("{}/{} missed, worst {:.0} ms", t.misses(), t.ms.len(), t.worst_ms())
    };
    tasks.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A guest with lab-rt. QEMU names its threads.
///
/// # Errors
/// When it does not boot.
pub fn guest(ctx: &Context, host: &Host, name: &str) -> anyhow::Result<Client> {
    guest_with_threads(ctx, host, name, "on")
}

/// Like [`guest`], with this value of `debug-threads=`.
///
/// # Errors
/// When it does not boot.
pub fn guest_with_threads(
    ctx: &Context,
    host: &Host,
    name: &str,
    named: &str,
) -> anyhow::Result<Client> {
    let programs =
        [ctx.program("timevisor-lab-guest", "lab-rt")?, ctx.program("timevisor", "timevisor")?];
    let (qemu, named) = (ctx.qemu_10()?, format!("{name},debug-threads={named}"));
    let named = move |builder: GuestBuilder| builder.args(["-name".to_owned(), named.clone()]);
    let launch = Launch::new(ctx, host, &qemu, Way::Vmclock, name).programs(&programs);
    let mut guest = launch.builder(named).start()?;
    guest.guest.wait_ready()?;
    host.wait_vm(name, "synchronized")?;
    Ok(guest)
}

/// Turns of lab-rt's loop per millisecond in this guest on a loaded host: a busy neighbour makes
/// each turn take longer, and a task's cost is the worst case.
///
/// # Errors
/// When lab-rt fails, or nothing can be reserved.
pub fn calibrate_loaded(host: &Host, guest: &mut Client, name: &str) -> anyhow::Result<u64> {
    let _load = Load::start()?;
    host.cli(&["reserve", "apply", name, "--alone", "--budget", "45ms/50ms"])?;
    let said = guest.guest.sh("lab-rt calibrate")?;
    host.cli(&["reserve", "release", name])?;
    of_calibration(&said, "loaded_turns_per_ms")
}

/// The turns per millisecond where nothing else runs, from the output of `lab-rt calibrate`.
///
/// # Errors
/// When the output has a different form.
pub fn turns(said: &str) -> anyhow::Result<u64> {
    of_calibration(said, "turns_per_ms")
}

fn of_calibration(said: &str, key: &str) -> anyhow::Result<u64> {
    let calibrated: Value = serde_json::from_str(said.trim()).with_context(|| said.to_owned())?;
    calibrated[key].as_u64().context("no calibration")
}

/// lab-rt's arguments. `shift_ms`: how much all releases are delayed after each common multiple of
/// the periods.
#[must_use]
pub fn arguments(
    turns: u64,
    seconds: u64,
    hog: bool,
    shift_ms: u64,
    tasks: &[String],
) -> Vec<String> {
    let mut all = vec!["run".to_owned(), turns.to_string(), seconds.to_string()];
    all.extend([u8::from(hog).to_string(), shift_ms.to_string()]);
    all.extend(tasks.iter().cloned());
    all
}

/// Runs the tasks in the guest, with `hog` beside a busy thread without priority.
///
/// # Errors
/// When lab-rt fails.
pub fn run(
    guest: &mut Client,
    turns: u64,
    seconds: u64,
    hog: bool,
) -> anyhow::Result<Vec<Responses>> {
    run_tasks(guest, (turns, seconds), hog, 0, &tasks())
}

/// Like [`run`], for other tasks, and with releases that move by `shift_ms`; see [`arguments`].
///
/// # Errors
/// When lab-rt fails.
pub fn run_tasks(
    guest: &mut Client,
    (turns, seconds): (u64, u64),
    hog: bool,
    shift_ms: u64,
    tasks: &[String],
) -> anyhow::Result<Vec<Responses>> {
    let words = arguments(turns, seconds, hog, shift_ms, tasks).join(" ");
    // On a loaded host it takes many times as long as normal, which is intended.
    let patience = Duration::from_secs(60 + 30 * seconds);
    responses(&guest.guest.sh_within(&format!("lab-rt {words}"), patience)?)
}

/// Parses what lab-rt printed.
///
/// # Errors
/// When the output has a different form.
pub fn responses(said: &str) -> anyhow::Result<Vec<Responses>> {
    let report: Value = serde_json::from_str(said.trim()).with_context(|| said.to_owned())?;
    let tasks = report["tasks"].as_array().context("no tasks")?;
    tasks.iter().map(Responses::parse).collect::<Option<_>>().context("odd responses")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lab_rt_prints() {
        let said = r#"{"tasks":[{"period_ms":150,"responses_ms":[30.5,31,151.5],"misses":9}]}"#;
        let read = responses(said).unwrap();
        assert_eq!((read[0].misses(), read[0].worst_ms()), (1, 151.5));
        assert_eq!(text(&read), "1/3 missed, worst 152 ms");
        assert_eq!(turns(r#"{"turns_per_ms":12}"#).unwrap(), 12);
        assert!(responses("{}").is_err() && turns("{}").is_err());
        assert_eq!(arguments(5, 12, true, 7, &tasks()).join(" "), "run 5 12 1 7 30/150 50/200");
    }
}
