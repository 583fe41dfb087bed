//! Domains of a real libvirtd, configured with exactly what `timevisor vm args --format libvirt`
//! prints.

use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::client::offset;
use crate::comparison::Worst;
use crate::host::{Host, ntp_reference};
use crate::libvirt::{Definition, Domain, Libvirt};
use crate::programs::workspace;
use crate::qemu::Qemu;
use crate::reader::{self, GuestReader, HostPage};
use crate::scenario::Context;

const NAME: &str = "web";
const MEMORY_MIB: u32 = 256;

pub(crate) fn nvdimm(ctx: &Context) -> anyhow::Result<String> {
    serve(ctx, &ctx.qemu()?, "nvdimm")
}

pub(crate) fn ivshmem(ctx: &Context) -> anyhow::Result<String> {
    serve(ctx, &ctx.qemu()?, "ivshmem")
}

pub(crate) fn vmclock(ctx: &Context) -> anyhow::Result<String> {
    serve(ctx, &ctx.qemu_10()?, "vmclock")
}

/// `virsh migrate` between two libvirtds, each with its own timevisord; nobody informs the daemons
/// of the migration.
pub(crate) fn migrate(ctx: &Context) -> anyhow::Result<String> {
    let cases = [("nvdimm", ctx.qemu()?), ("vmclock", ctx.qemu_10()?)];
    let mut told = Vec::new();
    for (delivery, qemu) in &cases {
        let text = migrate_by(ctx, qemu, delivery).context(*delivery)?;
        told.push(format!("{delivery}: {text}"));
    }
    Ok(told.join("; "))
}

fn migrate_by(ctx: &Context, qemu: &Qemu, delivery: &str) -> anyhow::Result<String> {
    let server = ctx.chronyd(&format!("server-{delivery}"))?;
    let kernel = ctx.kernel("trixie-backports")?;
    let program = ctx.program("timevisor-lab-guest", "lab-reader")?;
    let image = ctx.image(&kernel)?.program(&program).snippet(reader::SNIPPET);
    let initramfs = image.write(&ctx.path(&format!("{delivery}.cpio")))?;
    let paused = delivery == "vmclock";
    let side = |number: u8| -> anyhow::Result<(Libvirt, Host, String)> {
        let mut host = Host::further(ctx, &format!("{delivery}-{number}"))?;
        host.start(&ntp_reference(&server.address().ip().to_string()))?;
        host.wait_synchronized(200)?;
        let hook = hook_of(&host)?;
        let log_dir = ctx.path(&format!("libvirt-{delivery}-{number}"));
        let libvirt = Libvirt::start_host(qemu, &log_dir, number, Some(&hook))?;
        let memory = MEMORY_MIB.to_string();
        let printed = host.cli(&[
            "vm",
            "args",
            "--name",
            NAME,
            "--memory",
            &memory,
            "--delivery",
            delivery,
            "--format",
            "libvirt",
        ])?;
        Ok((libvirt, host, printed))
    };
    let (libvirt_a, host_a, printed_a) = side(1)?;
    let definition = |printed| Definition {
        name: NAME,
        memory_mib: MEMORY_MIB,
        kernel: &kernel.image,
        initramfs: &initramfs,
        printed,
        paused,
    };
    let domain = libvirt_a.create(&definition(&printed_a))?;
    if paused {
        host_a.wait_until("the paused domain to be found", |host| Ok(host.vm(NAME).is_ok()))?;
        domain.virsh("resume")?;
    }
    host_a.wait_vm(NAME, "synchronized")?;
    domain.wait_ready()?;
    let mut guest = GuestReader::connect(&domain.reader())?;
    let before = compare(&host_a, &mut guest, true)?;
    let marker = guest.ask("read")?["disruption"].clone();

    // Both daemons see all QEMUs on this machine, and the first one that finds a vmclock device
    // keeps its page.
    let (libvirt_b, host_b, printed_b) = side(2)?;
    let moved = libvirt_b.migrate_here(&domain, &definition(&printed_b))?;
    if paused {
        host_b.wait_until("it to arrive", |host| {
            Ok(host.vm(NAME).is_ok_and(|row| row["migration"].is_null()))
        })?;
        moved.virsh("resume")?;
    }
    // The source QEMU has ended; nobody has informed either daemon.
    host_b.wait_vm(NAME, "synchronized")?;
    let mut guest = GuestReader::connect(&moved.reader())?;
    let after = compare(&host_b, &mut guest, true)?;
    ensure!(guest.ask("read")?["disruption"] != marker, "the marker did not change");
    host_a.wait_until("the source to be retired", |host| Ok(host.vm(NAME).is_err()))?;
    std::mem::forget(domain);
    Ok(format!(
        "{}: {}; after virsh migrate: {}",
        libvirt_b.version()?,
        before.text(),
        after.text()
    ))
}

