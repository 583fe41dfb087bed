//! timevisor-guest sets a stock guest's CLOCK_REALTIME: at boot, after a stop, and by a slew. At
//! its end, it restores everything.
//!
//! The reference is the host's page at the same counter value, not what the guest's page or program
//! says.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use timevisor_clock_page::Counter as _;

use crate::client;
use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::reader::{GuestReader, HostPage};
use crate::scenario::Context;
use crate::tests::guests::references::settings;
use crate::tests::guests::resumed;

const PORT: &str = "org.timevisor.clocks";
const NAME: &str = "guest";
/// Everything in an emulated guest takes several times as long.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long the guest is stopped.
const STOP: Duration = Duration::from_secs(3);
/// How far CLOCK_REALTIME may be outside the host's interval just after a step, while the kernel's
/// rate is not yet known.
const AFTER_STEP_NS: i64 = 500_000;
/// The same once the clock has settled.
const SETTLED_NS: i64 = 50_000;
/// The error to slew away. The clock is ahead, so that setting it would make it go back.
const AHEAD_US: i64 = 5_000;
const SLEWED: &str = "100us";
const SLEWED_NS: i64 = 100_000;

struct Lab {
    guest: Guest,
    clocks: GuestReader,
    page: HostPage,
    host: Host,
    _server: crate::chronyd::Chronyd,
}

/// CLOCK_REALTIME at one moment, against the host's page.
struct Error {
    /// Relative to the estimate.
    ns: i64,
    /// Distance outside the bounds.
    outside_ns: i64,
}

pub(crate) fn set_clock(ctx: &Context) -> anyhow::Result<String> {
    let mut lab = boot(ctx)?;
    let original = settings(&mut lab.guest)?;
    let wrong = lab.realtime()?;
    ensure!(wrong.ns < -86_400_000_000_000, "the guest's clock is only {} ns off", wrong.ns);

    // The agent does not set a clock that another program keeps.
    lab.guest.sh("printf '#!/bin/sh\\nsleep 20\\n' >/run/chronyd; chmod +x /run/chronyd; /run/chronyd & echo $! >/run/rival")?;
    for command in ["timevisor-guest --set-clock step", "timevisor-guest set-clock"] {
        let refused = lab.guest.sh(&format!("! {command} 2>&1"))?;
        mentions(&refused, &["chronyd keeps CLOCK_REALTIME", "--force"])?;
    }
    lab.guest.sh("kill $(cat /run/rival)")?;

    lab.guest.sh(
        "timevisor-guest wait-sync --within 10ms --clock 500us --timeout 2m >/run/waited 2>&1 &",
    )?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(lab.guest.sh("cat /run/waited")?.is_empty(), "wait-sync did not wait for the clock");
    lab.agent("step")?;
    let waited = lab.wait_for_waited()?;
    mentions(&waited, &["synchronized within", "CLOCK_REALTIME within"])?;
    let booted = lab.right(AFTER_STEP_NS, "after the boot")?;
    mentions(&lab.log()?, &["CLOCK_REALTIME was stepped by +", "it was wrong at the start"])?;
    let settled = lab.settled()?;

    let cost = lab.cost()?;
    let resumed = lab.stop_and_resume()?;
    let again = lab.right(AFTER_STEP_NS, "after the resume")?;
    lab.settled()?;

    // The agent is killed in the middle; the next one, which slews, restores what was there before
    // both.
    lab.end("-9")?;
    ensure!(settings(&mut lab.guest)? != original, "nothing was set: {original:?}");
    lab.clocks.ask(&format!("shift {AHEAD_US}"))?;
    let slewed = lab.slew()?;
    lab.end("-TERM")?;
    let found = settings(&mut lab.guest)?;
    ensure!(found == original, "not put back: {found:?}, was {original:?}");

    let once = lab.once()?;
    Ok(format!(
        "boot: {} years off, stepped to {} ns, settled at {} ns; {resumed}, then {} ns; {slewed}; {once}; the agent used {cost}",
        wrong.ns / -31_557_600_000_000_000,
        booted.ns,
        settled.ns,
        again.ns,
    ))
}

fn boot(ctx: &Context) -> anyhow::Result<Lab> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let programs = [
        ctx.program("timevisor-guest", "timevisor-guest")?,
        ctx.program("timevisor-lab-guest", "lab-clocks")?,
    ];
    let socket = host.directory().join("guest.clocks");
    let mut guest =
        resumed::boot(ctx, &host, NAME, &programs, |builder| builder.port(PORT, &socket))?;
    guest.sh(&format!("lab-clocks /dev/virtio-ports/{PORT} >/run/clocks.log 2>&1 &"))?;
    let clocks = GuestReader::connect(&socket)?;
    let page = HostPage::open(host.directory())?;
    Ok(Lab { guest, clocks, page, host, _server: server })
}

