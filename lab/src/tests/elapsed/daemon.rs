//! Ages of threads that a timevisord serves, in a guest whose counter is not invariant: under
//! software emulation no guest's is. The timevisord is a member of a cluster whose root runs on the
//! host, and its page counts CLOCK_MONOTONIC_RAW.
//!
//! A guest's TSC is the host's and an offset. So each reading of the guest's page, which is made
//! between two readings of its TSC, has its truth: the host's CLOCK_REALTIME.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::counter::Tsc;

use crate::client;
use crate::guest::Guest;
use crate::guest_daemon;
use crate::host::{Host, ntp_reference};
use crate::interrupt;
use crate::lan::Lan;
use crate::qemu::Delivery;
use crate::scenario::Context;
use crate::truth::Truth;

const PORT: u16 = 41_310;
const CONFIG: &str = "/etc/timevisor.toml";
const MOVES: u64 = 500;
/// Announced frequencies.
const FREQUENCIES: u64 = 80;
/// Maximum relative difference between a thread's age and CLOCK_MONOTONIC_RAW, as in `bpf.rs`.
const TOLERANCE: f64 = 0.05;
/// Threads that one user may have.
const SHARE: u64 = 64;
const READINGS: usize = 10;
/// Everything in an emulated guest takes several times as long.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn elapsed_bpf_daemon(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let mut root = Host::new(ctx)?;
    let at = format!("{}:{PORT}", lan.host());
    root.start(&format!(
        "{}[server]\nlisten = [{at:?}]\nrate_interval = \"0s\"\n[[cluster]]\nname = \"lab\"\npoll = \"200ms\"\n",
        ntp_reference(&server.address().ip().to_string()),
    ))?;
    root.wait_synchronized(1_000)?;
    let mut member = Member::boot(ctx, &root, &lan, &at)?;
    member.serving()?;

    // A thread moves and frequencies change; the page goes on.
    member.readings(READINGS)?;
    member.guest.sh(&format!("lab-ages moves {MOVES} >/run/moves.json 2>&1 &"))?;
    let mut during = 0;
    while member.guest.sh("pidof lab-ages || true")?.contains(|c: char| c.is_ascii_digit()) {
        member.readings(1)?;
        during += 1;
    }
    ensure!(during >= 3, "only {during} readings of the clock while the thread moved");
    let text = member.guest.sh("cat /run/moves.json")?;
    ctx.log(&format!("moves: {text}"));
    let moved = judge(&serde_json::from_str(text.trim()).with_context(|| text.clone())?)?;
    let status = member.wait_ages("the moves are counted", |ages| ages["threads"] == 0)?;
    ctx.log(&format!("status: {status}"));
    let told = judge_status(&status)?;
    let share = member.unprivileged()?;

    // Who has an age is told when its timevisord ends, and begins again.
    member.hold()?;
    guest_daemon::end(&mut member.guest)?;
    member.start()?;
    let ended = member.held("ended")?;
    member.hold()?;
    member.guest.sh("kill -9 $(pidof timevisord); while pidof timevisord; do sleep 0.1; done")?;
    let killed = Instant::now();
    // With the old daemon dead and no new one, it is noticed, too.
    member.wait_held(2)?;
    let noticed = killed.elapsed();
    member.start()?;
    member.held("ended")?;
    member.readings(READINGS)?;

    // A frequency that is not the real one: ages and CLOCK_MONOTONIC_RAW part.
    member.serving()?;
    member.hold()?;
    member.guest.sh("lab-ages announce 500")?;
    let stopped = member.wait_ages("ages are stopped", |ages| ages["state"] == "stopped")?;
    ctx.log(&format!("stopped: {stopped}"));
    let why = stopped["reason"].as_str().unwrap_or_default();
    ensure!(why.contains("ppm faster") && why.contains("restart timevisord"), "{stopped}");
    let refused = member.guest.sh("lab-ages nobody timevisor elapsed --thread 2>&1 || true")?;
    ensure!(refused.contains("restart timevisord"), "{refused}");
    member.readings(READINGS)?;
    guest_daemon::end(&mut member.guest)?;
    member.start()?;
    let parted = member.held("unknown")?;
    ensure!(parted.contains("have parted") && parted.contains("timevisor status"), "{parted}");
    member.serving()?;
    member.readings(READINGS)?;
    ensure!(ended.contains("begin again"), "{ended}");
    Ok(format!(
        "{moved}; {told}; {share}; {} readings of the clock ({during} meanwhile), the truth in each, +-{:.0} us at most; \
         a killed timevisord noticed after {:.1} s; with half the frequency announced: {why:?}",
        member.count,
        member.widest as f64 / 1e3,
        noticed.as_secs_f64(),
    ))
}

