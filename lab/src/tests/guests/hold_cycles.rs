//! A workload that `timevisor-guest --hold` holds reads CLOCK_REALTIME without pause, while its guest
//! is restored and moved many times. Every read is judged on the host, by the host's clock at the
//! read's counter values.
//!
//! A snapshot that was saved without notice resumes a workload that runs. What that reads until the
//! agent's next look is late: counted beside the rest, not judged.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use timevisor_linux::counter::Tsc;

use crate::client::{self, Client, Launch, Way, port_socket};
use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::migration::pair::Hosts;
use crate::migration::time_stamp;
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::snapshots;
use crate::tests::cycles;
use crate::tests::timelines::guest::AGENT_IS_UP;
use crate::truth::Truth;

/// The default for the environment variable CYCLES.
const CYCLES: u32 = 100;
/// So many restores with notice go with one without.
const UNTOLD: u32 = 5;
const PORT: &str = "org.timevisor.beats";
/// Everything in an emulated guest takes several times as long.
const PATIENCE: Duration = Duration::from_secs(60);
/// What `--hold-within` permits beside the page's bounds, ns.
const WITHIN_NS: i64 = 1_000_000;
/// How long the workload is watched before each cycle.
const BEFORE: Duration = Duration::from_millis(200);
/// Lines of the workload that end a cycle: some 0.3 s in which it runs.
const LINES: usize = 300;

/// A read of CLOCK_REALTIME: guest counter before, ns, guest counter after.
type Beat = (u64, i64, u64);

/// One line of lab-beats.
#[derive(Debug)]
struct Line {
    sequence: u64,
    beats: Vec<Beat>,
}

/// What lab-beats writes.
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Stream {
    fn connect(host: &Host, name: &str) -> anyhow::Result<Self> {
        let mut stream = UnixStream::connect(port_socket(host, name, PORT))?;
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        // Ends with QEMU.
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                shared
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend_from_slice(&buffer[..count]);
            }
        });
        Ok(Self { bytes })
    }

    /// The whole lines since the last call. One that a move has cut in two is left out.
    fn take(&self) -> Vec<Line> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text: Vec<u8> = bytes.drain(..end).collect();
        String::from_utf8_lossy(&text).lines().filter_map(parse).collect()
    }
}

fn parse(line: &str) -> Option<Line> {
    let line = line.strip_prefix("S ")?.strip_suffix(" E")?;
    let mut words = line.split(' ');
    let sequence = words.next()?.parse().ok()?;
    let mut beats = Vec::new();
    while let Some(before) = words.next() {
        let (ns, after) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        beats.push((before.parse().ok()?, ns, after));
    }
    Some(Line { sequence, beats })
}

/// What the reads of one cycle were like.
#[derive(Debug, Default)]
struct Cycle {
    reads: usize,
    wrong: usize,
    /// The largest error that was permitted.
    most_ns: i64,
    /// From the resume to the first read after it; what runs at once counts as 0.
    first_ms: f64,
    /// From the resume to the last wrong read, if there was one.
    wrong_ms: Option<f64>,
    /// The longest pause between two reads after the resume: when it began, and its length.
    pause_ms: (f64, f64),
    /// Wrong reads after that pause.
    wrong_later: usize,
    /// The last read after the resume.
    last_ms: Option<f64>,
    /// The first wrong read.
    example: Option<String>,
}

/// Converts a guest's counter to UTC in ns.
struct Judge<'a> {
    truth: &'a Truth,
    /// By how much CLOCK_REALTIME may be off, ns.
    permitted: i64,
    /// When the guest was resumed, ns.
    resumed: i64,
}

impl Judge<'_> {
    fn utc(&self, counter: u64, offset: i64) -> i64 {
        self.truth.at(counter.wrapping_add_signed(-offset))
    }

    /// `offsets` belong to the counter before and after the read.
    fn add(&self, cycle: &mut Cycle, beat: Beat, offsets: (i64, i64)) {
        let (before, ns, after) = beat;
        let (from, to) = (self.utc(before, offsets.0), self.utc(after, offsets.1));
        let off = (from - ns).max(ns - to).max(0);
        let since = (to - self.resumed) as f64 / 1e6;
        cycle.reads += 1;
        if since > 0.0
            && let Some(last) = cycle.last_ms.replace(since)
            && since - last > cycle.pause_ms.1
        {
            cycle.pause_ms = (last, since - last);
            cycle.wrong_later = 0;
        }
        if off <= self.permitted {
            cycle.most_ns = cycle.most_ns.max(off);
            return;
        }
        cycle.wrong += 1;
        cycle.wrong_later += 1;
        cycle.wrong_ms = Some(since);
        cycle.example.get_or_insert_with(|| {
            format!("{beat:?} is {:.3} ms off, {since:.3} ms after the resume", off as f64 / 1e6)
        });
    }

    fn first(&self, counter: u64, offset: i64) -> f64 {
        ((self.utc(counter, offset) - self.resumed) as f64 / 1e6).max(0.0)
    }
}

