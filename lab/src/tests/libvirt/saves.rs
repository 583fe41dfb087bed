//! `virsh managedsave` and `virsh snapshot-create`, with and without timevisord.
//!
//! libvirt stops a domain before it saves it, and starts another QEMU for what was saved. An nvdimm's
//! page is no part of that: QEMU has to be told before it loads, and refuses what was saved so if it
//! was not. It loads at once, so timevisord may come too late; then the domain stays saved.
//! A vmclock device's page is saved, with whatever it said last.

use anyhow::{Context as _, bail, ensure};

use super::domain::{compare, hook_of};
use crate::command;
use crate::host::{Host, mentions, ntp_reference};
use crate::libvirt::{Definition, Domain, Libvirt};
use crate::qemu::Qemu;
use crate::reader::{self, GuestReader};
use crate::scenario::Context;

const NAME: &str = "web";
const MEMORY_MIB: u32 = 256;
/// How often a saved domain with an nvdimm is started at most.
const STARTS: u32 = 20;
/// What QEMU says that was not told.
const NOT_TOLD: &str = "x-ignore-shared is off";

pub(crate) fn saves(ctx: &Context) -> anyhow::Result<String> {
    let mut told = Vec::new();
    for (delivery, qemu) in [("nvdimm", ctx.qemu()?), ("vmclock", ctx.qemu_10()?)] {
        let text = by(ctx, &qemu, delivery).context(delivery)?;
        told.push(format!("{delivery}: {text}"));
    }
    Ok(told.join("; "))
}

fn by(ctx: &Context, qemu: &Qemu, delivery: &str) -> anyhow::Result<String> {
    let server = ctx.chronyd(&format!("server-{delivery}"))?;
    let kernel = ctx.kernel("trixie-backports")?;
    let program = ctx.program("timevisor-lab-guest", "lab-reader")?;
    let image = ctx.image(&kernel)?.program(&program).snippet(reader::SNIPPET);
    let initramfs = image.write(&ctx.path(&format!("{delivery}.cpio")))?;
    let mut host = Host::further(ctx, &format!("host-{delivery}"))?;
    host.start(&ntp_reference(&server.address().ip().to_string()))?;
    host.wait_synchronized(200)?;
    let hook = hook_of(&host)?;
    let log_dir = ctx.path(&format!("libvirt-{delivery}"));
    let libvirt = Libvirt::start_host(qemu, &log_dir, 1, Some(&hook))?;
    let memory = MEMORY_MIB.to_string();
    let of = ["vm", "args", "--name", NAME, "--memory", &memory, "--delivery", delivery];
    let printed = host.cli(&[&of[..], &["--format", "libvirt"]].concat())?;
    let disk = libvirt.directory().join("disk.qcow2");
    let disk = disk.display();
    command::run("qemu-img", &["create", "-q", "-f", "qcow2", &disk.to_string(), "16M"])?;
    // Snapshots are kept in a disk.
    let printed = format!(
        "<devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/>\
         <source file='{disk}'/><target dev='vda' bus='virtio'/></disk></devices>{printed}"
    );
    let domain = libvirt.keep(&Definition {
        name: NAME,
        memory_mib: MEMORY_MIB,
        kernel: &kernel.image,
        initramfs: &initramfs,
        printed: &printed,
        paused: false,
    })?;
    domain.wait_ready()?;
    let mut bench = Bench { host, domain, markers: Vec::new() };
    bench.is_right().context("started")?;

    bench.domain.virsh("managedsave")?;
    bench.is_gone()?;
    let starts = bench.start(delivery)?;
    let served = bench.is_right().context("saved and restored")?;
    let alone = bench.saved_alone(delivery).context("saved and restored without timevisord")?;
    let snapshots = bench.snapshots(delivery).context("a snapshot")?;
    Ok(format!(
        "managedsave, started {starts} times until QEMU took it: {served}, without timevisord {alone}; snapshot {snapshots}"
    ))
}

