//! The cell as processes: three hosts with a timevisord each (the planner's and the controllers'), in network
//! namespaces on one bridge; for each a server of time that can be made to lie; a bus; and the plant.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use timevisor_lab::command::{Tethered, tethered};
use timevisor_lab::host::{Host, ntp_reference};
use timevisor_lab::interrupt;
use timevisor_lab::lan::Lan;
use timevisor_lab::netns::Namespace;
use timevisor_lab::ntp_impostor::Impostor;
use timevisor_lab::programs;
use timevisor_lab::scenario::Context;

use super::python::Python;

/// Hosts by number.
const PLANNER: usize = 0;
pub(super) const A: usize = 1;
pub(super) const B: usize = 2;
const NAMES: [&str; 3] = ["planner", "a", "b"];
/// What their programs need, us.
const WITHIN_US: [&str; 3] = ["1000", "100", "100"];
const PORT: u16 = 47_110;
const CONTROL: &str = "127.0.0.1:47111";
const PATIENCE: Duration = Duration::from_secs(60);
/// After a contradiction a clock is believed again when 32 answers agree, and the end of a lie is another one.
const BELIEVED: Duration = Duration::from_secs(180);
/// Plant and controllers compute for a fraction of each 2 ms; other programs must not delay them.
const FIRST: &str = "50";
const SECOND: &str = "49";
const THIRD: &str = "40";

/// Which clock controllers sample.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The group's timeline, and they hold where it is not known well enough.
    Ours,
    /// What an NTP server said last.
    Naive,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Naive => "naive",
        }
    }
}

pub(super) struct Cell {
    ctx: Context,
    python: PathBuf,
    folder: PathBuf,
    plan: PathBuf,
    programs: [PathBuf; 2],
    pub(super) servers: Vec<Impostor>,
    /// How late the planner is, ms.
    pub(super) late: PathBuf,
    bus: Tethered,
    bus_socket: PathBuf,
    plant: Option<Tethered>,
    running: [Option<Tethered>; 3],
    starts: u32,
    hosts: Vec<Host>,
    lan: Lan,
    _gate: Namespace,
}

impl Cell {
    pub(super) fn new(ctx: &Context, python: &Python, plan: &Path) -> anyhow::Result<Self> {
        let gate = Namespace::create()?;
        let lan = Lan::before(ctx, &gate)?;
        let (mut hosts, mut servers) = (Vec::new(), Vec::new());
        for (number, name) in (0..).zip(NAMES) {
            let namespace = Namespace::create()?;
            lan.join(&namespace, number)?;
            let at = (lan.host(), 0).into();
            let server = Impostor::at(at, |answer| vec![answer.to_bytes().to_vec()])?;
            let mut host = Host::inside(ctx, name, namespace)?;
            host.start(&reference(&server.address()))?;
            hosts.push(host);
            servers.push(server);
        }
        let program = |bin: &str| programs::binary("timevisor-arms", bin);
        let programs = [program("arms-planner")?, program("arms-controller")?];
        let bus_socket = ctx.path("bus.socket");
        let mut bus = tethered("chrt");
        bus.args(["-f", THIRD]).arg(programs::binary("timevisor-bus", "timevisor-bus")?);
        bus.arg("--socket").arg(&bus_socket);
        let bus = Tethered::spawn(&mut bus, "timevisor-bus", &ctx.path("bus.log"))?;
        let late = ctx.path("late");
        std::fs::write(&late, "0")?;
        Ok(Self {
            ctx: ctx.further("runs")?,
            python: python.program.clone(),
            folder: python.folder.clone(),
            plan: plan.to_owned(),
            programs,
            servers,
            late,
            bus,
            bus_socket,
            plant: None,
            running: [None, None, None],
            starts: 0,
            hosts,
            lan,
            _gate: gate,
        })
    }

