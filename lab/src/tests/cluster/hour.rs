//! An hour without a network: hosts of a cluster that asked once, and twice, ten minutes apart, beside
//! chronyds that lost their server after a burst, and after two.
//!
//! The hosts' counters are 10 ppm fast, and their rates wander by 20 ppb within one and a half to three hours. chronyd's clock is
//! the machine's, so for it the same difference is the other way round: its server's time goes by this
//! rate against CLOCK_REALTIME. What is known of the truth is the same in both.
//!
//! `WARM_S` is for how long the hosts' server has followed its own before the first visit, `APART_S` what lies between the
//! visits, `OFFLINE_S` how long there is no network then.

use std::f64::consts::TAU;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_clock_page::Counter as _;
use timevisor_linux::clock::{bracket, realtime};
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_protocols::ntp::{NtpTimestamp, Packet};
use timevisor_time::{Duration as Span, Instant as Time, Utc};

use crate::chrony_client::{ChronyClient, Served};
use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::oscillator::{Oscillator, Parameters};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::cluster::offline::{Node, root_lines};
use crate::tests::cluster::seconds;

/// 10 ppm.
const PPB: i64 = 10_000;
const WANDER_PPB: f64 = 20.0;
/// In the middle of an hour, each of these is elsewhere on its way.
const WANDERS: [Duration; 4] = [
    Duration::from_secs(7200),
    Duration::from_secs(5400),
    Duration::from_secs(10_800),
    Duration::from_secs(9000),
];
const PORT: u16 = 41_320;
/// Ends when another answer would not be worth it.
const BURST: [&str; 2] = ["--exchanges", "48"];
/// A page that is written as seldom as that serves.
const SELDOM: &str = "[clock]\npublish_interval = \"20s\"\nvalidity = \"60s\"\n";
const LOOK: Duration = Duration::from_millis(400);

