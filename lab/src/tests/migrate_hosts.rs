//! A guest moves between two timevisords, each with its own server, run directory and name for it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::clock;
use super::faults::further_host;
use crate::chronyd::Chronyd;
use crate::client::{self, Client, Launch, Way};
use crate::experiments::truth::Truth;
use crate::host::{Host, mentions, ntp_reference};
use crate::interrupt;
use crate::qemu::Qemu;
use crate::reader::HostPage;
use crate::scenario::Context;

const KERNEL: &str = "trixie-backports";
/// There and back, twice.
const MOVES: usize = 4;

/// Two hosts on one machine: two daemons that know nothing of each other.
struct Hosts {
    hosts: [Host; 2],
    _servers: [Chronyd; 2],
}

impl Hosts {
    fn new(ctx: &Context) -> anyhow::Result<Self> {
        let servers = [ctx.chronyd("server-a")?, ctx.chronyd("server-b")?];
        let mut hosts = [further_host(ctx, "a")?, further_host(ctx, "b")?];
        for (host, server) in hosts.iter_mut().zip(&servers) {
            host.start(&ntp_reference(&server.address().ip().to_string()))?;
            host.wait_synchronized(200)?;
        }
        Ok(Self { hosts, _servers: servers })
    }
}

/// What one move came to.
#[derive(Debug, Clone, Copy)]
struct Move {
    reads: u64,
    unknown: u64,
    /// Between the last known reading before and the first one after, by the guest's page.
    gap_ms: f64,
    /// How much of that the guest's own counter counted.
    ran_us: f64,
    /// Of those two readings, the worse one.
    error_us: f64,
    half_width_us: f64,
}

pub(super) fn there_and_back(ctx: &Context) -> anyhow::Result<String> {
    let cases = every_way(ctx, MOVES)?;
    let told: Vec<String> =
        cases.iter().map(|(name, moves)| format!("{name}: {}", text(moves))).collect();
    Ok(told.join("; "))
}

/// Many moves, with a table and target/results/soak-migrate.json.
///
/// # Errors
/// As soon as a reading is wrong.
pub fn soak(ctx: &Context, moves: usize) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (name, moves) in every_way(ctx, moves)? {
        println!("{name}: {}", text(&moves));
        for (number, one) in moves.iter().enumerate() {
            rows.push(serde_json::json!({
                "delivery": name, "move": number + 1, "reads": one.reads, "unknown": one.unknown, "gap_ms": one.gap_ms,
                "ran_us": one.ran_us, "error_us": one.error_us, "half_width_us": one.half_width_us,
            }));
        }
    }
    crate::programs::write_result("soak-migrate", &rows)
}

fn every_way(ctx: &Context, moves: usize) -> anyhow::Result<Vec<(String, Vec<Move>)>> {
    let hosts = Hosts::new(ctx)?;
    let cases =
        [(Way::Vmclock, ctx.qemu_10()?), (Way::Nvdimm, ctx.qemu()?), (Way::Nvdimm, ctx.qemu_10()?)];
    let mut done = Vec::new();
    for (number, (way, qemu)) in cases.iter().enumerate() {
        let name =
            format!("{way:?} under QEMU {}.{}", qemu.version.0, qemu.version.1).to_lowercase();
        let moves =
            travel(ctx, &hosts.hosts, *way, qemu, number, moves).with_context(|| name.clone())?;
        done.push((name, moves));
    }
    Ok(done)
}

