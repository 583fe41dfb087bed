//! What this folder tests as root works under the shipped unit's restrictions too: its capabilities,
//! its system calls, what it can see. A real systemd, in namespaces of its own, applies them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::command;
use crate::interrupt::Late;
use crate::programs;
use crate::runner::{Outcome, Verdict};
use crate::scenario::Context;

/// Each of these starts its timevisord under the unit.
const TESTS: &[&str] =
    &["privileges", "owners", "reboot", "memory-hotplug", "fault-qemu", "attack"];
/// Each of these starts it under the unit and packaging/reservations.conf.
const WITH_DROP_IN: &[&str] = &["reserve-again", "introspect-daemon"];
/// `systemd-analyze security` says at most this, in tenths: 0 is best, 100 is worst.
const EXPOSURES: &[(&str, u32)] = &[("timevisord", 35), ("timevisor-guest", 30)];

pub(crate) fn shipped_unit(ctx: &Context) -> anyhow::Result<String> {
    let root = programs::workspace()?;
    for (unit, most) in EXPOSURES {
        let unit = root.join(format!("packaging/{unit}.service"));
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", &format!("--threshold={most}"), "--no-pager"]);
        let said = command::output(analyze.arg(&unit))?;
        ensure!(said.contains("Overall exposure"), "{said}");
        ctx.log(said.lines().last().unwrap_or_default());
    }
    under(ctx, TESTS, None)?;
    Ok(format!("{} under the unit's restrictions; exposures at most 3.5 and 3.0", TESTS.join(", ")))
}

pub(crate) fn shipped_drop_in(ctx: &Context) -> anyhow::Result<String> {
    under(ctx, WITH_DROP_IN, Some("packaging/reservations.conf"))?;
    Ok(format!("{} under the unit with reservations.conf", WITH_DROP_IN.join(", ")))
}

/// Runs these tests, whose timevisord is started under the unit, in a systemd of their own.
fn under(ctx: &Context, tests: &[&str], drop_in: Option<&str>) -> anyhow::Result<()> {
    let root = programs::workspace()?;
    let folder = ctx.path("under-unit");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let cache = ctx.path("..").join("cache");
    std::os::unix::fs::symlink(fs::canonicalize(cache)?, folder.join("cache"))?;
    let program = std::env::current_exe()?;
    let mut unit = String::from(
        "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\n",
    );
    // What a runner sets, and the daemon under the unit.
    let (lab, log) = (root.join("lab/systemd"), folder.join("output.log"));
    let path = std::env::var("PATH")?;
    writeln!(unit, "Environment=TIMEVISOR_LAB_OWNER=1 TMPDIR=/run/lab ATTACK_S=20 PATH={path}")?;
    if let Ok(target) = std::env::var("CARGO_TARGET_DIR") {
        writeln!(unit, "Environment=CARGO_TARGET_DIR={target}")?;
    }
    writeln!(
        unit,
        "Environment=LAB_DAEMON={}/timevisord.sh LAB_FOLDER={}",
        lab.display(),
        folder.display()
    )?;
    if let Some(drop_in) = drop_in {
        writeln!(unit, "Environment=LAB_DROP_IN={}", root.join(drop_in).display())?;
    }
    for test in tests {
        fs::create_dir_all(folder.join(test))?;
        let dir = folder.display();
        writeln!(unit, "ExecStart=-{} --dir {dir} test-one {test}", program.display())?;
    }
    writeln!(unit, "ExecStopPost=systemctl exit")?;
    writeln!(unit, "StandardOutput=append:{0}\nStandardError=append:{0}", log.display())?;
    boot(&folder, &[("lab.service", &unit)])?;
    for test in tests {
        let Outcome { verdict, text } = verdict(&folder, test)?;
        ctx.log(&format!("{test}: {} {text}", verdict.word()));
        match verdict {
            Verdict::Ok => {}
            Verdict::Late => {
                return Err(Late).with_context(|| format!("{test} under the unit: {text}"));
            }
            Verdict::Failed => bail!("{test} under the unit: {text}"),
        }
    }
    Ok(())
}

/// Boots a systemd with these units, and waits until it ends.
pub(super) fn boot(folder: &Path, units: &[(&str, &str)]) -> anyhow::Result<()> {
    for (name, text) in units {
        let path = folder.join("units").join(name);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(path, text)?;
    }
    let script = programs::workspace()?.join("lab/systemd/boot.sh");
    command::output(Command::new(script).arg(folder)).map(drop)
}

fn verdict(folder: &Path, test: &str) -> anyhow::Result<Outcome> {
    let text = fs::read_to_string(folder.join(test).join("verdict.json")).with_context(|| {
        let output = fs::read_to_string(folder.join("output.log")).unwrap_or_default();
        format!("{test} gave no verdict: {}", command::tail(&output, 12))
    })?;
    Outcome::parse(&text).context("no verdict")
}
