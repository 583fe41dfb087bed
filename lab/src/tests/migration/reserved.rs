//! A VM with a reservation moves under real KVM and cgroup v2, between two timevisords on one emulated host
//! ([`crate::nested`]): each has a run directory and a core of its own for reservations.
//!
//! The guests are a loop at the reset vector: what counts here is when their vCPUs' threads may run.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::host::mentions;
use crate::nested::{NestedHost, PERIODIC, write};
use crate::scenario::Context;

/// One for everything else, and one for each daemon's reservations.
const PROCESSORS: u32 = 3;
/// The source's run directory and the destination's.
const A: &str = "/run/timevisor";
const B: &str = "/run/b";
const BUDGET_NS: u64 = 20_000_000;

const CONFIG: &str = "run_directory = \"/run/b\"\n[guests]\ndiscover = false\n[clock]\ntai_offset = 37\n\
                      [[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\npoll = \"1s\"\n\
                      [[guests.vm.configured.reserve]]\nbudget = \"20ms\"\nperiod = \"50ms\"\nalone = true\n";

/// A BIOS of 64 KiB with `jmp .` where the processor begins.
fn bios() -> Vec<u8> {
    let mut image = vec![0xf4; 64 << 10];
    let reset = image.len() - 16;
    image[reset..reset + 2].copy_from_slice(&[0xeb, 0xfe]);
    image
}

pub(crate) fn reserved(ctx: &Context) -> anyhow::Result<String> {
    let (kernel, qemu) = (ctx.kernel("trixie-backports")?, ctx.qemu_10()?);
    let config = write(ctx, "b.toml", CONFIG)?;
    let image = ctx.path("loop.bin");
    std::fs::write(&image, bios())?;
    let more = |built: crate::image::Image| {
        Ok(built.file(config, "/etc/b.toml", 0o644).file(image, "/lab/loop.bin", 0o644))
    };
    let kernels = [&kernel, &kernel];
    let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, kernels, PROCESSORS, PERIODIC, more)?;
    // Whoever enables the controller disables it again, which would end the other daemon's partition.
    host.sh(
        "mount -t cgroup2 none /sys/fs/cgroup; echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control",
    )?;
    host.sh("timevisord --verbose --config /etc/b.toml >>/run/b.log 2>&1 &")?;
    host.wait("the second timevisord", |host| {
        let status = host.json(&format!("timevisor status --json --run-directory {B}"))?;
        Ok(status["clock"]["status"] == "synchronized")
    })?;

    let told = course(&mut host);
    told.with_context(|| {
        let state = host.sh(
            "tail -n 25 /run/timevisord.log /run/b.log /run/*-qemu.log; for f in $(find /sys/fs/cgroup -name timevisor-*); \
             do echo $f $(cat $f/cpuset.cpus $f/cpuset.cpus.partition); done",
        );
        state.unwrap_or_else(|error| format!("{error:#}"))
    })
}

fn course(host: &mut NestedHost) -> anyhow::Result<String> {
    start(host, A, "web", "-S")?;
    add(host, A, "web", "--resume")?;
    host.sh("timevisor reserve apply web --alone --budget 20ms/50ms")?;
    host.wait("the source's reservation", |host| in_force(host, A, "web"))?;
    host.sh("timevisor reserve export web >/run/web.toml")?;
    let exported = host.sh("cat /run/web.toml")?;
    mentions(&exported, &["budget = \"20ms\"", "period = \"50ms\"", "alone = true"])?;

    let mut told = String::new();
    refused(host)?;
    write!(told, "no place: refused, and it stays; ")?;
    cancelled(host)?;
    write!(told, "cancelled: it stays, and the other core is free again; ")?;
    moved(host)?;
    write!(
        told,
        "moved: in force before its first instruction there, given back here after that; "
    )?;
    returned(host)?;
    write!(told, "run here again: reserved again")?;
    Ok(told)
}

fn start(host: &mut NestedHost, directory: &str, name: &str, options: &str) -> anyhow::Result<()> {
    host.sh(&format!(
        "(echo 'exec qemu-system-x86_64 -name {name},debug-threads=on -accel kvm -cpu host -machine q35 -m 64M \
         -bios /lab/loop.bin -display none -nodefaults -no-user-config {options} \
         -chardev socket,id=lab,path=/run/{name}.qmp,server=on,wait=off -mon chardev=lab,mode=control ' \\\\; \
         timevisor vm args --name {name} --delivery vmclock --run-directory {directory}) >/run/{name}.sh"
    ))?;
    host.sh(&format!("sh /run/{name}.sh >/run/{name}-qemu.log 2>&1 &"))?;
    host.wait("QEMU", |host| Ok(host.qmp(name, "query-status").is_ok()))
}

