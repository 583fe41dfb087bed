//! lab-pins: events at a simulated GPIO line, and outputs at a time, beside readings of the page.
//!
//! `lab-pins CHIP SYSFS EDGES OUTPUTS` uses three lines of a gpio-sim chip, which has a folder for
//! each below SYSFS: line 0 is pulled EDGES times and its events are compared with readings before
//! and after each pull, line 1 is changed OUTPUTS times, and line 2 is pulled more often than the
//! kernel's buffer holds. Prints one line of JSON, or fails with what was wrong.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use timevisor::pins::{Changed, Edge, Edges, OutputLine, PinError, PinEvent, PinEvents, PtpPins};
use timevisor::{AtOutcome, Client, Reading, Requirement, Timeline, WaitError, WaitOptions};

/// More than the kernel keeps for a line (GPIO_V2_LINES_MAX * 16).
const FLOOD: u32 = 1200;
const PATIENCE: Duration = Duration::from_secs(20);
/// The emulated processor may be slow to wake up.
const LATE_AT_MOST: Duration = Duration::from_secs(5);

struct Sim {
    chip: PathBuf,
    folder: PathBuf,
}

impl Sim {
    fn pull(&self, line: u32, up: bool) -> Result<()> {
        let path = self.folder.join(format!("sim_gpio{line}/pull"));
        let pull = if up { "pull-up" } else { "pull-down" };
        fs::write(&path, pull).with_context(|| format!("cannot pull {}", path.display()))
    }

    fn value(&self, line: u32) -> Result<bool> {
        let path = self.folder.join(format!("sim_gpio{line}/value"));
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.trim() == "1")
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [chip, folder, edges, outputs] = &arguments[..] else {
        bail!("usage: lab-pins CHIP SYSFS EDGES OUTPUTS");
    };
    let sim = Sim { chip: chip.into(), folder: folder.into() };
    let tai = Client::connect()?.timeline("tai")?;
    let events = events(&sim, &tai, edges.parse()?).context("events")?;
    let flood = flood(&sim, &tai).context("a flood")?;
    let output = OutputLine::open(&sim.chip, 1, false)?;
    let outputs = toggles(&sim, &tai, &output, outputs.parse()?).context("outputs")?;
    refusals(&sim, &tai, &output).context("refusals")?;
    let ptp = ptp(&tai).context("PTP pins")?;
    println!("{}", json!({"events": events, "flood": flood, "outputs": outputs, "ptp": ptp}));
    Ok(())
}

/// Every edge comes, in order, and its interval and that of the pull have a moment in common.
fn events(sim: &Sim, tai: &Timeline, edges: u32) -> Result<serde_json::Value> {
    sim.pull(0, false)?;
    let mut events = tai.line_events(&sim.chip, 0, Edges::Both)?;
    let (mut widths, mut waited_widths) = (Vec::new(), Vec::new());
    for edge in 0..edges {
        let up = edge % 2 == 0;
        let before = tai.now()?;
        sim.pull(0, up)?;
        let after = tai.now()?;
        let waits = edge % 8 == 7;
        if waits {
            // An event that waits to be read is known less well, but still right.
            std::thread::sleep(Duration::from_millis(20));
        }
        let event = next(&mut events)?;
        let expected = if up { Edge::Rising } else { Edge::Falling };
        ensure!(event.edge == Some(expected) && event.lost == 0, "edge {edge}: {event:?}");
        is_between(&event, &before, &after).with_context(|| format!("edge {edge}"))?;
        let width = event.reading.latest_ns() - event.reading.earliest_ns();
        if waits { waited_widths.push(width) } else { widths.push(width) }
    }
    ensure!(events.on_ready()?.is_none(), "an event that nobody caused");
    let options = WaitOptions::default().timeout(Duration::from_millis(20));
    let timed_out = events.event_with(&options);
    ensure!(
        matches!(timed_out, Err(PinError::Wait(WaitError::TimedOut))),
        "without an edge: {timed_out:?}"
    );
    Ok(json!({
        "count": edges, "width_ns": median(&mut widths), "waited_width_ns": median(&mut waited_widths),
    }))
}