/// The hook that we ship, as a libvirtd beside this host's timevisord has it.
pub(super) fn hook_of(host: &Host) -> anyhow::Result<String> {
    Ok(format!(
        "#!/bin/sh\nexport TIMEVISOR={} TIMEVISOR_RUN={}\nexec {} \"$@\"\n",
        host.cli_program().display(),
        host.directory().display(),
        workspace()?.join("packaging/libvirt-qemu-hook").display()
    ))
}

fn serve(ctx: &Context, qemu: &Qemu, delivery: &str) -> anyhow::Result<String> {
    let libvirt = Libvirt::start(qemu, ctx.log_dir())?;
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    // An ivshmem device is for kernels without the driver, so there is no /dev/ptp0.
    let has_driver = delivery != "ivshmem";
    let kernel = ctx.kernel(if has_driver { "trixie-backports" } else { "bookworm" })?;
    let program = ctx.program("timevisor-lab-guest", "lab-reader")?;
    let image = ctx.image(&kernel)?.program(&program).snippet(reader::SNIPPET);
    let initramfs = image.write(&ctx.path("initramfs.cpio"))?;
    let memory = MEMORY_MIB.to_string();
    let printed = host.cli(&[
        "vm",
        "args",
        "--name",
        NAME,
        "--memory",
        &memory,
        "--delivery",
        delivery,
        "--format",
        "libvirt",
    ])?;
    // As the printed comments say, QEMU creates the device's page itself, so the page is filled
    // before the guest runs.
    let paused = delivery == "vmclock";
    let domain = libvirt.create(&Definition {
        name: NAME,
        memory_mib: MEMORY_MIB,
        kernel: &kernel.image,
        initramfs: &initramfs,
        printed: &printed,
        paused,
    })?;
    if paused {
        host.wait_until("the paused domain to be found", |host| Ok(host.vm(NAME).is_ok()))?;
        domain.virsh("resume")?;
    }
    // Nobody has informed the daemon of this domain.
    host.wait_vm(NAME, "synchronized")?;
    let row = host.vm(NAME)?;
    ensure!(row["delivery"] == delivery && row["accelerator"] == "tcg", "{row}");
    ensure!(is_taken(&host)?, "timevisord is not connected to the printed QMP socket");
    domain.wait_ready()?;
    let mut guest = GuestReader::connect(&domain.reader())?;
    let before = compare(&host, &mut guest, has_driver)?;
    let pause = pause(&host, &domain)?;
    let after = compare(&host, &mut guest, has_driver)?;
    let version = libvirt.version()?;
    Ok(format!("{version}: {}; after {pause}: {}", before.text(), after.text()))
}

/// Suspends and resumes the domain: the page is withdrawn in between, and its disruption marker
/// differs afterwards.
fn pause(host: &Host, domain: &Domain<'_>) -> anyhow::Result<String> {
    let marker = |host: &Host| {
        let row = host.vm(NAME)?;
        row["disruption_marker"].as_u64().with_context(|| format!("no marker in {row}"))
    };
    let (marker_before, offset_before) = (marker(host)?, offset(host, NAME)?);
    domain.virsh("suspend")?;
    host.wait_vm(NAME, "unknown")?;
    let row = host.vm(NAME)?;
    let reason = row["reason"].as_str().unwrap_or_default();
    ensure!(["the VM is stopped", "the VM does not run"].contains(&reason), "suspended: {row}");
    domain.virsh("resume")?;
    host.wait_vm(NAME, "synchronized")?;
    let (marker_after, offset_after) = (marker(host)?, offset(host, NAME)?);
    ensure!(marker_after != marker_before, "the disruption marker stays {marker_before}");
    let ticks = offset_before.wrapping_sub(offset_after);
    ensure!(ticks > 0, "the guest's counter did not stop: {offset_before} then {offset_after}");
    Ok(format!(
        "suspend and resume ({ticks} ticks, marker {marker_before:#x} to {marker_after:#x})"
    ))
}

pub(super) fn compare(
    host: &Host,
    guest: &mut GuestReader,
    has_driver: bool,
) -> anyhow::Result<Worst> {
    let page = HostPage::open(host.directory())?;
    let offset = offset(host, NAME)?;
    let mut worst = Worst::default();
    for _ in 0..50 {
        let comparison = crate::comparison::compare(&page, guest, offset)?;
        let found = comparison.ptp.is_some();
        ensure!(found == has_driver, "/dev/ptp0 in the guest: {found}");
        worst.add(&comparison)?;
    }
    Ok(worst)
}

/// QEMU serves one client at a time: a second one gets no greeting while timevisord is connected.
fn is_taken(host: &Host) -> anyhow::Result<bool> {
    let socket = host.directory().join("vms").join(NAME).join("monitor/qmp");
    let mut second = UnixStream::connect(&socket)
        .with_context(|| format!("nobody listens at {}", socket.display()))?;
    second.set_read_timeout(Some(Duration::from_millis(500)))?;
    match second.read(&mut [0; 16]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Ok(_) => Ok(false),
        Err(error) => Err(error).context("the QMP socket failed"),
    }
}
