//! The audit log of a real timevisord with a real chronyd: what it records, and what survives.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::clock::realtime;

use crate::chronyd::Chronyd;
use crate::command;
use crate::host::{Host, mentions, ntp_reference};
use crate::interrupt;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::refusal;

/// A file system of its own, so that it can be full.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> anyhow::Result<Self> {
        let path = at.join("disk");
        fs::create_dir_all(&path)?;
        let target = path.to_str().context("a path of UTF-8")?;
        command::run("mount", &["-t", "tmpfs", "-o", "size=1m", "audit-test", target])?;
        Ok(Self(path))
    }

    fn log(&self) -> PathBuf {
        self.0.join("audit")
    }

    /// Leaves no byte.
    fn fill(&self) -> anyhow::Result<()> {
        let mut file = fs::File::create(self.0.join("filler"))?;
        while file.write(&[0; 4096]).is_ok() {}
        Ok(())
    }

    fn make_room(&self) -> anyhow::Result<()> {
        Ok(fs::remove_file(self.0.join("filler"))?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let path = self.0.to_string_lossy().into_owned();
        if let Err(error) = command::run("umount", &["-l", &path]) {
            eprintln!("{path} stays mounted: {error:#}");
        }
    }
}

fn files(log: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(log)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "jsonl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// All events of a log that can be read.
fn events(log: &Path) -> anyhow::Result<Vec<Value>> {
    let mut events = Vec::new();
    for path in files(log)? {
        let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
        events.extend(text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()));
    }
    Ok(events)
}

fn wait_for(
    host: &Host,
    log: &Path,
    what: &str,
    is_it: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    host.wait_until(&format!("the log has {what}"), |_| Ok(events(log)?.iter().any(&is_it)))
}

fn has_status(status: &'static str) -> impl Fn(&Value) -> bool {
    move |event| event["event"] == "status" && event["status"] == status
}