fn add(host: &mut NestedHost, directory: &str, name: &str, more: &str) -> anyhow::Result<String> {
    let qmp = format!("{directory}/vms/{name}/monitor/qmp");
    // Its exit status, and what it says.
    host.sh(&format!(
        "timevisor vm add --run-directory {directory} --qmp {qmp} --name {name} {more} 2>&1; echo exit $?"
    ))
}

/// Starts a QEMU on B, and has it await the VM.
fn await_there(host: &mut NestedHost, name: &str) -> anyhow::Result<String> {
    start(host, B, name, "-S -incoming defer")?;
    again(host, name)
}

fn again(host: &mut NestedHost, name: &str) -> anyhow::Result<String> {
    add(host, B, name, &format!("--resume --reserve /run/web.toml --incoming unix:/run/{name}.in"))
}

fn row(host: &mut NestedHost, directory: &str, name: &str) -> anyhow::Result<Value> {
    let rows = host.json(&format!("timevisor reserve list --json --run-directory {directory}"))?;
    let found = rows.as_array().into_iter().flatten().find(|row| row["vm"] == name).cloned();
    Ok(found.unwrap_or(Value::Null))
}

/// Whether a VM has its budget, by the daemon's word and by the kernel's.
fn in_force(host: &mut NestedHost, directory: &str, name: &str) -> anyhow::Result<bool> {
    let row = row(host, directory, name)?;
    if !row["problem"].is_null() || row["budget_ns"] != BUDGET_NS {
        return Ok(false);
    }
    let tid = row["tid"].as_u64().context("no thread")?;
    let policy = host.sh(&format!("sed 's/.*) //' /proc/{tid}/stat | cut -d ' ' -f 39"))?;
    let cgroup = host.sh(&format!(
        "cat /sys/fs/cgroup/$(cut -d : -f 3 /proc/{tid}/cgroup)/cpuset.cpus.partition"
    ))?;
    ensure!(policy.trim() == "6" && cgroup.trim() == "root", "{row}: {policy} {cgroup}");
    Ok(true)
}

fn stays(host: &mut NestedHost) -> anyhow::Result<()> {
    ensure!(in_force(host, A, "web")?, "the source's reservation: {}", row(host, A, "web")?);
    let state = host.qmp("web", "query-status")?;
    ensure!(state["status"] == "running", "{state}");
    Ok(())
}

/// The destination has no place, by what goes along and by what is configured there.
fn refused(host: &mut NestedHost) -> anyhow::Result<()> {
    start(host, B, "db", "-S")?;
    add(host, B, "db", "--resume")?;
    host.sh(&format!("timevisor reserve apply db --alone --budget 20ms/50ms --run-directory {B}"))?;
    host.wait("the reservation that is in the way", |host| in_force(host, B, "db"))?;

    let said = await_there(host, "late")?;
    mentions(&said, &["exit 4", "has no place here", "--alone"])?;
    let said = host.sh("timevisor vm migrate web --to unix:/run/late.in 2>&1; echo exit $?")?;
    mentions(&said, &["exit 1", "stays here"])?;
    stays(host)?;
    start(host, B, "configured", "-S -incoming defer")?;
    let said = add(host, B, "configured", "--resume --incoming unix:/run/configured.in")?;
    mentions(&said, &["exit 4", "is not awaited here", "configured reservation"])?;
    for name in ["late", "configured"] {
        ensure!(row(host, B, name)?.is_null(), "{name} has a reservation");
        host.sh(&format!("test ! -e /run/{name}.in")).context("it listens nevertheless")?;
    }

    host.sh(&format!("timevisor reserve release db --run-directory {B}"))?;
    host.qmp("db", "quit")?;
    // What is configured is made as soon as there is room.
    host.qmp("configured", "quit")?;
    host.wait("room", |host| Ok(row(host, B, "configured")?.is_null()))?;
    let said = again(host, "late")?;
    mentions(&said, &["exit 0"])?;
    Ok(())
}

