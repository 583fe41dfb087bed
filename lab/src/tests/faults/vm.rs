//! Faults of a served VM: its QMP socket is lost, or the helper that speaks through it; it ends, or
//! the daemon may not inspect it any more.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use timevisor_clock_page::reader::Vmclock;
use timevisor_linux::page::ReadPage;
use timevisor_linux::{page_file, peer};

use crate::command;
use crate::host::{Host, mentions};
use crate::ntp_impostor::Impostor;
use crate::qmp::Qmp;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{self, complaint, reference};
use crate::tests::faults::qemu::Bare;

pub(crate) fn qmp(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    // The pages are hardly ever written, so only polling or QMP can bring the news.
    let slow = "[clock]\npublish_interval = \"60s\"\nvalidity = \"180s\"\nstale_after = \"300s\"\n";
    let lines =
        reference(&server.address()).replace("poll = \"100ms\"", "poll = \"90s\"\nburst = 1");
    host.start(&format!("{slow}{lines}"))?;
    host.wait_synchronized(10_000)?;
    let vm = Bare::vmclock(ctx, "web", &[])?;
    host.wait_vm("web", "synchronized")?;

    lost(ctx, &host, &vm).context("lost")?;
    mute(ctx, &host, &vm, "mute", b"").context("mute")?;
    mute(ctx, &host, &vm, "babbling", b"220 mail.example.net ESMTP\r\n").context("babbling")?;
    crowded(ctx, &host, &vm).context("crowded")?;
    stop_is_noticed(&host, &vm)?;
    inherited(ctx, &host, &vm).context("another client's answers")?;
    let late = helpers(&host, &vm).context("helpers")?;
    Ok(format!(
        "lost, mute, babbling, crowded and inherited sockets: served by looking, stops noticed; a resume that a helper \
         leaves undone is done by another, after {late}"
    ))
}

fn add(host: &Host, vm: &Bare, socket: &Path) -> anyhow::Result<()> {
    let socket = socket.display().to_string();
    host.cli(&["vm", "add", "--qmp", &socket, "--pid", &vm.pid()]).map(drop)
}

/// A stop shows as unknown with its reason; a resume shows as synchronized and as a disruption.
fn stop_is_noticed(host: &Host, vm: &Bare) -> anyhow::Result<()> {
    host.wait_vm("web", "synchronized")?;
    let before = host.vm("web")?["disruption_marker"].clone();
    let mut qmp = vm.qmp()?;
    qmp.run("stop")?;
    host.wait_vm("web", "unknown")?;
    mentions(&host.vm("web")?["reason"].to_string(), &["the VM"])?;
    qmp.run("cont")?;
    host.wait_vm("web", "synchronized")?;
    ensure!(host.vm("web")?["disruption_marker"] != before, "the pause is no disruption");
    Ok(())
}

/// A relay to the VM's socket disappears and comes back.
fn lost(ctx: &Context, host: &Host, vm: &Bare) -> anyhow::Result<()> {
    let path = ctx.path("relay");
    let relay = UnixListener::bind(&path)?;
    add(host, vm, &path)?;
    let (mut daemon, _) = relay.accept()?;
    let mut qemu = UnixStream::connect(vm.qmp_path())?;
    pass(&mut qemu, &mut daemon, "\"QMP\"")?;
    drop((relay, daemon, qemu));
    fs::remove_file(&path)?;
    host.wait_until("the loss is in the log", |h| {
        Ok(h.log_text().contains("looking at its counter instead"))
    })?;
    stop_is_noticed(host, vm)?;
    // The relay comes back, and the daemon reconnects.
    let relay = UnixListener::bind(&path)?;
    let (sender, receiver) = mpsc::channel();
    let waiting = relay.try_clone()?;
    std::thread::spawn(move || sender.send(waiting.accept().map(|(stream, _)| stream)));
    let back =
        receiver.recv_timeout(std::time::Duration::from_secs(20)).context("no reconnect")??;
    drop((back, relay));
    fs::remove_file(&path)?;
    Ok(())
}

