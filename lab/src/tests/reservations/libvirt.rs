//! Reservations beside a real libvirtd and its cpusets (cgroup v1, as on this machine).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::affinity::allowed_of;
use timevisor_linux::scheduling::{Attributes, Policy, cgroup_of, threads};

use crate::host::{Host, mentions};
use crate::libvirt::{Definition, Domain, Libvirt, cpusets};
use crate::real_time::Restore;
use crate::scenario::Context;

const ROOT: &str = "/sys/fs/cgroup/cpuset";
const BALANCE: &str = "cpuset.sched_load_balance";
const MEMORY_MIB: u32 = 256;
/// A guest that uses all the processor time it gets.
const BUSY: &str = "(while :; do :; done) &\n";
/// Pins the vCPU to this machine's highest core, the one that is reserved.
const ON_CORE_1: &str = "<cputune><vcpupin vcpu='0' cpuset='1'/></cputune>";
const APPLY: [&str; 6] = ["reserve", "apply", "web", "--alone", "--budget", "20ms/50ms"];

type Settings = BTreeMap<String, String>;

/// Everything that a reservation may touch: every cpuset of this machine (except the root's list of
/// threads), and QEMU's main loop and vCPUs.
fn settings(pid: u32) -> anyhow::Result<Settings> {
    let root = Path::new(ROOT);
    let mut all: Settings = cpusets(root)?
        .into_iter()
        .filter(|(path, _)| *path != root.join("tasks"))
        .map(|(path, text)| (path.display().to_string(), text))
        .collect();
    for thread in threads(pid)? {
        // Skips QEMU's own workers, which come and go.
        let (tid, name) = (thread.tid, &thread.name);
        if tid == pid || name.starts_with("CPU ") {
            let cgroup = cgroup_of(pid, tid, "cpuset")?;
            let (attributes, allowed) = (Attributes::of(tid)?, allowed_of(tid)?);
            all.insert(format!("{tid} {name}"), format!("{attributes:?} {allowed:?} {cgroup}"));
        }
    }
    Ok(all)
}

/// The differences, with both texts. VM db, which comes and goes, and QEMU's workers beside its
/// main loop are not compared.
fn differences(before: &Settings, after: &Settings) -> BTreeMap<String, [String; 2]> {
    let text = |all: &Settings, name: &str| all.get(name).map_or("nothing", |t| t).to_owned();
    before
        .keys()
        .chain(after.keys())
        .filter(|name| !name.contains("-db.libvirt") && !name.ends_with("emulator/tasks"))
        .map(|name| (name.clone(), [text(before, name), text(after, name)]))
        .filter(|(_, [was, is])| was != is)
        .collect()
}

/// Everything is as it was before, and VM db's cpusets are as libvirt creates them.
fn same(before: &Settings, after: &Settings) -> anyhow::Result<()> {
    let left = differences(before, after);
    ensure!(left.is_empty(), "left behind (file, before, after): {left:#?}");
    let of_db = |name: &String| name.contains("-db.libvirt") && name.ends_with(BALANCE);
    let still: Vec<_> = after.iter().filter(|(name, text)| of_db(name) && *text != "1").collect();
    ensure!(still.is_empty(), "left behind: {still:?}");
    Ok(())
}

/// libvirt's cpusets have not changed, except that they do not balance load and that the vCPU's
/// thread has left them.
fn is_kept(before: &Settings, during: &Settings) -> anyhow::Result<()> {
    let mut balance = 0;
    for (name, [was, is]) in differences(before, during) {
        if name.contains("/machine") {
            let unbalanced = name.ends_with(BALANCE) && was == "1" && is == "0";
            let emptied = name.ends_with("/vcpu0/tasks") && is.is_empty();
            ensure!(unbalanced || emptied, "{name} was {was}, and is {is}");
            balance += usize::from(unbalanced);
        }
    }
    // The cpusets of machine, the VM, its emulator and its vCPU.
    ensure!(balance == 4, "{balance} cpusets of libvirt's were changed");
    Ok(())
}

fn row(host: &Host) -> anyhow::Result<Value> {
    let rows = host.json(&["reserve", "list"])?;
    rows.get(0).cloned().context("nothing is reserved")
}

/// libvirt's cpusets that balance load between core 1 and another one.
fn balancing() -> anyhow::Result<Vec<PathBuf>> {
    let all = cpusets(&Path::new(ROOT).join("machine"))?;
    let joins = |path: &&PathBuf| {
        let processors = &all[&path.with_file_name("cpuset.cpus")];
        path.ends_with(BALANCE) && all[*path] == "1" && processors == "0-1"
    };
    Ok(all.keys().filter(joins).cloned().collect())
}

/// The busy guest has its budget, on a core that no cpuset joins to another one.
fn in_force(host: &Host) -> anyhow::Result<()> {
    host.wait_until("the budget", |host| Ok(row(host)?["problem"].is_null()))?;
    let tid = u32::try_from(row(host)?["tid"].as_u64().context("no tid")?)?;
    let found = Attributes::of(tid)?;
    ensure!(found.policy == Policy::DEADLINE && found.period == 50_000_000, "{found:?}");
    ensure!(allowed_of(tid)? == [1], "it has other processors");
    host.wait_until("cpusets to leave the core alone", |_| Ok(balancing()?.is_empty()))?;
    // Another budget: the kernel refuses this change for a thread that is confined to a part of its
    // root domain.
    for budget in ["18ms/50ms", "20ms/50ms"] {
        host.cli(&["reserve", "apply", "web", "--alone", "--budget", budget])?;
    }
    let exhausted = |host: &Host| -> anyhow::Result<u64> {
        host.json(&["reserve", "audit"])?[0]["audit"]["exhausted"].as_u64().context("no audit")
    };
    let before = exhausted(host)?;
    host.wait_until("the guest to get its budget, and want more", |host| {
        Ok(exhausted(host)? > before + 1)
    })
}

