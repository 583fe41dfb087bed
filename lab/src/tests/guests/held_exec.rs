//! A user without rights keeps processes of hers in the middle of exec, where the kernel answers no
//! question about them: one that was served, ones that look like QEMUs, and one that looks like a
//! program that sets the clock. Nobody else waits.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::owners::{prepared, served, words};
use crate::command::{self, Tethered};
use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::programs;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::reference;
use crate::tests::faults::qemu::Bare;

/// A read that waits is given up after a tenth of a second, for two processes of a user a minute; a
/// daemon that waits does not answer at all.
const ANSWER: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(10);

struct Held {
    process: Tethered,
    folder: PathBuf,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Who waits for the file system is let go by the end of its server. Until then the others
        // cannot even end, and nothing else tells the server to.
        let _ = command::run("kill", &["-KILL", "--", &format!("-{}", self.process.pid())]);
        self.process.kill();
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

fn hold(
    ctx: &Context,
    program: &Path,
    folder: &Path,
    kind: &str,
    name: &str,
) -> anyhow::Result<Held> {
    let folder = folder.join(format!("{kind}-{name}"));
    fs::create_dir(&folder)?;
    let mut command = command::tethered(program);
    command.args(["-name", name]).arg(format!("-attack={kind}={}", folder.display()));
    let log = ctx.path(&format!("{kind}-{name}.log"));
    let process = Tethered::spawn(&mut command, kind, &log)?;
    let is_there = interrupt::poll_until(Duration::from_secs(20), || {
        let said = fs::read_to_string(&log)?;
        let word = if kind == "late" { "ready" } else { "in exec" };
        Ok(said.contains(word).then_some(()))
    })?;
    is_there.with_context(|| format!("{kind} {name} does not begin"))?;
    Ok(Held { process, folder })
}

pub(crate) fn held_exec(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::in_memory(ctx)?;
    fs::set_permissions(host.directory(), Permissions::from_mode(0o755))?;
    let lines = reference(&server.address());
    // The second one has timevisord look for who keeps the clock.
    let second = "[[reference]]\ntype = \"system\"\n";
    let guests = "[guests]\ndiscover = \"all\"\ndiscover_interval = \"1s\"\n";
    host.start(&format!("{lines}{second}{guests}"))?;
    host.wait_synchronized(10_000)?;
    let qemu = ctx.qemu()?;
    let web = prepared(&host, &["--name", "web"])?;
    let real = Bare::start(ctx, &qemu, "web", &words(&web.all))?;
    served(&host, "web", &real)?;

    let folder = scratch::directory()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let program = folder.path().join("qemu-system-x86_64");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-fPIE", "-pie", "-o"]);
    let source = programs::workspace()?.join("lab/hostile/impostor.c");
    command::output(compiler.arg(&program).arg(source))?;
    let hold = |kind, name| hold(ctx, &program, folder.path(), kind, name);

    let quiet = watch(&host)?;
    let mut all = vec![hold("late", "hers")?];
    host.wait_until("her VM is served", |host| Ok(host.vm("hers").is_ok()))?;
    for (kind, name) in [("exec", "a"), ("exec", "b"), ("exec", "web"), ("rival", "c")] {
        all.push(hold(kind, name)?);
    }
    let blamed = "keeps its memory or its files from being read";
    host.wait_until("the log says who", |host| Ok(host.log_text().contains(blamed)))?;
    let busy = watch(&host)?;
    ensure!(busy.outside == 0, "{} readings are unreliable: {}", busy.outside, host.log_text());
    ensure!(busy.slowest < ANSWER, "an answer took {:?}", busy.slowest);
    ensure!(
        busy.published >= 0.8 * quiet.published,
        "web's page was written {:.2} times a second, {:.2} before",
        busy.published,
        quiet.published
    );
    // A VM of root's is served at once, and root may name one of hers.
    let second = prepared(&host, &["--name", "second"])?;
    let second = Bare::start(ctx, &qemu, "second", &words(&second.all))?;
    served(&host, "second", &second)?;
    let asked = Instant::now();
    let refused = host.cli(&["vm", "add", "--pid", &all[1].process.pid().to_string()]);
    let text = format!("{:#}", refused.err().context("a process in exec is added")?);
    ensure!(text.contains("be looked at") || text.contains(blamed), "{text}");
    ensure!(asked.elapsed() < ANSWER + Duration::from_secs(1), "{:?}", asked.elapsed());

    // Another daemon beside the same processes, of which it knows nothing.
    let ending = Instant::now();
    host.terminate()?;
    let ended = ending.elapsed();
    ensure!(ended < Duration::from_secs(10), "timevisord took {ended:?} to end");
    host.restart()?;
    served(&host, "web", &real)?;
    served(&host, "second", &second)?;
    let late = "could not be looked at in time";
    host.wait_until("the log says who", |host| Ok(host.log_text().contains(late)))?;
    let after = watch(&host)?;
    ensure!(after.outside == 0 && after.slowest < ANSWER, "an answer took {:?}", after.slowest);
    let count = all.len();
    drop(all);
    host.wait_until("her VM has ended", |host| Ok(host.vm("hers").is_err()))?;
    served(&host, "web", &real)?;
    Ok(format!(
        "{count} processes in exec, one of them served: slowest answer {:.0} ms, {:.0} ms from another daemon ({:.0} before), web \
         written {:.2} times a second ({:.2} before)",
        busy.slowest.as_secs_f64() * 1e3,
        after.slowest.as_secs_f64() * 1e3,
        quiet.slowest.as_secs_f64() * 1e3,
        busy.published,
        quiet.published
    ))
}

struct Seen {
    slowest: Duration,
    /// Publications of web's page a second.
    published: f64,
    /// Readings that nobody vouches for.
    outside: u64,
}

fn watch(host: &Host) -> anyhow::Result<Seen> {
    let published = || host.vm("web")?["pages_published"].as_f64().context("web is gone");
    let (begin, first) = (Instant::now(), published()?);
    let (mut slowest, mut outside) = (Duration::ZERO, 0);
    while begin.elapsed() < WATCHED {
        let asked = Instant::now();
        let status = host.json(&["status"])?;
        slowest = slowest.max(asked.elapsed());
        outside += u64::from(status["clock"]["status"] != "synchronized");
        interrupt::sleep(Duration::from_millis(100))?;
    }
    let published = (published()? - first) / begin.elapsed().as_secs_f64();
    Ok(Seen { slowest, published, outside })
}
