//! Ages counted by BPF programs, in guests whose counter is not invariant. Under software
//! emulation, no guest's counter is.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::scenario::Context;

const MOVES: u64 = 500;
/// Maximum relative difference between the age and CLOCK_MONOTONIC_RAW: at each move, an emulated
/// processor that shares its host takes microseconds for each reading of a clock. A period that was
/// left out or counted twice would be more than half of the whole.
const TOLERANCE: f64 = 0.05;

pub(crate) fn elapsed_bpf(ctx: &Context) -> anyhow::Result<String> {
    let kernels = [ctx.kernel("bookworm")?, ctx.kernel("trixie-backports")?];
    let program = ctx.program("timevisor-lab-guest", "lab-elapsed-bpf")?;
    let mut told = Vec::new();
    for kernel in kernels {
        let image = ctx.image(&kernel)?.program(&program);
        let name = format!("guest-{}", told.len());
        let builder = ctx.guest(&ctx.qemu()?, &kernel, &image)?.name(&name).cpus(2).memory_mib(512);
        let mut guest = builder.start()?;
        guest.wait_ready()?;
        let text = guest.sh(&format!("lab-elapsed-bpf {MOVES}"))?;
        ctx.log(&format!("{}: {text}", kernel.version));
        let said: Value = serde_json::from_str(text.trim()).with_context(|| text.clone())?;
        told.push(format!("{}: {}", kernel.version, judge(&said)?));
        // Without privileges, the same machine counts CLOCK_MONOTONIC_RAW and says why.
        let refused = guest.sh("lab-elapsed-bpf refused")?;
        ensure!(
            refused.contains("monotonic-raw, because") && refused.contains("CAP_BPF"),
            "an unprivileged process is told {refused:?}"
        );
    }
    Ok(told.join("; "))
}

fn judge(said: &Value) -> anyhow::Result<String> {
    let number =
        |of: &Value, name: &str| of[name].as_u64().with_context(|| format!("no {name}: {said}"));
    ensure!(said["source"] == "bpf", "another source: {said}");
    let reason = said["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("invariant"), "the reason is another: {said}");
    for of in [said, &said["announced"]] {
        ensure!(number(of, "backward")? == 0 && number(of, "failed")? == 0, "{said}");
    }
    ensure!(number(said, "migrations")? == MOVES && number(said, "missed")? == 0, "{said}");
    let announced = &said["announced"];
    ensure!(number(announced, "changes")? == number(announced, "times")?, "{said}");
    let (age, raw) = (number(said, "age_ns")?, number(said, "raw_ns")?);
    let apart = (age as f64 / raw as f64 - 1.0).abs();
    ensure!(apart < TOLERANCE, "the age differs from CLOCK_MONOTONIC_RAW by {apart}: {said}");
    let table = ["pinned", "moves"].map(|way| table_3(&said["blocks"][way]));
    let [pinned, moves] = table;
    let table = format!("blocks: {}; with moves: {}", pinned?, moves?);
    Ok(format!(
        "{} reads over {MOVES} moves, each later than the one before; {:.0} ppm from CLOCK_MONOTONIC_RAW, {:.1} % counted by \
         CLOCK_MONOTONIC between cores; {} frequencies announced by trial runs; {table}",
        number(said, "reads")?,
        apart * 1e6,
        number(said, "bridged_ns")? as f64 / age as f64 * 100.0,
        number(announced, "times")?,
    ))
}

/// Table 3 of the paper "RVEC and HPGC", with frequencies that are announced and not real: the ages
/// of a block at the full frequency and of one at half of it.
fn table_3(said: &Value) -> anyhow::Result<String> {
    let number = |of: &str, name: &str| {
        said[of][name].as_f64().with_context(|| format!("no {of} {name}: {said}"))
    };
    ensure!(said["backward"] == 0, "{said}");
    // Of what a tick counts for, not of the blocks' lengths: other programs make these longer or shorter.
    let ratio = number("half_ns_a_tick", "median")? / number("full_ns_a_tick", "median")?;
    ensure!(
        (ratio / 2.0 - 1.0).abs() < TOLERANCE,
        "half a frequency is {ratio} times as long: {said}"
    );
    Ok(format!(
        "{:.1} us at the full and {:.1} at half the announced frequency (medians; a tick is worth {ratio:.2} times as much), together {:.1} us, sd {:.1}",
        number("full_us", "median")?,
        number("half_us", "median")?,
        number("both_us", "mean")?,
        number("both_us", "sd")?,
    ))
}
