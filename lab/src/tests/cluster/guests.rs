//! One cluster of five timevisords, each with a network stack of its own on one bridge: the root on the host,
//! two in namespaces, two in guests. UTC comes from the root, and a timeline of their own has it as its
//! master, until it ends and another one continues. A third guest has no network and no daemon: it gets the
//! timeline from its host's page like any other.
//!
//! A guest's counter is the host's and an offset. So each reading of a guest has its truth: CLOCK_REALTIME for
//! UTC, and what the master's page says at the same counter value for the timeline.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor::{BindOptions, Binding, Client};

use crate::client::{self, Launch, Way};
use crate::guest::Guest;
use crate::guest_daemon::{self, CPU, KEYS, readings};
use crate::host::{Host, ntp_reference};
use crate::interrupt::{self, Late};
use crate::lan::Lan;
use crate::netns::Namespace;
use crate::qemu::Delivery;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::cluster::hosts::watch;
use crate::tests::timelines::host::{connect, row};

const PORT: u16 = 41_300;
const UTC: &str = "lab";
const TIMELINE: &str = "cell";
/// The first entry after the host's own clock.
const ENTRY: usize = 1;
const READINGS: usize = 20;
/// Each binds anew, and an entry of a VM's page, which has 17, is free again only some seconds later.
const READINGS_OF_THE_PAGE: usize = 5;
/// As guests are told ([`KEYS`]).
const TAI_OFFSET_S: i64 = 37;
/// How long the others may take to continue the timeline; guests are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the five are.
struct Places {
    root: String,
    all: Vec<String>,
}

impl Places {
    fn new(lan: &Lan) -> Self {
        let at = |address: std::net::Ipv4Addr| format!("{address}:{PORT}");
        let all = [lan.host(), lan.address(0), lan.address(1), lan.address(2), lan.address(3)];
        let all: Vec<String> = all.into_iter().map(at).collect();
        Self { root: all[0].clone(), all }
    }

    /// The configuration of the one at `own`, behind its references.
    fn lines(&self, own: usize, key: &Path) -> String {
        let seeds =
            |list: &[String]| if own == 0 { String::new() } else { format!("seeds = {list:?}\n") };
        let common = format!("poll = \"200ms\"\nlease = \"2s\"\nkey = {key:?}\n");
        format!(
            "[server]\nlisten = [{:?}]\nrate_interval = \"0s\"\n[[cluster]]\nname = \"{UTC}\"\n{}{common}\
             [[cluster]]\nname = \"own\"\ntimeline = \"{TIMELINE}\"\nseeds = {:?}\ntakeover_after = \"2s\"\n{common}",
            self.all[own],
            seeds(std::slice::from_ref(&self.root)),
            self.all,
        )
    }

    fn member(&self, own: usize, key: &Path) -> String {
        let reference = format!("[[reference]]\ntype = \"cluster\"\ncluster = \"{UTC}\"\n");
        format!("{reference}{}", self.lines(own, key))
    }
}

/// A host with a binding to the timeline, which keeps its entry on the page.
struct Bound {
    host: Host,
    page: HostPage,
    _binding: (Client, Binding),
}

impl Bound {
    fn new(host: Host) -> anyhow::Result<Self> {
        host.wait_until("the timeline is known", |host| {
            Ok(!row(host, TIMELINE)?["achieved"]["below_ns"].is_null())
        })?;
        let client = connect(&host)?;
        let binding = client.bind_with(TIMELINE, &BindOptions::default())?;
        let page = HostPage::entry(host.directory(), ENTRY)?;
        Ok(Self { host, page, _binding: (client, binding) })
    }
}

struct Inner {
    guest: Guest,
    offset: i64,
    /// Readings that are compared at a time.
    readings: usize,
}

