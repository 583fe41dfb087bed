//! The ages of a container that CRIU moves between two "hosts": two timevisords in one VM, each
//! with its own page.
//!
//! Debian 12's CRIU needs its kernel, 6.1. The two "hosts" share a counter, so this test shows
//! three things: the restored mapping is the other page, the age continues from its birth, and
//! which part of the blackout the kernel's clock leaves out.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::guest::Guest;
use crate::interrupt;
use crate::scenario::Context;

/// Everything in an emulated guest takes several times as long.
const PATIENCE: Duration = Duration::from_secs(120);
const MEMORY_MIB: u32 = 1024;
/// The time between the checkpoint and the restore.
const AWAY: Duration = Duration::from_secs(3);
/// As often as in the paper.
const MOVES: usize = 200;
/// Readings on a host before the next move, at least.
const READINGS_BETWEEN: usize = 10;

pub(crate) fn container(ctx: &Context) -> anyhow::Result<String> {
    let mut guest = begin(ctx)?;
    let before = wait_lines(&mut guest, 20)?;
    ensure!(before > 0, "no ages");

    let first = now(&mut guest)?;
    checkpoint(&mut guest)?;
    let gone = now(&mut guest)?;
    let last_before = lines(&mut guest)?;
    interrupt::sleep(AWAY)?;
    let back = now(&mut guest)?;
    restore(&mut guest, "b")?;
    let restored = now(&mut guest)?;
    wait_lines(&mut guest, last_before + 20)?;

    let ages = ages_from(&mut guest, 1)?;
    judge(&ages, last_before, (first, gone, back, restored))
}

/// As the RVEC paper has it (section 5.2): the container's ages are read all the time while it moves back and
/// forth, `MOVES` times.
pub(crate) fn often(ctx: &Context) -> anyhow::Result<String> {
    let moves: usize = match std::env::var("MOVES") {
        Ok(text) => text.parse().with_context(|| format!("MOVES={text}: a number"))?,
        Err(_) => MOVES,
    };
    let mut guest = begin(ctx)?;
    wait_lines(&mut guest, 20)?;
    let (mut taken, mut judge, mut widest_ns) = (0, None::<Judge>, 0);
    let mut errors = Vec::new();
    for turn in 0..=moves {
        for line in &ages_from(&mut guest, taken + 1)? {
            taken += 1;
            if let Some(error) = line["error"].as_str() {
                errors.push(error.to_owned());
                continue;
            }
            let judge = match &mut judge {
                Some(judge) => judge,
                none => none.insert(Judge::new(line)?),
            };
            let counts = judge.take(line)?;
            widest_ns = widest_ns.max(counts.2 - counts.0);
        }
        if turn == moves {
            break;
        }
        if turn % 20 == 0 {
            ctx.log(&format!("{turn} of {moves} moves, {taken} readings"));
        }
        checkpoint(&mut guest)?;
        let seen = lines(&mut guest)?;
        restore(&mut guest, if turn % 2 == 0 { "b" } else { "a" })?;
        wait_lines(&mut guest, seen + READINGS_BETWEEN)?;
    }
    ensure!(errors.len() * 100 <= taken, "{} of {taken} failed: {errors:?}", errors.len());
    Ok(format!(
        "{moves} moves between two hosts, {} readings of both ages: each later than the one before, each holding the truth \
         (known within {:.1} ms at worst); {} failed with an error{}",
        taken - errors.len(),
        widest_ns as f64 / 1e6,
        errors.len(),
        errors.first().map_or(String::new(), |first| format!(", the first of them: {first}"))
    ))
}

/// Two hosts, and the container on the first one.
fn begin(ctx: &Context) -> anyhow::Result<Guest> {
    let mut guest = boot(ctx)?;
    guest.sh("sh /etc/criu.sh setup")?;
    for host in ["a", "b"] {
        guest.sh(&format!("timevisord --config /etc/{host}.toml >/run/{host}.log 2>&1 &"))?;
        synchronized(&mut guest, host)?;
    }
    guest.sh("sh /etc/criu.sh runc --log /run/runc.log run -d --bundle /a lab >/dev/null 2>&1 || { cat /run/runc.log; false; }")?;
    Ok(guest)
}