/// Forwards data from one stream to the other until `needle` has passed.
fn pass(from: &mut UnixStream, to: &mut UnixStream, needle: &str) -> anyhow::Result<()> {
    let (mut said, mut buffer) = (String::new(), [0; 4096]);
    while !said.contains(needle) {
        let count = from.read(&mut buffer)?;
        ensure!(count > 0, "it said only {said}");
        to.write_all(&buffer[..count])?;
        said += &String::from_utf8_lossy(&buffer[..count]);
    }
    Ok(())
}

/// Whatever listens on the socket does not speak QMP, or says nothing.
fn mute(ctx: &Context, host: &Host, vm: &Bare, name: &str, words: &[u8]) -> anyhow::Result<()> {
    let path = ctx.path(name);
    let listener = UnixListener::bind(&path)?;
    add(host, vm, &path)?;
    let (mut stream, _) = listener.accept()?;
    stream.write_all(words)?;
    stop_is_noticed(host, vm)?;
    drop(stream);
    fs::remove_file(&path)?;
    Ok(())
}

/// QEMU serves one QMP client; further clients wait in a queue, until the queue is full.
fn crowded(ctx: &Context, host: &Host, vm: &Bare) -> anyhow::Result<()> {
    let holder = Qmp::connect(&vm.qmp_path())?;
    add(host, vm, &vm.qmp_path())?;
    let mut queue = Vec::new();
    while let Ok(waiting) = peer::connect(&vm.qmp_path()) {
        queue.push(waiting);
    }
    // Through another name, since the daemon does not connect twice to the same path.
    let other = ctx.path("other");
    symlink(vm.qmp_path(), &other)?;
    let socket = other.display().to_string();
    let out = host.cli_output(&["vm", "add", "--qmp", &socket, "--pid", &vm.pid()])?;
    host.json(&["status"]).context("the daemon waits for QEMU")?;
    mentions(&String::from_utf8_lossy(&out.stderr), &["another program", &socket])?;
    drop(queue);
    // Meanwhile the daemon serves the VM by polling. When the other client leaves, QEMU turns to
    // the daemon.
    stop_is_noticed(host, vm)?;
    drop(holder);
    Ok(())
}

/// QEMU sends the answers to an earlier client's commands to the daemon; the VM is nevertheless
/// resumed, as requested.
fn inherited(ctx: &Context, host: &Host, vm: &Bare) -> anyhow::Result<()> {
    vm.qmp()?.run("stop")?;
    host.wait_vm("web", "unknown")?;
    let path = ctx.path("inherited");
    let relay = UnixListener::bind(&path)?;
    let socket = path.display().to_string();
    host.cli(&["vm", "add", "--qmp", &socket, "--pid", &vm.pid(), "--resume"])?;
    let (mut daemon, _) = relay.accept()?;
    daemon.write_all(b"{\"return\": {}, \"id\": 0}\r\n")?;
    let mut qemu = UnixStream::connect(vm.qmp_path())?;
    pass(&mut qemu, &mut daemon, "\"QMP\"")?;
    daemon.write_all(b"{\"return\": {}, \"id\": 0}\r\n")?;
    let mut sent = String::new();
    let both = (daemon.try_clone()?, qemu.try_clone()?);
    let answers = std::thread::spawn(move || {
        let (mut daemon, mut qemu) = both;
        // The streams are closed when the test ends.
        let _ = std::io::copy(&mut qemu, &mut daemon);
    });
    let mut buffer = [0; 4096];
    daemon.set_read_timeout(Some(std::time::Duration::from_secs(20)))?;
    while !sent.contains("\"cont\"") {
        let count = daemon.read(&mut buffer).with_context(|| format!("only {sent}"))?;
        ensure!(count > 0, "the daemon closed it after {sent}");
        qemu.write_all(&buffer[..count])?;
        sent += &String::from_utf8_lossy(&buffer[..count]);
    }
    qemu.shutdown(std::net::Shutdown::Both)?;
    ensure!(answers.join().is_ok(), "the relay panicked");
    fs::remove_file(&path)?;
    Ok(())
}