/// The kernel stamped the edge after the pull began and, as gpio-sim interrupts within it, before it
/// ended.
fn is_between(event: &PinEvent, before: &Reading, after: &Reading) -> Result<()> {
    let told = || format!("{event:?}\nbefore {before:?}\nafter {after:?}");
    ensure!(event.first <= event.last, "the wrong order: {}", told());
    ensure!(
        event.first <= after.counter() && before.counter() <= event.last,
        "the counter values exclude the pull: {}",
        told()
    );
    ensure!(
        event.reading.earliest_ns() <= after.latest_ns()
            && before.earliest_ns() <= event.reading.latest_ns(),
        "the interval excludes the pull: {}",
        told()
    );
    ensure!(event.reading.is_trustworthy(), "{}", told());
    Ok(())
}

fn next(events: &mut PinEvents) -> Result<PinEvent> {
    Ok(events.event_with(&WaitOptions::default().timeout(PATIENCE))?)
}

/// More edges than the kernel keeps: the oldest are lost, which is told; the rest is in order.
fn flood(sim: &Sim, tai: &Timeline) -> Result<serde_json::Value> {
    sim.pull(2, false)?;
    let mut events = tai.line_events(&sim.chip, 2, Edges::Both)?;
    for edge in 0..FLOOD {
        sim.pull(2, edge % 2 == 0)?;
        // The kernel's thread takes each before the next.
        std::thread::sleep(Duration::from_micros(100));
    }
    let (mut count, mut lost) = (0, 0);
    while let Some(event) = events.on_ready()? {
        (count, lost) = (count + 1, lost + event.lost);
        let expected = if (count + lost) % 2 == 1 { Edge::Rising } else { Edge::Falling };
        ensure!(event.edge == Some(expected), "out of order after {count} and {lost}: {event:?}");
    }
    ensure!(count + lost == FLOOD && lost > 0, "{count} came, {lost} lost, of {FLOOD}");
    Ok(json!({"came": count, "lost": lost}))
}

/// Changes at times, watched by a thread that reads the simulated line.
fn toggles(
    sim: &Sim,
    tai: &Timeline,
    output: &OutputLine,
    times: u32,
) -> Result<serde_json::Value> {
    let (mut lateness, mut widths) = (Vec::new(), Vec::new());
    for change in 0..times {
        let active = change % 2 == 0;
        let t_ns = tai.now()?.latest_ns() + 500_000_000;
        let over = AtomicBool::new(false);
        let (changed, seen) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(sim, tai, active, &over));
            let changed = output.at_with(tai, t_ns, active, LATE_AT_MOST, &WaitOptions::default());
            over.store(changed.is_err(), Ordering::Relaxed);
            (changed, watcher.join())
        });
        let changed = changed?;
        let (old, new) = seen.map_err(|_| anyhow::anyhow!("the watcher panicked"))??;
        is_at(tai, &changed, t_ns, (old, new)).with_context(|| format!("change {change}"))?;
        lateness.push(changed.lateness_ns);
        widths.push(changed.reading.latest_ns() - changed.reading.earliest_ns());
    }
    Ok(
        json!({"count": times, "lateness_ns": median(&mut lateness), "width_ns": median(&mut widths)}),
    )
}

/// The last counter before which the line was surely as it was, and the first after which it was
/// surely as it is to be.
fn watch(sim: &Sim, tai: &Timeline, active: bool, over: &AtomicBool) -> Result<(u64, u64)> {
    let (mut old, end) = (tai.stamp(), Instant::now() + PATIENCE);
    while !over.load(Ordering::Relaxed) && Instant::now() < end {
        let before = tai.stamp();
        if sim.value(1)? == active {
            return Ok((old, tai.stamp()));
        }
        old = before;
        std::thread::sleep(Duration::from_micros(200));
    }
    bail!("the line did not change")
}

