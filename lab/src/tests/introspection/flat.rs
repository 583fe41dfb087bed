//! Guests with a single flat address space, introspected by timevisord with the help of their ELF
//! files. Such a guest logs its own calls as one hash per task; timevisord's events must give the
//! same hashes.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::command;
use crate::guest::{BOOT, Guest};
use crate::host::{Host, mentions, ntp_reference};
use crate::introspection::emulated::row;
use crate::qemu::Delivery;
use crate::scenario::Context;

/// No other mapping in QEMU has this size.
const MIB: u32 = 96;
const TICK_NS: u64 = 1_000_000;

/// The calls of one task or segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Log {
    count: u64,
    hash: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self { count: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }
}

impl Log {
    /// The same hash as log_words in lab/freertos/guest.c.
    fn call(&mut self, kind: char, words: &[u32]) {
        let words = [&[u32::from(kind)], words].concat();
        for byte in words.into_iter().flat_map(u32::to_le_bytes) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        self.count += 1;
    }
}

type Logs = BTreeMap<u32, Log>;

/// A call as a guest logs it: task, kind, and arguments.
pub(super) type Call = (u32, char, Vec<u32>);

/// Where a host has its plugins. The directory does not exist at first.
fn plugins(host: &Host) -> PathBuf {
    host.directory().join("introspection.d")
}

/// A host and a guest that waits for a byte on its serial port.
pub(super) struct Scene {
    pub(super) host: Host,
    guest: Guest,
    serial: PathBuf,
}

impl Scene {
    pub(super) fn new(ctx: &Context, program: &Path) -> anyhow::Result<Self> {
        let server = ctx.chronyd("server")?;
        let mut host = Host::new(ctx)?;
        let lines = format!(
            "{}[introspection]\nplugins = \"{}\"\n",
            ntp_reference(&server.address().ip().to_string()),
            plugins(&host).display()
        );
        host.start(&lines)?;
        host.wait_synchronized(500)?;
        let (qemu, plugin) = (ctx.qemu_10()?, ctx.introspection_plugin()?);
        let at = |name: &str| host.directory().join(name);
        let (qmp, serial) = (at("rtos.qmp").display().to_string(), at("rtos.serial"));
        let socket = at("rtos.introspect");
        let mut guest = ctx
            .flat_guest(&qemu, program)
            .name("rtos")
            .memory_mib(MIB)
            .delivery(Delivery::VmclockDevice)
            .serial_input(&serial)
            .paused()
            .args(["-plugin", &format!("{},socket={}", plugin.display(), socket.display())])
            .args(["-qmp", &format!("unix:{qmp},server=on,wait=off")])
            .start()?;
        host.cli(&["vm", "add", "--qmp", &qmp, "--name", "rtos", "--resume"])?;
        guest.wait_for_line("READY", BOOT)?;
        Ok(Self { host, guest, serial })
    }

    pub(super) fn row(&self) -> anyhow::Result<Value> {
        row(&self.host)
    }

    /// Adds a plugin's file while timevisord runs.
    pub(super) fn add_plugin(&self, name: &str, text: &str, mode: u32) -> anyhow::Result<()> {
        let directory = plugins(&self.host);
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
        fs::write(directory.join(name), text)?;
        Ok(fs::set_permissions(directory.join(name), Permissions::from_mode(mode))?)
    }

    pub(super) fn attach(&self, image: &Path) -> anyhow::Result<String> {
        self.host.cli(&["introspect", "attach", "rtos", "--image", &image.display().to_string()])
    }

    /// Attaching with this file fails, and `list` says why.
    fn refuses(&self, image: &Path, parts: &[&str]) -> anyhow::Result<()> {
        self.attach(image)?;
        self.host.wait_until("a refusal", |host| Ok(row(host)?["problem"].is_string()))?;
        let row = self.row()?;
        ensure!(row["points"] == 0, "{row}");
        mentions(row["problem"].as_str().unwrap_or_default(), parts)?;
        self.host.cli(&["introspect", "detach", "rtos"]).map(drop)
    }

