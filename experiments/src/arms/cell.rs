//! The cell as processes: hosts with a timevisord each (the planner's and the controllers'), in network namespaces on
//! one bridge; for each a server of time that can be made to lie; a bus; and the plant. The planner and controller a
//! run on their hosts, or in guests of them.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use timevisor_lab::bus::Bus;
use timevisor_lab::command::{self, Tethered, tethered};
use timevisor_lab::host::{Host, ntp_reference};
use timevisor_lab::interrupt;
use timevisor_lab::lan::Lan;
use timevisor_lab::netns::Namespace;
use timevisor_lab::ntp_impostor::Impostor;
use timevisor_lab::real_time::{Load, Restore};
use timevisor_lab::scenario::Context;

use super::apart;
use super::guests::Guest;
use super::python::Python;

/// Hosts by number.
const PLANNER: usize = 0;
pub(super) const A: usize = 1;
pub(super) const B: usize = 2;
/// The host between which and its first one the planner's guest moves.
const OTHER: usize = 3;
const NAMES: [&str; 4] = ["planner", "a", "b", "other"];
const PROGRAMS: [&str; 3] = ["arms-planner", "arms-controller", "arms-controller"];
/// What their programs need, us.
const WITHIN_US: [&str; 3] = ["1000", "100", "100"];
const PORT: u16 = 47_110;
const BUS_PORT: u16 = 47_120;
const GROUP: &str = "cell7";
const CONTROL: &str = "127.0.0.1:47111";
const PATIENCE: Duration = Duration::from_secs(60);
/// After a contradiction a clock is believed again when 32 answers agree, and the end of a lie is another one.
const BELIEVED: Duration = Duration::from_secs(300);
/// What the guest with a controller is given of a processor.
const RESERVED: &str = "5ms/8ms";
/// Between two questions to a guest, which answers beside its real-time loop.
const LOOK: Duration = Duration::from_millis(500);
/// A guest's main loop carries its datagrams.
const ZEROTH: &str = "51";
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

/// Where the planner and controller a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On their hosts, as controller b.
    Hosts,
    /// In guests of these hosts.
    Guests,
}

pub(super) struct Cell {
    ctx: Context,
    python: PathBuf,
    folder: PathBuf,
    /// Built before anything moves.
    programs: Vec<PathBuf>,
    plan: PathBuf,
    pub(super) servers: Vec<Impostor>,
    /// How late the planner is, ms.
    late: PathBuf,
    bus: Bus,
    key: PathBuf,
    plant: Option<Tethered>,
    load: Option<Load>,
    /// What runs on a host.
    running: [Option<Tethered>; 3],
    /// What runs in a guest: the planner, controller a.
    guests: Vec<Guest>,
    /// Where the planner's guest is.
    planner_at: usize,
    starts: u32,
    /// Before the hosts, so that their folders are still there: what was reserved is released.
    _restore: Restore,
    hosts: Vec<Host>,
    lan: Lan,
    _gate: Namespace,
}

impl Cell {
    pub(super) fn new(
        ctx: &Context,
        python: &Python,
        plan: &Path,
        place: Place,
    ) -> anyhow::Result<Self> {
        let programs = PROGRAMS.iter().map(|name| ctx.program("timevisor-arms", name));
        let programs = programs.collect::<anyhow::Result<_>>()?;
        let gate = Namespace::create()?;
        let lan = Lan::before(ctx, &gate)?;
        let (mut hosts, mut servers) = (Vec::new(), Vec::new());
        let names = if place == Place::Guests { &NAMES[..] } else { &NAMES[..OTHER] };
        for (number, name) in (0..).zip(names) {
            let namespace = Namespace::create()?;
            lan.join(&namespace, number)?;
            let at = (lan.host(), 0).into();
            let server = Impostor::at(at, |answer| vec![answer.to_bytes().to_vec()])?;
            let mut host = Host::inside_with_sys(ctx, name, namespace)?;
            host.start(&reference(&server.address()))?;
            hosts.push(host);
            servers.push(server);
        }
        let key = hosts[PLANNER].make_key("cell7.key")?;
        let bus = Bus::start(ctx, &lan, BUS_PORT, (GROUP, &key), &["chrt", "-f", THIRD])?;
        let late = ctx.path("late");
        std::fs::write(&late, "0")?;
        let mut cell = Self {
            ctx: ctx.further("runs")?,
            python: python.program.clone(),
            folder: python.folder.clone(),
            programs,
            plan: plan.to_owned(),
            servers,
            late,
            bus,
            key,
            plant: None,
            load: None,
            running: [None, None, None],
            guests: Vec::new(),
            planner_at: PLANNER,
            starts: 0,
            _restore: Restore::of(&hosts[A]),
            hosts,
            lan,
            _gate: gate,
        };
        if place == Place::Guests {
            cell.settle()?;
            for (number, name) in [(PLANNER, "planner"), (A, "arm-a")] {
                cell.boot(number, name)?;
            }
        }
        Ok(cell)
    }

