//! timevisord is killed, terminated and restarted while a reader never pauses.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{ClockStatus, Lines, Reader, Reading, abi};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;
use timevisor_time::{Duration as Span, Local};

use crate::host::{Host, mentions};
use crate::interrupt;
use crate::ntp_impostor::{Impostor, shifted};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{complaint, honest_reading, reference};

const KILLS: u32 = 24;
const OWN_SEQUENCE: usize = abi::entry::AT_FIRST + 8 * abi::entry::SEQUENCE;

/// What the reader observed.
#[derive(Debug, Default)]
struct Seen {
    reads: u64,
    stalls: u64,
    stalled: bool,
    publications: u64,
    takeovers: u64,
    statuses: Vec<ClockStatus>,
    faults: Vec<String>,
}

/// A thread that reads a page as fast as it can.
struct Watch {
    ended: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<anyhow::Result<Seen>>,
}

impl Watch {
    fn start(directory: &Path) -> anyhow::Result<Self> {
        let page = ReadPage::new(page_file::open(&directory.join("clock"))?)?;
        let counter = HostCounter::for_reader(counter_of(&page, 0)).context("no such counter")?;
        let reader = Reader::open(page, counter, 0)?;
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut last) = (Seen::default(), None);
            while !flag.load(Ordering::Relaxed) {
                match snapshot(&reader, last.as_ref()) {
                    Some(now) => last = Some(seen.take(last, now)),
                    None => (seen.stalls, seen.stalled) = (seen.stalls + 1, true),
                }
            }
            Ok(seen)
        });
        Ok(Self { ended, thread })
    }

    fn end(self) -> anyhow::Result<Seen> {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?
    }
}

/// A reading, the lines it comes from, and their sequence.
type Snapshot = (Reading, Lines<Local>, u64);

/// `None` while the page cannot be read.
fn snapshot(reader: &Reader<ReadPage, HostCounter>, last: Option<&Snapshot>) -> Option<Snapshot> {
    loop {
        let lines = reader.lines().ok()?;
        let known = last.filter(|(_, old, _)| *old == lines).map(|(_, _, sequence)| *sequence);
        let sequence = known.unwrap_or_else(|| sequence_of(&reader.page().bytes()));
        let reading = reader.read().ok()?;
        // The lines are the same before and after, so all three belong together.
        if reader.lines().ok()? == lines {
            return Some((reading, lines, sequence));
        }
    }
}

fn sequence_of(page: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&page[OWN_SEQUENCE..OWN_SEQUENCE + 8]);
    u64::from_le_bytes(word)
}

impl Seen {
    fn take(&mut self, last: Option<Snapshot>, now: Snapshot) -> Snapshot {
        self.reads += 1;
        let (reading, lines, sequence) = now;
        if self.statuses.last() != Some(&reading.status()) {
            self.statuses.push(reading.status());
        }
        if reading.earliest > reading.estimate || reading.estimate > reading.latest {
            self.faults.push(format!("the estimate is outside: {reading:?}"));
        }
        let Some((before, old, old_sequence)) = last else { return now };
        if reading.disruption != before.disruption {
            self.faults.push(format!("a disruption at {}", reading.counter));
            return now;
        }
        if reading.estimate < before.estimate {
            self.faults.push(format!(
                "the estimate went back by {} at {:?}",
                before.estimate - reading.estimate,
                reading.status()
            ));
        }
        if sequence != old_sequence {
            self.publications += 1;
            self.check_nested(&old, &lines, reading.counter);
            // While a page is torn, the old lines cannot be read, so they may be ahead for a
            // moment.
            if sequence == old_sequence + 2 && !self.stalled {
                self.check_continuous(&old, &lines);
            }
        }
        self.stalled = false;
        now
    }

    /// Where one publication takes over from another, the estimate does not go back. This check is
    /// exact; two readings would only reveal a step back that is longer than the time between them.
    fn check_continuous(&mut self, old: &Lines<Local>, new: &Lines<Local>) {
        self.takeovers += 1;
        let back = old.at(new.base).estimate - new.estimate.time;
        if back > Span::ZERO {
            self.faults.push(format!("an estimate began {back} behind the one before"));
        }
    }

    /// Bounds published later lie inside the bounds published before, until the latter expire.
    fn check_nested(&mut self, old: &Lines<Local>, new: &Lines<Local>, counter: u64) {
        if old.is_expired(counter) {
            return;
        }
        let (outer, inner) = (old.at(counter), new.at(counter));
        // `rebased` rounds outward by one unit at each publication.
        let rounding = Span::from_bits(4);
        if inner.earliest + rounding < outer.earliest || inner.latest > outer.latest + rounding {
            self.faults.push(format!(
                "bounds do not nest: {} before, {} behind",
                outer.earliest - inner.earliest,
                inner.latest - outer.latest
            ));
        }
    }
}

