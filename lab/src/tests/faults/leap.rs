//! The leap second table: expired, overridden, replaced.

use std::fs;

use anyhow::ensure;
use timevisor_time::leap::SYSTEM_PATH;

use crate::command;
use crate::host::{Host, mentions};
use crate::ntp_impostor::Impostor;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference, reference_row};

/// 2017-01-01 and a second later, in NTP seconds: the most recent leap second so far, and an expiry
/// date long past.
const EXPIRED: &str = "#@ 3692217601\n3644697600 36\n3692217600 37\n";

pub(crate) fn leap(ctx: &Context) -> anyhow::Result<String> {
    let table = ctx.path("leap-seconds.list");
    let server = Impostor::honest()?;
    let lines = |more: &str| {
        let table = table.display();
        format!("[clock]\nleap_table = \"{table}\"\n{more}\n{}", reference(&server.address()))
    };
    let mut host = Host::new(ctx)?;
    for (text, problem) in [
        (EXPIRED, &["expired", "upgrade tzdata", "clock.tai_offset"][..]),
        ("#@ 4000000000\n3692217600 many\n", &["line 2 is not understood", "reinstall tzdata"]),
        ("", &["reinstall tzdata"]),
    ] {
        fs::write(&table, text)?;
        host.start(&lines(""))?;
        host.wait_until("the table is the problem", |h| {
            Ok(reference_row(h, &server.address())?["status"] == "leap-table")
        })?;
        unknown(&host, problem)?;
        mentions(&host.log_text(), problem)?;
        host.kill();
    }
    fs::remove_file(&table)?;
    host.start(&lines(""))?;
    host.wait_until("the table is missed", |h| {
        Ok(reference_row(h, &server.address())?["status"] == "leap-table")
    })?;
    unknown(&host, &["cannot read", "install tzdata or set clock.tai_offset"])?;
    let vm = crate::tests::faults::common::complaint(&host, &["vm", "args", "--name", "web"])?;
    mentions(&vm, &["TAI - UTC is not known"])?;

    // The table appears, and a reload suffices.
    fs::copy(SYSTEM_PATH, &table)?;
    let pid = host.pid()?;
    command::run("kill", &["-HUP", &pid.to_string()])?;
    host.wait_synchronized(10_000)?;
    ensure!(host.pid()? == pid, "another daemon");
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;
    let status = host.json(&["status"])?;
    ensure!(status["leap_table"]["tai_offset"] == 37, "{}", status["leap_table"]);
    ensure!(status["leap_table"]["problem"].is_null(), "{}", status["leap_table"]);

    // It expires while the daemon runs: the bounds stay true and grow.
    fs::write(&table, EXPIRED)?;
    command::run("kill", &["-HUP", &pid.to_string()])?;
    host.wait_until("the expiry is told", |h| {
        Ok(h.json(&["status"])?["leap_table"]["problem"].is_string())
    })?;
    mentions(&host.cli(&["status"])?, &["TAI - UTC    unknown", "upgrade tzdata"])?;
    let after = honest_reading(&page)?;
    ensure!(
        after.has_estimate() && after.disruption == before.disruption,
        "what was known is gone"
    );
    host.kill();

    // The operator's setting replaces the table.
    host.start(&lines("tai_offset = 37"))?;
    host.wait_synchronized(10_000)?;
    honest_reading(&page)?;
    ensure!(host.json(&["status"])?["leap_table"]["tai_offset"] == 37, "the word is not taken");
    Ok("four useless tables told apart, no bounds from them; reload and tai_offset help".to_owned())
}

fn unknown(host: &Host, problem: &[&str]) -> anyhow::Result<()> {
    let status = host.json(&["status"])?;
    ensure!(status["clock"]["half_width_ns"].is_null(), "bounds from it: {}", status["clock"]);
    mentions(&status["leap_table"]["problem"].to_string(), problem)?;
    mentions(&status["clock"]["reason"].to_string(), problem)?;
    let page = HostPage::open(host.directory())?.read()?;
    ensure!(!page.has_estimate(), "a {} page tells the time", page.status().name());
    mentions(&host.cli(&["now"])?, &["the time is not known"])
}