    /// Waits until all clocks are as good as they have to be.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        self.bus.check_alive()?;
        self.hosts.iter().try_for_each(|host| host.wait_synchronized(90))
    }

    pub(super) fn start(&mut self, mode: Mode, trace: &Path) -> anyhow::Result<()> {
        self.starts += 1;
        let mut plant = tethered("chrt");
        plant.args(["-f", FIRST]).arg(&self.python).arg(self.folder.join("plant.py"));
        plant.args(["--listen", &format!("{}:{PORT}", self.lan.host()), "--control", CONTROL]);
        plant.arg("--record").arg(trace);
        let log = self.ctx.path(&format!("{}-plant.log", self.starts));
        self.plant = Some(Tethered::spawn(&mut plant, "the plant", &log)?);
        let up = interrupt::poll_until(PATIENCE, || Ok(ask("status").ok()))?;
        up.context("the plant does not answer")?;
        self.start_controller(A, mode)?;
        self.start_controller(B, mode)?;
        let mut planner = self.hosts[PLANNER].command("chrt");
        planner
            .args(["-f", THIRD])
            .arg(&self.programs[0])
            .arg(&self.plan)
            .arg("--late")
            .arg(&self.late);
        self.member(&mut planner, PLANNER)
    }

    pub(super) fn start_controller(&mut self, number: usize, mode: Mode) -> anyhow::Result<()> {
        let mut controller = self.hosts[number].command("chrt");
        controller.args(["-f", SECOND]).arg(&self.programs[1]).arg(NAMES[number]);
        controller.args(["--plant", &format!("{}:{PORT}", self.lan.host())]);
        if mode == Mode::Naive {
            controller.args(["--naive", &self.servers[number].address()]);
        }
        self.member(&mut controller, number)
    }

    fn member(&mut self, program: &mut Command, number: usize) -> anyhow::Result<()> {
        program.arg("--run-directory").arg(self.hosts[number].directory());
        program.arg("--bus").arg(&self.bus_socket).args(["--within-us", WITHIN_US[number]]);
        let count = std::fs::read_dir(self.ctx.log_dir())?.count();
        let log = self.ctx.path(&format!("{}-{}-{count}.log", self.starts, NAMES[number]));
        self.running[number] = Some(Tethered::spawn(program, NAMES[number], &log)?);
        Ok(())
    }

    pub(super) fn kill_controller(&mut self, number: usize) {
        self.running[number] = None;
    }

    /// Waits until both arms carry the part.
    pub(super) fn wait_for_motion(&mut self) -> anyhow::Result<()> {
        let grips = interrupt::poll_until(PATIENCE, || {
            self.check()?;
            Ok((ask("status")?["gripped"] == true).then_some(()))
        })?;
        grips.context("the arms do not grip the part")
    }

    /// How long it takes until both arms move; `None` if they do not, or after a protective stop.
    pub(super) fn wait_until_both_move(&mut self) -> anyhow::Result<Option<Duration>> {
        let begun = Instant::now();
        let moves = interrupt::poll_until(BELIEVED, || {
            self.check()?;
            let stopped = ask("status")?["stopped"] == true;
            Ok((stopped || self.moves()).then_some(!stopped))
        })?;
        Ok(moves.filter(|moves| *moves).map(|_| begun.elapsed()))
    }

    pub(super) fn watch(&mut self, span: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + span;
        while Instant::now() < end {
            interrupt::check()?;
            self.check()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn check(&mut self) -> anyhow::Result<()> {
        self.bus.check_alive()?;
        let all = self.running.iter_mut().chain([&mut self.plant]).flatten();
        all.into_iter().try_for_each(Tethered::check_alive)
    }

    /// Whether both arms move now.
    pub(super) fn moves(&self) -> bool {
        [A, B].iter().all(|arm| self.last(*arm)["moves"] == true)
    }

    pub(super) fn holds(&self) -> [Value; 2] {
        [A, B].map(|arm| self.last(arm)["holds"].clone())
    }

    /// What a controller has said last of itself.
    fn last(&self, arm: usize) -> Value {
        let text = self.running[arm].as_ref().map(Tethered::log_text).unwrap_or_default();
        let lines = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut statuses = lines.filter(|line| line["event"] == "status");
        statuses.next().unwrap_or_default()
    }

    /// Ends plant and programs; returns what the plant says of the run.
    pub(super) fn end(&mut self) -> anyhow::Result<Value> {
        let said = ask("status")?;
        let _ = ask("quit");
        let mut plant = self.plant.take().context("there is no plant")?;
        // It writes its recording.
        interrupt::poll_until(PATIENCE, || Ok(plant.has_ended()?.then_some(())))?
            .context("the plant does not end")?;
        self.running = [None, None, None];
        Ok(said)
    }
}

/// A host that looks for no VMs, and asks its server four times a second.
fn reference(server: &str) -> String {
    let asked = ntp_reference(server).replace("poll = \"1s\"", "poll = \"250ms\"");
    format!("[guests]\ndiscover = false\n{asked}")
}

/// Asks the plant.
fn ask(what: &str) -> anyhow::Result<Value> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(CONTROL)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.send(what.as_bytes())?;
    let mut buffer = [0; 4096];
    let count = socket.recv(&mut buffer)?;
    let said: Value = serde_json::from_slice(&buffer[..count])?;
    if let Some(error) = said["error"].as_str() {
        bail!("the plant refuses {what:?}: {error}");
    }
    Ok(said)
}
