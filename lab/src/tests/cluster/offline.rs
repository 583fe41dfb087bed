//! A host that asks a server of the cluster twice, and has no network otherwise. Its counter is 10 ppm
//! fast and wanders.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_clock_page::CounterId;
use timevisor_linux::clock::bracket;
use timevisor_linux::counter::HostCounter;

use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::oscillator::{Oscillator, Parameters};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::reference;

const SEED: &str = "127.0.0.1:41280";
/// Between the two visits.
const APART: Duration = Duration::from_secs(8);
/// Ends with the first answer.
const QUICK: [&str; 2] = ["--within", "1ms"];

pub(crate) fn offline(ctx: &Context) -> anyhow::Result<String> {
    let upstream = Impostor::honest()?;
    let mut root = Host::new(ctx)?;
    root.start(&root_lines(&upstream))?;
    root.wait_synchronized(1_000)?;

    let ctx = ctx.further("offline")?;
    let parameters = Parameters { ppb: 10_000, offset: 1 << 44, amplitude_ppb: 20.0, period: 60e9 };
    let mut node = Node::new(&ctx, Oscillator::new(&ctx, parameters)?, "poll = \"100ms\"\n")?;
    node.host.wait_until("the missing file is named", |host| {
        let row = reference_row(host)?;
        let detail = row["detail"].as_str().unwrap_or_default();
        Ok(row["status"] == "no-file" && detail.contains("timevisor cluster bootstrap --seed"))
    })?;
    let refused = node.bootstrap(&["--cluster", "other", "--seed", SEED])?;
    ensure!(!refused.0 && refused.1.contains("no cluster of this name"), "{refused:?}");
    // A host's own UTC needs no cluster.
    let alone = node.bootstrap(&["--seed", SEED, "--within", "1ms", "--json"])?;
    ensure!(alone.0 && alone.1.contains("questions"), "{alone:?}");

    let first = node.visit(&QUICK)?;
    let page = node.wait_for_visits(1)?;
    let one = node.watch(&page, APART)?;
    let second = node.visit(&QUICK)?;
    node.wait_for_visits(2)?;
    // Nobody is left whom it could ask.
    root.terminate()?;
    let two = node.watch(&page, APART)?;
    // What grows in 8 s: at 100 ppm without a measured rate, and at what two visits prove with it.
    ensure!(two.growth_ns < one.growth_ns, "{one:?}, then {two:?}");

    node.host.terminate()?;
    node.host.restart()?;
    let page = node.wait_for_visits(2)?;
    let three = node.watch(&page, Duration::from_secs(2))?;
    let horizon = node.horizon("10ms")?;
    ensure!(horizon.contains(" until "), "{horizon}");
    Ok(format!(
        "+-{:.1} us after one visit of {} questions, {:.1} us wider {} s later; +-{:.1} us after another, {:.1} us wider; the \
         same after a restart of timevisord; {} readings with the truth inside; {horizon}",
        first["half_width_ns"].as_f64().context("no width")? / 1e3,
        first["questions"],
        one.growth_ns as f64 / 2e3,
        APART.as_secs(),
        second["half_width_ns"].as_f64().context("no width")? / 1e3,
        two.growth_ns as f64 / 2e3,
        one.readings + two.readings + three.readings,
    ))
}

/// The configuration of the server that is asked.
pub(super) fn root_lines(upstream: &Impostor) -> String {
    let lines = reference(&upstream.address());
    format!("{lines}[server]\nlisten = [\"{SEED}\"]\n[[cluster]]\nname = \"lab\"\n")
}

/// A root that answers everybody as often as they ask, at this port of the loopback interface.
pub(super) fn started_root(ctx: &Context, upstream: &Impostor, port: u16) -> anyhow::Result<Host> {
    let mut root = Host::new(ctx)?;
    root.start(&format!(
        "{}[server]\nlisten = [\"127.0.0.1:{port}\"]\nrate_interval = \"0s\"\n[[cluster]]\nname = \"lab\"\n",
        reference(&upstream.address())
    ))?;
    root.wait_synchronized(1_000)?;
    Ok(root)
}

pub(super) struct Node {
    pub(super) host: Host,
    oscillator: Oscillator,
    file: String,
}

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) readings: u64,
    /// Of the whole width.
    growth_ns: i64,
}

impl Node {
    /// A host without a network, with these lines behind its reference.
    pub(super) fn new(ctx: &Context, oscillator: Oscillator, lines: &str) -> anyhow::Result<Self> {
        let host = Host::with_oscillator(ctx, oscillator.clone())?;
        let file = text(&host.directory().join("visits.json"))?;
        let lines = format!("[[reference]]\ntype = \"visits\"\nfile = \"{file}\"\n{lines}");
        Self { host, oscillator, file }.started(&lines)
    }

    /// A host with this configuration.
    pub(super) fn start(
        ctx: &Context,
        oscillator: Oscillator,
        lines: &str,
    ) -> anyhow::Result<Self> {
        let host = Host::with_oscillator(ctx, oscillator.clone())?;
        Self { host, oscillator, file: String::new() }.started(lines)
    }

    fn started(mut self, lines: &str) -> anyhow::Result<Self> {
        self.host.start(lines)?;
        Ok(self)
    }

