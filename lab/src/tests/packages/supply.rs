//! What is published beside the packages, and what a packager of another system needs: `make install` and `make uninstall`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::command;
use crate::programs;
use crate::scenario::Context;

pub(crate) fn supply(ctx: &Context) -> anyhow::Result<String> {
    let files = install(ctx)?;
    let rpms = rpms(ctx)?;
    apparmor()?;
    signature(ctx)?;
    let crates = bom(ctx)?;
    let rust = command::output(python().arg("msrv"))?;
    Ok(format!(
        "{files} files installed and removed; {rpms} RPMs; AppArmor profiles parsed; a changed package does not verify; {crates}; {}",
        rust.trim()
    ))
}

/// `make install` with every program, then `make uninstall`: nothing is left.
fn install(ctx: &Context) -> anyhow::Result<usize> {
    let root = ctx.path("root");
    let packages = ["timevisor", "timevisor-guest", "timevisor-bus"];
    stage(&[&root.display().to_string()], &packages)?;
    let installed = tree(&root, &root)?;
    let unit = fs::read_to_string(root.join("opt/lib/systemd/system/timevisord.service"))?;
    ensure!(unit.contains("ExecStart=/opt/sbin/timevisord"), "PREFIX is not in the unit: {unit}");
    let profile = fs::read_to_string(root.join("etc/apparmor.d/usr.sbin.timevisord"))?;
    ensure!(profile.contains("profile timevisord /opt/sbin/timevisord"), "not in the profile");
    // Every file is one that the list names.
    let listed = stage(&["--list"], &packages)?;
    for file in &installed {
        let path = format!("/{file}");
        let named = listed.lines().any(|line| match line.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == line,
        });
        ensure!(named, "{path} is not in packaging/files.txt");
    }
    // What the administrator changed stays.
    let changed = root.join("etc/timevisor/timevisord.toml");
    fs::write(&changed, "# changed\n")?;
    stage(&["--remove", &root.display().to_string()], &packages)?;
    let left = tree(&root, &root)?;
    let kept = BTreeSet::from(["etc/timevisor/timevisord.toml".to_owned()]);
    ensure!(left == kept, "left after the removal: {left:?}");
    Ok(installed.len())
}

fn stage(first: &[&str], packages: &[&str]) -> anyhow::Result<String> {
    let root = programs::workspace()?;
    let mut stage = Command::new(root.join("packaging/stage"));
    stage.args(first).args(packages).env("PREFIX", "/opt").env("PROGRAMS", built()?);
    command::output(&mut stage)
}

/// The programs that the lab has built.
fn built() -> anyhow::Result<String> {
    let quick = programs::static_binary("timevisord", "timevisord")?;
    let quick = quick.parent().context("no folder")?.to_owned();
    Ok(format!("{} {}", quick.display(), programs::target_dir()?.join("debug").display()))
}

fn tree(root: &Path, folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(tree(root, &path)?);
        } else {
            found.insert(path.strip_prefix(root)?.display().to_string());
        }
    }
    Ok(found)
}

/// RPMs have the same files as the list, and their scripts release what is reserved.
fn rpms(ctx: &Context) -> anyhow::Result<usize> {
    let root = programs::workspace()?;
    let out = ctx.path("rpm");
    let mut rpms = Command::new(root.join("packaging/rpms"));
    rpms.arg(&out).args(["timevisor", "timevisor-guest"]);
    rpms.env("PROGRAMS", built()?).env("SOURCE_DATE_EPOCH", "1700000000");
    let made = command::output(&mut rpms)?;
    let made: Vec<&str> = made.lines().filter(|line| line.ends_with(".rpm")).collect();
    ensure!(made.len() == 2, "{made:?}");
    let ask = |what: &str, file: &str| command::run("rpm", &["-qp", what, file]);
    let files = ask("-l", made[0])?;
    for file in [
        "/usr/sbin/timevisord",
        "/usr/lib/systemd/system/timevisord.service",
        "/usr/share/man/man1/timevisor-reserve-apply.1.gz",
        "/usr/share/timevisor/reservations.conf",
    ] {
        ensure!(files.lines().any(|line| line == file), "{file} is not in {}", made[0]);
    }
    let configuration = ask("--configfiles", made[0])?;
    ensure!(configuration.contains("/etc/timevisor/timevisord.toml"), "{configuration}");
    ensure!(ask("--scripts", made[0])?.contains("reserve release --all"), "nothing is released");
    Ok(made.len())
}