impl Lab {
    fn agent(&mut self, mode: &str) -> anyhow::Result<()> {
        self.guest
            .sh(&format!(
                "timevisor-guest --set-clock {mode} >>/run/agent.log 2>&1 & echo $! >/run/agent"
            ))
            .map(drop)
    }

    fn end(&mut self, signal: &str) -> anyhow::Result<()> {
        let line = format!(
            "p=$(cat /run/agent); kill {signal} $p; while [ -e /proc/$p/exe ]; do sleep 0.1; done"
        );
        self.guest.sh(&line).map(drop)
    }

    fn log(&mut self) -> anyhow::Result<String> {
        self.guest.sh("cat /run/agent.log")
    }

    /// The host's time at a value of the guest's counter: earliest, estimate and latest, in ns of
    /// UTC.
    fn host_time(&self, counter: u64) -> anyhow::Result<[i64; 3]> {
        let offset = client::offset(&self.host, NAME)?;
        let said = self.page.convert(counter.wrapping_sub(offset.cast_unsigned()))?;
        let tai = i64::from(said.tai_offset().context("the host knows no TAI - UTC")?);
        let utc = |ns: i64| ns - tai * 1_000_000_000;
        Ok([
            utc(said.earliest.floor_nanos()),
            utc(said.estimate.floor_nanos()),
            utc(said.latest.ceil_nanos()),
        ])
    }

    fn realtime(&mut self) -> anyhow::Result<Error> {
        let answer = self.clocks.ask("clocks")?;
        let real = &answer["realtime"];
        let counter = |name: &str| real[name].as_u64().with_context(|| answer.to_string());
        let ns = real["ns"].as_i64().with_context(|| answer.to_string())?;
        let (before, after) =
            (self.host_time(counter("before")?)?, self.host_time(counter("after")?)?);
        let outside_ns = (before[0] - ns).max(ns - after[2]).max(0);
        Ok(Error { ns: ns - i64::midpoint(before[1], after[1]), outside_ns })
    }

    fn right(&mut self, tolerance_ns: i64, when: &str) -> anyhow::Result<Error> {
        let found = self.realtime()?;
        if found.outside_ns > tolerance_ns {
            bail!(
                "{when} CLOCK_REALTIME is {} ns off, {} ns outside; the agent: {}",
                found.ns,
                found.outside_ns,
                self.log()?
            );
        }
        Ok(found)
    }

    /// Waits until the rate is known and the rest has been slewed away.
    fn settled(&mut self) -> anyhow::Result<Error> {
        let found = interrupt::poll_until(PATIENCE, || {
            std::thread::sleep(Duration::from_millis(500));
            let found = self.realtime()?;
            Ok((found.ns.abs() <= SETTLED_NS).then_some(found))
        })?;
        match found {
            Some(found) => Ok(found),
            None => bail!("CLOCK_REALTIME does not settle; the agent: {}", self.log()?),
        }
    }

    /// Waits for the background wait-sync to end and returns its output.
    fn wait_for_waited(&mut self) -> anyhow::Result<String> {
        let said = interrupt::poll_until(PATIENCE, || {
            let said = self.guest.sh("cat /run/waited")?;
            Ok((!said.is_empty()).then_some(said))
        })?;
        match said {
            Some(said) => Ok(said),
            None => bail!("wait-sync does not end; the agent: {}", self.log()?),
        }
    }

    /// The processor time of an agent that only has to monitor the clock.
    fn cost(&mut self) -> anyhow::Result<String> {
        let mut spent = || -> anyhow::Result<u64> {
            let text = self.guest.sh("cat /proc/$(cat /run/agent)/schedstat")?;
            Ok(text.split_whitespace().next().context("an empty schedstat")?.parse()?)
        };
        let (began, from) = (Instant::now(), spent()?);
        std::thread::sleep(Duration::from_secs(5));
        let (used, took) = (spent()? - from, began.elapsed());
        let share = used as f64 / took.as_nanos() as f64;
        Ok(format!("{:.2} % of the emulated processor", share * 100.0))
    }

