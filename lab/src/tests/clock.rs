//! The main job: a stock guest reads the host's time, through each delivery, alone and in company.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::guest::Guest;
use crate::host::Host;
use crate::qemu::{Delivery, NVDIMM_ADDRESS, Qemu};
use crate::reader::{self, Comparison, GuestReader, HostPage};
use crate::scenario::Context;

/// How a test's guest gets its page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Vmclock,
    Nvdimm,
}

/// A guest with a page that timevisord serves, and its reader.
pub(super) struct Client {
    pub(super) name: String,
    pub(super) guest: Guest,
    pub(super) reader: GuestReader,
}

/// Boots a guest the way the documentation tells a user to.
pub(super) fn boot(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    qemu: &Qemu,
    way: Way,
    name: &str,
    time_type: &str,
) -> anyhow::Result<Client> {
    let mut client = launch(ctx, host, kernel, qemu, way, name, time_type)?;
    client.guest.wait_ready()?;
    client.reader.ask("read")?;
    Ok(client)
}

/// Starts a guest and has it served, without waiting for its boot: several can boot at once.
pub(super) fn launch(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    qemu: &Qemu,
    way: Way,
    name: &str,
    time_type: &str,
) -> anyhow::Result<Client> {
    let kernel = ctx.kernel(kernel)?;
    let program = ctx.program("timevisor-lab-guest", "lab-reader")?;
    let image = ctx.image(&kernel)?.program(&program).snippet(reader::SNIPPET);
    let socket = host.directory().join(format!("{name}.reader"));
    let delivery = match way {
        Way::Vmclock => Delivery::VmclockDevice,
        Way::Nvdimm => prepared(host, name, time_type)?,
    };
    let builder = ctx.guest(qemu, &kernel, &image)?.name(name).delivery(delivery).port(reader::PORT, &socket);
    // Waiting for its page before the first instruction is what makes the driver's probe certain. The second QMP socket
    // is ours; the lab keeps its own.
    let qmp = host.directory().join(format!("{name}.qmp"));
    let guest = builder.paused().args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())]).start()?;
    host.cli(&["vm", "add", "--qmp", &qmp.display().to_string(), "--name", name, "--time-type", time_type, "--resume"])?;
    Ok(Client { name: name.to_owned(), guest, reader: GuestReader::connect(&socket)? })
}

/// What `timevisor vm args` says, as the lab's delivery.
fn prepared(host: &Host, name: &str, time_type: &str) -> anyhow::Result<Delivery> {
    let answer = host.json(&["vm", "args", "--name", name, "--memory", "256", "--time-type", time_type])?;
    let text = answer.to_string();
    ensure!(text.contains(&format!("addr={NVDIMM_ADDRESS:#x}")), "another address than the lab's: {text}");
    let folder: PathBuf = host.directory().join("vms").join(name);
    Ok(Delivery::Nvdimm { page: folder.join("page"), ssdt: folder.join("vmclock.aml"), address: NVDIMM_ADDRESS })
}

/// The offset that `vm list` shows: guest counter = host counter + offset.
pub(super) fn offset(host: &Host, name: &str) -> anyhow::Result<i64> {
    let row = host.vm(name)?;
    let mapping = row["mapping"].as_str().context("no mapping")?;
    mapping.strip_prefix("host ").and_then(|o| o.parse().ok()).with_context(|| format!("mapping {mapping:?} of {row}"))
}

/// The worst of many comparisons.
#[derive(Default)]
pub(super) struct Worst {
    pub(super) count: u32,
    pub(super) difference: i64,
    pub(super) outside: i64,
    pub(super) ptp: i64,
    pub(super) half_width: i64,
}

impl Worst {
    /// Takes one in and checks it.
    pub(super) fn add(&mut self, c: &Comparison) -> anyhow::Result<()> {
        self.count += 1;
        self.difference = self.difference.max(c.difference.abs());
        self.outside = self.outside.max(c.outside);
        self.half_width = self.half_width.max(c.half_width);
        ensure!(c.difference.abs() < 1000, "guest and host differ by {} ns at one counter value", c.difference);
        ensure!(c.outside < 1000, "the guest's estimate is {} ns outside the host's two readings", c.outside);
        ensure!(c.overlaps, "the guest's interval and the host's exclude each other: {c:?}");
        if let Some((error, slack)) = c.ptp {
            let beyond = (error.abs() - slack).max(0);
            self.ptp = self.ptp.max(beyond);
            ensure!(beyond < 1000, "/dev/ptp0 is {beyond} ns beyond its bracket of +-{slack} ns");
        }
        Ok(())
    }