pub(crate) fn guests(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let places = Places::new(&lan);

    let mut root = Host::new(ctx)?;
    let key = root.make_key("lab.key")?;
    root.start(&format!(
        "{}{}",
        ntp_reference(&server.address().ip().to_string()),
        places.lines(0, &key)
    ))?;
    root.wait_synchronized(1_000)?;
    let mut root = Bound::new(root)?;
    let mut members = Vec::new();
    for number in 0..2 {
        let namespace = Namespace::create()?;
        lan.join(&namespace, number)?;
        let mut host = Host::inside(ctx, &format!("member{number}"), namespace)?;
        let lines = places.member(usize::from(number) + 1, &key);
        // The VMs are the root's.
        host.start(&format!("[guests]\ndiscover = false\n{lines}"))?;
        host.wait_synchronized(10_000)?;
        members.push(Bound::new(host)?);
    }
    let mut inner = Vec::new();
    for number in 2..4 {
        let lines = places.member(usize::from(number) + 1, Path::new("/etc/lab.key"));
        inner.push(boot(ctx, &root.host, &lan, number, &lines, &key)?);
    }

    let mut plain = plain(ctx, &members[0].host)?;

    let (mut count, mut widest) = (0, 0);
    for member in &members {
        let seen = watch(&member.host, Duration::from_secs(2))?;
        (count, widest) = (count + seen.0, widest.max(seen.1 / 2));
    }
    let mut utc = 0;
    let mut timeline = 0;
    for guest in &mut inner {
        let seen = readings(&mut guest.guest, (guest.offset, TAI_OFFSET_S), READINGS)?;
        utc = utc.max(seen.half_ns);
        timeline = timeline.max(guest.compare(&[&root])?);
    }
    let of_the_page = plain.compare(&[&root])?;
    let found = nodes(&root.host, &places, &key)?;

    // The root ends. UTC goes on, and grows with age only; another one continues the timeline.
    root.host.terminate()?;
    let ended = Instant::now();
    let second = loop {
        ensure!(ended.elapsed() < PATIENCE, "nobody has continued the timeline");
        interrupt::sleep(Duration::from_millis(200))?;
        if let Some(master) = master(&members, &mut inner)? {
            break master;
        }
    };
    let after = ended.elapsed();
    for guest in &mut inner {
        readings(&mut guest.guest, (guest.offset, TAI_OFFSET_S), READINGS)?;
        let hosts: Vec<&Bound> = members.iter().collect();
        guest.compare(&hosts)?;
    }
    plain.compare(&members.iter().collect::<Vec<_>>())?;
    for member in &members {
        count += watch(&member.host, Duration::from_secs(1))?.0;
    }
    // Nobody lies here, and no clock moves.
    for guest in &mut inner {
        let log = guest.guest.sh("cat /run/timevisord.log")?;
        ensure!(!log.contains("not trusted"), "a guest doubts honest hosts:\n{log}");
    }
    for member in &members {
        let log = member.host.log_text();
        ensure!(!log.contains("not trusted"), "a host doubts honest hosts:\n{log}");
    }
    Ok(format!(
        "in namespaces {count} readings, +-{:.0} us at most; in guests {} with the truth inside, +-{:.0} us, and {} of the \
         timeline, +-{:.0} us, before and after the root ended, and {} in one that has it from its host's page, +-{:.0} us; {second} continued it, seen after {:.1} s; {found}",
        widest as f64 / 1e3,
        2 * inner.len() * READINGS,
        utc as f64 / 1e3,
        2 * inner.len() * READINGS,
        timeline as f64 / 1e3,
        2 * READINGS_OF_THE_PAGE,
        of_the_page as f64 / 1e3,
        after.as_secs_f64()
    ))
}

fn boot(
    ctx: &Context,
    root: &Host,
    lan: &Lan,
    number: u8,
    lines: &str,
    key: &Path,
) -> anyhow::Result<Inner> {
    let name = format!("guest{number}");
    let kernel = ctx.kernel("trixie-backports")?;
    let mut image = ctx.image(&kernel)?.module("virtio_net");
    for (package, bin) in [("timevisord", "timevisord"), ("timevisor", "timevisor")] {
        image = image.program(&ctx.program(package, bin)?);
    }
    let config: PathBuf = ctx.path(&format!("{name}.toml"));
    std::fs::write(&config, format!("{KEYS}{lines}"))?;
    let image = image.file(&config, "/etc/timevisor.toml", 0o644).file(key, "/etc/lab.key", 0o600);
    let qmp = root.directory().join(format!("{name}.qmp"));
    let mut guest = ctx
        .guest(&ctx.qemu_10()?, &kernel, &image)?
        .name(&name)
        .delivery(Delivery::VmclockDevice)
        .paused()
        .args(CPU)
        .args(lan.arguments(number, false)?)
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())])
        .start()?;
    root.cli(&["vm", "add", "--qmp", &qmp.display().to_string(), "--name", &name, "--resume"])?;
    guest.wait_ready()?;
    root.wait_vm(&name, "synchronized")?;
    let offset = client::offset(root, &name)?;
    guest.sh(&lan.guest_setup(number))?;
    guest_daemon::start(&mut guest, "/etc/timevisor.toml")?;
    guest_daemon::wait(&mut guest, "the guest follows the cluster", |status| {
        Ok(status["clock"]["status"] == "synchronized")
    })?;
    let known = interrupt::poll_until(PATIENCE, || {
        let text = guest.sh("timevisor timelines --json || [ $? = 1 ]")?;
        let rows: Value = serde_json::from_str(text.trim()).with_context(|| text.clone())?;
        let rows = rows.as_array().cloned().unwrap_or_default();
        let own = rows.into_iter().find(|row| row["name"] == TIMELINE);
        Ok(own.filter(|row| !row["achieved"]["below_ns"].is_null()).map(drop))
    })?;
    known.context(Late).with_context(|| format!("{name} does not know {TIMELINE}"))?;
    Ok(Inner { guest, offset, readings: READINGS })
}