    /// Lets the guest start and compares what it prints at its end with what timevisord reports.
    /// Returns the events.
    pub(super) fn run(
        &mut self,
        call: fn(&Value) -> anyhow::Result<Call>,
    ) -> anyhow::Result<Vec<Value>> {
        let attached = |host: &Host| Ok(row(host)?["state"] == "attached");
        self.host.wait_until("the trap points", attached)?;
        UnixStream::connect(&self.serial)?.write_all(b"g")?;
        self.guest.wait_for_line("DONE", BOOT)?;
        let said = logs(&self.guest.serial_text())?;
        let total: u64 = said.values().map(|log| log.count).sum();
        let all = |host: &Host| Ok(row(host)?["events"].as_u64() >= Some(total));
        self.host.wait_until("all events", all)?;
        let row = self.row()?;
        ensure!(row["dropped"] == 0 && row["senseless"] == 0, "{row}");
        let told =
            self.host.cli(&["introspect", "trace", "rtos", "--once", "--json", "--from", "0"])?;
        let events = told.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        ensure!(events.len() as u64 == total, "{} events of {total}", events.len());
        let mut seen = Logs::new();
        let mut before = [0; 2];
        for event in &events {
            let (who, kind, words) = call(event).with_context(|| event.to_string())?;
            seen.entry(who).or_default().call(kind, &words);
            // In order, with the estimate within the event's bounds.
            let number = |key: &str| event[key].as_i64().with_context(|| format!("{key}: {event}"));
            let at = [number("counter")?, number("estimate_ns")?];
            ensure!(before[0] < at[0] && before[1] <= at[1], "before {before:?}: {event}");
            ensure!(number("earliest_ns")? <= at[1] && at[1] <= number("latest_ns")?, "{event}");
            before = at;
        }
        ensure!(seen == said, "the guest says {said:?}, timevisord {seen:?}");
        Ok(events)
    }

    /// What is known of a task: its attributes (its priority or its runtime), or its jobs.
    pub(super) fn task(&self, comm: &str, tid: Option<u32>, key: &str) -> anyhow::Result<u64> {
        let row = self.row()?;
        let mut tasks = row["tasks"].as_array().into_iter().flatten();
        let found = tasks.find(|task| {
            task["thread"]["comm"] == comm && tid.is_none_or(|tid| task["thread"]["tid"] == tid)
        });
        let value = found.and_then(|task| task["attributes"][key].as_u64().or(task[key].as_u64()));
        value.with_context(|| format!("no {key} of {comm} {tid:?}: {row}"))
    }

    /// What is known of the three segments when the guest has ended, by their name.
    fn segments(&self, name: &str) -> anyhow::Result<()> {
        // The runtime and the utility of each segment's last pass.
        for (tid, wanted) in [
            (1, [200_000 + 599, 1000 + 599, 9, 600 - 85, 85]),
            (2, [300_000 + 598, 0xffff_ffff_fff0_0000 + 598, 9, 300 - 6, 6]),
        ] {
            let keys = ["runtime_ns", "utility", "priority", "jobs", "aborted"];
            let known = keys.map(|key| self.task(name, Some(tid), key));
            let known = known.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            ensure!(known == wanted, "segment {tid} is {known:?}, not {wanted:?}");
        }
        // The third segment has been retired.
        ensure!(self.task(name, Some(3), "runtime_ns").is_err(), "{}", self.row()?);
        // Only the first one has an abort handler, which the guest itself calls.
        let said = self.guest.serial_text();
        let handled: Vec<_> = said.lines().filter(|line| line.starts_with("ABORTED ")).collect();
        ensure!(handled == ["ABORTED 1 85", "ABORTED 2 0", "ABORTED 3 0"], "{handled:?}");
        Ok(())
    }
}

/// The lines that a guest prints at its end.
fn logs(text: &str) -> anyhow::Result<Logs> {
    let mut logs = Logs::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("LOG ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let [who, count, hash] = words[..] else { anyhow::bail!("{line:?}") };
        let log = Log { count: count.parse()?, hash: u64::from_str_radix(hash, 16)? };
        ensure!(logs.insert(who.parse()?, log).is_none(), "twice: {line}");
    }
    Ok(logs)
}

pub(super) fn word(value: &Value) -> anyhow::Result<u32> {
    let number = value.as_u64().with_context(|| format!("{value} is no number"))?;
    Ok(u32::try_from(number)?)
}