pub(crate) fn hold_cycles(ctx: &Context) -> anyhow::Result<String> {
    let wanted = cycles(CYCLES)?;
    let hosts = Hosts::new(ctx)?;
    let qemu = ctx.qemu_10()?;
    let (told, untold) = restores(ctx, &hosts.hosts[0], &qemu, wanted)?;
    let moved = moves(ctx, &hosts.hosts, &qemu, wanted)?;
    let text = format!(
        "{}; {}; {}",
        summary("restores", &told),
        summary("moves", &moved),
        summary("restores of what was saved without notice", &untold)
    );
    ctx.log(&text);
    for (what, cycles) in [("restore", &told), ("move", &moved)] {
        if let Some(n) = cycles.iter().position(|cycle| cycle.wrong > 0) {
            bail!("{what} {} had wrong reads: {:?}; {text}", n + 1, cycles[n]);
        }
    }
    Ok(text)
}

fn summary(what: &str, cycles: &[Cycle]) -> String {
    let reads: usize = cycles.iter().map(|cycle| cycle.reads).sum();
    let wrong: usize = cycles.iter().map(|cycle| cycle.wrong).sum();
    let most = cycles.iter().map(|cycle| cycle.most_ns).max().unwrap_or(0);
    let first = percentiles(cycles.iter().map(|cycle| cycle.first_ms).collect());
    let mut text = format!(
        "{} {what}: {wrong} of {reads} reads wrong, the others at most {} us off; {first} from the resume to the first read",
        cycles.len(),
        most / 1000
    );
    let late: Vec<f64> = cycles.iter().filter_map(|cycle| cycle.wrong_ms).collect();
    if !late.is_empty() {
        let count = late.len();
        text += &format!(", {} to the last wrong one in {count} of them", percentiles(late));
    }
    text
}

fn percentiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
    format!("{:.1} ms (p50), {:.1} ms (p99)", at(50), at(99))
}

/// A guest with the agent and the workload.
fn boot(ctx: &Context, host: &Host, qemu: &Qemu, name: &str) -> anyhow::Result<(Client, Stream)> {
    let mut client = launch(ctx, host, qemu, name)?.start()?;
    let stream = Stream::connect(host, name)?;
    client.guest.wait_ready()?;
    host.wait_vm(name, "synchronized")?;
    let guest = &mut client.guest;
    guest.sh(
        "mkdir -p /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; mkdir /sys/fs/cgroup/db",
    )?;
    guest.sh("timevisor-guest --set-clock step --hold db >/run/agent.log 2>&1 &")?;
    guest.sh(AGENT_IS_UP)?;
    guest.sh("timevisor-guest wait-sync --within 10ms --clock 400us --timeout 2m")?;
    guest.sh(&format!(
        "(echo 0 >/sys/fs/cgroup/db/cgroup.procs; exec lab-beats /dev/virtio-ports/{PORT}) >/run/beats.log 2>&1 &"
    ))?;
    until(&stream, &mut Vec::new(), &mut client, |lines| lines.len() > LINES)?;
    Ok((client, stream))
}

fn launch<'l>(
    ctx: &'l Context,
    host: &'l Host,
    qemu: &'l Qemu,
    name: &'l str,
) -> anyhow::Result<Launch<'l>> {
    let programs = [
        ctx.program("timevisor-guest", "timevisor-guest")?,
        ctx.program("timevisor-lab-guest", "lab-beats")?,
    ];
    Ok(Launch::new(ctx, host, qemu, Way::Vmclock, name).programs(&programs).ports(&[PORT]))
}

