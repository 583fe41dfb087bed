//! Three hosts of a cluster that follow an honest server, and one whose server lies. A member that asks all
//! four, and was told that one may lie, names that one and none of the others.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_time::Duration as Span;

use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::scenario::Context;
use crate::tests::cluster::hosts::{detail, watch};
use crate::tests::faults::common::reference;

const FIRST_PORT: u16 = 41_340;
const HOSTS: u16 = 4;
/// Which of them has the lying server.
const LIAR: u16 = 2;
const LIE: Span = Span::from_millis(2);

pub(crate) fn liar(ctx: &Context) -> anyhow::Result<String> {
    let (honest, lying) = (Impostor::honest()?, Impostor::ahead(LIE)?);
    let mut hosts = Vec::new();
    for index in 0..HOSTS {
        let mut host = Host::further(ctx, &format!("host{index}"))?;
        let server = if index == LIAR { &lying } else { &honest };
        host.start(&format!(
            "{}[server]\nlisten = [\"127.0.0.1:{}\"]\nrate_interval = \"0s\"\n[[cluster]]\nname = \"lab\"\n",
            reference(&server.address()),
            FIRST_PORT + index
        ))?;
        host.wait_synchronized(1_000)?;
        hosts.push(host);
    }
    let seeds: Vec<String> = (0..HOSTS).map(|i| format!("127.0.0.1:{}", FIRST_PORT + i)).collect();
    let mut member = Host::new(ctx)?;
    let began = Instant::now();
    member.start(&format!(
        "[[reference]]\ntype = \"cluster\"\ncluster = \"lab\"\n[[cluster]]\nname = \"lab\"\nserve = false\n\
         seeds = {seeds:?}\npoll = \"200ms\"\npeers = {HOSTS}\nliars = 1\n"
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
    let expected = &seeds[usize::from(LIAR)];
    ensure!(named.iter().all(|name| name == expected), "{named:?} were named, not {expected}");
    let log = member.log_text();
    let told = log.matches("contradicts the others").count();
    ensure!(told == 1, "the log names a liar {told} times:\n{log}");
    Ok(format!(
        "one of {HOSTS}, {} ms ahead, was named within {:.1} s of the start and nobody else; {readings} readings with the truth \
         inside, +-{} us at most; {}",
        LIE.as_secs_f64() * 1e3,
        after.as_secs_f64(),
        widest / 2000,
        detail(&member)?
    ))
}

/// The hosts that `cluster status` says are liars.
fn liars(host: &Host) -> anyhow::Result<Vec<String>> {
    let status = host.json(&["cluster", "status"])?;
    let clocks = status["clusters"].as_array().context("no clusters")?;
    let hosts = clocks.iter().flat_map(|clock| clock["hosts"].as_array().into_iter().flatten());
    let named = hosts.filter(|host| host["status"] == "liar");
    Ok(named.filter_map(|host| host["address"].as_str().map(str::to_owned)).collect())
}
