//! `timevisor vm notice` and `vm migrate --drain` reach a stock guest, and `timevisor-guest --hold`
//! stops a workload there: until CLOCK_REALTIME is set, over a stop, and while a disruption begins.
//! An agent that is killed leaves nothing frozen.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::scenario::Context;
use crate::tests::guests::resumed;

const NAME: &str = "guest";
/// Everything in an emulated guest takes several times as long.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the workload is watched for not running.
const WATCH: Duration = Duration::from_secs(2);
const STOP: Duration = Duration::from_secs(3);
/// Beats between the count before the stop and the freeze after it: of 0.1 s each, where a command
/// in the emulated guest takes 0.1 s.
const MOST_LATE: usize = 5;

/// Prints its clock ten times a second.
const WORKLOAD: &str = "mkdir -p /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; mkdir /sys/fs/cgroup/db; \
     printf '#!/bin/sh\\nwhile :; do date +%%s >>/run/beats; sleep 0.1; done\\n' >/run/workload; chmod +x /run/workload; \
     : >/run/beats; (echo 0 >/sys/fs/cgroup/db/cgroup.procs; exec /run/workload) >/dev/null 2>&1 & ";

struct Lab {
    guest: Guest,
    host: Host,
    _server: crate::chronyd::Chronyd,
}

pub(crate) fn hold(ctx: &Context) -> anyhow::Result<String> {
    let mut lab = boot(ctx)?;
    lab.guest.sh(WORKLOAD)?;
    lab.wait("the workload runs", |lab| Ok(lab.beats()? > 2))?;
    let generation = lab.word(0x68)?;
    ensure!(generation != 0 && lab.word(0x18)? & 0x100 != 0, "no VM generation counter");

    // The guest believes in 2020: held until the agent has set its clock.
    lab.agent()?;
    lab.wait("it goes on", |lab| Ok(lab.log()?.contains("no longer held")))?;
    mentions(&lab.log()?, &["held: ", "CLOCK_REALTIME was stepped by +"])?;
    lab.guest.sh(": >/run/beats")?;
    lab.wait("it runs", |lab| Ok(lab.beats()? > 2))?;
    ensure!(
        lab.late()? == 0,
        "it ran with the wrong clock: {}",
        lab.guest.sh("head -3 /run/beats")?
    );

    lab.notices()?;
    lab.drain()?;
    let late = lab.stop_and_resume()?;
    lab.killed()?;
    ensure!(lab.word(0x68)? == generation, "the VM was loaded from nothing");
    Ok(format!(
        "held at the start, while imminent, over a stop of 3 s (late beats: {late}), thawed after kill -9; drained"
    ))
}

fn boot(ctx: &Context) -> anyhow::Result<Lab> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let programs = [ctx.program("timevisor-guest", "timevisor-guest")?];
    let guest = resumed::boot(ctx, &host, NAME, &programs, |builder| builder)?;
    Ok(Lab { guest, host, _server: server })
}

impl Lab {
    fn agent(&mut self) -> anyhow::Result<()> {
        let line = "timevisor-guest --set-clock step --hold db >>/run/agent.log 2>&1 & echo $! >/run/agent";
        self.guest.sh(line).map(drop)
    }

    fn log(&mut self) -> anyhow::Result<String> {
        self.guest.sh("cat /run/agent.log")
    }

    fn beats(&mut self) -> anyhow::Result<usize> {
        Ok(self.guest.sh("wc -l </run/beats")?.trim().parse()?)
    }

    /// Beats that are behind the guest's clock of now by more than the test has taken.
    fn late(&mut self) -> anyhow::Result<usize> {
        let beats = self.guest.sh("cat /run/beats")?;
        let beats: Vec<i64> = beats.lines().map(str::parse).collect::<Result<_, _>>()?;
        let newest = beats.last().copied().context("no beat")?;
        Ok(beats.iter().filter(|beat| newest - **beat > 31_536_000).count())
    }

    /// A word of the guest's page.
    fn word(&mut self, at: u64) -> anyhow::Result<u64> {
        let text = self.guest.sh(&format!(
            "dd if=/dev/vmclock0 bs=8 count=1 skip={} 2>/dev/null | od -A n -t x8",
            at / 8
        ))?;
        u64::from_str_radix(text.trim(), 16).with_context(|| format!("no number: {text:?}"))
    }

    fn is_frozen(&mut self) -> anyhow::Result<bool> {
        Ok(self.guest.sh("cat /sys/fs/cgroup/db/cgroup.events")?.contains("frozen 1"))
    }

