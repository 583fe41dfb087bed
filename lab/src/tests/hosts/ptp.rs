//! Real ptp4ls between network namespaces, with software stamps. All stamps are this machine's
//! CLOCK_REALTIME, so the truth is at hand; nobody steers it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_time::Duration as Span;

use super::watch::{Watched, watch, watch_for, watch_until};
use crate::host::{Host, mentions};
use crate::netns::Namespace;
use crate::ptp4l::Ptp4l;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::reference_row;

/// The reference's name in status output.
pub(crate) const NAME: &str = "ptp realtime";
/// ptp4l notices a silent master after three Announce intervals, and needs some Syncs for another.
const PATIENCE: Duration = Duration::from_secs(60);

/// Configuration lines for a ptp4l on this machine.
pub(crate) fn reference(ptp4l: &Ptp4l, poll: &str) -> String {
    format!(
        "[[reference]]\ntype = \"ptp\"\ndevice = \"realtime\"\nsocket = \"{}\"\npoll = \"{poll}\"\n",
        ptp4l.socket.display()
    )
}

/// A slave on the host's ends of the pairs.
pub(crate) fn slave(ctx: &Context, dir: &Path, masters: &[&Namespace]) -> anyhow::Result<Ptp4l> {
    let interfaces: Vec<String> = masters.iter().map(|n| n.interface()).collect();
    let interfaces: Vec<&str> = interfaces.iter().map(String::as_str).collect();
    Ptp4l::start(ctx, None, dir, "slave", &interfaces, "slaveOnly 1\n")
}

fn detail(host: &Host) -> anyhow::Result<String> {
    Ok(reference_row(host, NAME)?["detail"].as_str().unwrap_or_default().to_owned())
}

fn status_is(host: &Host, words: &[&str]) -> anyhow::Result<bool> {
    Ok(words.contains(&reference_row(host, NAME)?["status"].as_str().unwrap_or_default()))
}

pub(crate) fn import(ctx: &Context) -> anyhow::Result<String> {
    let namespace = Namespace::create()?;
    let dir = scratch::directory()?;
    let mut master = Ptp4l::master(ctx, &namespace, dir.path(), "master", "")?;
    let slave = slave(ctx, dir.path(), &[&namespace])?;
    let reference = reference(&slave, "200ms");
    // The master's timestamps are UTC on an arbitrary timescale, which is refused until the
    // operator declares it.
    let mut host = Host::new(ctx)?;
    host.start(&reference)?;
    host.wait_until("an arbitrary timescale is refused", |h| {
        status_is(h, &["arbitrary_timescale"])
    })?;
    mentions(&host.cli(&["status"])?, &["timescale = \"utc\""])?;
    host.terminate()?;
    host.start(&format!("{reference}timescale = \"utc\"\n"))?;
    let seen = watch(&host, Span::ZERO, 20_000_000)?;
    let detail = detail(&host)?;
    mentions(&detail, &["CLOCK_REALTIME", "UNCALIBRATED", "path delay", "master"])?;
    // Without its master, the slave says so within a few announce intervals, and so does the
    // reference.
    master.kill();
    host.wait_until("the master's end is noticed", |h| {
        status_is(h, &["not_following", "no_grandmaster", "stale"])
    })?;
    Ok(format!("{}; {detail}", figures(&seen)))
}

fn figures(seen: &Watched) -> String {
    format!(
        "truth inside {} times, half-width {} us, worst error {} us",
        seen.readings,
        seen.last_width_ns / 2000,
        seen.worst_ns / 1000
    )
}

