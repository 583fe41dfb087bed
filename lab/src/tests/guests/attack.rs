//! A user without any rights attacks, with everything that looks like a QEMU or may connect: nothing
//! of it reaches the clock, another user's VM, or root's commands.
//!
//! `ATTACK_S` is how long, 60 s by default; `ATTACK_SEED` begins another sequence.

use std::collections::VecDeque;
use std::fs::{self, File, Permissions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::owners::{prepared, served, words};
use super::stuck::Watchdog;
use crate::command::{self, Tethered};
use crate::host::Host;
use crate::ntp_impostor::Impostor;
use crate::programs;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::reference;
use crate::tests::faults::qemu::Bare;

const MALLORY: u32 = 4001;
/// How many of her processes run at a time.
const AT_ONCE: usize = 12;
/// Kinds of attack, some of which are drawn more often.
const KINDS: &[&str] = &[
    "plain",
    "truncate",
    "scribble",
    "descriptors",
    "maps",
    "silent",
    "silent",
    "bomb",
    "claim",
    "connect",
    "events",
    "garbage",
];
/// Within this time root's requests are answered. A program that only starts and ends is measured
/// beside each of them: what that takes is the machine's doing, and her processes use processors as
/// everybody's may.
const ANSWER: Duration = Duration::from_millis(100);
/// An answer waits for a processor so often where a program that only starts does once: the asking
/// program's start, the daemon, and the asking program again.
const TURNS: u32 = 3;
/// As many helpers of hers may be killed and hang in the kernel (daemon/src/vms/helpers.rs), and one
/// may be at work.
const MOST_HANGING: usize = 5;

pub(crate) fn attack(ctx: &Context) -> anyhow::Result<String> {
    let number = |name: &str, default: u64| -> anyhow::Result<u64> {
        std::env::var(name).map_or(Ok(default), |text| text.parse().context(name.to_owned()))
    };
    let (seconds, seed) = (number("ATTACK_S", 60)?, number("ATTACK_SEED", 1)?);
    let server = Impostor::honest()?;
    let mut host = Host::in_memory(ctx)?;
    fs::set_permissions(host.directory(), Permissions::from_mode(0o755))?;
    let lines = reference(&server.address());
    host.start(&format!("{lines}[guests]\ndiscover = \"all\"\ndiscover_interval = \"1s\"\n"))?;
    host.wait_synchronized(10_000)?;

    let qemu = ctx.qemu()?;
    let web = prepared(&host, &["--name", "web"])?;
    let real = Bare::start(ctx, &qemu, "web", &words(&web.all))?;
    served(&host, "web", &real)?;
    let mut mallory = Mallory::new(ctx, &host, seed)?;
    // The flooded sockets are where hers would be.
    prepared(&host, &["--name", "flood", "--user", &MALLORY.to_string()])?;

    let idle = Watchdog::start(host.pid()?, ctx.path("stuck-before.txt"));
    let quiet = watch(&host, &idle, Duration::from_secs(10), |_| Ok(()))?;
    drop(idle);
    let mut log = String::new();
    let looked = ctx.path("stuck.txt");
    let watchdog = Watchdog::start(host.pid()?, looked.clone());
    let busy = watch(&host, &watchdog, Duration::from_secs(seconds), |at| {
        if let Some(what) = mallory.turn()? {
            log += &format!("{:8.2} s: {what}\n", at.as_secs_f64());
        }
        Ok(())
    })?;
    fs::write(ctx.path("attack.log"), &log)?;
    let count = mallory.count;
    let (helpers, hanging) = helpers()?;
    ensure!(hanging <= MOST_HANGING, "{hanging} helpers hang");
    mallory.end();
    let gone = crate::interrupt::poll_until(Duration::from_secs(30), || {
        Ok((hanging_helpers()? == 0).then_some(()))
    })?;
    gone.context("helpers still hang after her file systems are gone")?;

    ensure!(busy.outside == 0, "{} readings are unreliable: {}", busy.outside, host.log_text());
    ensure!(
        busy.published >= 0.8 * quiet.published,
        "web's page was written {:.2} times a second, {:.2} without attacks",
        busy.published,
        quiet.published
    );
    ensure!(
        busy.half_width <= 2.0 * quiet.half_width,
        "bounds of +-{:.0} us, +-{:.0} us without attacks",
        busy.half_width * 1e6,
        quiet.half_width * 1e6
    );
    ensure!(
        busy.slowest <= ANSWER + TURNS * busy.slowest_start,
        "an answer took {:?}, and a program that only starts {:?} at most{}",
        busy.slowest,
        busy.slowest_start,
        if looked.exists() { format!("; see {}", looked.display()) } else { String::new() }
    );
    drop(watchdog);
    served(&host, "web", &real)?;
    // It can always be ended, and another one finds what was there.
    let ending = Instant::now();
    host.terminate()?;
    let ended = ending.elapsed();
    ensure!(ended < Duration::from_secs(10), "timevisord took {ended:?} to end");
    host.restart()?;
    served(&host, "web", &real)?;
    Ok(format!(
        "{count} attacks by uid {MALLORY} in {seconds} s (seed {seed}): no effect on web; written {:.2} times a second ({:.2} \
         before), +-{:.0} us ({:.0}); {helpers}, {hanging} of them hung; {} answers, median {:.1} ms, slowest {:.0} ms ({:.1} and {:.0} before); \
         starting a program took {:.1}, at most {:.0} ms",
        busy.published,
        quiet.published,
        busy.half_width * 1e6,
        quiet.half_width * 1e6,
        busy.answers,
        busy.median.as_secs_f64() * 1e3,
        busy.slowest.as_secs_f64() * 1e3,
        quiet.median.as_secs_f64() * 1e3,
        quiet.slowest.as_secs_f64() * 1e3,
        busy.median_start.as_secs_f64() * 1e3,
        busy.slowest_start.as_secs_f64() * 1e3,
    ))
}

/// Each helper of this namespace's daemon that has not ended: the capabilities that it may have, and its
/// status.
fn statuses() -> anyhow::Result<Vec<(u64, String)>> {
    // CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE.
    const EXAMINES: u64 = 1 << 2 | 1 << 19;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let kept = match line.as_slice() {
            line if line.ends_with(b"\0--helper\0") => EXAMINES,
            line if line.ends_with(b"\0--qmp-helper\0") => 0,
            _ => continue,
        };
        let status = fs::read_to_string(entry.path().join("status"));
        found.extend(status.ok().map(|status| (kept, status)));
    }
    found.retain(|(_, status)| !field(status, "State:").starts_with('Z'));
    Ok(found)
}

