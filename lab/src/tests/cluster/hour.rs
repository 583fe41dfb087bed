//! An hour without a network: hosts of a cluster that asked once, and twice, ten minutes apart, beside
//! chronyds that asked as often and then lost their server.
//!
//! The hosts' counter is 10 ppm fast, and its rate wanders by 20 ppb within two hours. chronyd's clock is
//! the machine's, so for it the same difference is the other way round: its server's time goes by this
//! rate against CLOCK_REALTIME. What is known of the truth is the same in both.
//!
//! `OFFLINE_S` is how long, `APART_S` what lies between the visits.

use std::f64::consts::TAU;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_clock_page::Counter as _;
use timevisor_linux::clock::{bracket, realtime};
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_protocols::ntp::{NtpTimestamp, Packet};
use timevisor_time::{Duration as Span, Instant as Time, Utc};

use crate::chrony_client::ChronyClient;
use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::oscillator::{Oscillator, Parameters};
use crate::scenario::Context;
use crate::tests::cluster::offline::{Node, root_lines};

/// 10 ppm.
const PPB: i64 = 10_000;
const WANDER_PPB: f64 = 20.0;
const WANDER: Duration = Duration::from_secs(7200);
const PORT: u16 = 41_320;

pub(crate) fn hour(ctx: &Context) -> anyhow::Result<String> {
    let (apart, offline) = (seconds("APART_S", 600)?, seconds("OFFLINE_S", 3600)?);
    let upstream = Impostor::honest()?;
    let mut root = Host::new(ctx)?;
    root.start(&root_lines(&upstream))?;
    root.wait_synchronized(1_000)?;

    let ticks_a_turn = WANDER.as_secs_f64() * hz()?;
    let counter = HostCounter::Tsc(Tsc::unchecked());
    let turns = (counter.read_ordered() as f64 % ticks_a_turn) / ticks_a_turn;
    let law = Law { since: realtime(), turns };
    let slow = Impostor::new(move |answer| vec![law.answer(answer).to_bytes().to_vec()])?;
    let server = format!("127.0.0.1 port {}", slow.port());
    let chrony = |index: u16, name, options: &str| {
        ChronyClient::start(ctx, name, &format!("{server} {options}"), PORT + index)
    };
    let parameters =
        Parameters { ppb: PPB, offset: 1 << 44, amplitude_ppb: WANDER_PPB, period: ticks_a_turn };
    let node = |name, clock: &str| {
        let ctx = ctx.further(name)?;
        let lines = format!("poll = \"10s\"\n{clock}[guests]\ndiscover = false\n");
        Node::new(&ctx, Oscillator::new(&ctx, parameters)?, &lines)
    };
    // One writes its page as often as it does by default, and one as seldom as that serves.
    let seldom = "[clock]\npublish_interval = \"20s\"\nvalidity = \"60s\"\n";
    let (once, twice) = (node("once", "")?, node("twice", seldom)?);
    // One that is cut off after its burst, one that does what ours does, and one that polls as the
    // distribution's configuration has it.
    let mut burst = chrony(0, "burst", "iburst")?;
    let mut same = chrony(1, "same", "iburst")?;
    let mut polls = chrony(2, "polls", "iburst")?;
    let mut questions = questions_of(&once.visit()?)? + questions_of(&twice.visit()?)?;
    for client in [&mut burst, &mut same, &mut polls] {
        client.wait(Duration::from_secs(60))?;
    }
    interrupt::sleep(Duration::from_secs(8))?;
    burst.chronyc(&["offline"])?;
    same.chronyc(&["offline"])?;
    interrupt::sleep(apart.saturating_sub(Duration::from_secs(10)))?;
    same.chronyc(&["online"])?;
    same.chronyc(&["burst", "4/8"])?;
    questions += questions_of(&twice.visit()?)?;
    interrupt::sleep(Duration::from_secs(20))?;
    for client in [&same, &polls] {
        client.chronyc(&["offline"])?;
    }
    let asked = slow.asked();

    let once_page = once.wait_for_visits(1)?;
    let twice_page = twice.wait_for_visits(2)?;
    root.terminate()?;
    let clients = [("after a burst", &burst), ("after two", &same), ("that polled", &polls)];
    let pids = [once.host.pid()?, twice.host.pid()?, burst.pid()];
    let before = pids.map(wake_ups);
    let began = Instant::now();
    let mut readings = 0;
    while began.elapsed() < offline {
        interrupt::sleep(Duration::from_secs(5).min(offline))?;
        for (node, page) in [(&once, &once_page), (&twice, &twice_page)] {
            readings += node.watch(page, Duration::from_millis(400))?.readings;
        }
    }
    let after = pids.map(wake_ups);
    ensure!(slow.asked() == asked, "a chronyd asked although it was offline");

    let mut told = Vec::new();
    let hosts = [("after one visit", &once, &once_page), ("after two", &twice, &twice_page)];
    for (name, node, page) in hosts {
        let (error, half) = node.state(page)?;
        told.push(format!("{name} error {:.1} us, +-{:.1} us", us(error), us(half)));
    }
    for (name, client) in clients {
        let served = client.served()?;
        let error = served.ahead + law.behind(served.at);
        told.push(format!(
            "a chronyd {name} error {:.1} us (+-{:.1}), claims {:.1} us",
            error.as_secs_f64() * 1e6,
            served.uncertainty.as_secs_f64() * 1e6,
            us(client.claim()?)
        ));
    }
    std::fs::write(ctx.path("figures.txt"), told.join("\n"))?;
    let a_day = |at: usize| -> anyhow::Result<f64> {
        let woken = after[at].context("no status")? - before[at].context("no status")?;
        Ok(woken as f64 * 86_400.0 / began.elapsed().as_secs_f64())
    };
    Ok(format!(
        "{} s without a network: {}; truth inside {readings} readings; {questions} questions in the three visits, {asked} of the \
         chronyds; wake-ups a day: timevisord {:.0}, and {:.0} where its page is written every 20 s, chronyd {:.0}; {}",
        offline.as_secs(),
        told.join("; "),
        a_day(0)?,
        a_day(1)?,
        a_day(2)?,
        twice.horizon("1s")?,
    ))
}

