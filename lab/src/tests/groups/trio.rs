//! Three hosts in network namespaces on one bridge, each with a bus, and a member of one group on each: this program on
//! one of them, `timevisor group join` on the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::command::Tethered;
use crate::host::Host;
use crate::interrupt;
use crate::lan::Lan;
use crate::members::{self, Fire, Judged, Proposer, Run};
use crate::netns::Namespace;
use crate::programs;
use crate::scenario::Context;
use crate::tests::timelines::host::connect;

const NAMES: [&str; 3] = ["a", "b", "c"];
pub(super) const HOSTS: usize = NAMES.len();
const PORT: u16 = 7447;
const PATIENCE: Duration = Duration::from_secs(60);

/// The hosts and their buses.
pub(super) struct Trio {
    ctx: Context,
    key: PathBuf,
    /// Members that are processes.
    members: Vec<Member>,
    /// How many have been started.
    started: usize,
    buses: Vec<Tethered>,
    pub(super) hosts: Vec<Host>,
}

struct Member {
    /// Its host.
    at: usize,
    log: PathBuf,
    _process: Tethered,
}

impl Trio {
    /// Makes three hosts on the LAN whose daemons do not run yet, and keys for what they share.
    pub(super) fn new(ctx: &Context, lan: &Lan) -> anyhow::Result<Self> {
        let mut hosts = Vec::new();
        for (number, name) in (0..).zip(NAMES) {
            let namespace = Namespace::create()?;
            lan.join(&namespace, number)?;
            hosts.push(Host::inside(ctx, name, namespace)?);
        }
        let key = hosts[0].make_key("group.key")?;
        let (ctx, buses, members) = (ctx.further("members")?, Vec::new(), Vec::new());
        Ok(Self { ctx, key, members, started: 0, buses, hosts })
    }

    /// Starts a bus on each host. The first one listens to the others.
    pub(super) fn start_buses(&mut self, lan: &Lan) -> anyhow::Result<()> {
        let at = format!("[\"{}:{PORT}\"]", lan.address(0));
        for (host, name) in self.hosts.iter().zip(NAMES) {
            let way = if name == NAMES[0] { "listen" } else { "connect" };
            let config = self.ctx.path(&format!("bus-{name}.toml"));
            let group = format!("[[group]]\nname = \"{}\"\nkey = {:?}\n", members::GROUP, self.key);
            fs::write(&config, format!("[hosts]\n{way} = {at}\n{group}"))?;
            let socket = bus_of(host);
            let mut bus = host.command(programs::binary("timevisor-bus", "timevisor-bus")?);
            bus.arg("--config").arg(&config).arg("--socket").arg(&socket);
            let log = self.ctx.path(&format!("bus-{name}.log"));
            self.buses.push(Tethered::spawn(&mut bus, "timevisor-bus", &log)?);
            interrupt::poll_until(PATIENCE, || Ok(socket.exists().then_some(())))?
                .context("a bus does not listen")?;
        }
        Ok(())
    }

    /// Joins on all hosts, here as the member of host `proposer`.
    pub(super) fn join(&mut self, proposer: usize, timeline: &str) -> anyhow::Result<Proposer> {
        let host = &self.hosts[proposer];
        let joined = Proposer::join_at(host, timeline, bus_of(host), &self.key)?;
        for at in (0..HOSTS).filter(|at| *at != proposer) {
            self.start_member(at, timeline)?;
        }
        joined.wait_for(HOSTS)?;
        Ok(joined)
    }

    /// Starts the member of a host that has none.
    pub(super) fn start_member(&mut self, at: usize, timeline: &str) -> anyhow::Result<()> {
        let host = &self.hosts[at];
        let mut member = host.command(host.cli_program());
        member.args(["group", "join", members::GROUP, "--as", NAMES[at], "--json"]);
        member.args(["--timeline", timeline, "--within", "100ms", "--run-directory"]);
        member.arg(host.directory()).arg("--bus").arg(bus_of(host)).arg("--key").arg(&self.key);
        self.started += 1;
        let log = self.ctx.path(&format!("{}-{}.log", NAMES[at], self.started));
        let process = Tethered::spawn(&mut member, NAMES[at], &log)?;
        self.members.push(Member { at, log, _process: process });
        Ok(())
    }

    /// Kills the member of a host.
    pub(super) fn kill_member(&mut self, at: usize) {
        self.members.retain(|member| member.at != at);
    }

    /// Judges the fires of one run, of all members that live.
    pub(super) fn judge(&self, run: &Run) -> anyhow::Result<Judged> {
        let read = |member: &Member| {
            let text = fs::read_to_string(&member.log)?;
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let fires = lines.filter_map(|line| fire(&line));
            Ok(fires.filter(|fire| fire.at >= run.first_at).collect())
        };
        let told = self.members.iter().map(read).chain([Ok(run.fires.clone())]);
        members::judge(&told.collect::<anyhow::Result<Vec<Vec<Fire>>>>()?, run)?.sound()
    }

    /// Reads the timeline on all hosts but one, in turn and then in the other order: a reading cannot be surely after
    /// one that was taken later. All of them are on one machine.
    pub(super) fn agree(&self, timeline: &str, except: Option<usize>) -> anyhow::Result<()> {
        let rest = (0..HOSTS).filter(|at| Some(*at) != except);
        let pages = rest.map(|at| Ok(connect(&self.hosts[at])?.timeline(timeline)?));
        let mut pages = pages.collect::<anyhow::Result<Vec<_>>>()?;
        for _ in 0..2 {
            let readings = pages.iter().map(|page| Ok(page.now()?));
            let readings = readings.collect::<anyhow::Result<Vec<_>>>()?;
            for (number, later) in readings.iter().enumerate() {
                for earlier in &readings[..number] {
                    let (from, to) = (earlier.earliest_ns(), later.latest_ns());
                    ensure!(later.is_known() && from <= to, "{from} was read before {to}");
                }
            }
            pages.reverse();
        }
        Ok(())
    }
}

fn bus_of(host: &Host) -> PathBuf {
    Path::new(host.directory()).join("bus")
}

/// A line of `timevisor group join --json`.
fn fire(line: &Value) -> Option<Fire> {
    Some(Fire {
        at: line["fire"].as_str()?.parse().ok()?,
        earliest: line["earliest_ns"].as_i64()?,
        latest: line["latest_ns"].as_i64()?,
        late: line["late_ns"].as_i64()?,
    })
}