pub(crate) fn hour(ctx: &Context) -> anyhow::Result<String> {
    let (warm, apart) = (seconds("WARM_S", 300)?, seconds("APART_S", 600)?);
    let offline = seconds("OFFLINE_S", 3600)?;
    let upstream = Impostor::honest()?;
    let mut root = Host::new(ctx)?;
    root.start(&root_lines(&upstream))?;
    root.wait_synchronized(1_000)?;
    interrupt::sleep(warm)?;

    let hz = hz()?;
    let worlds = WANDERS.map(|turn| World::new(turn, hz));
    let mut pairs = Vec::new();
    for (index, world) in (0..).zip(worlds) {
        pairs.push(Pair::new(ctx, world?, index)?);
    }
    // With the first world's rate: a host that asks once, and a chronyd that polls as the distribution's
    // configuration has it.
    let once = pairs[0].world.node(ctx, "once", "")?;
    let mut polls = pairs[0].world.chrony(ctx, "polls", PORT + 1)?;
    let mut questions = questions_of(&once.visit(&BURST)?)?;
    for pair in &pairs {
        questions += questions_of(&pair.node.visit(&BURST)?)?;
    }
    let both = pairs.iter_mut().flat_map(|pair| [&mut pair.chrony, &mut pair.burst]);
    for client in both.chain([&mut polls]) {
        client.wait(Duration::from_secs(60))?;
    }
    interrupt::sleep(Duration::from_secs(8))?;
    for pair in &pairs {
        pair.burst.chronyc(&["offline"])?;
        pair.chrony.chronyc(&["offline"])?;
    }
    interrupt::sleep(apart.saturating_sub(Duration::from_secs(10)))?;
    for pair in &pairs {
        pair.chrony.chronyc(&["online"])?;
        pair.chrony.chronyc(&["burst", "4/8"])?;
        questions += questions_of(&pair.node.visit(&BURST)?)?;
    }
    interrupt::sleep(Duration::from_secs(20))?;
    for client in pairs.iter().map(|pair| &pair.chrony).chain([&polls]) {
        client.chronyc(&["offline"])?;
    }
    let asked = pairs.iter().map(|pair| pair.world.server.asked()).sum::<u64>();

    let once_page = once.wait_for_visits(1)?;
    let pages: Vec<HostPage> =
        pairs.iter().map(|pair| pair.node.wait_for_visits(2)).collect::<anyhow::Result<_>>()?;
    root.terminate()?;
    let pids = [once.host.pid()?, pairs[0].node.host.pid()?, pairs[0].burst.pid()];
    let before = pids.map(wake_ups);
    let began = Instant::now();
    let (mut readings, mut told_at) = (0, Duration::ZERO);
    let errors = || -> anyhow::Result<Vec<Errors>> {
        pairs.iter().zip(&pages).map(|(pair, page)| pair.errors(page)).collect()
    };
    while began.elapsed() < offline {
        interrupt::sleep(Duration::from_secs(5).min(offline))?;
        readings += once.watch(&once_page, LOOK)?.readings;
        for (pair, page) in pairs.iter().zip(&pages) {
            readings += pair.node.watch(page, LOOK)?.readings;
        }
        if began.elapsed() >= told_at {
            ctx.log(&format!("{} s: {:?}", began.elapsed().as_secs(), errors()?));
            told_at += Duration::from_secs(300);
        }
    }
    let after = pids.map(wake_ups);
    let asked_since = pairs.iter().map(|pair| pair.world.server.asked()).sum::<u64>();
    ensure!(asked_since == asked, "a chronyd asked although it was offline");

    let mut told = Vec::new();
    let (error, half) = once.state(&once_page)?;
    told.push(format!(
        "after one visit error {:.1} us, +-{:.1} us, {}",
        us(error),
        us(half),
        once.horizon("1s")?
    ));
    let error = pairs[0].world.law.error(&polls.served()?);
    told.push(format!("a chronyd that polled {error:.1} us, claims {:.1} us", us(polls.claim()?)));
    let errors = errors()?;
    for (pair, errors) in pairs.iter().zip(&errors) {
        told.push(format!(
            "wander of {} s: after two visits error {:.1} us, +-{:.1} us; a chronyd that lost its server after its burst {:.1} us, \
             claims {:.1} us; after a second one {:.1} us, claims {:.1} us",
            pair.world.law.turn.as_secs(),
            errors.ours_us,
            errors.half_us,
            errors.bursts_us,
            us(pair.burst.claim()?),
            errors.chronys_us,
            us(pair.chrony.claim()?),
        ));
    }
    let [ours, burst, chronys] = [
        rms(errors.iter().map(|e| e.ours_us)),
        rms(errors.iter().map(|e| e.bursts_us)),
        rms(errors.iter().map(|e| e.chronys_us)),
    ];
    told.push(format!(
        "RMS over these: ours {ours:.1} us, a chronyd's {burst:.1} us after its burst and {chronys:.1} us after two"
    ));
    std::fs::write(ctx.path("figures.txt"), told.join("\n"))?;
    let a_day = |at: usize| -> anyhow::Result<f64> {
        let woken = after[at].context("no status")? - before[at].context("no status")?;
        Ok(woken as f64 * 86_400.0 / began.elapsed().as_secs_f64())
    };
    Ok(format!(
        "{} s without a network: {}; truth inside {readings} readings; {questions} questions in {} visits, {asked} of the \
         chronyds; wake-ups a day: timevisord {:.0}, and {:.0} where its page is written every 20 s, chronyd {:.0}; {}",
        offline.as_secs(),
        told.join("; "),
        1 + 2 * pairs.len(),
        a_day(0)?,
        a_day(1)?,
        a_day(2)?,
        pairs[0].node.horizon("1s")?,
    ))
}

/// One wander: a host whose counter has it, and a server whose time goes by the same.
struct World {
    law: Law,
    parameters: Parameters,
    server: Impostor,
}