/// How the time of chronyd's server goes: by the rate that the hosts' counter has.
#[derive(Clone, Copy)]
struct Law {
    since: Time<Utc>,
    /// How far the wander had come then, as a share of a turn: that of the hosts' counter.
    turns: f64,
}

impl Law {
    /// How far it is behind CLOCK_REALTIME.
    fn behind(self, at: Time<Utc>) -> Span {
        let seconds = (at - self.since).as_secs_f64();
        let turn = WANDER.as_secs_f64();
        let at = |turns: f64| WANDER_PPB * turn / TAU * (TAU * turns).sin();
        let swing = at(self.turns + seconds / turn) - at(self.turns);
        Span::from_secs_f64((PPB as f64 * seconds + swing) * 1e-9)
    }

    fn answer(self, honest: Packet) -> Packet {
        let near = realtime();
        let moved = |stamp: NtpTimestamp| {
            let at = stamp.to_instant(near);
            NtpTimestamp::from_instant(at - self.behind(at))
        };
        Packet {
            receive: moved(honest.receive),
            transmit: moved(honest.transmit),
            reference: moved(honest.reference),
            ..honest
        }
    }
}

fn questions_of(visit: &Value) -> anyhow::Result<u64> {
    visit["questions"].as_u64().with_context(|| format!("no number of questions: {visit}"))
}

fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

fn seconds(variable: &str, default: u64) -> anyhow::Result<Duration> {
    let Ok(text) = std::env::var(variable) else { return Ok(Duration::from_secs(default)) };
    let seconds = text.parse().with_context(|| format!("{variable}={text}: whole seconds"))?;
    Ok(Duration::from_secs(seconds))
}

/// Ticks of the TSC in a second; half a second tells it well enough for a wander of hours.
fn hz() -> anyhow::Result<f64> {
    let counter = HostCounter::Tsc(Tsc::unchecked());
    let first = bracket(&counter, 3);
    interrupt::sleep(Duration::from_millis(500))?;
    let last = bracket(&counter, 3);
    let ticks = counter.read_ordered().wrapping_sub(first.before) as f64;
    Ok(ticks / (last.realtime - first.realtime).as_secs_f64())
}

/// How often the threads of a process have gone to sleep.
fn wake_ups(pid: u32) -> Option<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        sum += line.trim().parse::<u64>().ok()?;
    }
    Some(sum)
}