/// QEMU has ended because it was not told, whatever libvirt did at that moment.
fn has_refused(error: &anyhow::Error) -> bool {
    let said = format!("{error:#}");
    said.contains(NOT_TOLD) || said.contains("Unable to write to monitor: Broken pipe")
}

struct Bench<'a> {
    host: Host,
    domain: Domain<'a>,
    /// Those that the guest has seen.
    markers: Vec<serde_json::Value>,
}

impl Bench<'_> {
    /// It is served, right, and has another marker than ever before.
    fn is_right(&mut self) -> anyhow::Result<String> {
        self.host.wait_vm(NAME, "synchronized")?;
        let mut guest = self.reader()?;
        let marker = guest.ask("read")?["disruption"].clone();
        ensure!(!self.markers.contains(&marker), "the marker {marker} was seen before");
        self.markers.push(marker);
        Ok(compare(&self.host, &mut guest, true)?.text())
    }

    fn reader(&self) -> anyhow::Result<GuestReader> {
        GuestReader::connect(&self.domain.reader())
    }

    /// Starts what was saved. Returns how often that was tried.
    fn start(&self, delivery: &str) -> anyhow::Result<u32> {
        for start in 1..=STARTS {
            match self.domain.virsh("start") {
                Ok(_) => return Ok(start),
                Err(error) if delivery == "nvdimm" && has_refused(&error) => {}
                Err(error) => return Err(error),
            }
        }
        bail!("QEMU was told too late {STARTS} times");
    }

    fn is_gone(&self) -> anyhow::Result<()> {
        self.host.wait_until("the VM to be retired", |host| Ok(host.vm(NAME).is_err()))
    }

    /// A daemon that does not run: an nvdimm's domain stays saved, a device's page is unknown.
    fn saved_alone(&mut self, delivery: &str) -> anyhow::Result<String> {
        self.host.kill();
        self.domain.virsh("managedsave")?;
        let started = self.domain.virsh("start");
        let said = if delivery == "nvdimm" {
            let Err(refused) = started else { bail!("it was restored without timevisord") };
            // QEMU itself may be quicker than the hook.
            let is_ours = format!("{refused:#}").contains("timevisord does not serve the domain");
            ensure!(is_ours || has_refused(&refused), "{refused:#}");
            self.host.restart()?;
            self.start(delivery).context("what was refused is still saved")?;
            "refused"
        } else {
            started?;
            let reading = self.reader()?.ask("read")?;
            ensure!(reading["status"] == "unknown", "nobody has written the page: {reading}");
            self.host.restart()?;
            "unknown"
        };
        Ok(format!("{said} until it is back, then {}", self.is_right()?))
    }

    fn snapshots(&mut self, delivery: &str) -> anyhow::Result<String> {
        self.domain.virsh_with("snapshot-create-as", &["served"])?;
        let taken = self.is_right().context("taken")?;
        self.host.kill();
        self.domain.virsh_with("snapshot-create-as", &["alone"])?;
        if delivery == "nvdimm" {
            self.host.restart()?;
            self.is_right().context("taken without timevisord")?;
            // libvirt ends the QEMU and starts one with -loadvm.
            let Err(refused) = self.revert("served") else { bail!("-loadvm of an nvdimm works") };
            mentions(&format!("{refused:#}"), &[NOT_TOLD])?;
            let state = self.domain.virsh("domstate")?;
            ensure!(state.trim() == "shut off", "after a revert that was refused: {state}");
            return Ok(format!("{taken}; QEMU refuses libvirt's revert, and the domain is off"));
        }
        self.revert("alone")?;
        let reading = self.reader()?.ask("read")?;
        ensure!(reading["status"] == "unknown", "nobody has written the page: {reading}");
        self.host.restart()?;
        self.is_right().context("taken and reverted to without timevisord")?;
        self.revert("served")?;
        Ok(format!("{taken}; reverted to: {}", self.is_right().context("reverted to")?))
    }

    fn revert(&self, snapshot: &str) -> anyhow::Result<()> {
        self.domain.virsh_with("snapshot-revert", &[snapshot, "--running"]).map(drop)
    }
}