    fn wait(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let found = interrupt::poll_until(PATIENCE, || {
            std::thread::sleep(Duration::from_millis(100));
            Ok(is_so(self)?.then_some(()))
        })?;
        match found {
            Some(()) => Ok(()),
            None => bail!("in vain: {what}; the agent: {}", self.log()?),
        }
    }

    fn row(&self) -> anyhow::Result<Value> {
        self.host.vm(NAME)
    }

    fn notice(&mut self, word: &str, flags: u64) -> anyhow::Result<()> {
        self.host.cli(&["vm", "notice", NAME, word])?;
        let found = self.word(0x18)? & 0b110;
        ensure!(found == flags, "flags {found:#x} after `vm notice {word}`");
        Ok(())
    }

    fn notices(&mut self) -> anyhow::Result<()> {
        self.notice("soon", 0b010)?;
        ensure!(self.row()?["notice"] == "soon", "{}", self.row()?);
        std::thread::sleep(WATCH);
        ensure!(!self.is_frozen()?, "soon is not yet");
        self.notice("imminent", 0b110)?;
        self.wait("imminent: it is frozen", Self::is_frozen)?;
        let before = self.beats()?;
        std::thread::sleep(WATCH);
        ensure!(self.beats()? == before, "it ran while it was frozen");
        self.notice("none", 0)?;
        self.wait("it goes on", |lab| Ok(lab.beats()? > before))
    }

    /// To a host that is not there: told before, and taken back.
    fn drain(&mut self) -> anyhow::Result<()> {
        let nowhere = format!("unix:{}", self.host.directory().join("no-vm-here").display());
        let (host, row) = (&self.host, || self.host.vm(NAME));
        let said = std::thread::scope(|scope| {
            let arguments = ["vm", "migrate", NAME, "--to", &nowhere, "--drain", "5"];
            let migration = scope.spawn(move || host.cli(&arguments));
            let seen = interrupt::poll_until(PATIENCE, || {
                let row = row()?;
                let drains = row["migration"] == "draining" && row["notice"] == "soon";
                Ok(drains.then_some(()))
            })?;
            let said = migration.join().expect("no panic");
            seen.context("it was not draining")?;
            anyhow::Ok(said)
        })?;
        let said = said.err().context("it has migrated to nowhere")?;
        mentions(&format!("{said:#}"), &["stays here"])?;
        ensure!(self.row()?["notice"].is_null(), "{}", self.row()?);
        ensure!(self.word(0x18)? & 0b110 == 0, "the notice stays");
        self.wait("it runs", |lab| Ok(!lab.is_frozen()?))
    }

    /// After the resume, CLOCK_REALTIME is behind until the agent steps it.
    fn stop_and_resume(&mut self) -> anyhow::Result<usize> {
        let holds = |log: &str| log.matches("no longer held").count();
        let before = holds(&self.log()?);
        self.guest.sh(": >/run/beats")?;
        self.wait("it runs", |lab| Ok(lab.beats()? > 0))?;
        let early = self.beats()?;
        self.guest.stop()?;
        std::thread::sleep(STOP);
        self.guest.cont()?;
        self.wait("it was held over the stop", |lab| Ok(holds(&lab.log()?) > before))?;
        self.wait("it runs", |lab| Ok(lab.beats()? > 10))?;
        // Seconds are whole, so a step of 3 s shows as a gap of at least 2. What was printed before
        // the gap is from before the stop, or from between the resume and the freeze.
        let beats = self.guest.sh("cat /run/beats")?;
        let beats: Vec<i64> = beats.lines().map(str::parse).collect::<Result<_, _>>()?;
        let gap = beats.windows(2).position(|two| two[1] - two[0] >= 2);
        let before = gap.with_context(|| format!("no step: {beats:?}"))? + 1;
        let late = before.saturating_sub(early);
        ensure!(late <= MOST_LATE, "{late} beats between the stop and the step: {beats:?}");
        Ok(late)
    }

    /// Of an agent that was killed, nothing stays frozen; the next one goes on.
    fn killed(&mut self) -> anyhow::Result<()> {
        self.notice("imminent", 0b110)?;
        self.wait("it is frozen", Self::is_frozen)?;
        self.guest.sh("kill -9 $(cat /run/agent)")?;
        self.wait("its agent was killed: it goes on", |lab| Ok(!lab.is_frozen()?))?;
        self.agent()?;
        self.wait("the next agent freezes it", Self::is_frozen)?;
        self.guest.sh("kill $(cat /run/agent)")?;
        self.wait("its agent has ended: it goes on", |lab| Ok(!lab.is_frozen()?))?;
        self.notice("none", 0)
    }
}
