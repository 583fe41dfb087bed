//! Five timevisords with a key: a root that follows an NTP server, and four members of which the root
//! answers two itself. Hosts without the key, with another one, or of another cluster are told so.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_linux::clock::bracket;

use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::reference;

const FIRST_PORT: u16 = 41_230;
const MEMBERS: u16 = 4;

fn listen(index: u16) -> String {
    format!("[server]\nlisten = [\"127.0.0.1:{}\"]\nrate_interval = \"0s\"\n", FIRST_PORT + index)
}

fn member(cluster: &str, key: Option<&Path>) -> String {
    let key = key.map_or(String::new(), |file| format!("key = {file:?}\n"));
    format!(
        "[[reference]]\ntype = \"cluster\"\ncluster = \"{cluster}\"\n[[cluster]]\nname = \"{cluster}\"\n\
         seeds = [\"127.0.0.1:{FIRST_PORT}\"]\npoll = \"200ms\"\nlease = \"2s\"\nchildren = 2\n{key}"
    )
}

pub(crate) fn five(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut root = Host::new(ctx)?;
    let (key, wrong) = (root.make_key("lab.key")?, root.make_key("wrong.key")?);
    let lines = format!(
        "{}{}[[cluster]]\nname = \"lab\"\nchildren = 2\nlease = \"2s\"\npoll = \"200ms\"\nkey = {key:?}\n",
        reference(&server.address()),
        listen(0)
    );
    root.start(&lines)?;
    root.wait_synchronized(10_000)?;

    let mut members = Vec::new();
    for index in 1..=MEMBERS {
        let mut host = Host::further(ctx, &format!("member{index}"))?;
        host.start(&format!("{}{}", member("lab", Some(&key)), listen(index)))?;
        host.wait_synchronized(10_000)?;
        members.push(host);
    }
    let started = members.iter().map(start_ms).collect::<anyhow::Result<Vec<f64>>>()?;
    let mut readings = 0;
    let mut widest = 0;
    for host in &members {
        let seen = watch(host, Duration::from_secs(3))?;
        (readings, widest) = (readings + seen.0, widest.max(seen.1));
    }
    let levels = members.iter().map(detail).collect::<anyhow::Result<Vec<_>>>()?;
    // The root's server has stratum 1. Who was referred to others has heard the root once.
    for text in &levels {
        ensure!(text.starts_with("stratum 2, ") && !text.contains(" 1 hosts"), "{levels:?}");
    }

    refused(ctx, "other-name", &member("other", None), "no cluster of this name")?;
    refused(ctx, "no-key", &member("lab", None), "the cluster has a key")?;
    let stranger = refused(ctx, "wrong-key", &member("lab", Some(&wrong)), "another key")?;
    let named = nodes(&root, &key)?;

    // The root ends: what is known goes on, and grows with age only.
    root.terminate()?;
    let after = members.iter().map(|host| watch(host, Duration::from_secs(2)));
    for seen in after.collect::<anyhow::Result<Vec<_>>>()? {
        readings += seen.0;
    }
    // It comes back, and is asked again.
    root.restart()?;
    root.wait_synchronized(10_000)?;
    for host in &members {
        host.wait_synchronized(10_000)?;
        readings += watch(host, Duration::from_secs(1))?.0;
    }
    Ok(format!(
        "{MEMBERS} members, {readings} readings, truth inside each, +-{} us at most before the root ended; bounds {:.0?} ms \
         after a daemon's first word, which includes measuring its counter; {}; {named}; {stranger}",
        widest / 2000,
        started,
        levels.join("; ")
    ))
}

/// From the daemon's first line in its log to its first bounds.
fn start_ms(host: &Host) -> anyhow::Result<f64> {
    let log = host.log_text();
    // 2026-11-28T13:56:37.487278Z
    let seconds = |word: &str| -> Option<f64> {
        let line = log.lines().find(|line| line.contains(word))?;
        let clock = line.split_once('T')?.1.split_once('Z')?.0;
        clock.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))
    };
    let (first, bounds) = (seconds("INFO timevisord"), seconds("this host has bounds"));
    let (first, bounds) = first.zip(bounds).with_context(|| format!("no such lines:\n{log}"))?;
    // Over midnight, too.
    Ok((bounds - first).rem_euclid(86_400.0) * 1e3)
}

/// What `timevisor cluster nodes` finds with the key, from a host that is none of them; without it, it says
/// what is missing.
fn nodes(host: &Host, key: &Path) -> anyhow::Result<String> {
    let seed = format!("127.0.0.1:{FIRST_PORT}");
    let ask = ["cluster", "nodes", "--timeline", "lab", "--host", &seed];
    let without = host.cli_output(&ask)?;
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    ensure!(!without.status.success() && said.contains("--key"), "{said}");
    let key = key.to_str().context("a path of UTF-8")?;
    let mut bounded = 0;
    host.wait_until("all hosts are found", |host| {
        let found = host.json(&[&ask[..], &["--key", key]].concat())?;
        let nodes = found.as_array().context("no list")?;
        bounded = nodes.iter().filter(|node| node["status"] == "bounded").count();
        Ok(bounded > usize::from(MEMBERS))
    })?;
    Ok(format!("`cluster nodes --key` finds {bounded} hosts"))
}

/// A host that the root does not answer is told what is wrong.
fn refused(ctx: &Context, name: &str, lines: &str, reason: &str) -> anyhow::Result<String> {
    let mut host = Host::further(ctx, name)?;
    host.start(lines)?;
    let mut told = String::new();
    host.wait_until("the seed has refused", |host| {
        told = detail(host)?;
        Ok(told.contains(reason))
    })?;
    let status = host.json(&["status"])?;
    ensure!(status["clock"]["half_width_ns"].is_null(), "bounds of nothing: {status}");
    Ok(told)
}

/// What `status` says of the reference.
pub(super) fn detail(host: &Host) -> anyhow::Result<String> {
    let status = host.json(&["status"])?;
    let row = status["references"].get(0).context("no reference")?;
    let detail = row["detail"].as_str().context("no detail")?;
    Ok(row["stratum"].as_u64().map_or(detail.to_owned(), |n| format!("stratum {n}, {detail}")))
}

/// Readings with the truth inside, and the widest of them, ns.
pub(super) fn watch(host: &Host, span: Duration) -> anyhow::Result<(u64, i64)> {
    let page = HostPage::open(host.directory())?;
    let (mut count, mut widest) = (0, 0);
    let end = Instant::now() + span;
    while Instant::now() < end {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(2));
        // CLOCK_REALTIME was read between two counter values: it fits the bounds at both.
        let moment = bracket(page.counter(), 3);
        let (before, after) = (page.convert(moment.before)?, page.convert(moment.after)?);
        ensure!(before.has_estimate(), "a member forgot the time");
        let tai = i64::from(before.tai_offset().context("no TAI - UTC")?) * 1_000_000_000;
        let truth = moment.realtime.floor_nanos() + tai;
        let (earliest, latest) = (before.earliest.floor_nanos(), after.latest.ceil_nanos());
        ensure!(
            earliest <= truth && truth <= latest + 1,
            "truth {truth} is not in {earliest}..{latest}: {before:?}"
        );
        count += 1;
        widest = widest.max(latest - earliest);
    }
    ensure!(count > 50, "only {count} readings");
    Ok((count, widest))
}
