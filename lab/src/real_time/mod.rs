//! Real-time tasks in a guest (lab-rt) and a loaded host, for the tests of reservations and for
//! their experiments.
//!
//! | file | owns |
//! | --- | --- |
//! | `costs.rs` | what each job of a run really cost |
//! | `judge.rs` | whether each job was in time, and which late ones are excused |
//! | `witness.rs` | when a core was taken away |
//! | `runtimes.rs` | when a thread ran |
//! | `stolen.rs` | time that was taken from this machine meanwhile |
//! | `inside.rs` | the same under KVM, on a host inside a guest |

pub mod costs;
mod inside;
pub mod judge;
pub mod runtimes;
pub mod stolen;
pub mod witness;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::builder::GuestBuilder;
use crate::client::{Client, Launch, Way};
use crate::host::Host;
use crate::scenario::Context;

pub use inside::{Inside, Observed, VM, prefer};

/// Of the paper's example, tau1 and tau2: cost and period, ms.
pub const TASKS: [&str; 2] = ["30/150", "50/200"];

/// [`TASKS`], to be changed.
#[must_use]
pub fn tasks() -> Vec<String> {
    TASKS.map(str::to_owned).to_vec()
}
/// Busy processes for each processor.
const LOAD: usize = 3;
/// The same where the guest must not get what it needs.
const STARVING: usize = 6;

/// Busy processes, until dropped.
#[derive(Debug)]
pub struct Load(Vec<Child>);

impl Load {
    /// Three for each processor.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start() -> anyhow::Result<Self> {
        Self::of(LOAD)
    }

    /// Six for each processor, so that a guest without a reservation must be late: on two
    /// processors it is one of 13 equal threads and gets 15 % of a processor, and the paper's tasks
    /// need 45 %.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn starving() -> anyhow::Result<Self> {
        Self::of(STARVING)
    }

    fn of(each: usize) -> anyhow::Result<Self> {
        let one =
            || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        let count = each * timevisor_linux::affinity::online()?.len();
        Ok(Self((0..count).map(|_| one()).collect::<Result<_, _>>()?))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Gives every reservation back when dropped: whatever becomes of a test, this machine is as it
/// was.
#[derive(Debug)]
pub struct Restore(Command);

impl Restore {
    /// Of this host's daemon, also after its end.
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
    /// Its period and deadline.
    pub period_ms: f64,
    /// From release to end, in ascending order.
    pub ms: Vec<f64>,
}

impl Responses {
    /// How many were late.
    #[must_use]
    pub fn misses(&self) -> usize {
        self.ms.iter().filter(|ms| **ms > self.period_ms).count()
    }

    /// The longest one.
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

/// A guest with lab-rt, whose threads QEMU names.
///
/// # Errors
/// When it does not boot.
pub fn guest(ctx: &Context, host: &Host, name: &str) -> anyhow::Result<Client> {
    guest_with_threads(ctx, host, name, "on")
}

/// The same with `debug-threads=` this.
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

/// How many turns of lab-rt's loop a millisecond of this guest has on a loaded host: a busy
/// neighbour makes each take longer, and a task's cost is what it takes at worst.
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

/// The same where nothing else runs, from what `lab-rt calibrate` printed.
///
/// # Errors
/// When it printed something else.
pub fn turns(said: &str) -> anyhow::Result<u64> {
    of_calibration(said, "turns_per_ms")
}

fn of_calibration(said: &str, key: &str) -> anyhow::Result<u64> {
    let calibrated: Value = serde_json::from_str(said.trim()).with_context(|| said.to_owned())?;
    calibrated[key].as_u64().context("no calibration")
}

/// lab-rt's arguments. `shift_ms`: so much later all releases are after each common multiple of the
/// periods.
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

/// Runs the tasks in the guest; `hog`: beside a busy thread without priority.
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

/// The same for other tasks, and with releases that move by `shift_ms`; see [`arguments`].
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
    // On a loaded host it takes many times as long as it should: that is the point.
    let patience = Duration::from_secs(60 + 30 * seconds);
    responses(&guest.guest.sh_within(&format!("lab-rt {words}"), patience)?)
}

/// What lab-rt printed.
///
/// # Errors
/// When it printed something else.
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