    fn boot(&mut self, number: usize, name: &'static str) -> anyhow::Result<()> {
        let files = vec![
            self.programs[number].clone(),
            self.plan.clone(),
            self.key.clone(),
            self.bus.authority.clone(),
        ];
        let address = u8::try_from(number).context("few")?;
        let host = &self.hosts[number];
        self.guests.push(Guest::boot(&self.ctx, host, &self.lan, (address, name), files)?);
        Ok(())
    }

    /// Gives controller a's guest a reservation, and all others the other processors; or takes it away.
    pub(super) fn reserve(&self, wanted: bool) -> anyhow::Result<()> {
        let name = self.guests[A].name();
        let words = if wanted {
            &["reserve", "apply", name, "--budget", RESERVED][..]
        } else {
            &["reserve", "release", name][..]
        };
        self.hosts[A].cli(words)?;
        if !wanted {
            return apart::spread();
        }
        let qemu = self.guests[A].pid();
        apart::leave_reserved(qemu)?;
        // Its main loop carries the guest's datagrams and, in emulation, its timer's interrupts: before the plant, on
        // the processor that both use.
        command::run("chrt", &["-R", "-f", "-p", ZEROTH, &qemu.to_string()]).map(drop)
    }

    /// Starts three programs on each processor that compute without an end, also on the reserved one.
    pub(super) fn make_busy(&mut self) -> anyhow::Result<()> {
        // The planner's guest has no reservation. It gets most of what is left.
        apart::renice(self.guests[PLANNER].pid(), -15)?;
        let load = Load::start()?;
        apart::deal(load.pids())?;
        self.load = Some(load);
        Ok(())
    }

    pub(super) fn end_busy(&mut self) -> anyhow::Result<()> {
        self.load = None;
        apart::renice(self.guests[PLANNER].pid(), 0)
    }

    /// Moves the planner's guest to its other host, or back.
    pub(super) fn migrate(&mut self) -> anyhow::Result<()> {
        let to = if self.planner_at == PLANNER { OTHER } else { PLANNER };
        let hosts = (&self.hosts[self.planner_at], &self.hosts[to]);
        self.guests[PLANNER].migrate(hosts.0, hosts.1, &self.lan)?;
        self.planner_at = to;
        Ok(())
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
        let late = if self.guests.is_empty() { self.late.clone() } else { "/run/late".into() };
        let plan = if self.guests.is_empty() { self.plan.clone() } else { "/bin/plan.json".into() };
        let words = [plan.display().to_string(), "--late".into(), late.display().to_string()];
        self.start_member(PLANNER, THIRD, &words)
    }

    pub(super) fn start_controller(&mut self, number: usize, mode: Mode) -> anyhow::Result<()> {
        let plant = format!("{}:{PORT}", self.lan.host());
        let mut words = vec![NAMES[number].to_owned(), "--plant".into(), plant];
        if mode == Mode::Naive {
            words.extend(["--naive".into(), self.servers[number].address()]);
        }
        self.start_member(number, SECOND, &words)
    }