/// A field of /proc/PID/status.
fn field<'s>(status: &'s str, name: &str) -> &'s str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
}

/// Helpers that wait in the kernel for something that never comes.
fn hanging_helpers() -> anyhow::Result<usize> {
    let hangs = |(_, status): &&(u64, String)| field(status, "State:").starts_with('D');
    Ok(statuses()?.iter().filter(hangs).count())
}

/// What the helpers of this namespace's daemon may do, of which her processes have at least one; and
/// how many hang.
fn helpers() -> anyhow::Result<(String, usize)> {
    let mut users = std::collections::BTreeSet::new();
    let (mut count, mut speak) = (0, 0);
    for (kept, status) in &statuses()? {
        let capabilities = u64::from_str_radix(field(status, "CapPrm:"), 16)?;
        ensure!(capabilities & !kept == 0, "a helper has capabilities {capabilities:x}");
        let confined = field(status, "Seccomp:") == "2" && field(status, "NoNewPrivs:") == "1";
        ensure!(confined, "a helper: {status}");
        users.insert(field(status, "Uid:").split_whitespace().next().unwrap_or("?").to_owned());
        count += 1;
        speak += usize::from(*kept == 0);
    }
    ensure!(count > speak && speak > 0, "of {count} helpers {speak} speak QMP");
    let users = users.into_iter().collect::<Vec<_>>().join(" and ");
    let text = format!("{count} confined helpers as uid {users}, {speak} of which speak QMP");
    Ok((text, hanging_helpers()?))
}

