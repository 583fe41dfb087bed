//! What a host costs that stays in touch: questions and wake-ups in a day, and how well it knows the time for
//! that, beside chronyds that ask the same server.
//!
//! `WARM_S` is how long everybody runs first, `COUNT_S` how long questions and wake-ups are counted. Only after
//! that chronyds are asked what they claim, because every question wakes them up.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::chrony_client::ChronyClient;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::oscillator::{Oscillator, Parameters};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::cluster::hour::{hz, wake_ups};
use crate::tests::cluster::offline::{Node, started_root};
use crate::tests::cluster::seconds;

const PORT: u16 = 41_360;
/// Polls of hosts, s, and how far their counters' rates may be from the measured ones, ppm: the default, and what
/// chronyd takes for granted of every clock (maxclockerror).
const HOSTS: [(u64, u32); 5] = [(16, 15), (64, 15), (16, 1), (64, 1), (256, 1)];
/// Of chronyds, as powers of two: 16 and 64 s.
const CHRONY_POLLS: [u32; 2] = [4, 6];
/// 10 ppm, and 20 ppb more or less within two hours.
const PPB: i64 = 10_000;
const WANDER_PPB: f64 = 20.0;
const WANDER_S: f64 = 7200.0;
/// Looks at the widths, one every few seconds.
const LOOKS: u32 = 60;

pub(crate) fn energy(ctx: &Context) -> anyhow::Result<String> {
    let (warm, count) = (seconds("WARM_S", 1800)?, seconds("COUNT_S", 900)?);
    let upstream = Impostor::honest()?;
    let _root = started_root(ctx, &upstream, PORT)?;
    let ticks_a_turn = WANDER_S * hz()?;
    let mut members = Vec::new();
    for (poll_s, ppm) in HOSTS {
        members.push(Member::new(ctx, poll_s, ppm, ticks_a_turn)?);
    }
    let mut chronyds = Vec::new();
    for poll in CHRONY_POLLS {
        let server = format!("127.0.0.1 port {PORT} iburst minpoll {poll} maxpoll {poll}");
        // Port 0: who serves nobody cannot take its server, which follows 127.0.0.1, for its own client.
        let mut client = ChronyClient::start(ctx, &format!("poll{poll}"), &server, 0)?;
        client.wait(Duration::from_secs(60))?;
        chronyds.push((poll, client));
    }
    interrupt::sleep(warm)?;

    let began = Instant::now();
    let mut before = Vec::new();
    for member in &members {
        before.push((member.questions()?, wake_ups(member.node.host.pid()?)));
    }
    for (_, client) in &chronyds {
        before.push((client.questions()?, wake_ups(client.pid())));
    }
    interrupt::sleep(count)?;
    // In the same order. A question about the questions is one wake-up or two.
    let mut costs = Vec::new();
    let a_day = 86_400.0 / began.elapsed().as_secs_f64();
    let now = members
        .iter()
        .map(|member| Ok((wake_ups(member.node.host.pid()?), member.questions()?)))
        .chain(chronyds.iter().map(|(_, client)| Ok((wake_ups(client.pid()), client.questions()?))))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for ((woken, asked), (asked_before, woken_before)) in now.into_iter().zip(before) {
        let woken = woken.context("no status")? - woken_before.context("no status")?;
        costs.push(((asked - asked_before) as f64 * a_day, woken as f64 * a_day));
    }

    let mut widths = vec![Vec::new(); costs.len()];
    let mut readings = 0;
    for _ in 0..LOOKS {
        // Longer than the longest poll in all, so that the widest moment of each is seen.
        interrupt::sleep(Duration::from_secs(5))?;
        for (member, widths) in members.iter().zip(&mut widths) {
            readings += member.node.watch(&member.page, Duration::from_millis(100))?.readings;
            widths.push(member.node.state(&member.page)?.1);
        }
        for ((_, client), widths) in chronyds.iter().zip(&mut widths[members.len()..]) {
            widths.push(client.claim()?);
        }
    }
    let names =
        HOSTS.iter().map(|(s, ppm)| format!("a host that asks every {s} s and states {ppm} ppm"));
    let names = names.chain(CHRONY_POLLS.iter().map(|p| format!("chronyd every {} s", 1 << p)));
    let mut told = Vec::new();
    for ((name, (asked, woken)), widths) in names.zip(&costs).zip(&mut widths) {
        widths.sort_unstable();
        let us = |ns: i64| ns as f64 / 1e3;
        told.push(format!(
            "{name}: {asked:.0} questions and {woken:.0} wake-ups a day, +-{:.1} us in the median and {:.1} at most",
            us(widths[widths.len() / 2]),
            us(widths[widths.len() - 1])
        ));
    }
    std::fs::write(ctx.path("figures.txt"), told.join("\n"))?;
    ensure!(costs.iter().all(|(asked, _)| *asked > 0.0), "somebody asked nobody: {told:?}");
    Ok(format!("{}; truth inside {readings} readings", told.join("; ")))
}

struct Member {
    node: Node,
    page: HostPage,
}

impl Member {
    fn new(ctx: &Context, poll_s: u64, ppm: u32, ticks_a_turn: f64) -> anyhow::Result<Self> {
        let ctx = ctx.further(&format!("every{poll_s}-{ppm}ppm"))?;
        let (amplitude_ppb, period) = (WANDER_PPB, ticks_a_turn);
        let parameters = Parameters { ppb: PPB, offset: 1 << 44, amplitude_ppb, period };
        // The default's crystal, and an oscillator that is better in both.
        let wander = if ppm < 15 { "tcxo" } else { "crystal" };
        let lines = format!(
            "[oscillator]\nmeasured_rate_ppm = {ppm}\nwander = \"{wander}\"\n[guests]\ndiscover = false\n[[reference]]\ntype = \"cluster\"\ncluster = \"lab\"\n[[cluster]]\nname = \"lab\"\n\
             serve = false\nseeds = [\"127.0.0.1:{PORT}\"]\npeers = 1\npoll = \"{poll_s}s\"\nlease = \"1h\"\n"
        );
        let node = Node::start(&ctx, Oscillator::new(&ctx, parameters)?, &lines)?;
        node.host.wait_synchronized(10_000)?;
        let page = HostPage::open(node.host.directory())?;
        Ok(Self { node, page })
    }

    fn questions(&self) -> anyhow::Result<u64> {
        let status = self.node.host.json(&["cluster", "status"])?;
        let questions = status["clusters"][0]["questions"].as_u64();
        questions.with_context(|| format!("no number of questions: {status}"))
    }
}