/// Collects lines until they are enough.
fn until(
    stream: &Stream,
    lines: &mut Vec<Line>,
    client: &mut Client,
    enough: impl Fn(&[Line]) -> bool,
) -> anyhow::Result<()> {
    let found = interrupt::poll_until(PATIENCE, || {
        lines.extend(stream.take());
        Ok(enough(lines).then_some(()))
    })?;
    match found {
        Some(()) => Ok(()),
        None => bail!(
            "the workload does not go on; the agent: {}",
            client.guest.sh("tail -n 20 /run/agent.log; cat /run/beats.log")?
        ),
    }
}

/// The width of the page's bounds, which are permitted beside `--hold-within`, ns.
fn permitted(host: &Host) -> anyhow::Result<i64> {
    let status = host.json(&["status"])?;
    let half = status["clock"]["half_width_ns"].as_i64().context("no half-width")?;
    Ok(WITHIN_NS + 2 * half)
}

/// Forgets what QEMU has said.
fn drain(guest: &mut Guest) {
    while guest.qmp().next_event(Duration::from_millis(1)).is_ok() {}
}

/// When QEMU has let the guest run, by its own time stamp: UTC, ns.
fn resumed(guest: &mut Guest) -> anyhow::Result<i64> {
    let event = guest.qmp().wait_event("RESUME", PATIENCE)?;
    Ok(i64::try_from(time_stamp(&event)?.as_nanos())?)
}

fn is_frozen(client: &mut Client) -> anyhow::Result<bool> {
    Ok(client.guest.sh("cat /sys/fs/cgroup/db/cgroup.events")?.contains("frozen 1"))
}

/// Loads what was saved with the notice `wanted` times, and then what was saved without.
fn restores(
    ctx: &Context,
    host: &Host,
    qemu: &Qemu,
    wanted: u32,
) -> anyhow::Result<(Vec<Cycle>, Vec<Cycle>)> {
    let (mut client, stream) = boot(ctx, host, qemu, "saved")?;
    snapshots::attach(ctx, &mut client.guest, "saved")?;
    host.cli(&["vm", "notice", "saved", "imminent"])?;
    let frozen = interrupt::poll_until(PATIENCE, || Ok(is_frozen(&mut client)?.then_some(())))?;
    frozen.context("imminent does not freeze it")?;
    let told = snapshots::frozen(&mut client.guest, |guest| snapshots::save(guest, "told"))?;
    host.cli(&["vm", "notice", "saved", "none"])?;
    let mut done = (Vec::new(), Vec::new());
    for n in 1..=wanted {
        let cycle = restore(host, &mut client, &stream, "told", told);
        let cycle = cycle.with_context(|| format!("restore {n}"))?;
        ctx.log(&format!("restore {n}: {cycle:?}"));
        done.0.push(cycle);
    }
    // Each of its own: what the guest and its agent were doing counts.
    for n in 1..=wanted.div_ceil(UNTOLD) {
        let at = snapshots::frozen(&mut client.guest, |guest| snapshots::save(guest, "untold"))?;
        let cycle = restore(host, &mut client, &stream, "untold", at);
        let cycle = cycle.with_context(|| format!("restore {n} without notice"))?;
        ctx.log(&format!("restore {n} without notice: {cycle:?}"));
        ctx.log(&client.guest.sh("tail -n 3 /run/agent.log")?);
        snapshots::delete(&mut client.guest, "untold")?;
        done.1.push(cycle);
    }
    Ok(done)
}

/// `saved_at`: the counter when the snapshot was saved.
fn restore(
    host: &Host,
    client: &mut Client,
    stream: &Stream,
    tag: &str,
    saved_at: u64,
) -> anyhow::Result<Cycle> {
    let mut earlier = Vec::new();
    until(stream, &mut earlier, client, |lines| lines.len() > LINES)?;
    host.wait_vm(&client.name, "synchronized")?;
    let old = client::offset(host, &client.name)?;
    let widest = permitted(host)?;
    drain(&mut client.guest);
    // Nothing from before is judged: it belongs to the last cycle, whose mapping may be another.
    drop(stream.take());
    let ((lines, resumed), truth) = Truth::around(&Tsc::unchecked(), || {
        std::thread::sleep(BEFORE);
        snapshots::load(&mut client.guest, tag)?;
        let resumed = resumed(&mut client.guest)?;
        let mut lines = Vec::new();
        until(stream, &mut lines, client, |lines| {
            back(lines).is_some_and(|at| lines.len() - at > LINES)
        })?;
        Ok((lines, resumed))
    })?;
    host.wait_vm(&client.name, "synchronized")?;
    let new = client::offset(host, &client.name)?;
    let permitted = widest.max(permitted(host)?) + truth.uncertainty_ns();
    let judge = Judge { truth: &truth, permitted, resumed };
    let at = back(&lines).context("the workload was not set back")?;
    ensure!(at > 0, "it did not run before");
    let mut cycle = Cycle::default();
    for beat in lines[..at].iter().flat_map(|line| &line.beats) {
        judge.add(&mut cycle, *beat, (old, old));
    }
    let after = lines[at..].iter().flat_map(|line| &line.beats);
    // What it had read before it was saved, and had not written.
    let mut after = after.filter(|beat| beat.2 > saved_at).peekable();
    let first = after.peek().context("no read after the load")?.2;
    cycle.first_ms = judge.first(first, new);
    for beat in after {
        // The freeze may have interrupted a read, which then began before the save.
        judge.add(&mut cycle, (beat.0.max(saved_at), beat.1, beat.2), (new, new));
    }
    Ok(cycle)
}