    /// In words.
    pub(super) fn text(&self) -> String {
        format!(
            "{} readings: host - guest <= {} ns at the same counter, ptp0 <= {} ns beyond its bracket, bound <= +-{} us",
            self.count,
            self.difference,
            self.ptp,
            self.half_width / 1000
        )
    }
}

/// Compares `times` times.
pub(super) fn compare_many(host: &Host, client: &mut Client, times: u32) -> anyhow::Result<Worst> {
    let page = HostPage::open(host.directory())?;
    let offset = offset(host, &client.name)?;
    let mut worst = Worst::default();
    for _ in 0..times {
        let comparison = reader::compare(&page, &mut client.reader, offset)?;
        ensure!(comparison.ptp.is_some(), "the guest's kernel gives no /dev/ptp0");
        worst.add(&comparison)?;
    }
    Ok(worst)
}

/// A run of reads as fast as the guest can: never back, never outside.
pub(super) fn check_run(client: &mut Client, seconds: u32) -> anyhow::Result<u64> {
    let run = client.reader.ask(&format!("run {seconds}"))?;
    for never in ["backward", "outside", "errors"] {
        ensure!(run[never] == 0, "{never} reads in the guest: {run}");
    }
    run["reads"].as_u64().filter(|n| *n > 1000).with_context(|| format!("too few reads: {run}"))
}

fn one_guest(ctx: &Context, kernel: &str, qemu: &Qemu, way: Way, time_type: &str) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut client = boot(ctx, &host, kernel, qemu, way, "guest", time_type)?;
    let worst = compare_many(&host, &mut client, 100)?;
    let reads = check_run(&mut client, 3)?;
    let row = host.vm("guest")?;
    ensure!(row["accelerator"] == "tcg" && row["status"] == "synchronized", "{row}");
    let status = client.guest.sh("dmesg | grep -c 'vmclock0: registered'")?;
    ensure!(status.trim() == "1", "the stock driver did not register: {status}");
    Ok(format!("{}; {reads} more reads, none back", worst.text()))
}

pub(super) fn vmclock(ctx: &Context) -> anyhow::Result<String> {
    one_guest(ctx, "trixie-backports", &ctx.qemu_10()?, Way::Vmclock, "tai")
}

pub(super) fn nvdimm(ctx: &Context) -> anyhow::Result<String> {
    one_guest(ctx, "trixie-backports", &ctx.qemu()?, Way::Nvdimm, "tai")
}

pub(super) fn older_kernel(ctx: &Context) -> anyhow::Result<String> {
    one_guest(ctx, "trixie-backports:6.17", &ctx.qemu()?, Way::Nvdimm, "utc")
}

pub(super) fn four_guests(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut clients = launch_four(ctx, &host)?;
    let mut texts = Vec::new();
    for client in &mut clients {
        let worst = compare_many(&host, client, 25)?;
        texts.push(format!("{}: {}", client.name, worst.text()));
    }
    // One ends; the others must not notice.
    clients[0].guest.kill();
    let gone = clients[0].name.clone();
    host.wait_until("the dead VM's row to go", |host| Ok(host.vm(&gone).is_err()))?;
    for client in &mut clients[1..] {
        compare_many(&host, client, 5)?;
    }
    Ok(texts.join("; ") + "; after one was killed the other three go on")
}

/// Two guests of each delivery.
pub(super) fn launch_four(ctx: &Context, host: &Host) -> anyhow::Result<Vec<Client>> {
    let (old, new) = (ctx.qemu()?, ctx.qemu_10()?);
    let wanted = [("a", &new, Way::Vmclock), ("b", &new, Way::Vmclock), ("c", &old, Way::Nvdimm), ("d", &old, Way::Nvdimm)];
    let mut clients = Vec::new();
    for (name, qemu, way) in wanted {
        clients.push(launch(ctx, host, "trixie-backports", qemu, way, name, "tai")?);
    }
    for client in &mut clients {
        client.guest.wait_ready()?;
        client.reader.ask("read")?;
    }
    Ok(clients)
}