/// What root and the VM see for a while.
struct Seen {
    /// Publications of web's page a second.
    published: f64,
    /// Median half-width of the bounds, s.
    half_width: f64,
    /// Readings that nobody vouches for.
    outside: u64,
    answers: usize,
    median: Duration,
    slowest: Duration,
    /// The same of a program that only starts and ends.
    median_start: Duration,
    slowest_start: Duration,
}

fn watch(
    host: &Host,
    watchdog: &Watchdog,
    span: Duration,
    mut meanwhile: impl FnMut(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<Seen> {
    let published = || host.vm("web")?["pages_published"].as_f64().context("web is gone");
    let (begin, first) = (Instant::now(), published()?);
    let (mut widths, mut times, mut starts, mut outside) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while begin.elapsed() < span {
        meanwhile(begin.elapsed())?;
        let asked = Instant::now();
        let status = watchdog.during(|| host.json(&["status"]))?;
        times.push(asked.elapsed());
        let started = Instant::now();
        host.cli(&["--version"])?;
        starts.push(started.elapsed());
        let clock = &status["clock"];
        outside += u64::from(clock["status"] != "synchronized");
        let (below, above) = (clock["below_ns"].as_f64(), clock["above_ns"].as_f64());
        widths.extend(below.zip(above).map(|(below, above)| (below + above) / 2e9));
        crate::interrupt::sleep(Duration::from_millis(100))?;
    }
    let published = (published()? - first) / begin.elapsed().as_secs_f64();
    widths.sort_by(f64::total_cmp);
    let middle_and_last = |times: &mut Vec<Duration>| {
        times.sort();
        (times[times.len() / 2], times[times.len() - 1])
    };
    let (median, slowest) = middle_and_last(&mut times);
    let (median_start, slowest_start) = middle_and_last(&mut starts);
    let half_width = *widths.get(widths.len() / 2).context("no bounds")?;
    let answers = times.len();
    Ok(Seen {
        published,
        half_width,
        outside,
        answers,
        median,
        slowest,
        median_start,
        slowest_start,
    })
}

struct Mallory {
    program: PathBuf,
    bomb: PathBuf,
    folder: tempfile::TempDir,
    control: PathBuf,
    web: PathBuf,
    flood: PathBuf,
    log: PathBuf,
    random: u64,
    count: u64,
    running: VecDeque<Running>,
}

struct Running {
    process: Tethered,
    mounted: Option<PathBuf>,
}

impl Mallory {
    fn new(ctx: &Context, host: &Host, seed: u64) -> anyhow::Result<Self> {
        let folder = scratch::directory()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        // The folder's name counts for nothing, the program's does.
        let program = folder.path().join("qemu-system-x86_64");
        let source = programs::workspace()?.join("lab/hostile/impostor.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-fPIE", "-pie", "-o"]);
        command::output(compiler.arg(&program).arg(source))?;
        let bombs = folder.path().join("bomb");
        fs::create_dir(&bombs)?;
        let bomb = bombs.join("qemu-system-x86_64");
        inflate(&program, &bomb)?;
        let run = host.directory();
        Ok(Self {
            program,
            bomb,
            control: run.join("control"),
            web: run.join("vms/web/page"),
            flood: run.join("vms/flood/monitor/qmp"),
            log: ctx.path("mallory.log"),
            folder,
            random: seed,
            count: 0,
            running: VecDeque::new(),
        })
    }

    /// Numerical Recipes' generator: any will do.
    fn draw(&mut self, below: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.random >> 33).unwrap_or(0) % below
    }

    /// Begins one attack, after an old one has ended. Returns what it is, now and then nothing.
    fn turn(&mut self) -> anyhow::Result<Option<String>> {
        if self.draw(3) > 0 {
            return Ok(None);
        }
        if self.running.len() >= AT_ONCE {
            self.running.pop_front();
        }
        self.count += 1;
        let kind = KINDS[self.draw(KINDS.len())];
        let name = format!("m{}", self.count);
        let mut mounted = None;
        let mut as_her = command::tethered("setpriv");
        let uid = MALLORY.to_string();
        as_her.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]);
        let program = if kind == "bomb" { &self.bomb } else { &self.program };
        as_her.arg(program).args(["-name", if self.draw(4) == 0 { "web" } else { &name }]);
        let mut command = match kind {
            "silent" => {
                let folder = self.folder.path().join(&name);
                fs::create_dir(&folder)?;
                let mut as_root = command::tethered(&self.program);
                as_root.args(["-name", &name]).arg(format!("-attack=silent={}", folder.display()));
                mounted = Some(folder);
                as_root
            }
            "connect" => {
                as_her.arg(format!("-attack=connect={}", self.control.display()));
                as_her
            }
            "claim" => {
                let page = format!("mem-path={},size=2M,readonly=on", self.web.display());
                as_her.args(["-object", &format!("memory-backend-file,id=p,share=on,{page}")]);
                as_her.args(["-device", "nvdimm,memdev=p", "-attack=plain"]);
                as_her
            }
            "events" | "garbage" => {
                let socket = format!("unix:{},server=on,wait=off", self.flood.display());
                as_her.args(["-qmp", &socket]).arg(format!("-attack={kind}"));
                as_her
            }
            "bomb" => {
                as_her.arg("-attack=plain");
                as_her
            }
            kind => {
                as_her.arg(format!("-attack={kind}"));
                as_her
            }
        };
        let process = Tethered::spawn(&mut command, kind, &self.log)?;
        self.running.push_back(Running { process, mounted });
        Ok(Some(format!("{kind} as {name}")))
    }

    fn end(mut self) {
        self.running.clear();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
        if let Some(folder) = &self.mounted {
            // Readers that hang are let go by the end of the server.
            let _ = Command::new("umount").args(["--lazy"]).arg(folder).status();
        }
    }
}

