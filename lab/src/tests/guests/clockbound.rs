//! AWS ClockBound's own clients in a stock guest: timevisor-guest writes their segments. The truth is this
//! machine's CLOCK_REALTIME, which the lab's chronyd serves, at the guest's counter.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_linux::counter::Tsc;

use crate::client;
use crate::clockbound::{Answers, PROGRAM, Reading, parse};
use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::scenario::Context;
use crate::tests::guests::resumed::boot;
use crate::truth::Truth;

const NAME: &str = "guest";
/// Everything in an emulated guest takes several times as long.
const PATIENCE: Duration = Duration::from_secs(90);
const READINGS: usize = 500;
const AGENT: &str =
    "timevisor-guest --set-clock step --clockbound >>/run/agent.log 2>&1 & echo $! >/run/agent";

pub(crate) fn clients(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let programs =
        [ctx.program("timevisor-guest", "timevisor-guest")?, ctx.program(PROGRAM.0, PROGRAM.1)?];
    let mut guest = boot(ctx, &host, NAME, &programs, |builder| builder)?;
    guest.sh(&format!("mkdir -p /var; ln -s /run /var/run; {AGENT}"))?;

    wait(&mut guest, ["Synchronized", "Synchronized"])?;
    let offset = client::offset(&host, NAME)?;
    let (answers, truth) = Truth::around(&Tsc::unchecked(), || ask(&mut guest, READINGS))?;
    let mut said = Vec::new();
    for (layout, answers) in [2, 3].into_iter().zip(&answers) {
        ensure!(
            answers.readings.len() == READINGS,
            "layout {layout}: {:?}",
            answers.refusals.first()
        );
        for reading in &answers.readings {
            holds(reading, &truth, offset)
                .with_context(|| format!("layout {layout}: {reading:?}"))?;
        }
        let contained = answers.readings.iter().filter(|reading| reading.contains_ours()).count();
        let half = answers.readings.iter().map(Reading::half_ns).max().unwrap_or(0);
        said.push(format!(
            "layout {layout}: {contained} contain what our reader says, half-width up to {:.1} us, a call {} ns",
            half as f64 / 1000.0,
            answers.speed_ns.unwrap_or(0)
        ));
    }
    let contained = answers[1].readings.iter().filter(|reading| reading.contains_ours()).count();
    ensure!(contained * 100 >= READINGS * 98, "only {contained} contain what our reader says");

    // Nobody renews the segments, and the VM stands still: clients see the device's marker by themselves.
    guest.sh("kill -9 $(cat /run/agent)")?;
    guest.stop()?;
    std::thread::sleep(Duration::from_secs(3));
    guest.cont()?;
    host.wait_vm(NAME, "synchronized")?;
    wait(&mut guest, ["Unknown", "Disrupted"])?;
    guest.sh(AGENT)?;
    wait(&mut guest, ["Synchronized", "Synchronized"])?;
    guest.sh("kill $(cat /run/agent)")?;
    wait(&mut guest, ["Unknown", "Unknown"])?;
    mentions(&guest.sh("cat /run/agent.log")?, &["the page's clock for ClockBound's clients"])?;
    Ok(format!(
        "{READINGS} answers each, truth inside every time; {}; disrupted after a stop without an agent; unknown at its end",
        said.join("; ")
    ))
}

/// True time at the client's call, read by the counter, is in its interval.
fn holds(reading: &Reading, truth: &Truth, offset: i64) -> anyhow::Result<()> {
    let at = |counter: u64| truth.at(counter.wrapping_add_signed(-offset));
    let slack = truth.uncertainty_ns();
    let (before, after) = (at(reading.counter[0]) - slack, at(reading.counter[1]) + slack);
    ensure!(reading.status == "Synchronized", "not synchronized");
    ensure!(reading.earliest <= after && before <= reading.latest, "truth is in {before}..{after}");
    Ok(())
}

fn ask(guest: &mut Guest, count: usize) -> anyhow::Result<[Answers; 2]> {
    let command = format!("clockbound-clients /var/run/clockbound {count} 2000 /dev/vmclock0");
    parse(&guest.sh_within(&command, PATIENCE)?)
}

/// Waits until the clients of layouts 2 and 3 say this.
fn wait(guest: &mut Guest, wanted: [&str; 2]) -> anyhow::Result<()> {
    let mut last = String::new();
    let found = interrupt::poll_until(PATIENCE, || {
        let answers = ask(guest, 1)?;
        last = format!("{answers:?}");
        let said = answers.map(|one| one.readings.first().map(|reading| reading.status.clone()));
        Ok(said
            .iter()
            .zip(wanted)
            .all(|(said, wanted)| said.as_deref() == Some(wanted))
            .then_some(()))
    })?;
    let log = guest.sh("cat /run/agent.log").unwrap_or_default();
    ensure!(found.is_some(), "not {wanted:?} within {PATIENCE:?}, but {last}; the agent: {log}");
    Ok(())
}
