//! What keeps the host busy beside a guest.

use std::process::{Child, Command, Stdio};

use timevisor_linux::affinity;

use super::{arguments, turns};
use crate::scenario::Context;

/// Busy processes for each processor.
const LOAD: usize = 3;
/// Busy processes, if the guest must not get what it needs.
const STARVING: usize = 6;
/// tau3 and tau4 of the paper: cost and period, ms.
const REAL_TIME: [&str; 2] = ["50/120", "20/80"];
/// Longer than any run.
const SECONDS: u64 = 3600;

/// Busy processes, until dropped.
#[derive(Debug)]
pub struct Load(Vec<Child>);

impl Load {
    /// Starts three for each processor.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start() -> anyhow::Result<Self> {
        Self::of(LOAD)
    }

    /// Starts six for each processor, so that a guest without a reservation must be late: on two
    /// processors it is one of 13 equal threads and gets 15 % of a processor, while the paper's
    /// tasks need 45 %.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn starving() -> anyhow::Result<Self> {
        Self::of(STARVING)
    }

    /// The busy processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(Child::id)
    }

    fn of(each: usize) -> anyhow::Result<Self> {
        let one =
            || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        let count = each * affinity::online()?.len();
        let mut load = Self(Vec::new());
        for _ in 0..count {
            load.0.push(one()?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

/// The paper's load: two periodic tasks at real-time priorities, 67 % of one core, until dropped.
#[derive(Debug)]
pub struct RealTimeLoad(Child);

impl RealTimeLoad {
    /// Starts them on a core. Everything on it without a reservation comes after them.
    ///
    /// # Errors
    /// When lab-rt does not run, or may not be real-time.
    pub fn start(ctx: &Context, core: usize) -> anyhow::Result<Self> {
        let program = ctx.program("timevisor-lab-guest", "lab-rt")?;
        let said = Command::new(&program).arg("calibrate").output()?;
        let turns = turns(&String::from_utf8_lossy(&said.stdout))?;
        let tasks = REAL_TIME.map(str::to_owned);
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).arg(&program);
        command.args(arguments(turns, SECONDS, false, 0, &tasks));
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }
}

impl Drop for RealTimeLoad {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
