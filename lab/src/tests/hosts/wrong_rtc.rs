//! A machine whose battery-backed clock is years off. lab/kernel-clock/wrong_rtc.c shifts
//! CLOCK_REALTIME in the daemon only; the servers tell this machine's time.

use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;
use timevisor_linux::clock::realtime;

use crate::command::{self, Tethered};
use crate::host::{Host, mentions};
use crate::netns::Namespace;
use crate::ntp_impostor::Impostor;
use crate::programs;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference, reference_row, start_through};
use crate::tests::hosts::nts::{Bench, FOREVER};

/// 1970, 2019, 2036 (NTP's era 1), 2099, and 2163 (era 2): POSIX seconds.
const YEARS: &[(u32, i64)] = &[
    (1970, 5),
    (2019, 1_546_300_800),
    (2036, 2_088_000_000),
    (2099, 4_100_000_000),
    (2163, 6_100_000_000),
];

const SYSTEM: &str = "[[reference]]\ntype = \"system\"\nassumed_max_error = \"10ms\"\n";

fn library(ctx: &Context) -> anyhow::Result<PathBuf> {
    let library = ctx.path("wrong_rtc.so");
    let source = programs::workspace()?.join("lab/kernel-clock/wrong_rtc.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    command::output(compiler.arg(&library).arg(source))?;
    Ok(library)
}

/// A daemon whose CLOCK_REALTIME says `posix`.
fn start(ctx: &Context, host: &Host, posix: i64, lines: &str) -> anyhow::Result<Tethered> {
    let preload = format!("LD_PRELOAD={}", library(ctx)?.display());
    let shift = format!("SHIFT_S={}", posix - realtime().secs());
    start_through(ctx, host, &["env", &preload, &shift], lines)
}

pub(crate) fn eras(ctx: &Context) -> anyhow::Result<String> {
    let servers = [Impostor::honest()?, Impostor::honest()?];
    let lines: String = servers.iter().map(|server| reference(&server.address())).collect();
    // Without a leap second table, the wrong clock is a reference like any other, and answers first.
    let stated = "[clock]\ntai_offset = 37\n";
    let runs = YEARS.iter().flat_map(|year| [("", *year), (stated, *year)]);
    for (clock, (year, posix)) in runs {
        let host = Host::preloadable(ctx)?;
        let mut daemon = start(ctx, &host, posix, &format!("{clock}{SYSTEM}{lines}"))?;
        host.wait_synchronized(10_000)?;
        host.wait_until("the wrong clock is outvoted", |h| {
            let row = reference_row(h, "system")?;
            Ok(row["status"] == "falseticker")
        })?;
        let page = HostPage::open(host.directory())?;
        let reading = honest_reading(&page)?;
        ensure!(reading.tai_offset() == Some(37), "{year}: TAI - UTC {:?}", reading.tai_offset());
        let leap = host.json(&["status"])?["leap_table"].clone();
        ensure!(leap["tai_offset"] == 37 && leap["problem"].is_null(), "{year}: {leap}");
        mentions(&host.cli(&["now"])?, &["synchronized", "TAI - 37 s"])?;
        daemon.check_alive()?;
    }
    Ok(format!("right and synchronized with CLOCK_REALTIME in {} wrong years", YEARS.len()))
}

pub(crate) fn certificates(ctx: &Context) -> anyhow::Result<String> {
    let bench = Bench::new(ctx)?;
    let at = Namespace::create()?;
    let (lines, name) = (bench.lines(&at, FOREVER, "server")?, at.address().to_string());
    let _server = bench.chronyd(at, 123, "server", &lines)?;

    // Alone, it is refused with both times, once.
    let host = Host::preloadable(ctx)?;
    let alone = start(ctx, &host, 5, &bench.reference(&name))?;
    host.wait_until("the certificate is refused", |h| {
        Ok(reference_row(h, &name)?["detail"]
            .to_string()
            .contains("this machine's clock says 1970"))
    })?;
    let detail = reference_row(&host, &name)?["detail"].to_string();
    mentions(&detail, &["certificate is valid from", "date -s"])?;
    drop(alone);

    // With two plain servers it is accepted as soon as they have told the time.
    let servers = [Impostor::honest()?, Impostor::honest()?];
    let plain: String = servers.iter().map(|server| reference(&server.address())).collect();
    let host = Host::preloadable(ctx)?;
    let _daemon = start(ctx, &host, 5, &(bench.reference(&name) + &plain))?;
    host.wait_until("the certificate is valid now", |h| {
        Ok(reference_row(h, &name)?["accepted"].as_u64().unwrap_or(0) > 0)
    })?;
    host.wait_synchronized(10_000)?;
    honest_reading(&HostPage::open(host.directory())?)?;
    Ok("refused in 1970, accepted when two other servers had told the time".to_owned())
}