/// The helper that speaks QMP stands still, and another one is killed: the VM is nevertheless resumed,
/// as requested. Returns how long that takes.
fn helpers(host: &Host, vm: &Bare) -> anyhow::Result<String> {
    let path = vm.qmp_path();
    add(host, vm, &path)?;
    host.wait_until("a helper speaks QMP", |_| Ok(speakers()?.len() == 1))?;
    // The relay may have gone before QEMU did what it was told.
    vm.qmp()?.run("cont")?;
    let mut late = Vec::new();
    for signal in ["-STOP", "-KILL"] {
        host.wait_vm("web", "synchronized")?;
        vm.qmp()?.run("stop")?;
        host.wait_vm("web", "unknown")?;
        let (begin, before) = (Instant::now(), speakers()?);
        let [pid] = &before[..] else { bail!("{} helpers speak QMP", before.len()) };
        command::output(Command::new("kill").args([signal, pid]))?;
        let socket = path.display().to_string();
        host.cli(&["vm", "add", "--qmp", &socket, "--pid", &vm.pid(), "--resume"])?;
        host.wait_vm("web", "synchronized")?;
        late.push(format!("{:.1} s", begin.elapsed().as_secs_f64()));
        let after = speakers()?;
        ensure!(after.len() == 1 && after != before, "{before:?} became {after:?}");
    }
    Ok(late.join(" and "))
}