    /// Stops the guest; after the resume, CLOCK_REALTIME is behind by that pause until the agent
    /// steps it.
    fn stop_and_resume(&mut self) -> anyhow::Result<String> {
        self.clocks.ask("watch 4000")?;
        std::thread::sleep(Duration::from_millis(500));
        self.guest.stop()?;
        std::thread::sleep(STOP);
        let resumed = self.page.counter().read_ordered();
        self.guest.cont()?;
        let watched = self.clocks.answer()?;
        let jump = watched["jump_ns"].as_i64().with_context(|| watched.to_string())?;
        let stop = i64::try_from(STOP.as_nanos())?;
        ensure!((stop..stop + 2_000_000_000).contains(&jump), "stepped by {jump} ns: {watched}");
        ensure!(watched["backward"] == 0, "{watched}");
        let at = watched["jump_at"].as_u64().with_context(|| watched.to_string())?;
        let [_, stepped, _] = self.host_time(at)?;
        let offset = client::offset(&self.host, NAME)?;
        let [_, began, _] = self.host_time(resumed.wrapping_add(offset.cast_unsigned()))?;
        let late_ms = (stepped - began) as f64 / 1e6;
        ensure!(late_ms < 1000.0, "stepped {late_ms} ms after the resume");
        mentions(&self.log()?, &["the page was disrupted"])?;
        Ok(format!(
            "a stop of 3 s: late by {:.3} s, stepped {late_ms:.1} ms after `cont`",
            jump as f64 / 1e9
        ))
    }

    /// Slews the error away while watching the clock all the time.
    fn slew(&mut self) -> anyhow::Result<String> {
        let ahead = self.realtime()?.ns;
        ensure!(ahead > AHEAD_US * 900, "ahead by {ahead} ns only");
        self.guest.sh("rm /run/waited")?;
        self.agent("slew")?;
        self.guest.sh(&format!(
            "timevisor-guest wait-sync --within 10ms --clock {SLEWED} --timeout 2m >/run/waited 2>&1 &"
        ))?;
        let began = Instant::now();
        let (mut looks, mut last) = (0, self.realtime()?);
        loop {
            interrupt::check()?;
            ensure!(
                began.elapsed() < PATIENCE,
                "{} ns are left; the agent: {}",
                last.ns,
                self.log()?
            );
            self.clocks.ask("watch 500")?;
            let watched = self.clocks.answer()?;
            ensure!(watched["backward"] == 0, "CLOCK_REALTIME went back: {watched}");
            looks += watched["looks"].as_u64().unwrap_or(0);
            let waited = !self.guest.sh("cat /run/waited")?.is_empty();
            let now = self.realtime()?;
            // The guest's page agrees with the host's, apart from the time between the two
            // readings.
            if waited {
                ensure!(
                    now.outside_ns < SLEWED_NS + SETTLED_NS,
                    "wait-sync ended at {} ns",
                    now.ns
                );
                let took = began.elapsed().as_secs_f64();
                let said = self.guest.sh("cat /run/waited")?;
                mentions(&said, &["CLOCK_REALTIME within"])?;
                mentions(&self.log()?, &["is slewed, which takes"])?;
                return Ok(format!(
                    "{:.1} ms ahead slewed to {} us in {took:.0} s, never back in {looks} looks",
                    ahead as f64 / 1e6,
                    now.ns / 1000
                ));
            }
            ensure!(
                now.outside_ns > SLEWED_NS / 2,
                "right at {} ns, and wait-sync still waits",
                now.ns
            );
            last = now;
        }
    }

    /// The command that sets the clock once, by a step and by a slew.
    fn once(&mut self) -> anyhow::Result<String> {
        self.clocks.ask("shift 20000000")?;
        // The shift was in nanoseconds, and that mode bit is a setting as well.
        let original = settings(&mut self.guest)?;
        let long = self.guest.sh("! timevisor-guest set-clock --slew 2>&1")?;
        mentions(&long, &["more than --timeout", "--step"])?;
        let stepped = self.guest.sh("timevisor-guest set-clock --within 5ms")?;
        mentions(&stepped, &["stepped by -"])?;
        let error = self.right(AFTER_STEP_NS, "after set-clock")?;
        mentions(
            &self.guest.sh("timevisor-guest set-clock --within 5ms")?,
            &["nothing had to be done"],
        )?;
        self.clocks.ask("shift -2000")?;
        let slewed = self.guest.sh("timevisor-guest set-clock --slew --within 1ms")?;
        mentions(&slewed, &["slewed by +"])?;
        let found = settings(&mut self.guest)?;
        ensure!(found == original, "set-clock left {found:?}, was {original:?}");
        Ok(format!("set-clock stepped 20 s to {} ns and slewed 2 ms", error.ns))
    }
}