/// Whether the source's QEMU waits for a word before it hands the VM over.
fn pause_at_the_end(host: &mut NestedHost, pause: bool) -> anyhow::Result<()> {
    let capability = json!({"capability": "pause-before-switchover", "state": pause});
    host.execute("web", "migrate-set-capabilities", &json!({"capabilities": [capability]}))?;
    Ok(())
}

/// The migration to the VM that [`refused`] has prepared.
fn cancelled(host: &mut NestedHost) -> anyhow::Result<()> {
    ensure!(row(host, B, "late")?["budget_ns"] == BUDGET_NS, "not admitted");
    pause_at_the_end(host, true)?;
    host.sh("timevisor vm migrate web --to unix:/run/late.in >/run/web.left 2>&1 &")?;
    // All is sent but the vCPUs' state, and they stand still.
    host.wait("the migration", |host| {
        Ok(host.qmp("web", "query-migrate")?["status"] == "pre-switchover")
    })?;
    ensure!(in_force(host, A, "web")?, "{}", row(host, A, "web")?);
    host.sh("timevisor vm migrate web --cancel")?;
    host.wait("the command to return", |host| {
        Ok(host.sh("cat /run/web.left")?.contains("stays here"))
    })?;
    host.wait("it to run again", |host| {
        Ok(host.qmp("web", "query-status")?["status"] == "running")
    })?;
    stays(host)?;
    // QEMU ends where a migration that it awaited does not come.
    host.wait("the destination to give its core back", |host| Ok(row(host, B, "late")?.is_null()))?;
    pause_at_the_end(host, false)?;
    stays(host)
}

fn moved(host: &mut NestedHost) -> anyhow::Result<()> {
    let said = await_there(host, "there")?;
    mentions(&said, &["exit 0"])?;
    let said = host.sh("timevisor vm migrate web --to unix:/run/there.in 2>&1; echo exit $?")?;
    mentions(&said, &["exit 0", "runs on the other host"])?;
    host.wait("the VM to run there", |host| {
        Ok(host.qmp("there", "query-status")?["status"] == "running")
    })?;
    ensure!(in_force(host, B, "there")?, "{}", row(host, B, "there")?);
    let log = host.sh("grep 'VM there' /run/b.log")?;
    let at = |words: &str| {
        let found = log.lines().position(|line| line.contains(words));
        found.with_context(|| format!("no {words:?} in {log}"))
    };
    ensure!(at("reserved 20 ms of 50 ms")? < at("VM there: Resume")?, "{log}");
    ensure!(!log.contains("without its reservation"), "{log}");

    // The source keeps it for a moment: the destination may fail to run the VM.
    host.wait("the source to give it back", |host| Ok(row(host, A, "web")?.is_null()))?;
    let resumed = stamp(host, "/run/b.log", "VM there: Resume")?;
    let given_back = stamp(host, "/run/timevisord.log", "its reservation here is given back")?;
    ensure!(resumed < given_back, "given back at {given_back}, and run there at {resumed}");
    let refused = host.sh("timevisor reserve apply web --budget 1ms/50ms 2>&1 || true")?;
    mentions(&refused, &["VM web has left this host"])?;
    ensure!(in_force(host, B, "there")?, "{}", row(host, B, "there")?);
    Ok(())
}

/// When a daemon has logged a line: text that sorts by time.
fn stamp(host: &mut NestedHost, log: &str, line: &str) -> anyhow::Result<String> {
    let found = host.sh(&format!("grep -m 1 \"{line}\" {log}"))?;
    let stamp = found.split_whitespace().next().filter(|word| word.starts_with("20"));
    Ok(stamp.with_context(|| format!("no time in {found}"))?.to_owned())
}

/// An operator runs the old VM again.
fn returned(host: &mut NestedHost) -> anyhow::Result<()> {
    host.qmp("there", "quit")?;
    host.qmp("web", "cont")?;
    host.wait("its reservation", |host| in_force(host, A, "web"))?;
    ensure!(row(host, A, "web")?["alone"] == true, "not as it was");
    host.sh("timevisor reserve release web")?;
    host.wait("everything to be given back", |host| {
        let left = host.sh("ls -d /sys/fs/cgroup/timevisor-* 2>/dev/null || true")?;
        Ok(left.trim().is_empty())
    })
}