/// A guest of this host that is no member.
fn plain(ctx: &Context, host: &Host) -> anyhow::Result<Inner> {
    let qemu = ctx.qemu_10()?;
    let program = ctx.program("timevisor", "timevisor")?;
    let launch = Launch::new(ctx, host, &qemu, Way::Vmclock, "plain").programs(&[program]);
    let mut client = launch.start()?;
    client.guest.wait_ready()?;
    host.wait_vm("plain", "synchronized")?;
    let offset = client::offset(host, "plain")?;
    Ok(Inner { guest: client.guest, offset, readings: READINGS_OF_THE_PAGE })
}

impl Inner {
    /// What the guest reads of the timeline, beside what hosts' pages say at the same value of the counter:
    /// all intervals have the truth, so any two overlap. Returns the largest half-width, ns.
    fn compare(&mut self, hosts: &[&Bound]) -> anyhow::Result<i64> {
        let mut widest = 0;
        for _ in 0..self.readings {
            let text = self.guest.sh(&format!("timevisor bind {TIMELINE} --json || [ $? = 1 ]"))?;
            let said: Value = serde_json::from_str(text.trim()).with_context(|| text.clone())?;
            let ns = |name: &str| said[name].as_i64().with_context(|| format!("no {name}: {said}"));
            let (earliest, latest) = (ns("earliest_ns")?, ns("latest_ns")?);
            let counter =
                said["counter"].as_u64().with_context(|| format!("no counter: {said}"))?;
            for host in hosts {
                let there = host.page.convert(counter.wrapping_add_signed(-self.offset))?;
                ensure!(there.has_estimate(), "a host forgot the timeline");
                let (from, to) = (there.earliest.floor_nanos(), there.latest.ceil_nanos());
                ensure!(
                    earliest <= to && from <= latest,
                    "a host says {from}..{to}, a guest {earliest}..{latest} at the same moment"
                );
            }
            widest = widest.max((latest - earliest) / 2);
        }
        Ok(widest)
    }
}

/// Who leads the timeline, once all that are left agree on an origin that is not the first, and have bounds.
fn master(members: &[Bound], inner: &mut [Inner]) -> anyhow::Result<Option<String>> {
    let mut all = Vec::new();
    for member in members {
        all.push(member.host.json(&["cluster", "status"])?);
    }
    for guest in inner {
        let text = guest.guest.sh("timevisor cluster status --json || [ $? = 1 ]")?;
        all.push(serde_json::from_str(text.trim()).with_context(|| text.clone())?);
    }
    let mut masters = Vec::new();
    let mut origins = Vec::new();
    let names =
        ["the first namespace", "the second namespace", "the first guest", "the second guest"];
    for (status, name) in all.iter().zip(names) {
        let clocks = status["clusters"].as_array().cloned().unwrap_or_default();
        let clock = clocks.into_iter().find(|clock| clock["timeline"] == TIMELINE);
        let clock = clock.with_context(|| format!("no timeline: {status}"))?;
        // Who has heard of the origin and knows nothing of its time yet has not gone over.
        let known = clock["below_ns"].is_u64();
        let origin = clock["origin"].as_str().filter(|_| known);
        origins.push(origin.unwrap_or_default().to_owned());
        if clock["role"] == "master" {
            masters.push(name.to_owned());
        }
    }
    let first = origins[0].clone();
    let agreed = first.starts_with("2.") && origins.iter().all(|origin| *origin == first);
    Ok(masters.pop().filter(|_| agreed && masters.is_empty()))
}

/// `timevisor cluster nodes` finds all five from the root.
fn nodes(host: &Host, places: &Places, key: &Path) -> anyhow::Result<String> {
    let key = key.to_str().context("a path of UTF-8")?;
    let ask = ["cluster", "nodes", "--timeline", UTC, "--host", &places.root, "--key", key];
    let mut found = 0;
    host.wait_until("all hosts are found", |host| {
        let nodes = host.json(&ask)?;
        let nodes = nodes.as_array().context("no list")?;
        found = nodes.iter().filter(|node| node["status"] == "bounded").count();
        Ok(found == places.all.len())
    })?;
    Ok(format!("`cluster nodes` finds all {found}"))
}
