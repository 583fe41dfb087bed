//! A group on three hosts with a bus each, in network namespaces on one bridge: how long a proposal takes to be decided,
//! and how exactly all fire.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::command::Tethered;
use crate::host::{Host, ntp_reference};
use crate::interrupt;
use crate::lan::Lan;
use crate::members::{self, Fire, Proposer};
use crate::netns::Namespace;
use crate::programs;
use crate::scenario::{Context, number};

const NAMES: [&str; 3] = ["host", "b", "c"];
const PORT: u16 = 7447;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn lan(ctx: &Context) -> anyhow::Result<String> {
    let proposals = usize::try_from(number("PROPOSALS", 100)?)?;
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let mut hosts = Vec::new();
    for (number, name) in (0..).zip(NAMES) {
        let namespace = Namespace::create()?;
        lan.join(&namespace, number)?;
        let mut host = Host::inside(ctx, name, namespace)?;
        let reference = ntp_reference(&server.address().ip().to_string());
        host.start(&format!("[guests]\ndiscover = false\n{reference}"))?;
        hosts.push(host);
    }
    hosts.iter().try_for_each(|host| host.wait_synchronized(1_000))?;
    let key = hosts[0].make_key("cell7.key")?;
    // The first bus listens to the others.
    let at = format!("[\"{}:{PORT}\"]", lan.address(0));
    let mut running = Vec::new();
    for (host, name) in hosts.iter().zip(NAMES) {
        let way = if name == NAMES[0] { "listen" } else { "connect" };
        let config = ctx.path(&format!("bus-{name}.toml"));
        let group = format!("[[group]]\nname = \"{}\"\nkey = {key:?}\n", members::GROUP);
        fs::write(&config, format!("[hosts]\n{way} = {at}\n{group}"))?;
        let mut bus = host.command(programs::binary("timevisor-bus", "timevisor-bus")?);
        bus.arg("--config").arg(&config).arg("--socket").arg(host.directory().join("bus"));
        running.push(Tethered::spawn(
            &mut bus,
            "timevisor-bus",
            &ctx.path(&format!("bus-{name}.log")),
        )?);
        let listens = || Ok(host.directory().join("bus").exists().then_some(()));
        interrupt::poll_until(PATIENCE, listens)?.context("a bus does not listen")?;
    }
    let proposer = Proposer::join_at(&hosts[0], hosts[0].directory().join("bus"), &key)?;
    let mut logs = Vec::new();
    for (host, name) in hosts.iter().zip(NAMES).skip(1) {
        let mut member = host.command(host.cli_program());
        member.args(["group", "join", members::GROUP, "--as", name, "--json", "--run-directory"]);
        member.arg(host.directory()).arg("--bus").arg(host.directory().join("bus"));
        member.arg("--key").arg(&key);
        let log = ctx.path(&format!("{name}.log"));
        running.push(Tethered::spawn(&mut member, name, &log)?);
        logs.push(log);
    }
    proposer.wait_for(NAMES.len())?;
    let run = proposer.propose(proposals)?;
    proposer.leave();
    let mut told = vec![run.fires.clone()];
    for log in &logs {
        let text = fs::read_to_string(log)?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        told.push(lines.filter_map(|line| fire(&line)).collect());
    }
    let judged = members::judge(&told, &run)?;
    Ok(format!(
        "three hosts with a bus each: {judged}; decided after {:.2} ms in the median, {} of {} proposals fired everywhere",
        run.decided_ms, run.everywhere, run.proposals
    ))
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