/// Takes the container off its host.
fn checkpoint(guest: &mut Guest) -> anyhow::Result<()> {
    guest.sh("rm -rf /box/image /box/tmp/dump; mkdir -p /box/image")?;
    let command =
        "runc --log /run/runc.log checkpoint --image-path /image --work-path /tmp/dump lab";
    criu(guest, command, "/box/tmp/dump/dump.log")
}

/// Goes on with it on a host.
fn restore(guest: &mut Guest, host: &str) -> anyhow::Result<()> {
    guest.sh("rm -rf /box/tmp/restore")?;
    let command = format!(
        "runc --log /run/runc.log restore -d --image-path /image --work-path /tmp/restore --bundle /{host} lab"
    );
    criu(guest, &command, "/box/tmp/restore/restore.log")
}

/// The lines from this one on, counted from 1.
fn ages_from(guest: &mut Guest, first: usize) -> anyhow::Result<Vec<Value>> {
    let text = guest.sh(&format!("tail -n +{first} /box/out/ages"))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn boot(ctx: &Context) -> anyhow::Result<Guest> {
    let kernel = ctx.kernel("bookworm")?;
    let mut image = ctx.image(&kernel)?;
    // Kernel modules that CRIU needs before it does anything else.
    for module in
        ["nf_tables", "veth", "unix_diag", "tcp_diag", "udp_diag", "netlink_diag", "af_packet_diag"]
    {
        image = image.module(module);
    }
    for (package, program) in [
        ("timevisord", "timevisord"),
        ("timevisor", "timevisor"),
        ("timevisor-lab-guest", "lab-age"),
    ] {
        image = image.program(&ctx.program(package, program)?);
    }
    for program in ["/usr/sbin/runc", "/usr/sbin/criu", "/bin/tar"] {
        image = image.dynamic_program(Path::new(program))?;
    }
    let mut files = vec![("/etc/criu.sh", include_str!("../../criu.sh").to_owned())];
    // The reference is the guest's CLOCK_REALTIME, which nobody steers.
    let config = |host: &str| {
        format!(
            "run_directory = \"/run/{host}\"\ncounter = \"monotonic-raw\"\n\
             [clock]\ntai_offset = 37\n[guests]\ndiscover = false\n\
             [[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\n"
        )
    };
    files.extend([("/etc/a.toml", config("a")), ("/etc/b.toml", config("b"))]);
    for (to, text) in files {
        let from = ctx.path(&to.trim_start_matches('/').replace('/', "-"));
        std::fs::write(&from, text)?;
        image = image.file(from, to, 0o644);
    }
    let mut guest = ctx.guest(&ctx.qemu()?, &kernel, &image)?.memory_mib(MEMORY_MIB).start()?;
    guest.wait_ready()?;
    Ok(guest)
}

fn synchronized(guest: &mut Guest, host: &str) -> anyhow::Result<()> {
    let mut last = String::new();
    let found = interrupt::poll_until(PATIENCE, || {
        last = guest.sh(&format!("timevisor --run-directory /run/{host} status 2>&1 || true"))?;
        Ok(last.contains("synchronized").then_some(()))
    })?;
    let log = guest.sh(&format!("tail -n 5 /run/{host}.log"))?;
    found.with_context(|| format!("host {host} is not synchronized: {last}\n{log}"))
}

/// Runs runc with CRIU, and shows its log if that fails.
fn criu(guest: &mut Guest, command: &str, log: &str) -> anyhow::Result<()> {
    let run = format!("sh /etc/criu.sh {command} >/dev/null 2>&1 && echo done || true");
    if guest.sh(&run)?.trim() != "done" {
        let log = guest.sh(&format!("cat /run/runc.log; grep -E \"Error|Warn\" {log} || true"))?;
        bail!("{command}: {log}");
    }
    Ok(())
}

/// The guest's CLOCK_REALTIME, ns.
fn now(guest: &mut Guest) -> anyhow::Result<i64> {
    let text = guest.sh("adjtimex | grep -E 'tv_sec|tv_usec' | grep -oE '[0-9]+$'")?;
    let mut numbers = text.lines().map(|line| line.trim().parse::<i64>());
    let (Some(Ok(seconds)), Some(Ok(micros))) = (numbers.next(), numbers.next()) else {
        bail!("adjtimex said {text:?}");
    };
    Ok(seconds * 1_000_000_000 + micros * 1_000)
}

fn lines(guest: &mut Guest) -> anyhow::Result<usize> {
    Ok(guest.sh("cat /box/out/ages 2>/dev/null | wc -l")?.trim().parse()?)
}

fn wait_lines(guest: &mut Guest, wanted: usize) -> anyhow::Result<usize> {
    let found = interrupt::poll_until(PATIENCE, || {
        let there = lines(guest)?;
        Ok((there >= wanted).then_some(there))
    })?;
    found.with_context(|| format!("less than {wanted} lines of ages"))
}

/// Bounds of one age in one line, ns.
fn limits(line: &Value, which: &str) -> anyhow::Result<(i64, i64, i64)> {
    let age = &line[which];
    ensure!(age["known"] == true && age["status"] == "synchronized", "{line}");
    let ns = |name: &str| age[name].as_i64().with_context(|| format!("no {name}: {line}"));
    Ok((ns("earliest_ns")?, ns("estimate_ns")?, ns("latest_ns")?))
}

/// Compares ages with the truth, and with those before.
struct Judge {
    /// The true birth is between these.
    birth: (i64, i64),
    /// Of both ages.
    previous: (i64, i64),
}

impl Judge {
    /// One for the ages whose first line this is, which it is yet to be given.
    fn new(first: &Value) -> anyhow::Result<Self> {
        let (began, counted) = (truth(first)?, limits(first, "counts")?);
        Ok(Self { birth: (began.0 - counted.2, began.1 - counted.0), previous: (0, 0) })
    }

    /// Returns the bounds of the age that counts everything.
    fn take(&mut self, line: &Value) -> anyhow::Result<(i64, i64, i64)> {
        let (times, counts, runs) = (truth(line)?, limits(line, "counts")?, limits(line, "runs")?);
        let age = (times.0 - self.birth.1, times.1 - self.birth.0);
        ensure!(counts.0 <= age.1 && age.0 <= counts.2, "{line}: the age is within {age:?}");
        let previous = self.previous;
        ensure!(counts.1 > previous.0 && runs.1 > previous.1, "{line}: back, from {previous:?}");
        self.previous = (counts.1, runs.1);
        Ok(counts)
    }
}

/// CLOCK_REALTIME before and after a line's readings.
fn truth(line: &Value) -> anyhow::Result<(i64, i64)> {
    let ns = |name: &str| line[name].as_i64().context("no time");
    Ok((ns("before_ns")?, ns("after_ns")?))
}

fn judge(ages: &[Value], before: usize, moments: (i64, i64, i64, i64)) -> anyhow::Result<String> {
    let (asked, gone, back, restored) = moments;
    let (first, last) = (ages.first().context("no lines")?, ages.last().context("no lines")?);
    let mut judge = Judge::new(first)?;
    for line in ages {
        judge.take(line)?;
    }
    // Nothing ran between `gone` and `back`; the container ran before `asked` and after `restored`.
    let (at_most, at_least) = (restored - asked, back - gone);
    let (counts, runs) = (limits(last, "counts")?, limits(last, "runs")?);
    let excluded = (counts.0 - runs.2, counts.1 - runs.1, counts.2 - runs.0);
    ensure!(
        excluded.0 <= at_most && at_least <= excluded.2,
        "excluded {excluded:?} ns; it was away for {at_least} to {at_most}"
    );
    let after = &ages[before];
    let ms = |ns: i64| ns as f64 / 1e6;
    Ok(format!(
        "{} readings, none back; the first one after the restore holds the truth (known within {:.1} us); away for {:.0} to {:.0} ms, \
         of which the other age leaves out {:.0} (known within {:.1} ms)",
        ages.len(),
        (limits(after, "counts")?.2 - limits(after, "counts")?.0) as f64 / 1e3,
        ms(at_least),
        ms(at_most),
        ms(excluded.1),
        ms(runs.2 - runs.0),
    ))
}