/// The guest and its timevisord.
struct Member {
    guest: Guest,
    /// What the guest's TSC is ahead of this machine's.
    offset: i64,
    count: usize,
    widest: i64,
}

impl Member {
    fn boot(ctx: &Context, root: &Host, lan: &Lan, at: &str) -> anyhow::Result<Self> {
        const NAME: &str = "guest";
        let kernel = ctx.kernel("trixie-backports")?;
        let mut image = ctx.image(&kernel)?.module("virtio_net");
        for (package, bin) in [
            ("timevisord", "timevisord"),
            ("timevisor", "timevisor"),
            ("timevisor-lab-guest", "lab-ages"),
        ] {
            image = image.program(&ctx.program(package, bin)?);
        }
        // The counter is chosen automatically.
        let config = ctx.path("guest.toml");
        std::fs::write(
            &config,
            format!(
                "run_directory = \"/run/timevisor\"\n[clock]\ntai_offset = 37\n[guests]\ndiscover = false\n\
                 [[reference]]\ntype = \"cluster\"\ncluster = \"lab\"\n\
                 [server]\nlisten = [\"{}:{PORT}\"]\nrate_interval = \"0s\"\n\
                 [[cluster]]\nname = \"lab\"\nseeds = [{at:?}]\npoll = \"200ms\"\nlease = \"2s\"\n",
                lan.address(0)
            ),
        )?;
        let image = image.file(&config, CONFIG, 0o644);
        let qmp = root.directory().join(format!("{NAME}.qmp"));
        let mut guest = ctx
            .guest(&ctx.qemu_10()?, &kernel, &image)?
            .name(NAME)
            .cpus(2)
            .memory_mib(512)
            .delivery(Delivery::VmclockDevice)
            .paused()
            .args(lan.arguments(0, false)?)
            .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())])
            .start()?;
        let qmp = qmp.display().to_string();
        root.cli(&["vm", "add", "--qmp", &qmp, "--name", NAME, "--resume"])?;
        guest.wait_ready()?;
        root.wait_vm(NAME, "synchronized")?;
        let offset = client::offset(root, NAME)?;
        guest.sh(&lan.guest_setup(0))?;
        let mut member = Self { guest, offset, count: 0, widest: 0 };
        member.start()?;
        Ok(member)
    }

    /// Starts its timevisord, and waits until it follows the cluster.
    fn start(&mut self) -> anyhow::Result<()> {
        guest_daemon::start(&mut self.guest, CONFIG)?;
        guest_daemon::wait(&mut self.guest, "the guest follows the cluster", |status| {
            Ok(status["clock"]["status"] == "synchronized")
        })
        .map(drop)
    }

    /// Waits for what its status says of ages, and returns that.
    fn wait_ages(&mut self, what: &str, done: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let found = |status: &Value| Ok(done(&status["thread_ages"]));
        Ok(guest_daemon::wait(&mut self.guest, what, found)?["thread_ages"].clone())
    }

    fn serving(&mut self) -> anyhow::Result<()> {
        let ages = self.wait_ages("ages are served and compared", |ages| {
            ages["state"] == "serving" && !ages["last_apart_ppm"].is_null()
        })?;
        let reason = ages["reason"].as_str().unwrap_or_default();
        ensure!(ages["source"] == "bpf" && reason.contains("invariant"), "{ages}");
        Ok(())
    }

    /// The page's bounds beside the truth.
    fn readings(&mut self, count: usize) -> anyhow::Result<()> {
        let guest = &mut self.guest;
        let ask = || guest.sh(&format!("lab-ages clock {count}"));
        let (text, truth) = Truth::around(&Tsc::unchecked(), ask)?;
        for line in text.lines() {
            let said: Value = serde_json::from_str(line).with_context(|| text.clone())?;
            ensure!(said["known"] == true && said["status"] == "synchronized", "{said}");
            let ns = |name: &str| said[name].as_i64().with_context(|| format!("no {name}: {said}"));
            let at = |name: &str| -> anyhow::Result<i64> {
                let count = said[name].as_u64().with_context(|| format!("no {name}: {said}"))?;
                Ok(truth.at(count.wrapping_add_signed(-self.offset)))
            };
            let slack = truth.uncertainty_ns();
            let (from, to) = (at("before")? - slack, at("after")? + slack);
            let (earliest, latest) = (ns("earliest_ns")?, ns("latest_ns")?);
            ensure!(
                earliest <= to && from <= latest,
                "the truth is in {from}..{to}, the page says {earliest}..{latest}: {} ns outside",
                (earliest - to).max(from - latest)
            );
            // A bracket that is wider than the bounds would show nothing.
            ensure!(to - from < latest - earliest + 1_000_000, "a reading took {} ns", to - from);
            self.widest = self.widest.max((latest - earliest) / 2);
            self.count += 1;
        }
        Ok(())
    }

    /// What the command line and a greedy program get without privileges.
    fn unprivileged(&mut self) -> anyhow::Result<String> {
        let text = self.guest.sh("lab-ages nobody timevisor elapsed --thread --count 50 --json")?;
        let mut last = 0;
        for line in text.lines() {
            let said: Value = serde_json::from_str(line).with_context(|| text.clone())?;
            let age = said["age_ns"].as_u64().with_context(|| text.clone())?;
            ensure!(age > last, "{age} after {last}: {text}");
            last = age;
        }
        ensure!(text.lines().count() == 50, "{text}");
        let source = self.guest.sh("lab-ages nobody timevisor elapsed --source --json")?;
        let said: Value = serde_json::from_str(source.trim()).with_context(|| source.clone())?;
        ensure!(said["by"] == "timevisord" && said["source"] == "bpf", "{said}");
        let many = self.guest.sh("lab-ages nobody lab-ages many 80")?;
        let said: Value = serde_json::from_str(many.trim()).with_context(|| many.clone())?;
        let reason = said["reason"].as_str().unwrap_or_default();
        ensure!(said["begun"] == SHARE, "another share: {said}");
        ensure!(!reason.is_empty(), "no reason: {said}");
        self.wait_ages("their records are free again", |ages| ages["threads"] == 0)?;
        Ok(format!("nobody's 80 threads got {SHARE} ages"))
    }

    /// A program holds an age.
    fn hold(&mut self) -> anyhow::Result<()> {
        self.guest.sh("lab-ages hold >/run/hold.json 2>&1 &")?;
        self.wait_held(1)
    }

    fn wait_held(&mut self, lines: usize) -> anyhow::Result<()> {
        let mut text = String::new();
        let found = interrupt::poll_until(PATIENCE, || {
            text = self.guest.sh("cat /run/hold.json")?;
            Ok((text.lines().count() >= lines).then_some(()))
        })?;
        found.with_context(|| format!("less than {lines} lines of {text:?}"))
    }

    /// What it was told, of this kind, before it began again.
    fn held(&mut self, kind: &str) -> anyhow::Result<String> {
        self.wait_held(3)?;
        let text = self.guest.sh("cat /run/hold.json")?;
        let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        let lines = lines.with_context(|| text.clone())?;
        ensure!(lines[1]["kind"] == kind && lines[2]["again"] == true, "not {kind}: {text}");
        ensure!(lines[1]["reads"].as_u64() > Some(0), "{text}");
        Ok(lines[1]["error"].as_str().unwrap_or_default().to_owned())
    }
}