fn is_at(tai: &Timeline, changed: &Changed, t_ns: i64, (old, new): (u64, u64)) -> Result<()> {
    let told = || format!("{changed:?}, seen from {old} to {new}, for {t_ns}");
    ensure!(changed.lateness_ns >= 0 && changed.first <= changed.last, "{}", told());
    ensure!(
        changed.first <= new && old <= changed.last,
        "the counter values exclude the change: {}",
        told()
    );
    let (old, new) = (tai.convert(old)?, tai.convert(new)?);
    ensure!(
        changed.reading.earliest_ns() <= new.latest_ns()
            && old.earliest_ns() <= changed.reading.latest_ns(),
        "the interval excludes the change: {}",
        told()
    );
    // Not before its time, and not later than it says.
    ensure!(new.latest_ns() >= t_ns && changed.reading.latest_ns() >= t_ns, "{}", told());
    let end = t_ns + changed.lateness_ns;
    ensure!(old.earliest_ns() <= end && changed.reading.earliest_ns() <= end, "{}", told());
    Ok(())
}

/// What is refused leaves the line as it is.
fn refusals(sim: &Sim, tai: &Timeline, output: &OutputLine) -> Result<()> {
    output.set(false)?;
    ensure!(!output.get()? && !sim.value(1)?, "the line cannot be set");
    let past = output.at(tai, tai.now()?.earliest_ns() - 1, true);
    let too_late = matches!(why(&past), Some(AtOutcome::TooLate { .. }));
    ensure!(too_late && !sim.value(1)?, "a time that has passed: {past:?}");
    let strict = tai.with_requirement(&Requirement::within(Duration::from_nanos(1)))?;
    let strict = output.at(&strict, tai.now()?.latest_ns() + 500_000_000, true);
    let violated = matches!(why(&strict), Some(AtOutcome::QotViolated { .. }));
    ensure!(violated && !sim.value(1)?, "a requirement that is not met: {strict:?}");
    let t_ns = tai.now()?.latest_ns() + 500_000_000;
    drop(output.at_fd(tai, t_ns, true, LATE_AT_MOST, Duration::ZERO)?);
    tai.wait_past(t_ns)?;
    ensure!(!sim.value(1)?, "a dropped output has changed the line");
    let busy = says(OutputLine::open(&sim.chip, 1, true).map(drop));
    ensure!(busy.contains("another program uses it") && !sim.value(1)?, "{busy}");
    let none = says(tai.line_events(&sim.chip, 99, Edges::Both).map(drop));
    ensure!(none.contains("there is no such line"), "{none}");
    Ok(())
}

fn why(result: &Result<Changed, PinError>) -> Option<AtOutcome> {
    if let Err(PinError::NotChanged(outcome)) = result { Some(**outcome) } else { None }
}

/// The guest's PTP clock is a hypervisor's: it has no pins.
fn ptp(tai: &Timeline) -> Result<String> {
    let device = Path::new("/dev/ptp0");
    let pins = PtpPins::open(device)?;
    ensure!(pins.count() == 0, "{} pins", pins.count());
    for text in [
        says(pins.pin(0).map(drop)),
        says(tai.ptp_events(device, 0, Edges::Rising).map(drop)),
        says(pins.pulse_at(tai, 0, tai.now()?.latest_ns() + 1_000_000_000, PATIENCE).map(drop)),
    ] {
        ensure!(text.contains("/dev/ptp0 has 0 ") && text.contains("use a clock"), "{text}");
    }
    Ok(says(pins.pin(0).map(drop)))
}

fn says(result: Result<(), PinError>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "it was allowed".to_owned())
}

fn median(values: &mut [i64]) -> Option<i64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