    fn start_member(
        &mut self,
        number: usize,
        priority: &str,
        words: &[String],
    ) -> anyhow::Result<()> {
        let within = WITHIN_US[number];
        if let Some(guest) = self.guests.get_mut(number) {
            let line = format!(
                "{} {} --bus {} --authority /bin/authority.pem --key /bin/cell7.key --within-us {within}",
                PROGRAMS[number],
                words.join(" "),
                self.bus.remote
            );
            return guest.start(priority, &line);
        }
        let mut program = self.hosts[number].command("chrt");
        program.args(["-f", priority]);
        program.arg(&self.programs[number]).args(words);
        program.arg("--run-directory").arg(self.hosts[number].directory());
        program.arg("--bus").arg(&self.bus.socket).arg("--key").arg(&self.key);
        program.args(["--within-us", within]);
        let count = std::fs::read_dir(self.ctx.log_dir())?.count();
        let log = self.ctx.path(&format!("{}-{}-{count}.log", self.starts, NAMES[number]));
        self.running[number] = Some(Tethered::spawn(&mut program, NAMES[number], &log)?);
        Ok(())
    }

    pub(super) fn kill_controller(&mut self, number: usize) -> anyhow::Result<()> {
        self.running[number] = None;
        self.guests.get_mut(number).map_or(Ok(()), Guest::kill)
    }

    /// The planner sends each message so many ms late.
    pub(super) fn make_planner_late(&mut self, ms: u32) -> anyhow::Result<()> {
        match self.guests.get_mut(PLANNER) {
            Some(guest) => guest.write("/run/late", &ms.to_string()),
            None => Ok(std::fs::write(&self.late, ms.to_string())?),
        }
    }

    /// Waits until both arms carry the part.
    pub(super) fn wait_for_motion(&mut self) -> anyhow::Result<()> {
        let grips = interrupt::poll_until(PATIENCE, || {
            self.check()?;
            Ok((ask("status")?["gripped"] == true).then_some(()))
        })?;
        if grips.is_none() {
            self.keep_logs()?;
        }
        grips.context("the arms do not grip the part")
    }

    /// Writes what programs in guests have said to where the others' logs are.
    fn keep_logs(&mut self) -> anyhow::Result<()> {
        for (guest, name) in self.guests.iter_mut().zip(NAMES) {
            let log = self.ctx.path(&format!("{}-{name}.log", self.starts));
            std::fs::write(log, guest.said(1_000)?)?;
        }
        Ok(())
    }

    /// How long it takes until both arms move; `None` if they do not, or after a protective stop.
    pub(super) fn wait_until_both_move(&mut self) -> anyhow::Result<Option<Duration>> {
        let begun = Instant::now();
        let moves = interrupt::poll_until(BELIEVED, || {
            self.check()?;
            let stopped = ask("status")?["stopped"] == true;
            let ends = stopped || self.moves()?;
            if !ends && !self.guests.is_empty() {
                std::thread::sleep(LOOK);
            }
            Ok(ends.then_some(!stopped))
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
    pub(super) fn moves(&mut self) -> anyhow::Result<bool> {
        Ok(self.last(B)?["moves"] == true && self.last(A)?["moves"] == true)
    }

    pub(super) fn holds(&mut self) -> anyhow::Result<[Value; 2]> {
        Ok([self.last(A)?["holds"].clone(), self.last(B)?["holds"].clone()])
    }

    /// What a controller has said last of itself.
    pub(super) fn last(&mut self, arm: usize) -> anyhow::Result<Value> {
        let text = match self.guests.get_mut(arm) {
            Some(guest) => guest.said(20)?,
            None => self.running[arm].as_ref().map(Tethered::log_text).unwrap_or_default(),
        };
        let lines = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut statuses = lines.filter(|line| line["event"] == "status");
        Ok(statuses.next().unwrap_or_default())
    }

    /// Ends plant and programs; returns what the plant says of the run.
    pub(super) fn end(&mut self) -> anyhow::Result<Value> {
        let said = ask("status")?;
        self.keep_logs()?;
        self.guests.iter_mut().try_for_each(Guest::check_alive)?;
        let _ = ask("quit");
        let mut plant = self.plant.take().context("there is no plant")?;
        // It writes its recording.
        interrupt::poll_until(PATIENCE, || Ok(plant.has_ended()?.then_some(())))?
            .context("the plant does not end")?;
        self.running = [None, None, None];
        self.guests.iter_mut().try_for_each(Guest::kill)?;
        Ok(said)
    }
}

/// A host that looks for no VMs, and asks its server at least every 2 s.
fn reference(server: &str) -> String {
    let asked = ntp_reference(server).replace(
        "poll = \"1s\"",
        "poll = \"250ms\"\npoll_min = \"1s\"\npoll_max = \"2s\"\nmax_packets_per_hour = 3600",
    );
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