fn apparmor() -> anyhow::Result<()> {
    for profile in ["timevisord", "timevisor-guest"] {
        let path = programs::workspace()?.join("packaging/apparmor").join(profile);
        // Parsed and compiled, not loaded.
        let mut parser = Command::new("/sbin/apparmor_parser");
        let out = parser.args(["-Q", "-K", "-S"]).arg(&path).output()?;
        ensure!(out.status.success(), "{profile}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(())
}

/// The commands of docs/how-to/install.md with a key of this test's: what is signed verifies, what was changed does not.
fn signature(ctx: &Context) -> anyhow::Result<()> {
    let folder = ctx.path("signed");
    fs::create_dir_all(&folder)?;
    let script = "ssh-keygen -q -t ed25519 -N '' -f key && echo package >a.deb && sha256sum a.deb >SHA256SUMS && \
         ssh-keygen -q -Y sign -f key -n timevisor-packages SHA256SUMS && echo \"builder $(cat key.pub)\" >builders";
    let verify = "ssh-keygen -Y verify -f builders -I builder -n timevisor-packages -s SHA256SUMS.sig <SHA256SUMS && \
         sha256sum --check --quiet SHA256SUMS";
    let run =
        |line: &str| command::output(Command::new("sh").args(["-ec", line]).current_dir(&folder));
    run(script)?;
    run(verify)?;
    fs::write(folder.join("a.deb"), "another\n")?;
    ensure!(run(verify).is_err(), "a changed package verifies");
    run("sha256sum a.deb >SHA256SUMS")?;
    ensure!(run(verify).is_err(), "changed checksums verify");
    Ok(())
}

fn python() -> Command {
    let mut command = Command::new("/usr/bin/python3");
    let root = programs::workspace().unwrap_or_default();
    command.arg("-B").arg(root.join("packaging/sbom.py"));
    command
        .current_dir(root)
        .env("CARGO_NET_OFFLINE", "true")
        .env("SOURCE_DATE_EPOCH", "1700000000");
    command
}

/// The SBOM names every crate that is linked, has the form that it claims, and is the same twice.
fn bom(ctx: &Context) -> anyhow::Result<String> {
    let (one, two) = (ctx.path("one.cdx.json"), ctx.path("two.cdx.json"));
    command::output(python().arg("write").arg(&one))?;
    command::output(python().arg("write").arg(&two))?;
    ensure!(fs::read(&one)? == fs::read(&two)?, "the SBOM is another one the second time");
    let said = command::output(python().arg("check").arg(&one))?;
    // The check sees a crate that is missing.
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&one)?)?;
    value["components"].as_array_mut().context("no components")?.pop();
    fs::write(&two, value.to_string())?;
    ensure!(
        command::output(python().arg("check").arg(&two)).is_err(),
        "a missing crate is not seen"
    );
    Ok(said.trim().rsplit(": ").next().unwrap_or_default().to_owned() + " in the SBOM")
}

/// Two builds of the smallest program.
pub(crate) fn reproducible(ctx: &Context) -> anyhow::Result<String> {
    let root = programs::workspace()?;
    let mut twice = Command::new(root.join("packaging/reproducible"));
    twice.args(["quick", "timevisor-guest"]).env("TMPDIR", ctx.log_dir());
    twice.env("CARGO_NET_OFFLINE", "true");
    let said = command::output(&mut twice)?;
    ensure!(said.contains("equal: "), "{said}");
    Ok(said.lines().filter(|line| line.starts_with("equal")).collect::<Vec<_>>().join("; "))
}
