//! The kernel's verifier accepts our BPF programs for guests under KVM, on the oldest kernel of the
//! lab as well as on the newest.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::scenario::Context;

/// Instructions that the verifier may process; its own limit is a million.
const MOST: u64 = 50_000;

pub(crate) fn verifier(ctx: &Context) -> anyhow::Result<String> {
    let program = ctx.program("timevisor-lab-guest", "lab-introspect")?;
    let mut told = Vec::new();
    for suite in ["bookworm", "trixie-backports"] {
        let kernel = ctx.kernel(suite)?;
        let image = ctx.image(&kernel)?.program(&program);
        let builder = ctx.guest(&ctx.qemu()?, &kernel, &image)?.name(suite).memory_mib(512);
        let mut guest = builder.start()?;
        guest.wait_ready()?;
        let text = guest.sh("lab-introspect verify")?;
        let said: Value = serde_json::from_str(text.trim()).with_context(|| text.clone())?;
        let programs = said.as_array().filter(|all| !all.is_empty()).context("no programs")?;
        for program in programs {
            let count = program[1].as_u64().context("no count")?;
            ensure!((1..=MOST).contains(&count), "{}: {program}", kernel.version);
        }
        told.push(format!("{}: {said}", kernel.version));
    }
    Ok(told.join("; "))
}
