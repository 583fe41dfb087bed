//! A group on a cluster's own timeline: three hosts that know no time of the world, and one clock of their own. Its
//! master dies, another host continues it under a new origin, and the group goes on.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::host::Host;
use crate::interrupt;
use crate::lan::Lan;
use crate::netns::Namespace;
use crate::scenario::{Context, number};
use crate::tests::groups::trio::{HOSTS, Trio};
use crate::tests::timelines::host::row;

const NAME: &str = "cell";
const PORT: u16 = 41_290;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn cell(ctx: &Context) -> anyhow::Result<String> {
    let proposals = usize::try_from(number("PROPOSALS", 30)?)?;
    let gate = Namespace::create()?;
    let lan = Lan::before(ctx, &gate)?;
    let mut trio = Trio::new(ctx, &lan)?;
    let key = trio.hosts[0].make_key("cluster.key")?;
    for (number, host) in (0..).zip(&mut trio.hosts) {
        host.start(&configuration(&lan, number, &key)?)?;
    }
    trio.hosts.iter().try_for_each(wait_until_known)?;
    trio.start_buses(&lan)?;
    let first = master(&trio.hosts)?;
    // The member that proposes survives the master.
    let proposer_at = (first + 1) % HOSTS;
    let proposer = trio.join(proposer_at, NAME)?;
    let with_first = proposer.propose(proposals)?;
    let before = trio.judge(&with_first)?;
    trio.agree(NAME, None)?;
    let before_origin = origin(&trio.hosts[proposer_at])?;

    trio.hosts[first].kill();
    trio.kill_member(first);
    let goes_on = interrupt::poll_until(PATIENCE, || {
        let rest = (0..HOSTS).filter(|at| *at != first);
        let origins = rest.map(|at| origin(&trio.hosts[at])).collect::<anyhow::Result<Vec<_>>>()?;
        let is_new = |it: &Value| it.is_string() && *it == origins[0] && *it != before_origin;
        Ok(origins.iter().all(is_new).then_some(()))
    })?;
    goes_on.context("nobody has continued the timeline")?;
    for at in (0..HOSTS).filter(|at| *at != first) {
        wait_until_known(&trio.hosts[at])?;
    }
    trio.agree(NAME, Some(first))?;
    proposer.wait_for(HOSTS - 1)?;
    let without = proposer.propose(proposals)?;
    let after = trio.judge(&without)?;

    // The first one comes back, and so does its member.
    trio.hosts[first].restart()?;
    wait_until_known(&trio.hosts[first])?;
    trio.start_member(first, NAME)?;
    proposer.wait_for(HOSTS)?;
    let with_all = proposer.propose(proposals)?;
    let again = trio.judge(&with_all)?;
    trio.agree(NAME, None)?;
    proposer.leave();
    let everywhere = with_first.everywhere + without.everywhere + with_all.everywhere;
    Ok(format!(
        "three hosts on {NAME}: {before}; its master was killed, two go on: {after}; all three again: {again}; \
         {everywhere} of {} proposals fired everywhere",
        3 * proposals
    ))
}

fn configuration(lan: &Lan, number: u8, key: &Path) -> anyhow::Result<String> {
    let seeds = (0..u8::try_from(HOSTS)?).map(|seed| format!("\"{}:{PORT}\"", lan.address(seed)));
    Ok(format!(
        "[guests]\ndiscover = false\n\
         [[reference]]\ntype = \"system\"\nassumed_max_error = \"10ms\"\n\
         [server]\nlisten = [\"{}:{PORT}\"]\nrate_interval = \"0s\"\n\
         [[cluster]]\nname = \"lab\"\ntimeline = \"{NAME}\"\nseeds = [{}]\n\
         poll = \"200ms\"\nlease = \"2s\"\ntakeover_after = \"1s\"\nkey = {key:?}\n",
        lan.address(number),
        seeds.collect::<Vec<_>>().join(", ")
    ))
}

fn wait_until_known(host: &Host) -> anyhow::Result<()> {
    host.wait_until("the timeline is known", |host| {
        Ok(!row(host, NAME)?["achieved"]["below_ns"].is_null())
    })
}

/// What `timevisor cluster status` says of the timeline.
fn status(host: &Host) -> anyhow::Result<Value> {
    let said = host.json(&["cluster", "status"])?;
    let clock = said["clusters"].as_array().and_then(|all| all.last()).cloned();
    clock.context("no cluster")
}

fn origin(host: &Host) -> anyhow::Result<Value> {
    Ok(status(host)?["origin"].clone())
}

fn master(hosts: &[Host]) -> anyhow::Result<usize> {
    for (at, host) in hosts.iter().enumerate() {
        if status(host)?["role"] == "master" {
            return Ok(at);
        }
    }
    anyhow::bail!("no host is the master")
}