    /// `timevisor cluster bootstrap` with this host's counter: whether it succeeded, and what it said.
    fn bootstrap(&self, arguments: &[&str]) -> anyhow::Result<(bool, String)> {
        let mut command = self.oscillator.tethered(self.host.cli_program());
        command.args(["cluster", "bootstrap"]).args(arguments);
        let out = command.output().context("cannot run timevisor")?;
        let said = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        Ok((out.status.success(), said.concat()))
    }

    /// A visit with these limits.
    pub(super) fn visit(&self, limits: &[&str]) -> anyhow::Result<Value> {
        let whom = ["--cluster", "lab", "--seed", SEED, "--save", &self.file, "--json"];
        let said = self.bootstrap(&[&whom[..], limits].concat())?;
        ensure!(said.0, "{}", said.1);
        serde_json::from_str(&said.1).with_context(|| format!("no JSON: {}", said.1))
    }

    pub(super) fn wait_for_visits(&self, count: u64) -> anyhow::Result<HostPage> {
        self.host.wait_until("the visits are known", |host| {
            let accepted = reference_row(host)?["accepted"].as_u64();
            let known = !host.json(&["status"])?["clock"]["half_width_ns"].is_null();
            Ok(known && accepted == Some(count))
        })?;
        // The next page has what the visit proves.
        interrupt::sleep(Duration::from_secs(1))?;
        HostPage::open(self.host.directory())
    }

    /// Compares the page with CLOCK_REALTIME, which is what the server serves.
    pub(super) fn watch(&self, page: &HostPage, span: Duration) -> anyhow::Result<Watched> {
        let tsc = HostCounter::for_reader(CounterId::X86Tsc).context("this machine has no TSC")?;
        let (mut readings, mut widths) = (0_u128, Vec::new());
        // Each takes 2 ms on an idle machine. On a busy one the same number takes longer.
        let (end, least) = (Instant::now() + span, span.as_millis() / 80);
        while Instant::now() < end || readings <= least {
            interrupt::sleep(Duration::from_millis(2))?;
            let moment = bracket(&tsc, 3);
            let at = |tsc| page.convert(self.oscillator.counter(tsc));
            let (before, after) = (at(moment.before)?, at(moment.after)?);
            let tai = i64::from(before.tai_offset().context("no TAI - UTC")?) * 1_000_000_000;
            let truth = moment.realtime.floor_nanos() + tai;
            let (earliest, latest) = (before.earliest.floor_nanos(), after.latest.ceil_nanos());
            ensure!(
                before.has_estimate() && earliest <= truth && truth <= latest + 1,
                "truth {truth} is not in {earliest}..{latest}: {before:?}"
            );
            readings += 1;
            widths.push(latest - earliest);
        }
        let readings = u64::try_from(readings)?;
        Ok(Watched { readings, growth_ns: widths[widths.len() - 1] - widths[0] })
    }

    /// What the page says at this value of the TSC, ns: earliest, estimate, latest.
    pub(super) fn reading(&self, page: &HostPage, tsc: u64) -> anyhow::Result<(i64, i64, i64)> {
        let reading = page.convert(self.oscillator.counter(tsc))?;
        ensure!(reading.has_estimate(), "the clock was forgotten");
        let (earliest, latest) = (reading.earliest.floor_nanos(), reading.latest.ceil_nanos());
        Ok((earliest, reading.estimate.floor_nanos(), latest))
    }

    /// The estimate's error and the half-width now, ns.
    pub(super) fn state(&self, page: &HostPage) -> anyhow::Result<(i64, i64)> {
        let tsc = HostCounter::for_reader(CounterId::X86Tsc).context("this machine has no TSC")?;
        let moment = bracket(&tsc, 10);
        let reading = page.convert(self.oscillator.counter(moment.before))?;
        let tai = i64::from(reading.tai_offset().context("no TAI - UTC")?) * 1_000_000_000;
        let error = reading.estimate.floor_nanos() - (moment.realtime.floor_nanos() + tai);
        Ok((error, (reading.latest.ceil_nanos() - reading.earliest.floor_nanos()) / 2))
    }

    /// What `timevisor now --within` says: until when the bound is narrower than this, or that it is wider already. After
    /// one visit a host knows its rate only as well as it could be measured in 0.1 s when timevisord started: on a busy
    /// machine 400 ppm, which are a second after 40 minutes.
    pub(super) fn horizon(&self, within: &str) -> anyhow::Result<String> {
        let mut command = self.oscillator.tethered(self.host.cli_program());
        command.arg("--run-directory").arg(self.host.directory());
        // Exit status 1 says that it is wider already.
        let out = command.args(["now", "--within", within]).output()?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        let line = said.lines().find(|line| line.starts_with("horizon"));
        let line = line.with_context(|| format!("no horizon: {said}"))?;
        let is_told = line.contains(&format!("within {within} until "))
            || line.contains(&format!("wider than {within} already"));
        ensure!(is_told, "{line}");
        Ok(line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
    }
}

fn reference_row(host: &Host) -> anyhow::Result<Value> {
    let status = host.json(&["status"])?;
    status["references"].get(0).cloned().context("no reference")
}

fn text(path: &Path) -> anyhow::Result<String> {
    path.to_str().map(str::to_owned).context("a path that is no text")
}
