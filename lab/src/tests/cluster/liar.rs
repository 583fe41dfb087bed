//! Three hosts of a cluster that follow an honest server, and one whose server lies, at three ports. A member that
//! asks all of them, and was told that one may lie, is not outvoted, and names the ports of that one and nobody else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_time::Duration as Span;

use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::scenario::Context;
use crate::tests::cluster::hosts::{detail, watch};
use crate::tests::faults::common::reference;

const PORT: u16 = 41_340;
const HOSTS: u16 = 4;
/// Which of them has the lying server, and at how many ports it answers.
const LIAR: u16 = 2;
const LIARS_PORTS: u16 = 3;
const LIE: Span = Span::from_millis(2);

pub(crate) fn liar(ctx: &Context) -> anyhow::Result<String> {
    let (honest, lying) = (Impostor::honest()?, Impostor::ahead(LIE)?);
    let (mut hosts, mut seeds) = (Vec::new(), Vec::new());
    for index in 0..HOSTS {
        let mut host = Host::further(ctx, &format!("host{index}"))?;
        let (server, ports) = if index == LIAR { (&lying, LIARS_PORTS) } else { (&honest, 1) };
        let at: Vec<String> = (PORT..PORT + ports).map(|port| address(index, port)).collect();
        host.start(&format!(
            "{}[server]\nlisten = {at:?}\nrate_interval = \"0s\"\n[[cluster]]\nname = \"lab\"\n",
            reference(&server.address()),
        ))?;
        // The liar first, as often as the honest ones together.
        seeds.splice(if index == LIAR { 0..0 } else { seeds.len()..seeds.len() }, at);
        host.wait_synchronized(1_000)?;
        hosts.push(host);
    }
    let mut member = Host::new(ctx)?;
    let began = Instant::now();
    member.start(&format!(
        "[[reference]]\ntype = \"cluster\"\ncluster = \"lab\"\n[[cluster]]\nname = \"lab\"\nserve = false\n\
         seeds = {seeds:?}\npoll = \"200ms\"\npeers = {}\nliars = 1\n",
        seeds.len()
    ))?;
    // From the first bounds on.
    member.wait_synchronized(10_000)?;
    let (readings, widest) = watch(&member, Duration::from_secs(3))?;
    let mut named = Vec::new();
    member.wait_until("the liar is named", |member| {
        named = liars(member)?;
        Ok(!named.is_empty())
    })?;
    let after = began.elapsed();
    interrupt::sleep(Duration::from_secs(2))?;
    named.extend(liars(&member)?);
    named.sort();
    named.dedup();
    let expected = &seeds[..usize::from(LIARS_PORTS)];
    ensure!(
        named.iter().all(|name| expected.contains(name)),
        "{named:?} were named, not {expected:?}"
    );
    let log = member.log_text();
    let told = log.matches("contradicts the others").count();
    ensure!(told == named.len(), "the log names {told} liars, not {named:?}:\n{log}");
    Ok(format!(
        "one of {HOSTS}, {} ms ahead at {LIARS_PORTS} ports, was named within {:.1} s of the start and nobody else; {readings} readings with the truth \
         inside, +-{} us at most; {}",
        LIE.as_secs_f64() * 1e3,
        after.as_secs_f64(),
        widest / 2000,
        detail(&member)?
    ))
}

fn address(host: u16, port: u16) -> String {
    format!("127.0.0.{}:{port}", host + 2)
}

/// The hosts that `cluster status` says are liars.
fn liars(host: &Host) -> anyhow::Result<Vec<String>> {
    let status = host.json(&["cluster", "status"])?;
    let clocks = status["clusters"].as_array().context("no clusters")?;
    let hosts = clocks.iter().flat_map(|clock| clock["hosts"].as_array().into_iter().flatten());
    let named = hosts.filter(|host| host["status"] == "liar");
    Ok(named.filter_map(|host| host["address"].as_str().map(str::to_owned)).collect())
}