fn audit(host: &Host, arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let out = host.cli_output(&[&["audit"], arguments].concat())?;
    let text = [out.stdout, out.stderr].concat();
    Ok((out.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

fn verify(host: &Host, log: &Path) -> anyhow::Result<(Option<i32>, String)> {
    audit(host, &["verify", "--directory", log.to_str().context("a path of UTF-8")?])
}

pub(crate) fn audit_log(ctx: &Context) -> anyhow::Result<String> {
    let scratch = scratch::directory()?;
    let disk = SmallDisk::mount(scratch.path())?;
    let log = disk.log();
    let mut server = Some(Chronyd::start("audit", ctx.log_dir())?);
    let address = server.as_ref().map(|s| s.address().to_string()).unwrap_or_default();
    let config = format!(
        "[clock]\nstale_after = \"3s\"\n[guests]\ndiscover = false\n[audit]\nenabled = true\ndirectory = \"{}\"\n\
         rotate = \"64K\"\n{}",
        log.display(),
        ntp_reference(&address)
    );
    let mut host = Host::new(ctx)?;
    host.start(&config)?;
    host.wait_synchronized(50_000)?;
    wait_for(&host, &log, "the synchronization", has_status("synchronized"))?;

    // Another daemon, with another run directory, cannot write there.
    let other = Host::further(ctx, "other")?;
    mentions(&refusal(ctx, &other, &config)?, &["audit log", "set another audit.directory"])?;

    // The server ends, and comes back.
    let namespace = server.take().context("no server")?.stop();
    wait_for(&host, &log, "the end of the server", has_status("freerunning"))?;
    let again = Chronyd::start_in(namespace, 123, "again", ctx.log_dir(), "local stratum 1\n")?;
    let back =
        |event: &Value| has_status("synchronized")(event) && event["before"] == "freerunning";
    wait_for(&host, &log, "its return", back)?;

    // A kill in the middle of a line.
    let before_kill = events(&log)?.len();
    host.kill();
    let newest = files(&log)?.pop().context("no file")?;
    OpenOptions::new().append(true).open(&newest)?.write_all(b"{\"seq\":12,\"prev\":\"3f")?;
    let (code, said) = verify(&host, &log)?;
    ensure!(code == Some(1), "a torn line is no OK: {said}");
    mentions(&said, &["BROKEN", "torn"])?;
    interrupt::sleep(Duration::from_secs(2))?;
    host.restart()?;
    host.wait_synchronized(50_000)?;
    wait_for(&host, &log, "the torn line", |event| event["event"] == "torn")?;
    mentions(&host.log_text(), &["audit log: its last 20 bytes are a torn line"])?;

    // A full disk: the clock is served, and what was recorded meanwhile comes later.
    disk.fill()?;
    host.cli(&["sources", "offline", &address])?;
    host.wait_until("the full disk is said", |h| Ok(h.log_text().contains("No space left")))?;
    mentions(&host.log_text(), &["wait for the disk", "make room"])?;
    host.check_alive()?;
    ensure!(host.json(&["now"])?["earliest_ns"].is_i64(), "no time with a full disk");
    host.cli(&["sources", "online", &address])?;
    disk.make_room()?;
    let offline = |event: &Value| event["event"] == "reference" && event["state"] == "offline";
    wait_for(&host, &log, "what was recorded while the disk was full", offline)?;
    host.wait_until("that is said", |h| Ok(h.log_text().contains("it is written again")))?;
    host.wait_synchronized(50_000)?;
    interrupt::sleep(Duration::from_secs(2))?;

    let before = realtime().floor_nanos();
    host.terminate()?;
    let after = realtime().floor_nanos();
    let (code, said) = verify(&host, &log)?;
    ensure!(code == Some(0), "{said}");
    // With its line feed.
    mentions(&said, &["OK:", "21 torn bytes before this line", "last line: "])?;
    let noted = said.rsplit("last line: ").next().unwrap_or_default().trim().to_owned();
    mentions(&host.log_text(), &[&noted])?;

    let all = events(&log)?;
    holds_the_truth(all.last().context("an empty log")?, before, after)?;
    let share = reports(&host, &log, &all)?;
    let changed = finds_changes(&host, &log, scratch.path(), &noted)?;
    drop(again);
    Ok(format!(
        "{} lines, {before_kill} before the kill; {:.1} % of the time within 50 ms, the rest named; {changed} of {changed} \
         changed bytes found",
        all.len(),
        share * 100.0
    ))
}

/// The last line is the daemon's end, at a moment that we know.
fn holds_the_truth(last: &Value, before: i64, after: i64) -> anyhow::Result<()> {
    ensure!(last["event"] == "stop" && last["vouched"] == true, "{last}");
    let date = |at: usize| -> anyhow::Result<i64> {
        let text = last["utc"][at].as_str().context("no date")?;
        let time = humantime_ns(text).with_context(|| format!("{text} is no date"))?;
        Ok(time)
    };
    let (earliest, latest) = (date(0)?, date(1)?);
    ensure!(
        earliest <= after && latest >= before && latest - earliest < 100_000_000,
        "{last} was recorded between {before} and {after}"
    );
    Ok(())
}

/// `date` knows dates.
fn humantime_ns(text: &str) -> anyhow::Result<i64> {
    let out = std::process::Command::new("date").args(["-u", "+%s%N", "-d", text]).output()?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().parse()?)
}

/// Returns the share of the whole time.
fn reports(host: &Host, log: &Path, all: &[Value]) -> anyhow::Result<f64> {
    let directory = log.to_str().context("a path of UTF-8")?;
    let report = |from: &str, to: &str, within: &str| {
        let range = ["report", "--from", from, "--to", to, "--within", within];
        host.json(&[&["audit"], &range[..], &["--directory", directory]].concat())
    };
    let date = |event: &Value| event["utc"][0].as_str().unwrap_or_default().to_owned();
    let (first, last) = (date(&all[0]), date(&all[all.len() - 1]));
    let whole = report(&first, &last, "50ms")?;
    let share = whole["share"].as_f64().unwrap_or(0.0);
    ensure!(whole["met"] == false && share > 0.2 && share < 1.0, "{whole}");
    let gaps = whole["gaps"].as_array().cloned().unwrap_or_default();
    // The kill cost two seconds and what had not been recorded yet.
    let is_kill = |gap: &Value| gap["why"] == "no_record" && gap["seconds"].as_f64() > Some(2.0);
    ensure!(gaps.iter().any(is_kill), "the kill is no gap: {whole}");
    let sum: f64 = gaps.iter().filter_map(|gap| gap["seconds"].as_f64()).sum();
    let (within, total) = (whole["within_s"].as_f64(), whole["total_s"].as_f64());
    let rest = total.unwrap_or(0.0) - within.unwrap_or(0.0);
    ensure!((rest - sum).abs() < 1e-3, "gaps of {sum} s where {rest} s are missing: {whole}");
    // Within one recorded span, all is within; of a bound that it did not have, nothing.
    let is_good = |event: &&Value| {
        event["event"] == "bound"
            && event["status"] == "synchronized"
            && event["since_vouched"] == true
    };
    let span = all.iter().rfind(is_good).context("no bound was recorded")?;
    let (from, to) = (span["since"][1].as_str().unwrap_or_default(), date(span));
    let good = report(from, &to, "50ms")?;
    ensure!(good["met"] == true && good["share"] == 1.0, "{good}");
    let bad = report(from, &to, "1ns")?;
    ensure!(bad["share"] == 0.0 && bad["gaps"][0]["why"] == "above", "{bad}");
    Ok(share)
}

/// Changes one byte at a time in copies, also in the last line; returns how many were found.
fn finds_changes(host: &Host, log: &Path, scratch: &Path, noted: &str) -> anyhow::Result<usize> {
    let copy = scratch.join("copy.jsonl");
    let newest = files(log)?.pop().context("no file")?;
    let bytes = fs::read(newest)?;
    let path = copy.to_str().context("a path of UTF-8")?;
    let places = [10, bytes.len() / 3, bytes.len() / 2, bytes.len() - 90, bytes.len() - 1];
    for place in places {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        fs::write(&copy, &changed)?;
        let (code, said) = audit(host, &["verify", path])?;
        ensure!(code == Some(1), "byte {place}: {said}");
        let line = bytes[..place].iter().filter(|byte| **byte == b'\n').count() + 1;
        mentions(&said, &["BROKEN", &format!("line {line}:")])?;
    }
    // A log whose last lines were cut off is a chain, and not the one that was noted.
    let end =
        bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').context("one line")?;
    fs::write(&copy, &bytes[..=end])?;
    let (code, said) = audit(host, &["verify", path])?;
    ensure!(code == Some(0), "{said}");
    let (code, said) = audit(host, &["verify", "--expect", noted, path])?;
    ensure!(code == Some(1) && said.contains("is not in these files"), "{said}");
    fs::write(&copy, &bytes)?;
    let (code, said) = audit(host, &["verify", "--expect", noted, path])?;
    ensure!(code == Some(0), "{said}");
    Ok(places.len())
}
