//! A cluster's own timeline on four hosts whose counters differ and wander. Its truth is known: it is
//! what its master's counter says, and the lab knows every counter at every moment.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor::{Binding, Client};
use timevisor_clock_page::{Counter as _, CounterId};
use timevisor_linux::counter::HostCounter;

use crate::host::Host;
use crate::interrupt;
use crate::oscillator::{Oscillator, Parameters};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::timelines::host::{connect, row};

const FIRST_PORT: u16 = 41_260;
const HOSTS: u16 = 4;
const NAME: &str = "cell";
/// The first entry after the host's own clock: nobody is bound to anything else.
const ENTRY: usize = 1;

/// Messages of figure 4.
const STAMPED: u64 = 2_000;

/// A host that is bound to the timeline.
struct Member {
    host: Host,
    oscillator: Oscillator,
    bound: Option<(Client, Binding, HostPage)>,
    /// What its page last said, ns.
    last: i64,
}

fn configuration(index: u16, key: &Path) -> String {
    let seeds: Vec<String> =
        (0..HOSTS).map(|seed| format!("\"127.0.0.1:{}\"", FIRST_PORT + seed)).collect();
    format!(
        "[[reference]]\ntype = \"system\"\nassumed_max_error = \"10ms\"\n\
         [server]\nlisten = [\"127.0.0.1:{}\"]\nrate_interval = \"0s\"\n\
         [[cluster]]\nname = \"lab\"\ntimeline = \"{NAME}\"\nseeds = [{}]\n\
         poll = \"200ms\"\nlease = \"2s\"\ntakeover_after = \"1s\"\nkey = {key:?}\n",
        FIRST_PORT + index,
        seeds.join(", ")
    )
}

impl Member {
    fn new(ctx: &Context, index: u16, key: &Path) -> anyhow::Result<Self> {
        let ctx = ctx.further(&format!("member{index}"))?;
        // Up to 9 ppm apart: the statement allows 100 before data, and 3e-8 of wander.
        let parameters = Parameters {
            ppb: 3_000 * (i64::from(index) - 1),
            offset: 1 << (40 + index),
            amplitude_ppb: 20.0,
            period: 60e9,
        };
        let oscillator = Oscillator::new(&ctx, parameters)?;
        let mut host = Host::with_oscillator(&ctx, oscillator.clone())?;
        if !key.exists() {
            host.cli(&["cluster", "key", text(key)?])?;
        }
        host.start(&configuration(index, key))?;
        Ok(Self { host, oscillator, bound: None, last: i64::MIN })
    }

    /// Keeps a binding, and opens the entry that it has.
    fn bind(&mut self) -> anyhow::Result<()> {
        self.host.wait_until("the timeline is known", |host| {
            Ok(!row(host, NAME)?["achieved"]["below_ns"].is_null())
        })?;
        let client = connect(&self.host)?;
        let binding = client.bind_with(NAME, &timevisor::BindOptions::default())?;
        let page = HostPage::entry(self.host.directory(), ENTRY)?;
        self.bound = Some((client, binding, page));
        Ok(())
    }

    fn page(&self) -> anyhow::Result<&HostPage> {
        Ok(&self.bound.as_ref().context("not bound")?.2)
    }

    /// The timeline at a value of the machine's TSC: earliest, estimate, latest, ns.
    fn at(&self, tsc: u64) -> anyhow::Result<Option<(i64, i64, i64)>> {
        let reading = self.page()?.convert(self.oscillator.counter(tsc))?;
        Ok(reading.has_estimate().then(|| {
            let estimate = reading.estimate.floor_nanos();
            (reading.earliest.floor_nanos(), estimate, reading.latest.ceil_nanos())
        }))
    }

    /// Notes what the page says now; an error if that is less than before.
    fn step(&mut self, tsc: u64) -> anyhow::Result<()> {
        if let Some((_, estimate, _)) = self.at(tsc)? {
            ensure!(estimate >= self.last, "went back from {} to {estimate}", self.last);
            self.last = estimate;
        }
        Ok(())
    }

    fn leads(&self, generation: u32) -> bool {
        self.host.log_text().contains(&format!(
            "this host is the master of {NAME} now; its origin is {generation}."
        ))
    }
}