fn text(moves: &[Move]) -> String {
    let sorted = |of: fn(&Move) -> f64| {
        let mut values: Vec<f64> = moves.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |of| sorted(of)[moves.len() / 2];
    let most = |of| sorted(of)[moves.len() - 1];
    let sum = |of: fn(&Move) -> u64| moves.iter().map(of).sum::<u64>();
    format!(
        "{} moves, {} reads, none back, {} said unknown; gap {:.0} ms, at most {:.0}, of which the guest ran {:.0} us, at \
         most {:.0}; error beside the gap at most {:.1} us, half-width at most {:.1} us",
        moves.len(),
        sum(|m| m.reads),
        sum(|m| m.unknown),
        median(|m| m.gap_ms),
        most(|m| m.gap_ms),
        median(|m| m.ran_us),
        most(|m| m.ran_us),
        most(|m| m.error_us),
        most(|m| m.half_width_us)
    )
}

fn travel(
    ctx: &Context,
    hosts: &[Host; 2],
    way: Way,
    qemu: &Qemu,
    case: usize,
    moves: usize,
) -> anyhow::Result<Vec<Move>> {
    let mut done = Vec::new();
    let name = |n: usize| format!("guest{case}-{n}");
    let mut here = client::boot(ctx, &hosts[0], KERNEL, qemu, way, &name(0), "tai")?;
    hosts[0].wait_vm(&here.name, "synchronized")?;
    for n in 0..moves {
        interrupt::check()?;
        let (from, to) = (&hosts[n % 2], &hosts[(n + 1) % 2]);
        // Every stay has its own name: the last QEMU on a host may still be there.
        let uri =
            format!("unix:{}", to.directory().join(format!("{}.migration", name(n + 1))).display());
        let mut there = Launch::new(ctx, to, qemu, way, &name(n + 1)).incoming(&uri).start()?;
        to.wait_until("the destination to await it", |h| {
            Ok(h.vm(&there.name)?["migration"] == "incoming")
        })?;
        ensure!(
            to.vm(&there.name)?["status"] != "synchronized",
            "a page without a VM tells the time"
        );
        let one = one_move(from, to, &mut here, &mut there, &uri);
        done.push(one.with_context(|| format!("move {}", n + 1))?);
        if n == 0 {
            stays_away(from, &mut here)?;
        }
        here.guest.kill();
        here = there;
    }
    Ok(done)
}

/// A VM that has left is not run a second time, even when somebody has it added anew to be resumed.
fn stays_away(from: &Host, here: &mut Client) -> anyhow::Result<()> {
    from.cli(&["vm", "remove", &here.name])?;
    let qmp = from.directory().join(format!("{}.qmp", here.name)).display().to_string();
    from.cli(&["vm", "add", "--qmp", &qmp, "--name", &here.name, "--resume"])?;
    from.wait_until("the daemon to see that it has left", |h| {
        Ok(h.vm(&here.name)?["migration"] == "left")
    })?;
    let state = here.guest.qmp().run("query-status")?;
    ensure!(state["status"] == "postmigrate", "it runs twice: {state}");
    Ok(())
}

fn one_move(
    from: &Host,
    to: &Host,
    here: &mut Client,
    there: &mut Client,
    uri: &str,
) -> anyhow::Result<Move> {
    let page = HostPage::open(to.directory())?;
    let old_offset = client::offset(from, &here.name)?;
    let (report, truth) = Truth::around(page.counter(), || {
        let begun = here.reader.ask("journey 1500")?;
        ensure!(begun["begun"] == true, "{begun}");
        std::thread::sleep(Duration::from_millis(200));
        let said = from.cli(&["vm", "migrate", &here.name, "--to", uri])?;
        mentions(&said, &["runs on the other host"])?;
        there.reader.answer()
    })?;
    let new_offset = client::offset(to, &there.name)?;
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads on the way: {report}");
    }
    let (before, after) = (&report["gap"]["before"], &report["gap"]["after"]);
    ensure!(before["disruption"] != after["disruption"], "the marker did not change: {report}");
    ensure!(after["status"] == "synchronized", "{report}");
    let whole = |value: &Value, name: &str| {
        value[name].as_i64().with_context(|| format!("no {name}: {value}"))
    };
    let (mut error_us, mut half_width_us) = (0.0_f64, 0.0_f64);
    // The first known time over there holds what was true then, and so did the last one over here.
    for (reading, offset) in [(before, old_offset), (after, new_offset)] {
        let guest = reading["counter"].as_u64().context("no counter")?;
        let tai = whole(reading, "tai_offset")? * 1_000_000_000;
        let true_time = truth.at(guest.wrapping_add_signed(-offset)) + tai;
        let (earliest, latest) = (whole(reading, "earliest_ns")?, whole(reading, "latest_ns")?);
        let slack = truth.uncertainty_ns();
        ensure!(
            earliest <= true_time + slack && true_time - slack <= latest,
            "true was {true_time}, [{}, {}] from there: {report}",
            earliest - true_time,
            latest - true_time
        );
        let error = (whole(reading, "estimate_ns")? - true_time).abs();
        error_us = error_us.max(error as f64 / 1e3);
        half_width_us = half_width_us.max((latest - earliest) as f64 / 2e3);
    }
    ensure!(from.vm(&here.name)?["status"] == "unknown", "the old page still tells the time");
    clock::compare_many(to, there, 10)?;
    let gap = whole(after, "estimate_ns")? - whole(before, "estimate_ns")?;
    Ok(Move {
        reads: report["reads"].as_u64().unwrap_or(0),
        unknown: report["unknown"].as_u64().unwrap_or(0),
        gap_ms: gap as f64 / 1e6,
        ran_us: report["gap"]["guest_us"].as_f64().context("no length")?,
        error_us,
        half_width_us,
    })
}

