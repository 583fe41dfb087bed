//! Two hundred VMs on one host: four real ones, and processes that look like a QEMU. Each is served,
//! all pages are written together, and the daemon stays small.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::owners::{prepared, served, words};
use crate::command::{self, Tethered};
use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::programs;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::reference;
use crate::tests::faults::qemu::Bare;

const VMS: usize = 200;
const REAL: usize = 4;
const MALLORY: u32 = 4001;
/// Bytes of memory for the daemon and its helpers.
const MEMORY: u64 = 100 << 20;
/// `seq_count` of struct vmclock_abi (linux/vmclock-abi.h).
const SEQUENCE: u64 = 12;
/// Publications that are timed.
const ROUNDS: usize = 40;

pub(crate) fn many(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    fs::set_permissions(host.directory(), Permissions::from_mode(0o755))?;
    let lines = reference(&server.address());
    host.start(&format!("{lines}[guests]\ndiscover = \"all\"\ndiscover_interval = \"1s\"\n"))?;
    host.wait_synchronized(10_000)?;
    let folder = scratch::directory()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let program = folder.path().join("qemu-system-x86_64");
    let source = programs::workspace()?.join("lab/hostile/impostor.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-fPIE", "-pie", "-o"]);
    command::output(compiler.arg(&program).arg(source))?;

    let qemu = ctx.qemu()?;
    let mut real = Vec::new();
    for index in 0..REAL {
        let name = format!("real{index}");
        let own = prepared(&host, &["--name", &name])?;
        // Their firmware has nothing to do, but looks for it: they stand still, so that what is
        // timed is the daemon.
        let bare = Bare::start(ctx, &qemu, &name, &words(&own.all))?;
        served(&host, &name, &bare)?;
        real.push(bare);
    }
    let mut fakes = Vec::new();
    for index in REAL..VMS {
        let mut command = command::tethered("setpriv");
        let uid = MALLORY.to_string();
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).arg(&program);
        command.args(["-name", &format!("fake{index}"), "-attack=plain"]);
        fakes.push(Tethered::spawn(&mut command, "a fake QEMU", &ctx.path("fakes.log"))?);
    }
    host.wait_until(&format!("{VMS} VMs are served"), |h| {
        let list = h.json(&["vm", "list"])?;
        let rows = list.as_array().context("no list")?;
        Ok(rows.iter().filter(|row| row["status"] == "synchronized").count() == VMS)
    })?;

    let pages = fakes.iter().map(|fake| page_of(fake.pid())).collect::<anyhow::Result<Vec<_>>>()?;
    let mut spreads = spreads(&pages)?;
    spreads.sort();
    let (median, worst) = (spreads[spreads.len() / 2], spreads[spreads.len() - 1]);
    let memory = memory_of(&host)?;
    ensure!(memory < MEMORY, "{} MiB of memory", memory >> 20);
    let begin = Instant::now();
    host.cli(&["status"])?;
    let answer = begin.elapsed();
    drop(real);
    Ok(format!(
        "{VMS} VMs ({REAL} real), each synchronized; all pages of a publication within {:.2} ms (median of {ROUNDS}, at most \
         {:.1}); {} MiB of memory with the helpers; `timevisor status` in {:.0} ms",
        median.as_secs_f64() * 1e3,
        worst.as_secs_f64() * 1e3,
        memory >> 20,
        answer.as_secs_f64() * 1e3,
    ))
}

/// The page of a fake: its shared memory, by its descriptor.
fn page_of(pid: u32) -> anyhow::Result<File> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_else(|_| PathBuf::new());
        if target.to_string_lossy().contains("vmclock_page") {
            return File::open(entry.path()).context("its page");
        }
    }
    anyhow::bail!("process {pid} has no page")
}

/// From the first to the last page that changes, for each of some publications.
fn spreads(pages: &[File]) -> anyhow::Result<Vec<Duration>> {
    let sequence = |page: &File| -> anyhow::Result<u32> {
        let mut bytes = [0; 4];
        page.read_exact_at(&mut bytes, SEQUENCE)?;
        Ok(u32::from_le_bytes(bytes))
    };
    // The daemon writes pages in the order in which it found them; any two may be first and last.
    let mut spreads = Vec::new();
    let late = Instant::now() + Duration::from_secs(60);
    while spreads.len() < ROUNDS {
        ensure!(Instant::now() < late, "pages are not written");
        let before = pages.iter().map(sequence).collect::<anyhow::Result<Vec<_>>>()?;
        let first = loop {
            let now = sequence(&pages[0])?;
            let last = sequence(&pages[pages.len() - 1])?;
            if now != before[0] || last != before[before.len() - 1] {
                break Instant::now();
            }
            ensure!(Instant::now() < late, "pages are not written");
        };
        let mut open: Vec<usize> = (0..pages.len()).collect();
        while !open.is_empty() {
            let mut left = Vec::new();
            for index in open {
                if sequence(&pages[index])? == before[index] {
                    left.push(index);
                }
            }
            open = left;
            ensure!(Instant::now() < late, "pages are not written");
        }
        spreads.push(first.elapsed());
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(spreads)
}

/// Memory of the daemon and of its helpers, bytes: what is theirs alone, and their share of the rest.
fn memory_of(host: &Host) -> anyhow::Result<u64> {
    let daemon = host.pid()?;
    let mut all = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let own = entry.file_name().to_string_lossy() == daemon.to_string();
        if !own && !line.ends_with(b"\0--helper\0") && !line.ends_with(b"\0--qmp-helper\0") {
            continue;
        }
        let rollup = fs::read_to_string(entry.path().join("smaps_rollup")).unwrap_or_default();
        let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
        let kib = pss.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        all += kib.context("no smaps_rollup")? << 10;
    }
    Ok(all)
}