/// The better of two masters ends, and comes back.
pub(crate) fn masters(ctx: &Context) -> anyhow::Result<String> {
    let (near, far) = (Namespace::create()?, Namespace::create()?);
    let dir = scratch::directory()?;
    let better = || Ptp4l::master(ctx, &near, dir.path(), "better", "priority1 100\n");
    let mut first = better()?;
    let slave = slave(ctx, dir.path(), &[&near, &far])?;
    let mut host = Host::new(ctx)?;
    host.start(&format!("{}timescale = \"utc\"\n", reference(&slave, "200ms")))?;
    host.wait_synchronized(20_000)?;
    let one = master_of(&detail(&host)?)?;
    // Not earlier: the slave would follow whichever announces itself first.
    let _second = Ptp4l::master(ctx, &far, dir.path(), "second", "priority1 110\n")?;
    let mut seen = vec![watch_for(&host, Span::ZERO, Duration::from_secs(4))?];
    // From one master to the other and back, without a pause in watching.
    let mut follow = |host: &Host, what: &str, done: &dyn Fn(&str) -> bool| {
        let watched = watch_until(host, Span::ZERO, PATIENCE, || {
            let usable = status_is(host, &["selected", "reachable"])?;
            Ok(usable && master_of(&detail(host)?).is_ok_and(|master| done(&master)))
        });
        seen.push(watched.with_context(|| what.to_owned())?);
        seen.push(watch_for(host, Span::ZERO, Duration::from_secs(4))?);
        master_of(&detail(host)?)
    };
    first.kill();
    let other = follow(&host, "the second master is followed", &|master| master != one)?;
    first = better()?;
    let back = follow(&host, "the better master is followed again", &|master| master == one)?;
    ensure!(back == one && other != one, "{one}, {other}, {back}");
    drop(first);
    let log = host.log_text();
    for (master, times) in [(&one, 2), (&other, 1)] {
        let said = log.matches(&format!("ptp4l follows master {master}")).count();
        ensure!(said == times, "the log names {master} {said} times, not {times}:\n{log}");
    }
    let row = reference_row(&host, NAME)?;
    let waited = row["rejected"]["new_master"].as_u64().unwrap_or(0);
    ensure!(waited >= 2, "a new master was believed at once: {row}");
    ensure!(host.json(&["status"])?["clock"]["status"] == "synchronized", "not synchronized");
    let readings: u64 = seen.iter().map(|s| s.readings).sum();
    let worst = seen.iter().map(|s| s.worst_ns).max().unwrap_or(0);
    Ok(format!(
        "from {one} to {other} and back: truth inside {readings} times, worst error {} us, {waited} polls without a \
         statement while the masters changed",
        worst / 1000
    ))
}

/// The grandmaster in a status detail.
fn master_of(detail: &str) -> anyhow::Result<String> {
    let rest = detail.split("master ").nth(1);
    let name = rest.and_then(|rest| rest.split([',', ' ']).next());
    name.map(str::to_owned).with_context(|| format!("no master in {detail}"))
}

/// A master announces PTP time although its stamps are UTC: PTP time is then what CLOCK_REALTIME
/// shows, 37 s behind the usual. A slave that only measures is 37 s off, by its own word.
pub(crate) fn utc_offset(ctx: &Context) -> anyhow::Result<String> {
    let namespace = Namespace::create()?;
    let dir = scratch::directory()?;
    let master = Ptp4l::master(ctx, &namespace, dir.path(), "master", "utc_offset 36\n")?;
    master.announce_ptp_time(37, true)?;
    let slave = slave(ctx, dir.path(), &[&namespace])?;
    let mut host = Host::new(ctx)?;
    host.start(&reference(&slave, "200ms"))?;
    let truth = Span::from_secs(-37);
    let seen = watch(&host, truth, 80_000_000_000)?;
    // The first exchange after it would be a second off.
    master.announce_ptp_time(36, true)?;
    let until = watch_until(&host, truth, PATIENCE, || status_is(&host, &["utc_offset"]))?;
    let said = host.cli(&["status"])?;
    mentions(&said, &["36 s", "37 s", "CLOCK_REALTIME", "utc_offset", "tzdata"])?;
    let after = watch_for(&host, truth, Duration::from_secs(4))?;
    // When it is corrected, it is used again.
    master.announce_ptp_time(37, true)?;
    let again =
        watch_until(&host, truth, PATIENCE, || status_is(&host, &["selected", "reachable"]))?;
    let readings = seen.readings + until.readings + after.readings + again.readings;
    // Not vouched for, ptp4l keeps what it has, and that is used, and said.
    master.announce_ptp_time(36, false)?;
    let kept = watch_until(&host, truth, PATIENCE, || {
        Ok(status_is(&host, &["selected", "reachable"])?
            && detail(&host)?.contains("the grandmaster does not vouch for"))
    })?;
    mentions(&detail(&host)?, &["TAI - UTC = 37 s"])?;
    Ok(format!(
        "truth inside {} times with 37 s announced, then 36 s, then 37 s, then nothing valid",
        readings + kept.readings
    ))
}