/// Nothing must come of a migration that does not come about.
pub(super) fn stays(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let [a, b] = &hosts.hosts;
    let qemu = ctx.qemu_10()?;
    let mut guest = client::boot(ctx, a, KERNEL, &qemu, Way::Vmclock, "guest", "tai")?;
    a.wait_vm("guest", "synchronized")?;
    let mut check = |what: &str, host: &Host| -> anyhow::Result<()> {
        host.wait_vm("guest", "synchronized")?;
        clock::compare_many(host, &mut guest, 5).with_context(|| format!("after {what}")).map(drop)
    };
    let refused = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = a.cli_output(&[&["vm", "migrate", "guest"], arguments].concat())?;
        ensure!(!output.status.success(), "{arguments:?} succeeded: {output:?}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };

    let nobody = format!("unix:{}", b.directory().join("nobody").display());
    mentions(&refused(&["--to", &nobody])?, &["stays here", "failed"])?;
    check("nobody listened", a)?;
    mentions(&refused(&["--to", "nonsense"])?, &["stays here", "failed"])?;
    check("nonsense", a)?;
    mentions(
        &a.cli_output(&["vm", "migrate", "other", "--to", &nobody])
            .map(|o| String::from_utf8_lossy(&o.stderr).into_owned())?,
        &["there is no VM other", "timevisor vm list"],
    )?;

    // Another machine type cannot take it: it fails on the way, when its memory is there already.
    let uri = format!("unix:{}", b.directory().join("m").display());
    let other = Launch::new(ctx, b, &qemu, Way::Nvdimm, "other").incoming(&uri).start()?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("other")?["migration"] == "incoming"))?;
    mentions(&refused(&["--to", &uri])?, &["stays here", "failed"])?;
    check("the destination was another machine", a)?;
    drop(other);

    // Slowly enough to be cancelled.
    guest_bandwidth(&mut guest, 100_000)?;
    let there = Launch::new(ctx, b, &qemu, Way::Vmclock, "late").incoming(&uri).start()?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("late")?["migration"] == "incoming"))?;
    mentions(
        &refused(&["--to", &uri, "--timeout", "1"])?,
        &["not arrived within 1 s", "cancelled"],
    )?;
    a.wait_until("the end of it", |h| {
        Ok(h.vm("guest")?["migration"].as_str().is_some_and(|m| m.starts_with("failed: cancelled")))
    })?;
    drop(there);
    a.wait_vm("guest", "synchronized")?;
    clock::compare_many(a, &mut guest, 5).context("after it was cancelled")?;
    Ok("nobody there, nonsense, another machine, cancelled: the VM stays, and its page is right"
        .to_owned())
}

fn guest_bandwidth(guest: &mut Client, bytes_per_second: u64) -> anyhow::Result<()> {
    let limit = serde_json::json!({"max-bandwidth": bytes_per_second});
    guest.guest.qmp().execute("migrate-set-parameters", &limit).map(drop)
}