pub(crate) fn kills(ctx: &Context) -> anyhow::Result<String> {
    let server = wavering()?;
    let mut host = Host::new(ctx)?;
    host.start(&format!(
        "[clock]\npublish_interval = \"10ms\"\n{}",
        reference(&server.address()).replace("100ms", "20ms")
    ))?;
    host.wait_synchronized(10_000)?;
    let clock = host.directory().join("clock");
    let watch = Watch::start(host.directory())?;
    let page = HostPage::open(host.directory())?;
    let mut inside = 0;
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_micros(20_000 + u64::from(kill) * 7_919 % 30_000));
        host.kill();
        inside += u32::from(is_odd(&clock)?);
        match kill % 3 {
            // Died inside the update: both sequences are odd and half of the words are written.
            1 => tear(&clock)?,
            // Died after writing the journal and before writing the page, which still has the
            // previous lines.
            2 => journal_ahead(host.directory())?,
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(300));
        host.restart()?;
        host.wait_synchronized(10_000)?;
        honest_reading(&page)?;
    }
    let seen = watch.end()?;
    ctx.log(&format!("{seen:#?}"));
    ensure!(
        seen.faults.is_empty(),
        "{} faults in {} reads: {:?}",
        seen.faults.len(),
        seen.reads,
        seen.faults
    );
    ensure!(seen.stalls > 0, "the torn pages were read");
    let restarts = seen.statuses.iter().filter(|s| **s == ClockStatus::FreeRunning).count();
    let mixed = seen
        .statuses
        .iter()
        .all(|s| matches!(s, ClockStatus::FreeRunning | ClockStatus::Synchronized));
    ensure!(mixed && restarts >= 1, "statuses: {:?}", seen.statuses);
    Ok(format!(
        "{KILLS} kills ({inside} found inside an update, {} made so), {} reads, {} takeovers seen: none back",
        KILLS / 3,
        seen.reads,
        seen.takeovers
    ))
}

/// A server whose time wavers within its stated error, so that the estimate keeps being adjusted.
fn wavering() -> anyhow::Result<Impostor> {
    let mut turn = 0_u32;
    Impostor::new(move |answer| {
        turn += 1;
        let offset = Span::from_micros(if (turn / 16).is_multiple_of(2) { 300 } else { -300 });
        let root_dispersion = timevisor_protocols::ntp::NtpShort::from_bits(66);
        let answer = timevisor_protocols::ntp::Packet { root_dispersion, ..answer };
        vec![shifted(answer, offset).to_bytes().to_vec()]
    })
}

fn open(clock: &Path) -> anyhow::Result<File> {
    Ok(File::options().read(true).write(true).open(clock)?)
}

fn is_odd(clock: &Path) -> anyhow::Result<bool> {
    Ok(sequence_of(&fs::read(clock)?) & 1 == 1)
}

fn tear(clock: &Path) -> anyhow::Result<()> {
    let file = open(clock)?;
    for at in [OWN_SEQUENCE as u64, abi::vmclock::AT_SEQUENCE as u64] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        file.write_all_at(&[byte[0] | 1], at)?;
    }
    let estimate = (abi::entry::AT_FIRST + 8 * abi::entry::ESTIMATE) as u64;
    file.write_all_at(&[0x55; 24], estimate)?;
    Ok(())
}

/// The state between writing the journal and writing the page, for an update that slows the
/// estimate by 15 ppm and that no reader has seen.
fn journal_ahead(directory: &Path) -> anyhow::Result<()> {
    let path = directory.join("recovery.json");
    let mut journal: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let period = &mut journal["lines"][1][2];
    let bits =
        period.as_u64().with_context(|| format!("an estimate without a period: {period}"))?;
    *period = (bits - bits / 66_667).into();
    fs::write(path, serde_json::to_vec(&journal)?)?;
    Ok(())
}

pub(crate) fn ends(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    host.start(&format!(
        "[clock]\npublish_interval = \"100ms\"\nvalidity = \"1s\"\n{}",
        reference(&server.address())
    ))?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;
    host.terminate()?;
    let ended = grows(&host, &page, before.disruption).context("after SIGTERM")?;
    let text = complaint(&host, &["status"])?;
    mentions(&text, &["not running", "systemctl start timevisord"])?;
    ensure!(!host.directory().join("control").exists(), "the socket was left behind");

    host.restart()?;
    host.wait_synchronized(10_000)?;
    host.kill();
    interrupt::poll_until(Duration::from_secs(20), || {
        Ok((honest_reading(&page)?.status() != ClockStatus::Synchronized).then_some(()))
    })?
    .context("the page of a dead daemon stays synchronized")?;
    let killed = grows(&host, &page, before.disruption).context("after kill -9")?;
    mentions(&complaint(&host, &["status"])?, &["timevisord is not running"])?;
    host.restart()?;
    host.wait_synchronized(10_000)?;
    ensure!(page.read()?.disruption == before.disruption, "a restart disrupts");
    Ok(format!("free running; bounds grew {ended} after SIGTERM, {killed} after kill -9"))
}

/// The page without its daemon: it is free running, its bounds are true and grow, and the CLI can
/// read it.
fn grows(host: &Host, page: &HostPage, disruption: u64) -> anyhow::Result<Span> {
    let first = honest_reading(page)?;
    ensure!(first.status() == ClockStatus::FreeRunning, "it is {}", first.status().name());
    ensure!(host.json(&["now"])?["status"] == "freerunning", "`timevisor now` says otherwise");
    std::thread::sleep(Duration::from_millis(200));
    let second = honest_reading(page)?;
    // Compares widths, not half-widths: the estimate may be moving to the middle.
    let grown = (second.latest - second.earliest) - (first.latest - first.earliest);
    ensure!(grown > Span::ZERO, "the bounds do not grow");
    ensure!(second.estimate > first.estimate, "the estimate stands still");
    ensure!(second.disruption == disruption, "the end is no disruption");
    Ok(grown)
}