impl World {
    fn new(turn: Duration, hz: f64) -> anyhow::Result<Self> {
        let ticks_a_turn = turn.as_secs_f64() * hz;
        let counter = HostCounter::Tsc(Tsc::unchecked());
        let turns = (counter.read_ordered() as f64 % ticks_a_turn) / ticks_a_turn;
        let law = Law { since: realtime(), turn, turns };
        let server = Impostor::new(move |answer| vec![law.answer(answer).to_bytes().to_vec()])?;
        let parameters = Parameters {
            ppb: PPB,
            offset: 1 << 44,
            amplitude_ppb: WANDER_PPB,
            period: ticks_a_turn,
        };
        Ok(Self { law, parameters, server })
    }

    fn node(&self, ctx: &Context, name: &str, clock: &str) -> anyhow::Result<Node> {
        let ctx = ctx.further(name)?;
        let lines = format!("poll = \"10s\"\n{clock}[guests]\ndiscover = false\n");
        Node::new(&ctx, Oscillator::new(&ctx, self.parameters)?, &lines)
    }

    fn chrony(&self, ctx: &Context, name: &str, port: u16) -> anyhow::Result<ChronyClient> {
        let server = format!("127.0.0.1 port {} iburst", self.server.port());
        ChronyClient::start(ctx, name, &server, port)
    }
}

/// A host and a chronyd that both ask twice, and a chronyd that asks once.
struct Pair {
    world: World,
    node: Node,
    chrony: ChronyClient,
    burst: ChronyClient,
}

#[derive(Debug)]
struct Errors {
    ours_us: f64,
    half_us: f64,
    chronys_us: f64,
    /// Of the chronyd that asked once.
    bursts_us: f64,
}

impl Pair {
    fn new(ctx: &Context, world: World, index: u16) -> anyhow::Result<Self> {
        let node = world.node(ctx, &format!("twice-{index}"), SELDOM)?;
        let chrony = world.chrony(ctx, &format!("same-{index}"), PORT + 2 + index)?;
        let burst = world.chrony(ctx, &format!("burst-{index}"), PORT + 8 + index)?;
        Ok(Self { world, node, chrony, burst })
    }

    fn errors(&self, page: &HostPage) -> anyhow::Result<Errors> {
        let (ours, half) = self.node.state(page)?;
        let [chronys_us, bursts_us] = [self.chrony.served()?, self.burst.served()?]
            .map(|served| self.world.law.error(&served));
        Ok(Errors { ours_us: us(ours), half_us: us(half), chronys_us, bursts_us })
    }
}

fn rms(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    (values.map(|value| value * value).sum::<f64>() / count).sqrt()
}

/// How the time of chronyd's server goes: by the rate that the hosts' counter has.
#[derive(Clone, Copy)]
struct Law {
    since: Time<Utc>,
    /// The wander's period.
    turn: Duration,
    /// How far the wander had come then, as a share of a turn: that of the hosts' counter.
    turns: f64,
}

impl Law {
    /// How far it is behind CLOCK_REALTIME.
    fn behind(self, at: Time<Utc>) -> Span {
        let seconds = (at - self.since).as_secs_f64();
        let turn = self.turn.as_secs_f64();
        let at = |turns: f64| WANDER_PPB * turn / TAU * (TAU * turns).sin();
        let swing = at(self.turns + seconds / turn) - at(self.turns);
        Span::from_secs_f64((PPB as f64 * seconds + swing) * 1e-9)
    }

    /// How wrong a chronyd is that follows it, us.
    fn error(self, served: &Served) -> f64 {
        (served.ahead + self.behind(served.at)).as_secs_f64() * 1e6
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

/// Ticks of the TSC in a second; half a second tells it well enough for a wander of hours.
pub(super) fn hz() -> anyhow::Result<f64> {
    let counter = HostCounter::Tsc(Tsc::unchecked());
    let first = bracket(&counter, 3);
    interrupt::sleep(Duration::from_millis(500))?;
    let last = bracket(&counter, 3);
    let ticks = counter.read_ordered().wrapping_sub(first.before) as f64;
    Ok(ticks / (last.realtime - first.realtime).as_secs_f64())
}

/// How often the threads of a process have gone to sleep.
pub(super) fn wake_ups(pid: u32) -> Option<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        sum += line.trim().parse::<u64>().ok()?;
    }
    Some(sum)
}