/// A copy of an ELF file whose dynamic symbols claim 8 GiB.
fn inflate(program: &Path, bomb: &Path) -> anyhow::Result<()> {
    const SYMBOLS: u64 = 8 << 30;
    const FROM: u64 = 16 << 20;
    let mut bytes = fs::read(program)?;
    let word = |bytes: &[u8], at: usize, length: usize| -> anyhow::Result<usize> {
        let mut value = [0; 8];
        value[..length].copy_from_slice(bytes.get(at..at + length).context("no ELF file")?);
        Ok(usize::try_from(u64::from_le_bytes(value))?)
    };
    // Of the ELF header: e_shoff, e_shentsize, e_shnum; of a section's: sh_type, sh_offset, sh_size.
    let (table, size, count) =
        (word(&bytes, 0x28, 8)?, word(&bytes, 0x3a, 2)?, word(&bytes, 0x3c, 2)?);
    for section in (0..count).map(|index| table + index * size) {
        const DYNSYM: usize = 11;
        if word(&bytes, section + 4, 4)? == DYNSYM {
            bytes[section + 0x18..][..8].copy_from_slice(&FROM.to_le_bytes());
            bytes[section + 0x20..][..8].copy_from_slice(&SYMBOLS.to_le_bytes());
        }
    }
    let mut file = File::create(bomb)?;
    file.write_all(&bytes)?;
    // Sparse: it takes no room.
    file.seek(SeekFrom::Start(0))?;
    file.write_at(&[0], FROM + SYMBOLS - 1)?;
    fs::set_permissions(bomb, Permissions::from_mode(0o755))?;
    chown(bomb, Some(MALLORY), Some(MALLORY))?;
    Ok(())
}