/// An event in the form in which periodic.c logs it.
fn freertos_call(event: &Value) -> anyhow::Result<Call> {
    let who = word(&event["thread"]["tid"])?;
    Ok(match event["kind"].as_str().unwrap_or_default() {
        "set_scheduler" => {
            let (target, asked) = (&event["target"], &event["attributes"]);
            ensure!(asked["policy"] == "round_robin", "another policy");
            let kind = if target["policy"] == "normal" { 'C' } else { 'P' };
            (who, kind, vec![word(&target["tid"])?, word(&asked["priority"])?])
        }
        "sleep" => {
            let ns = event["ns"].as_u64().context("no ns")?;
            ensure!(event["clock"] == 1 && ns.is_multiple_of(TICK_NS), "no ticks");
            let absolute = u32::from(event["absolute"] == true);
            (who, 'S', vec![absolute, u32::try_from(ns / TICK_NS)?])
        }
        "exit" => (who, 'D', vec![0, 0]),
        other => anyhow::bail!("{other:?} is nothing that FreeRTOS does"),
    })
}

pub(crate) fn freertos(ctx: &Context) -> anyhow::Result<String> {
    let program = ctx.flat_program("periodic")?;
    let mut scene = Scene::new(ctx, &program)?;
    let (text, stripped) = (ctx.path("not-elf"), ctx.path("stripped.elf"));
    std::fs::write(&text, "not an ELF file\n")?;
    command::run("strip", &["-o".as_ref(), stripped.as_os_str(), program.as_os_str()])?;
    for (file, parts) in [
        (&text, ["not-elf", "not a sound x86 ELF file"]),
        (&stripped, ["stripped.elf: not FreeRTOS", "before `strip`"]),
    ] {
        let said = scene.attach(file).err().with_context(|| format!("{parts:?} is attached"))?;
        mentions(&format!("{said:#}"), &parts)?;
    }
    let other = ctx.flat_program("segments")?;
    scene.refuses(&other, &["segments.elf", "not what the guest runs", "0x1000"])?;

    scene.attach(&program)?;
    let events = scene.run(freertos_call)?;
    ensure!(scene.row()?["guest"] == "FreeRTOS 11.2.0", "{}", scene.row()?);
    let jobs = |comm: &str| {
        let of = |event: &&Value| event["thread"]["comm"] == comm && event["kind"] == "sleep";
        events.iter().filter(of).count()
    };
    let told = [jobs("ctl 2ms"), jobs("nav 5ms"), jobs("log 10ms"), jobs("sleeper")];
    ensure!(told == [2500, 1000, 500, 100], "{told:?}");
    // Names are cut where the kernel cuts them; a task that has ended is not listed.
    ensure!(events.iter().any(|event| event["thread"]["comm"] == "a name that"), "no victim");
    let priorities: Vec<u64> = ["main", "sleeper", "IDLE"]
        .iter()
        .map(|comm| scene.task(comm, None, "priority"))
        .collect::<Result<_, _>>()?;
    ensure!(priorities == [7, 2, 0], "{priorities:?}");
    let tasks = scene.row()?["tasks"].as_array().map_or(0, Vec::len);
    ensure!(tasks == 3, "{}", scene.row()?);
    scene.host.cli(&["introspect", "detach", "rtos"])?;
    Ok(format!("{} events of 7 tasks exact", events.len()))
}

/// ChronOS's schedulers, by their numbers.
const SCHEDULERS: [&str; 7] = ["fifo", "rma", "edf", "hvdf", "lbesa", "dasa_nd", "dasa"];

/// An event in the form in which segments.c logs it.
fn segment_call(event: &Value) -> anyhow::Result<Call> {
    let who = word(&event["thread"]["tid"])?;
    Ok(match event["kind"].as_str().unwrap_or_default() {
        "set_scheduler" => {
            let asked = &event["attributes"];
            ensure!(asked["policy"] == "deadline" && event["target"]["tid"] == who, "another");
            let keys = ["runtime_ns", "deadline_ns", "period_ns", "priority"];
            let mut words =
                keys.iter().map(|key| word(&asked[*key])).collect::<Result<Vec<_>, _>>()?;
            // Both halves.
            let utility = asked["utility"].as_u64().context("no utility")?;
            words.extend([u32::try_from(utility & 0xffff_ffff)?, u32::try_from(utility >> 32)?]);
            (who, 'B', words)
        }
        "yield" => (who, 'E', vec![0, 0]),
        "abort" => (who, 'A', vec![0, 0]),
        "choose_scheduler" => {
            let (scheduler, priority) = (&event["scheduler"], word(&event["priority"])?);
            let named = SCHEDULERS.into_iter().zip(0..).find(|(name, _)| scheduler == name);
            let number =
                named.map_or_else(|| word(&scheduler["other"]), |(_, number)| Ok(number))?;
            (who, 'S', vec![number, priority, word(&event["processors"])?])
        }
        "exit" => (who, 'R', vec![0, 0]),
        other => anyhow::bail!("{other:?} is nothing that a segment does"),
    })
}