/// Where the stream was set back.
fn back(lines: &[Line]) -> Option<usize> {
    let back = lines.windows(2).position(|two| two[1].sequence <= two[0].sequence);
    back.map(|at| at + 1)
}

/// Moves it there and back.
fn moves(ctx: &Context, hosts: &[Host; 2], qemu: &Qemu, wanted: u32) -> anyhow::Result<Vec<Cycle>> {
    let (mut here, mut stream) = boot(ctx, &hosts[0], qemu, "move0")?;
    let mut done = Vec::new();
    for n in 1..=wanted {
        interrupt::check()?;
        let (to, from) = if n % 2 == 1 { (1, 0) } else { (0, 1) };
        let (from, to) = (&hosts[from], &hosts[to]);
        let name = format!("move{n}");
        let uri = format!("unix:{}", to.directory().join(format!("{name}.migration")).display());
        let mut there = launch(ctx, to, qemu, &name)?.incoming(&uri).start()?;
        let next = Stream::connect(to, &name)?;
        to.wait_until("the destination to await it", |h| {
            Ok(h.vm(&name)?["migration"] == "incoming")
        })?;
        let cycle = one_move((from, &mut here, &stream), (to, &mut there, &next), &uri);
        let cycle = cycle.with_context(|| format!("move {n}"))?;
        ctx.log(&format!("move {n}: {cycle:?}"));
        done.push(cycle);
        here.guest.kill();
        (here, stream) = (there, next);
    }
    Ok(done)
}

type Stay<'a> = (&'a Host, &'a mut Client, &'a Stream);

fn one_move(
    (from, here, stream): Stay<'_>,
    (to, there, next): Stay<'_>,
    uri: &str,
) -> anyhow::Result<Cycle> {
    until(stream, &mut Vec::new(), here, |lines| lines.len() > LINES)?;
    from.wait_vm(&here.name, "synchronized")?;
    let old = client::offset(from, &here.name)?;
    let widest = permitted(from)?.max(permitted(to)?);
    drop(stream.take());
    let ((lines, resumed), truth) = Truth::around(&Tsc::unchecked(), || {
        std::thread::sleep(BEFORE);
        let said = from.cli(&["vm", "migrate", &here.name, "--to", uri])?;
        mentions(&said, &["runs on the other host"])?;
        let resumed = resumed(&mut there.guest)?;
        let mut lines = Vec::new();
        until(next, &mut lines, there, |lines| lines.len() > LINES)?;
        Ok((lines, resumed))
    })?;
    to.wait_vm(&there.name, "synchronized")?;
    let new = client::offset(to, &there.name)?;
    let permitted = widest.max(permitted(from)?).max(permitted(to)?) + truth.uncertainty_ns();
    let stopped_at = snapshots::stopped_at(&here.guest)?;
    let judge = Judge { truth: &truth, permitted, resumed };
    let before = stream.take();
    ensure!(!before.is_empty(), "it did not run before");
    let mut cycle = Cycle::default();
    let offset = |counter: u64| if counter <= stopped_at { old } else { new };
    let mut first = None;
    for beat in before.iter().chain(&lines).flat_map(|line| &line.beats) {
        judge.add(&mut cycle, *beat, (offset(beat.0), offset(beat.2)));
        if beat.2 > stopped_at {
            first.get_or_insert(beat.2);
        }
    }
    cycle.first_ms = judge.first(first.context("no read after the move")?, new);
    Ok(cycle)
}
