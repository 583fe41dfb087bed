//! Servers that lie: as the only server, and as one of three.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_clock_page::ClockStatus;
use timevisor_protocols::ntp::{NtpShort, Packet};
use timevisor_time::Duration as Span;

use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::{Impostor, shifted};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reading_holds, reference, reference_row};

const SECOND: Span = Span::from_secs(1);

pub(crate) fn alone(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    host.start(&reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    honest_reading(&page)?;
    let mut told = Vec::new();
    for (from, to) in [(Span::ZERO, SECOND), (SECOND, Span::ZERO)] {
        let before = reading_holds(&page, from)?;
        server.lie(to);
        let (wide, rebuilt) = follow(&page, from, to).with_context(|| format!("a step to {to}"))?;
        ensure!(wide.disruption != before.disruption, "the step is no disruption");
        ensure!(rebuilt.disruption == wide.disruption, "rebuilding disrupts again");
        ensure!(wide.half_width() > SECOND.half(), "unreliable, but only +-{}", wide.half_width());
        ensure!(rebuilt.half_width() < SECOND.half(), "the bounds stay wide");
        told.push(format!("+-{} then +-{}", wide.half_width(), rebuilt.half_width()));
    }
    let status = host.json(&["status"])?;
    ensure!(status["clock"]["contradictions"] == 2, "{}", status["clock"]);
    let log = host.log_text();
    ensure!(log.matches("contradicts the bounds").count() == 2, "not in the log: {log}");
    forgotten(&mut host, &server, &page)?;
    Ok(format!("unreliable {}; not resumed from after kill -9", told.join(", ")))
}

/// A daemon that dies while its bounds are unreliable leaves nothing that the next one could take
/// for a fact.
fn forgotten(host: &mut Host, server: &Impostor, page: &HostPage) -> anyhow::Result<()> {
    server.lie(SECOND);
    let seen = interrupt::poll_until(Duration::from_secs(30), || {
        let reading = page.read()?;
        Ok((reading.status() == ClockStatus::Unreliable).then_some(reading))
    })?;
    let before = seen.context("it was never unreliable")?;
    host.kill();
    host.restart()?;
    let log = host.log_text();
    ensure!(log.contains("the clock starts from nothing"), "resumed from unreliable lines: {log}");
    ensure!(page.read()?.disruption != before.disruption, "a new beginning without a disruption");
    Ok(())
}

/// Reads until the page is synchronized to the new time. While it is unreliable, its bounds must
/// contain both times.
fn follow(
    page: &HostPage,
    from: Span,
    to: Span,
) -> anyhow::Result<(timevisor_clock_page::Reading, timevisor_clock_page::Reading)> {
    let mut wide = None;
    let rebuilt = interrupt::poll_until(Duration::from_secs(30), || {
        let reading = page.read()?;
        match (reading.status(), wide) {
            (ClockStatus::Unreliable, _) => {
                wide = Some(reading);
                // Another read: whatever the status is now, the bounds contain one of the times or
                // both.
                let next = page.read()?;
                if next.status() == ClockStatus::Unreliable {
                    holds_both(page, from, to)?;
                }
                Ok(None)
            }
            (ClockStatus::Synchronized, Some(_)) => Ok(Some(reading_holds(page, to)?)),
            (ClockStatus::Synchronized, None) => Ok(None),
            (other, _) => anyhow::bail!("the page became {}", other.name()),
        }
    })?;
    Ok((wide.context("it was never unreliable")?, rebuilt.context("it was not rebuilt")?))
}

fn holds_both(page: &HostPage, from: Span, to: Span) -> anyhow::Result<()> {
    let old = reading_holds(page, from);
    let new = reading_holds(page, to);
    // The bounds may be rebuilt in between; then only the new time counts, and the caller checks
    // that.
    if page.read()?.status() == ClockStatus::Unreliable {
        old.context("the old time is outside")?;
        new.context("the new time is outside")?;
    }
    Ok(())
}

/// Makes the server lie by `offset` and declare an error for the thread it runs in, because the
/// scheduler affects its stamps. A server that claimed to be exact would rightly be doubted now and
/// then on a busy machine, and two doubtful servers of three leave no majority.
fn be_off_by(server: &Impostor, offset: Span) {
    let root_dispersion = NtpShort::from_duration_ceil(Span::from_millis(1));
    server.become_one(move |answer| {
        vec![shifted(Packet { root_dispersion, ..answer }, offset).to_bytes().to_vec()]
    });
}

pub(crate) fn outvoted(ctx: &Context) -> anyhow::Result<String> {
    let servers = [Impostor::honest()?, Impostor::honest()?, Impostor::honest()?];
    servers.iter().for_each(|server| be_off_by(server, Span::ZERO));
    let lines: String = servers.iter().map(|s| reference(&s.address())).collect();
    let mut host = Host::new(ctx)?;
    host.start(&lines)?;
    host.wait_until("all three are heard", |h| {
        let status = h.json(&["status"])?;
        let rows = status["references"].as_array().context("no references")?;
        Ok(rows.iter().all(|row| row["accepted"].as_u64() > Some(2)))
    })?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;
    let mut reads = 0;
    // Each server lies in turn, including the one whose estimate is in use: ahead, then behind,
    // then honest again.
    for server in &servers {
        let name = server.address();
        for offset in [SECOND, -SECOND] {
            let contradictions = host.json(&["status"])?["clock"]["contradictions"].as_u64();
            be_off_by(server, offset);
            let mut named = 0;
            interrupt::poll_until(Duration::from_secs(30), || {
                for _ in 0..100 {
                    let reading = honest_reading(&page)?;
                    ensure!(
                        reading.status() == ClockStatus::Synchronized
                            && reading.disruption == before.disruption
                            && reading.half_width() < SECOND.half(),
                        "readers noticed the liar: {reading:?}"
                    );
                    reads += 1;
                }
                named += u32::from(reference_row(&host, &name)?["status"] == "falseticker");
                Ok((named > 20).then_some(()))
            })?
            .with_context(|| format!("{name} is not named a falseticker"))?;
            let counted = host.json(&["status"])?["clock"]["contradictions"].as_u64();
            ensure!(counted > contradictions, "the step was not counted");
        }
        be_off_by(server, Span::ZERO);
        // A server has no vote while its bounds are rebuilt, so the next one must not lie yet.
        let accepted =
            |h: &Host| Ok::<_, anyhow::Error>(reference_row(h, &name)?["accepted"].as_u64());
        let until = accepted(&host)?.map(|count| count + 40);
        host.wait_until("the liar repents", |h| {
            honest_reading(&page)?;
            let row = reference_row(h, &name)?["status"].clone();
            Ok((row == "reachable" || row == "selected") && accepted(h)? > until)
        })?;
    }
    let after = honest_reading(&page)?;
    ensure!(after.disruption == before.disruption, "the page was disrupted");
    Ok(format!("{reads} readings synchronized and true while one of three was off by a second"))
}