pub(crate) fn segments(ctx: &Context) -> anyhow::Result<String> {
    let program = ctx.flat_program("segments")?;
    let mut scene = Scene::new(ctx, &program)?;
    scene.attach(&program)?;
    let events = scene.run(segment_call)?;
    ensure!(scene.row()?["guest"] == "real-time segments, version 2", "{}", scene.row()?);
    scene.segments("segment")?;
    Ok(format!("{} events of 3 segments exact", events.len()))
}

/// The described guest system of this test, and the owner and the type of its note.
const ROBOT: &str = include_str!("../../../../plugins/segments/segments.toml");
const OWNER: &[u8; 9] = b"RobotCtrl";
const KIND: u32 = 77;

/// The guest with segments, with a note that timevisord does not know.
fn robot(ctx: &Context) -> anyhow::Result<PathBuf> {
    let mut bytes = fs::read(ctx.flat_program("segments")?)?;
    let mut note = [10u32, 4, 2].map(u32::to_le_bytes).concat();
    note.extend(b"Timevisor\0");
    let found = bytes.windows(note.len()).position(|part| part == note);
    let at = found.context("segments.elf has no note")?;
    bytes[at + 8..at + 12].copy_from_slice(&KIND.to_le_bytes());
    bytes[at + 12..at + 21].copy_from_slice(OWNER);
    let path = ctx.path("robot.elf");
    fs::write(&path, bytes)?;
    Ok(path)
}

fn robot_plugin() -> String {
    ROBOT
        .replace("\"Timevisor\"", "\"RobotCtrl\"")
        .replace("type = 2", &format!("type = {KIND}"))
        .replace("\"segments by a file\"", "\"robot control\"")
        .replace("name = \"segment\"\n", "name = \"robot\"\n")
}

pub(crate) fn described(ctx: &Context) -> anyhow::Result<String> {
    let program = robot(ctx)?;
    let mut scene = Scene::new(ctx, &program)?;
    let said = scene.attach(&program).err().context("it is attached without a plugin")?;
    mentions(&format!("{said:#}"), &["robot.elf: not FreeRTOS", "not real-time segments"])?;

    // While timevisord runs: the plugin, one that is broken, and one that anybody may write.
    let directory = plugins(&scene.host);
    let open = robot_plugin().replace("robot control", "anybody's");
    for (name, text, mode) in [
        ("10-broken.toml", "format = 1\nname = 5\n", 0o644),
        ("20-open.toml", open.as_str(), 0o666),
        ("30-robot.toml", robot_plugin().as_str(), 0o644),
    ] {
        scene.add_plugin(name, text, mode)?;
    }
    let rows = scene.host.json(&["introspect", "plugins"])?;
    let row_of = |file: &str| {
        let is_it = |row: &&Value| row["file"].as_str().is_some_and(|path| path.ends_with(file));
        let row = rows.as_array().into_iter().flatten().find(is_it);
        row.with_context(|| format!("{file} is not listed: {rows}"))
    };
    ensure!(row_of("30-robot.toml")?["name"] == "robot control", "{rows}");
    for (file, why) in [("10-broken.toml", "line 2"), ("20-open.toml", "others may write it")] {
        mentions(row_of(file)?["problem"].as_str().unwrap_or_default(), &[why])?;
    }
    let file = directory.join("30-robot.toml").display().to_string();
    let image = program.display().to_string();
    let checked =
        scene.host.cli(&["introspect", "plugins", "--check", &file, "--image", &image])?;
    mentions(
        &checked,
        &["sound", "robot control 2", "timevisor_begin_segment", "timevisor_set_scheduler"],
    )?;

    scene.attach(&program)?;
    let events = scene.run(segment_call)?;
    ensure!(scene.row()?["guest"] == "robot control 2", "{}", scene.row()?);
    scene.segments("robot")?;
    let log = scene.host.log_text();
    mentions(&log, &["broken plugins are left out", "10-broken.toml", "20-open.toml"])?;
    Ok(format!("{} events of 3 segments exact, by a plugin added at run time", events.len()))
}