fn judge(said: &Value) -> anyhow::Result<String> {
    let number = |name: &str| said[name].as_u64().with_context(|| format!("no {name}: {said}"));
    ensure!(number("backward")? == 0 && number("failed")? == 0, "{said}");
    ensure!(number("counted")? == MOVES && number("moves")? == MOVES, "{said}");
    ensure!(number("announced")? == FREQUENCIES, "{said}");
    let apart = number("age_ns")? as f64 / number("raw_ns")? as f64 - 1.0;
    ensure!(apart.abs() < TOLERANCE, "an age parted from CLOCK_MONOTONIC_RAW by {apart}: {said}");
    Ok(format!(
        "{} reads of nobody's thread over {MOVES} moves and {FREQUENCIES} announced frequencies, each later than the one \
         before, {:+.0} ppm from CLOCK_MONOTONIC_RAW",
        number("reads")?,
        apart * 1e6
    ))
}

fn judge_status(ages: &Value) -> anyhow::Result<String> {
    let number = |name: &str| ages[name].as_u64().with_context(|| format!("no {name}: {ages}"));
    ensure!(ages["state"] == "serving" && ages["source"] == "bpf", "{ages}");
    ensure!(number("moves")? == MOVES, "{ages}");
    ensure!(number("frequency_changes")? == FREQUENCIES && number("events_missed")? == 0, "{ages}");
    let ppm = |name: &str| ages[name].as_f64().with_context(|| format!("no {name}: {ages}"));
    ensure!(ppm("worst_apart_ppm")?.abs() < ppm("limit_ppm")?, "{ages}");
    Ok(format!(
        "timevisord counted them all, and its own age {:+.0} ppm since its start and {:+.0} ppm in the worst second",
        ppm("apart_ppm")?,
        ppm("worst_apart_ppm")?
    ))
}