/// The helpers of this namespace's daemon that speak QMP.
fn speakers() -> anyhow::Result<Vec<String>> {
    let is_one = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.ends_with(b"\0--qmp-helper\0")
    };
    let processes = fs::read_dir("/proc")?.flatten().filter(is_one);
    Ok(processes.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

pub(crate) fn ends(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    let slow = "[guests]\ndiscover_interval = \"2s\"\n";
    host.start(&format!("{slow}{}", reference(&server.address())))?;
    host.wait_synchronized(10_000)?;
    let mut well = Bare::vmclock(ctx, "well", &[])?;
    host.wait_vm("well", "synchronized")?;
    let before = host.vm("well")?["disruption_marker"].clone();
    killed(ctx, &host).context("killed")?;
    removed(ctx, &host).context("removed")?;
    let reused = same_pid(ctx, &host).context("the same pid")?;
    // On a busy machine, the guard may take the server's delays for a fault; that disrupts every VM
    // and is in the log.
    let undisturbed = host.vm("well")?["disruption_marker"] == before;
    ensure!(undisturbed || host.log_text().contains("contradicted"), "another VM was disturbed");
    host.wait_vm("well", "synchronized")?;
    well.check_alive()?;
    not_allowed(ctx, &well).context("unreadable")?;
    Ok(format!("killed, removed, unreadable, pid reused {reused}: others are not disturbed"))
}

fn killed(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let vm = Bare::nvdimm(ctx, host, "short")?;
    host.wait_vm("short", "synchronized")?;
    let path = host.directory().join("vms/short/page");
    let page = ReadPage::new(page_file::open(&path)?)?;
    let alive = Vmclock::read(&page)??;
    ensure!(alive.period != 0 && alive.time.secs() > 0, "no time on the page: {alive:?}");
    drop(vm);
    host.wait_until("its row is gone", |h| Ok(h.vm("short").is_err()))?;
    let dead = Vmclock::read(&page)??;
    ensure!(dead.period == 0 && dead.time.secs() == 0, "its page still tells the time: {dead:?}");
    ensure!(dead.disruption != alive.disruption, "its page was not disrupted");
    // The same VM again, with the same files.
    let again = Bare::nvdimm(ctx, host, "short")?;
    host.wait_vm("short", "synchronized")?;
    drop(again);
    Ok(())
}

fn removed(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let vms = [Bare::nvdimm(ctx, host, "file")?, Bare::vmclock(ctx, "device", &[])?];
    for (name, vm) in ["file", "device"].into_iter().zip(&vms) {
        host.wait_vm(name, "synchronized")?;
        host.cli(&["vm", "remove", name])?;
        ensure!(host.vm(name).is_err(), "{name} is still listed");
        // Discovery runs every 2 s and considers processes younger than 5 s.
        std::thread::sleep(std::time::Duration::from_secs(3));
        ensure!(host.vm(name).is_err(), "{name} was found again although it was removed");
        host.cli(&["vm", "add", "--pid", &vm.pid()])?;
        host.wait_vm(name, "synchronized")?;
    }
    // Removing a VM that is not running removes its files.
    let [file, device] = vms;
    drop((file, device));
    host.wait_until("its row is gone", |h| Ok(h.vm("file").is_err()))?;
    host.cli(&["vm", "remove", "file"])?;
    ensure!(!host.directory().join("vms/file").exists(), "its files stay");
    complaint(host, &["vm", "remove", "file"]).map(drop)
}

/// A QEMU that gets the pid of one that has just ended is another VM. The result says whether the
/// kernel could be made to reuse the pid.
fn same_pid(ctx: &Context, host: &Host) -> anyhow::Result<&'static str> {
    let first = Bare::vmclock(ctx, "first", &[])?;
    host.wait_vm("first", "synchronized")?;
    // Long enough that discovery no longer considers the process.
    std::thread::sleep(std::time::Duration::from_secs(7));
    let pid: u32 = first.pid().parse()?;
    // Resolved beforehand, because this starts processes.
    let qemu = ctx.qemu_10()?;
    let page = ["-machine", "aux-ram-share=on", "-device", "vmclock"];
    drop(first);
    for _ in 0..20 {
        if fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).is_err() {
            return Ok("not possible here");
        }
        let daemon = Bare::start(ctx, &qemu, "daemon", &page)?;
        if daemon.pid() != pid.to_string() {
            continue;
        }
        host.wait_vm("daemon", "synchronized")?;
        ensure!(host.vm("first").is_err(), "the first is still listed");
        ensure!(host.vm("daemon")?["pid"] == pid, "another pid");
        return Ok("once");
    }
    Ok("never, it was taken by others")
}

/// A daemon without privileges: its own clock works, and it reports what it may not inspect.
fn not_allowed(ctx: &Context, vm: &Bare) -> anyhow::Result<()> {
    let server = Impostor::honest()?;
    let host = Host::further(ctx, "nobody")?;
    chown(host.directory(), Some(65534), Some(65534))?;
    let wrapper = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let mut daemon = common::start_through(ctx, &host, &wrapper, &reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let text = complaint(&host, &["vm", "add", "--pid", &vm.pid()])?;
    mentions(&text, &["not allowed", &vm.pid(), "run as root", "CAP_SYS_PTRACE"])?;
    let log = || fs::read_to_string(ctx.path("wrapped.log")).unwrap_or_default();
    // Only lines about this VM, because the machine may run others.
    let pid = vm.pid();
    let ours = |line: &&str| line.contains("CAP_SYS_PTRACE") && line.contains(&pid);
    let told = || log().lines().filter(ours).count();
    host.wait_until("discovery says so too", |_| Ok(told() > 0))?;
    let often = told();
    ensure!(often < 4, "it says so {often} times: {}", log());
    ensure!(host.json(&["vm", "list"])?.as_array().is_some_and(Vec::is_empty), "it serves it");
    // Its page belongs to another user, whom readers that run as root do not trust.
    let page = HostPage::open(host.directory()).err().context("root trusts anybody's page")?;
    mentions(&format!("{page:#}"), &["belongs to user 65534"])?;
    daemon.check_alive()
}