/// The host that has become master under an origin of this generation.
fn master(members: &[Member], generation: u32) -> anyhow::Result<usize> {
    let leading: Vec<usize> =
        (0..members.len()).filter(|at| members[*at].leads(generation)).collect();
    let [master] = leading[..] else { anyhow::bail!("masters of {generation}: {leading:?}") };
    Ok(master)
}

pub(crate) fn succession(ctx: &Context) -> anyhow::Result<String> {
    let key = ctx.path("lab.key");
    let mut members = (0..HOSTS)
        .map(|index| Member::new(ctx, index, &key))
        .collect::<anyhow::Result<Vec<_>>>()?;
    members.iter_mut().try_for_each(Member::bind)?;
    let first = master(&members, 1)?;
    let before = watch(&mut members, first, None, Duration::from_secs(3))?;
    let clock = one_clock(&members)?;
    let said = shown(&members, first, &key)?;
    let order = order(&members, first)?;

    members[first].host.kill();
    let killed = Instant::now();
    let second = loop {
        interrupt::check()?;
        ensure!(killed.elapsed() < Duration::from_secs(30), "nobody has continued the timeline");
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(1));
            let tsc = tsc()?;
            each(&mut members, first, |member| member.step(tsc))?;
        }
        if (0..members.len()).any(|at| members[at].leads(2)) {
            break master(&members, 2)?;
        }
    };
    let gone_for = killed.elapsed();
    settle(&mut members, first, second)?;
    let after = watch(&mut members, second, Some(first), Duration::from_secs(3))?;

    // The first one comes back, and follows.
    members[first].bound = None;
    members[first].host.restart()?;
    members[first].bind()?;
    settle(&mut members, usize::MAX, second)?;
    let again = watch(&mut members, second, None, Duration::from_secs(2))?;
    ensure!(master(&members, 2)? == second && master(&members, 3).is_err(), "a third master");
    ensure!(one_clock(&members)? != clock, "stamps of two masters seem to have an order");
    Ok(format!(
        "{HOSTS} counters, {} readings, truth inside each, nobody went back; +-{:.1} us at most; the master was killed, \
         another continued after {:.1} s, and the first follows it; {order}; {said}",
        before.0 + after.0 + again.0,
        before.1.max(again.1) as f64 / 2e3,
        gone_for.as_secs_f64()
    ))
}

/// The number that all pages give this timeline's clock: with it programs on two hosts can compare stamps.
fn one_clock(members: &[Member]) -> anyhow::Result<u64> {
    let clocks: Vec<_> =
        members.iter().map(|member| member.page()?.clock()).collect::<anyhow::Result<_>>()?;
    let first = clocks[0];
    ensure!(first != 0 && clocks.iter().all(|it| *it == first), "pages say {clocks:?}");
    Ok(first)
}

/// The machine's own counter.
fn tsc() -> anyhow::Result<u64> {
    let counter = HostCounter::for_reader(CounterId::X86Tsc).context("this machine has no TSC")?;
    Ok(counter.read_ordered())
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path that is no text")
}

/// What `timevisor cluster` says: this host's part, and all hosts.
fn shown(members: &[Member], master: usize, key: &Path) -> anyhow::Result<String> {
    for (at, member) in members.iter().enumerate() {
        let status = member.host.json(&["cluster", "status"])?;
        let clocks = status["clusters"].as_array();
        let clock = clocks.and_then(|all| all.last()).context("no clock")?;
        let role = if at == master { "master" } else { "member" };
        ensure!(clock["timeline"] == NAME && clock["role"] == role, "member {at}: {clock}");
        let origin = clock["origin"].as_str().unwrap_or_default();
        ensure!(origin.starts_with("1."), "member {at}: {clock}");
        ensure!(
            clock["below_ns"].is_u64() && clock["master_heard_s"].as_f64().is_some_and(|s| s < 2.0),
            "{clock}"
        );
    }
    let asker = &members[(master + 1) % members.len()].host;
    let nodes = asker.json(&["cluster", "nodes", "--timeline", NAME, "--key", text(key)?])?;
    let nodes = nodes.as_array().context("no list")?;
    let levels: Vec<u64> = nodes.iter().filter_map(|node| node["level"].as_u64()).collect();
    ensure!(
        levels.len() == usize::from(HOSTS)
            && levels.iter().filter(|level| **level == 0).count() == 1,
        "{nodes:?}"
    );
    let picture = asker.directory().join("tree.svg");
    let plot = ["--plot", text(&picture)?, "--key", text(key)?];
    asker.cli(&[&["cluster", "tree", "--timeline", NAME][..], &plot].concat())?;
    ensure!(std::fs::read_to_string(&picture)?.contains("level 0"), "the tree has no master");
    let picture = asker.directory().join("width.svg");
    let plot = ["cluster", "watch", "--for", "1", "--every", "0.2", "--plot", text(&picture)?];
    let watched = asker.cli(&plot)?;
    ensure!(watched.matches(NAME).count() >= 3, "`cluster watch` says little: {watched}");
    ensure!(std::fs::read_to_string(&picture)?.contains("half-width"), "no plot of widths");
    Ok(format!("`cluster nodes` finds all {HOSTS}"))
}

