//! Which kernels forget the end of a throttling pause
//! (`timevisor_reservation::ledger::Ledger::leave`). This shows the bug that timevisord avoids,
//! without timevisord.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::scenario::Context;

const SUITES: [&str; 3] = ["bookworm", "bookworm-backports", "trixie-backports"];
const SECONDS: u64 = 90;

pub(crate) fn kernels(ctx: &Context) -> anyhow::Result<String> {
    let program = ctx.program("timevisor-lab-guest", "lab-freeze")?;
    let mut all = Vec::new();
    for suite in SUITES {
        let kernel = ctx.kernel(suite)?;
        let image = ctx.image(&kernel)?.program(&program);
        let mut guest = ctx.guest(&ctx.qemu_10()?, &kernel, &image)?.start()?;
        guest.wait_ready()?;
        let said = guest.sh(&format!("lab-freeze {SECONDS}"))?;
        let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
        let changes = said["changes"].as_u64().context("no changes")?;
        ensure!(
            said["frozen"] == true,
            "{} does not do so in {changes} changes: docs/explanation/reservations.md says that it does",
            kernel.version
        );
        all.push(format!("{}: frozen after {changes} changes", kernel.version));
    }
    Ok(all.join(", "))
}