struct Maker<'a> {
    libvirt: &'a Libvirt,
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl<'a> Maker<'a> {
    fn create(&self, name: &str, elements: &str) -> anyhow::Result<Domain<'a>> {
        self.libvirt.create(&Definition {
            name,
            memory_mib: MEMORY_MIB,
            kernel: &self.kernel,
            initramfs: &self.initramfs,
            printed: elements,
            paused: false,
        })
    }
}

/// The XML that timevisor prints for pasting.
fn printed(host: &Host, name: &str) -> anyhow::Result<String> {
    let memory = MEMORY_MIB.to_string();
    let words = ["vm", "args", "--name", name, "--memory", &memory, "--delivery", "nvdimm"];
    host.cli(&[&words[..], &["--format", "libvirt"]].concat())
}

pub(crate) fn reserve_libvirt(ctx: &Context) -> anyhow::Result<String> {
    let libvirt = Libvirt::start_in_cgroups(&ctx.qemu()?, ctx.log_dir(), &["cpuset", "cpu"])?;
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let kernel = ctx.kernel("trixie-backports")?;
    let initramfs = ctx.image(&kernel)?.snippet(BUSY).write(&ctx.path("initramfs.cpio"))?;
    let maker = Maker { libvirt: &libvirt, kernel: kernel.image.clone(), initramfs };
    let web = maker.create("web", &printed(&host, "web")?)?;
    web.wait_ready()?;
    host.wait_vm("web", "synchronized")?;
    let pid = u32::try_from(host.vm("web")?["pid"].as_u64().context("no pid")?)?;
    let before = settings(pid)?;

    without_real_time(&host, pid)?;
    same(&before, &settings(pid)?).context("after a refusal")?;
    host.cli(&APPLY)?;
    in_force(&host)?;
    is_kept(&before, &settings(pid)?)?;
    virsh(&web)?;
    in_force(&host).context("after virsh")?;

    // Another VM starts on this very core; then somebody resets one of the cpusets.
    let of_db = printed(&host, "db")?;
    let db = maker.create("db", &format!("{ON_CORE_1}{of_db}"))?;
    in_force(&host).context("beside VM db")?;
    fs::write(Path::new(ROOT).join("machine").join(BALANCE), "1")?;
    in_force(&host).context("after somebody's change")?;
    // The daemon dies; VMs come and go without it.
    host.kill();
    drop(db);
    let db = maker.create("db", &of_db)?;
    ensure!(!balancing()?.is_empty(), "VM db has no cpusets: there is nothing to see");
    host.restart()?;
    in_force(&host).context("after a restart")?;
    is_kept(&before, &settings(pid)?)?;
    host.cli(&["reserve", "release", "web"])?;
    same(&before, &settings(pid)?).context("after the release")?;

    // Released without a daemon, as an uninstall does it.
    host.cli(&APPLY)?;
    in_force(&host)?;
    host.kill();
    host.cli(&["reserve", "release", "--all"])?;
    same(&before, &settings(pid)?).context("after a release without timevisord")?;

    // Released by the VM's end.
    host.restart()?;
    host.wait_vm("web", "synchronized")?;
    host.cli(&APPLY)?;
    in_force(&host)?;
    drop(web);
    host.wait_until("the core to be given back", |host| {
        Ok(host.json(&["reserve", "list"])?.as_array().is_some_and(Vec::is_empty))
    })?;
    let after = settings(std::process::id())?;
    let gone = |name: &String| name.contains("-web.libvirt") || !name.starts_with('/');
    let of_host = |all: Settings| all.into_iter().filter(|(name, _)| !gone(name)).collect();
    same(&of_host(before), &of_host(after)).context("after its end")?;
    drop(db);
    libvirt.version()
}

/// Under CONFIG_RT_GROUP_SCHED, libvirt's cgroups have no real-time bandwidth for an emulated VM's
/// main loop. The daemon reports this, and its advice fixes it.
fn without_real_time(host: &Host, pid: u32) -> anyhow::Result<()> {
    let cgroup = PathBuf::from(format!("/sys/fs/cgroup/cpu{}", cgroup_of(pid, pid, "cpu")?));
    let file = cgroup.join("cpu.rt_runtime_us");
    if !file.exists() {
        return Ok(());
    }
    let said = host.cli(&APPLY).err().context("it was applied")?;
    mentions(&format!("{said:#}"), &["no time for SCHED_FIFO", &file.display().to_string()])?;
    let mut way: Vec<_> = cgroup.ancestors().take_while(|at| !at.ends_with("cpu")).collect();
    way.reverse();
    for at in way {
        fs::write(at.join("cpu.rt_runtime_us"), "10000")?;
    }
    Ok(())
}

/// What an operator does to a VM whose vCPU is reserved.
fn virsh(web: &Domain<'_>) -> anyhow::Result<()> {
    mentions(&web.virsh("vcpuinfo")?, &["CPU:            1", "CPU Affinity:   -y"])?;
    mentions(&web.virsh("vcpupin")?, &["0-1"])?;
    mentions(&web.virsh("emulatorpin")?, &["0-1"])?;
    let refused = web.virsh_with("vcpupin", &["0", "0"]).err().context("it was pinned")?;
    mentions(&format!("{refused:#}"), &["Device or resource busy"])?;
    web.virsh_with("vcpupin", &["0", "0-1"])?;
    web.virsh_with("emulatorpin", &["0"])?;
    web.virsh_with("emulatorpin", &["0-1"])?;
    web.virsh("suspend")?;
    web.virsh("resume").map(drop)
}