fn each(
    members: &mut [Member],
    except: usize,
    mut act: impl FnMut(&mut Member) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let all = members.iter_mut().enumerate().filter(|(at, _)| *at != except);
    for (at, member) in all {
        act(member).with_context(|| format!("member {at}"))?;
    }
    Ok(())
}

/// Two members stamp messages in turn, as in figure 4 of the RVEC paper: whoever stamped first is found, or
/// the intervals overlap and nobody says so. Pauses grow to 2 ms.
fn order(members: &[Member], master: usize) -> anyhow::Result<String> {
    let mut others = members.iter().enumerate().filter(|(at, _)| *at != master);
    let mut next = || others.next().map(|(_, member)| member).context("a member");
    let (a, b) = (next()?, next()?);
    let stamp = |member: &Member| -> anyhow::Result<(i64, i64)> {
        let (earliest, _, latest) = member.at(tsc()?)?.context("the timeline was forgotten")?;
        Ok((earliest, latest))
    };
    let (mut in_order, mut uncertain) = (0, 0);
    for message in 0..STAMPED {
        interrupt::check()?;
        let first = stamp(a)?;
        std::thread::sleep(Duration::from_micros(message));
        let second = stamp(b)?;
        ensure!(second.1 >= first.0, "{second:?} was stamped after {first:?}, and says before");
        if first.1 < second.0 {
            in_order += 1;
        } else {
            uncertain += 1;
        }
    }
    ensure!(in_order > 0, "{uncertain} pairs up to 2 ms apart, and no order of any is known");
    Ok(format!(
        "of {STAMPED} messages that two hosts stamped in turn, up to 2 ms apart, {in_order} are in order by their stamps, \
         {uncertain} uncertain and none wrong"
    ))
}

/// Waits until everybody has the origin of this master: their bounds hold what it says.
fn settle(members: &mut [Member], except: usize, master: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        interrupt::check()?;
        ensure!(began.elapsed() < Duration::from_secs(20), "not everybody follows {master}");
        std::thread::sleep(Duration::from_millis(5));
        let tsc = tsc()?;
        each(members, except, |member| member.step(tsc))?;
        let Some((_, truth, _)) = members[master].at(tsc)? else { continue };
        let mut follow = true;
        each(members, except, |member| {
            follow &= member.at(tsc)?.is_some_and(|(from, _, to)| (from..=to).contains(&truth));
            Ok(())
        })?;
        if follow {
            return Ok(());
        }
    }
}

/// Readings of all, with what the master says inside each, and the widest of them, ns.
fn watch(
    members: &mut [Member],
    master: usize,
    except: Option<usize>,
    span: Duration,
) -> anyhow::Result<(u64, i64)> {
    let (mut count, mut widest) = (0, 0);
    let end = Instant::now() + span;
    while Instant::now() < end {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(2));
        let tsc = tsc()?;
        let (from, _, to) = members[master].at(tsc)?.context("the master has no timeline")?;
        ensure!(to - from <= 2, "the master's own is {} ns wide", to - from);
        each(members, except.unwrap_or(usize::MAX), |member| {
            member.step(tsc)?;
            let (earliest, _, latest) = member.at(tsc)?.context("the timeline was forgotten")?;
            ensure!(
                earliest <= to && from <= latest,
                "the master says {from}, and that is not in {earliest}..{latest}"
            );
            (count, widest) = (count + 1, widest.max(latest - earliest));
            Ok(())
        })?;
    }
    ensure!(count > 200, "only {count} readings");
    Ok((count, widest))
}
