//! AWS ClockBound's own clients read this host's clock. The lab's chronyd serves this machine's
//! CLOCK_REALTIME, so that the truth is read beside each answer. (Layout 2 needs a CLOCK_REALTIME that
//! Timevisor steers: the test `guest-clockbound` has one.)

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::clockbound::{Answers, PROGRAM, parse};
use crate::command;
use crate::host::{Host, mentions, ntp_reference};
use crate::interrupt;
use crate::scenario::Context;

const READINGS: u64 = 1000;
/// `clock.validity`: as long, a client believes a daemon that was killed.
const VALIDITY: Duration = Duration::from_secs(10);
/// Of so many answers in a hundred, lines of our page that were renewed meanwhile may be wider than the
/// client's older ones.
const CONTAINED_PERCENT: usize = 98;

pub(crate) fn clients(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let program = ctx.program(PROGRAM.0, PROGRAM.1)?;
    let mut host = Host::new(ctx)?;
    let directory = ctx.path("clockbound");
    let table = format!("[clockbound]\nenabled = true\ndirectory = \"{}\"\n", directory.display());
    host.start(&format!("{}{table}", ntp_reference(&server.address().ip().to_string())))?;
    host.wait_synchronized(200)?;
    let page = host.directory().join("clock");
    let ask = |count: u64| -> anyhow::Result<[Answers; 2]> {
        let mut command = Command::new(&program);
        command.arg(&directory).args([count.to_string(), "1000".to_owned()]).arg(&page);
        parse(&command::output(&mut command)?)
    };

    let [older, newer] = ask(READINGS)?;
    ensure!(newer.readings.len() as u64 == READINGS, "refused: {:?}", newer.refusals.first());
    for reading in &newer.readings {
        ensure!(reading.status == "Synchronized", "{reading:?}");
        let [before, after] = reading.realtime;
        ensure!(
            reading.earliest <= after && before <= reading.latest,
            "without the truth: {reading:?}"
        );
    }
    let contained = newer.readings.iter().filter(|reading| reading.contains_ours()).count();
    ensure!(
        contained * 100 >= newer.readings.len() * CONTAINED_PERCENT,
        "only {contained} answers contain what our reader says"
    );
    // Nobody but the lab's machine knows how this CLOCK_REALTIME is slewed.
    ensure!(
        older.readings.len() as u64 == READINGS
            && older.readings.iter().all(|reading| reading.status == "Unknown"),
        "layout 2: {:?}, {:?}",
        older.refusals.first(),
        older.readings.first()
    );

    let status = || -> anyhow::Result<String> {
        let [_, newer] = ask(1)?;
        Ok(newer.readings.first().map_or_else(String::new, |reading| reading.status.clone()))
    };
    host.kill();
    let killed = Instant::now();
    let patience = VALIDITY + Duration::from_secs(1);
    let told = interrupt::poll_until(patience, || Ok((status()? == "Unknown").then_some(())))?;
    ensure!(told.is_some(), "{patience:?} after kill -9 a client still says {}", status()?);
    let told = killed.elapsed();
    host.restart()?;
    host.wait_synchronized(200)?;
    let again =
        interrupt::poll_until(VALIDITY, || Ok((status()? == "Synchronized").then_some(())))?;
    ensure!(again.is_some(), "after the restart a client says {}", status()?);
    host.terminate()?;
    ensure!(status()? == "Unknown", "after the daemon's end a client says {}", status()?);

    let warned = another_writer(&mut host, &directory.join("shm1"))?;
    std::fs::remove_dir_all(&directory)?;
    let half = newer.readings.iter().map(crate::clockbound::Reading::half_ns).max().unwrap_or(0);
    Ok(format!(
        "{READINGS} answers of clock-bound 3, truth inside every time, {contained} contain what our reader says; half-width \
         up to {:.1} us; unknown {:.1} s after kill -9; {warned}; a call takes {} ns (layout 2: {} ns)",
        half as f64 / 1000.0,
        told.as_secs_f64(),
        newer.speed_ns.unwrap_or(0),
        older.speed_ns.unwrap_or(0),
    ))
}

/// ClockBound's daemon takes no lock; its marks are noticed, and its segment is left to it.
fn another_writer(host: &mut Host, segment: &Path) -> anyhow::Result<&'static str> {
    host.restart()?;
    host.wait_synchronized(200)?;
    let file = std::fs::OpenOptions::new().write(true).open(segment)?;
    let marks = [44u16, 46, 48];
    let found = interrupt::poll_until(Duration::from_secs(10), || {
        for mark in marks {
            file.write_all_at(&mark.to_ne_bytes(), 14)?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(host.log_text().contains("another program writes").then_some(()))
    })?;
    ensure!(found.is_some(), "the daemon does not notice another writer:\n{}", host.log_text());
    mentions(&host.log_text(), &["systemctl disable --now clockbound"])?;
    host.terminate()?;
    Ok("another writer is left alone")
}
