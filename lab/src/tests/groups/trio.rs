//! Three hosts in network namespaces on one bridge, each with a bus, and a member of one group on each: this program on
//! one of them, `timevisor group join` on the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::command::Tethered;
use crate::host::Host;
use crate::interrupt;
use crate::lan::Lan;
use crate::members::{self, Fire, Judged, Proposer, Run};
use crate::netns::Namespace;
use crate::programs;
use crate::scenario::Context;

const NAMES: [&str; 3] = ["a", "b", "c"];
pub(super) const HOSTS: usize = NAMES.len();
const PORT: u16 = 7447;
const PATIENCE: Duration = Duration::from_secs(60);

/// The hosts and their buses.
pub(super) struct Trio {
    pub(super) hosts: Vec<Host>,
    ctx: Context,
    key: PathBuf,
    buses: Vec<Tethered>,
    /// Members that are processes, by their host.
    members: Vec<(usize, Tethered)>,
    logs: Vec<PathBuf>,
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
        Ok(Self { hosts, ctx, key, buses, members, logs: Vec::new() })
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
        let log = self.ctx.path(&format!("{}-{}.log", NAMES[at], self.logs.len()));
        self.members.push((at, Tethered::spawn(&mut member, NAMES[at], &log)?));
        self.logs.push(log);
        Ok(())
    }

    /// Kills the member of a host.
    pub(super) fn kill_member(&mut self, at: usize) {
        self.members.retain(|(host, _)| *host != at);
    }

    /// What members that are processes have said of their fires since they started.
    fn told(&self) -> anyhow::Result<Vec<Vec<Fire>>> {
        let read = |log: &PathBuf| {
            let text = fs::read_to_string(log)?;
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            Ok(lines.filter_map(|line| fire(&line)).collect())
        };
        self.logs.iter().map(read).collect()
    }

    /// Judges the fires of one run.
    pub(super) fn judge(&self, run: &Run) -> anyhow::Result<Judged> {
        let from = run.fires.iter().map(|fire| fire.at).min().unwrap_or(i64::MIN);
        let mut told: Vec<Vec<Fire>> = self.told()?;
        told.iter_mut().for_each(|fires| fires.retain(|fire| fire.at >= from));
        told.retain(|fires| !fires.is_empty());
        told.push(run.fires.clone());
        members::judge(&told, run)?.sound()
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
