//! Migrations of one guest between two hosts, while it reads its page as fast as it can.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::counter::Tsc;

use super::pair::{Hosts, check};
use crate::client::{self, Client, Launch, Way, compare_many};
use crate::host::{Host, mentions};
use crate::interrupt::{self, Late};
use crate::migration::time_stamp;
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::truth::Truth;

/// Changes to the launch of the guest for stay `n`.
pub(crate) type Prepare<'a> = &'a dyn for<'l> Fn(usize, Launch<'l>) -> anyhow::Result<Launch<'l>>;
/// What to do with the guest on a host where it has just started to run, and after every move.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(usize, &Host, &mut Client) -> anyhow::Result<()>;

/// Makes the compiler infer that a closure is a [`Prepare`].
pub(crate) fn preparing<F>(prepare: F) -> F
where
    F: for<'l> Fn(usize, Launch<'l>) -> anyhow::Result<Launch<'l>>,
{
    prepare
}

/// A guest and its itinerary.
pub(crate) struct Course<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) hosts: &'a Hosts,
    pub(crate) way: Way,
    pub(crate) qemu: &'a Qemu,
    /// Distinguishes its names from those of other courses on these hosts.
    pub(crate) number: usize,
    pub(crate) moves: usize,
}

/// The result of one move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) reads: u64,
    pub(crate) unknown: u64,
    /// Time between the last valid reading before the move and the first one after it, by the
    /// guest's page.
    pub(crate) gap_ms: f64,
    /// The part of the gap that the guest's own counter counted.
    pub(crate) ran_us: f64,
    /// The larger error of those two readings.
    pub(crate) error_us: f64,
    pub(crate) half_width_us: f64,
    /// From the end of the migration to the resume: the time it takes to start the new page before
    /// the guest runs.
    pub(crate) held_ms: f64,
}

impl Course<'_> {
    fn name(&self, stay: usize) -> String {
        // Every stay has its own name: the last QEMU on a host may still exist.
        format!("guest{}-{stay}", self.number)
    }

    /// Boots the guest on the first host and moves it.
    pub(crate) fn travel(
        &self,
        prepare: Prepare<'_>,
        visit: Visit<'_>,
    ) -> anyhow::Result<Vec<Move>> {
        let hosts = &self.hosts.hosts;
        let (ctx, way, qemu) = (self.ctx, self.way, self.qemu);
        let mut done = Vec::new();
        let name = self.name(0);
        let mut here = prepare(0, Launch::new(ctx, &hosts[0], qemu, way, &name))?.start()?;
        here.guest.wait_ready()?;
        here.reader.ask("read")?;
        hosts[0].wait_vm(&here.name, "synchronized")?;
        visit(0, &hosts[0], &mut here)?;
        for n in 0..self.moves {
            interrupt::check()?;
            let (from, to) = (&hosts[n % 2], &hosts[(n + 1) % 2]);
            let name = self.name(n + 1);
            let uri =
                format!("unix:{}", to.directory().join(format!("{name}.migration")).display());
            let launch = Launch::new(ctx, to, qemu, way, &name).incoming(&uri);
            let mut there = prepare(n + 1, launch)?.start()?;
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
            visit(n + 1, to, &mut here)?;
        }
        Ok(done)
    }
}

pub(crate) fn text(moves: &[Move]) -> String {
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
         most {:.0}; error beside the gap at most {:.1} us, half-width at most {:.1} us; held back for its page {:.2} ms, at most {:.1}",
        moves.len(),
        sum(|m| m.reads),
        sum(|m| m.unknown),
        median(|m| m.gap_ms),
        most(|m| m.gap_ms),
        median(|m| m.ran_us),
        most(|m| m.ran_us),
        most(|m| m.error_us),
        most(|m| m.half_width_us),
        median(|m| m.held_ms),
        most(|m| m.held_ms)
    )
}

/// A VM that has left is not resumed here, even if it is added again in order to be resumed.
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

/// According to QEMU's own timestamps.
fn held_ms(there: &mut Client) -> anyhow::Result<f64> {
    let mut completed = None;
    loop {
        let event = there.guest.qmp().next_event(Duration::from_secs(10))?;
        match (event["event"].as_str(), event["data"]["status"].as_str()) {
            (Some("MIGRATION"), Some("completed")) => completed = Some(time_stamp(&event)?),
            (Some("RESUME"), _) => {
                let completed = completed.context("it was resumed before it had arrived")?;
                return Ok(time_stamp(&event)?.saturating_sub(completed).as_secs_f64() * 1e3);
            }
            _ => {}
        }
    }
}

/// Checks readings on the host where the guest is.
pub(crate) fn right(host: &Host, client: &mut Client) -> anyhow::Result<()> {
    if host.oscillator().is_none() {
        // Includes the reading of its driver.
        return compare_many(host, client, 10).map(drop);
    }
    let offset = client::offset(host, &client.name)?;
    for _ in 0..10 {
        let (reading, truth) = Truth::around(&Tsc::unchecked(), || client.reader.ask("read"))?;
        check(host, &truth, offset, &reading)?;
    }
    Ok(())
}

/// What a guest says of its journey after its arrival. If it says nothing yet, that is only late;
/// whatever it says is a finding.
pub(crate) fn report(there: &mut Client) -> anyhow::Result<Value> {
    let silent = |error: &anyhow::Error| {
        let io = error.root_cause().downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::WouldBlock)
    };
    let said = there.reader.answer();
    said.map_err(|error| if silent(&error) { error.context(Late) } else { error })
}

pub(crate) fn one_move(
    from: &Host,
    to: &Host,
    here: &mut Client,
    there: &mut Client,
    uri: &str,
) -> anyhow::Result<Move> {
    let old_offset = client::offset(from, &here.name)?;
    let (report, truth) = Truth::around(&Tsc::unchecked(), || {
        let begun = here.reader.ask("journey 1500")?;
        ensure!(begun["begun"] == true, "{begun}");
        std::thread::sleep(Duration::from_millis(200));
        let said = from.cli(&["vm", "migrate", &here.name, "--to", uri])?;
        mentions(&said, &["runs on the other host"])?;
        report(there)
    })?;
    let new_offset = client::offset(to, &there.name)?;
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads on the way: {report}");
    }
    let (before, after) = (&report["gap"]["before"], &report["gap"]["after"]);
    ensure!(before["disruption"] != after["disruption"], "the marker did not change: {report}");
    ensure!(after["status"] == "synchronized", "{report}");
    // The first valid time on the destination must contain the truth at that moment, and so must
    // the last one on the source.
    let (old, new) =
        (check(from, &truth, old_offset, before)?, check(to, &truth, new_offset, after)?);
    ensure!(from.vm(&here.name)?["status"] == "unknown", "the old page still tells the time");
    right(to, there)?;
    let estimate = |reading: &Value| reading["estimate_ns"].as_i64().context("no estimate");
    Ok(Move {
        reads: report["reads"].as_u64().unwrap_or(0),
        unknown: report["unknown"].as_u64().unwrap_or(0),
        gap_ms: (estimate(after)? - estimate(before)?) as f64 / 1e6,
        ran_us: report["gap"]["guest_us"].as_f64().context("no length")?,
        error_us: old.error_us.max(new.error_us),
        half_width_us: old.half_width_us.max(new.half_width_us),
        held_ms: held_ms(there)?,
    })
}
