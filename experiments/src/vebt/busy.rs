//! Programs that only compute, as load of the host.

use timevisor_lab::command::{Tethered, tethered};
use timevisor_lab::scenario::Context;

/// The shell's line: it never waits for anything.
const SPIN: &str = "while :; do :; done";

/// A busy program; it ends when the value is dropped.
#[derive(Debug)]
pub(super) struct Busy {
    _program: Tethered,
}

impl Busy {
    /// With the usual priority.
    pub(super) fn start(ctx: &Context) -> anyhow::Result<Self> {
        Self::of(ctx, &["sh", "-c", SPIN])
    }

    /// Under SCHED_IDLE: it runs only where nothing else wants to, and keeps that processor awake.
    pub(super) fn below_all(ctx: &Context) -> anyhow::Result<Self> {
        Self::of(ctx, &["chrt", "--idle", "0", "sh", "-c", SPIN])
    }

    fn of(ctx: &Context, words: &[&str]) -> anyhow::Result<Self> {
        let mut command = tethered(words[0]);
        command.args(&words[1..]);
        let log = ctx.path("busy.log");
        Ok(Self { _program: Tethered::spawn(&mut command, "a busy program", &log)? })
    }
}
