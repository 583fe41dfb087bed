//! The leap second table: expired, overridden, replaced.

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use timevisor_linux::clock::realtime;
use timevisor_time::leap::SYSTEM_PATH;

use crate::command;
use crate::host::{Host, mentions};
use crate::interrupt;
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
        host.wait_until("the log has it, too", |h| Ok(mentions(&h.log_text(), problem).is_ok()))?;
        host.kill();
    }
    fs::remove_file(&table)?;
    host.start(&lines(""))?;
    host.wait_until("the table is missed", |h| {
        Ok(reference_row(h, &server.address())?["status"] == "leap-table")
    })?;
    unknown(&host, &["cannot read", "install tzdata or set clock.tai_offset"])?;
    let vm = crate::tests::faults::common::complaint(
        &host,
        &["vm", "args", "--name", "web", "--memory", "128"],
    )?;
    mentions(&vm, &["TAI - UTC is not known"])?;

    // The table appears. No reload is needed.
    fs::copy(SYSTEM_PATH, &table)?;
    let pid = host.pid()?;
    host.wait_synchronized(10_000)?;
    ensure!(host.pid()? == pid, "another daemon");
    let page = HostPage::open(host.directory())?;
    honest_reading(&page)?;
    let status = host.json(&["status"])?;
    ensure!(status["leap_table"]["tai_offset"] == 37, "{}", status["leap_table"]);
    ensure!(status["leap_table"]["problem"].is_null(), "{}", status["leap_table"]);

    // An older one does not replace it, not even by a reload; this is told once.
    fs::write(&table, EXPIRED)?;
    for _ in 0..2 {
        command::run("kill", &["-HUP", &pid.to_string()])?;
    }
    host.wait_until("the refusal is told", |h| Ok(h.log_text().contains("stays in force")))?;
    let status = host.json(&["status"])?;
    ensure!(status["leap_table"]["problem"].is_null(), "{}", status["leap_table"]);
    let told = host.log_text().matches("stays in force").count();
    ensure!(told == 1, "told {told} times");
    host.kill();

    // A table that will expire is announced; the file that replaces it is read before the expiry
    // stops the clock.
    let end = realtime().secs() + 10;
    fs::write(&table, expiring_at(end))?;
    host.start(&lines(""))?;
    host.wait_synchronized(10_000)?;
    let parts = ["expires in 0 days", "upgrade tzdata", "clock.tai_offset"];
    mentions(&host.json(&["status"])?["leap_table"]["warning"].to_string(), &parts)?;
    mentions(&host.cli(&["status"])?, &parts)?;
    host.wait_until("the log has it, too", |h| Ok(mentions(&h.log_text(), &parts).is_ok()))?;
    let renewed = ctx.path("leap-seconds.list.new");
    fs::write(&renewed, expiring_at(end + 90 * 86_400))?;
    fs::rename(&renewed, &table)?;
    interrupt::sleep(Duration::from_secs(u64::try_from(end - realtime().secs()).unwrap_or(0) + 3))?;
    let status = host.json(&["status"])?;
    ensure!(status["clock"]["status"] == "synchronized", "{}", status["clock"]);
    let leap = &status["leap_table"];
    ensure!(leap["problem"].is_null() && leap["warning"].is_null(), "{leap}");
    mentions(&host.log_text(), &["a new leap second table, valid until"])?;
    ensure!(!host.log_text().contains("expired"), "it was refused: {}", host.log_text());
    let page = HostPage::open(host.directory())?;
    honest_reading(&page)?;
    host.kill();

    // It expires while the daemon runs: the bounds stay true and grow.
    fs::write(&table, expiring_at(realtime().secs() + 8))?;
    host.start(&lines(""))?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    let known = honest_reading(&page)?;
    host.wait_until("the expiry is told", |h| {
        Ok(h.json(&["status"])?["leap_table"]["problem"].is_string())
    })?;
    mentions(&host.cli(&["status"])?, &["TAI - UTC    unknown", "upgrade tzdata"])?;
    let after = honest_reading(&page)?;
    ensure!(after.has_estimate() && after.disruption == known.disruption, "what was known is gone");
    host.kill();

    // The operator's setting replaces the table.
    host.start(&lines("tai_offset = 37"))?;
    host.wait_synchronized(10_000)?;
    honest_reading(&page)?;
    ensure!(host.json(&["status"])?["leap_table"]["tai_offset"] == 37, "the word is not taken");
    Ok("useless tables told apart, no bounds from them; a renewed one is read in time, an older one refused".to_owned())
}

/// A table of today that is valid until the POSIX second `end`.
fn expiring_at(end: i64) -> String {
    format!("#@ {}\n3644697600 36\n3692217600 37\n", end + 2_208_988_800)
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
