//! A guest as a client of timevisord: started the way the documentation tells a user to, with lab-reader inside.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::guest::Guest;
use crate::host::Host;
use crate::qemu::{Delivery, NVDIMM_ADDRESS, Qemu};
use crate::reader::{self, GuestReader};
use crate::scenario::Context;

/// How a guest gets its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// QEMU 10's own device.
    Vmclock,
    /// A read-only nvdimm.
    Nvdimm,
}

/// A guest with a page that timevisord serves, and its reader.
#[derive(Debug)]
pub struct Client {
    /// Its name at timevisord.
    pub name: String,
    /// The guest.
    pub guest: Guest,
    /// Its lab-reader.
    pub reader: GuestReader,
}

/// Boots a guest the way the documentation tells a user to.
///
/// # Errors
/// When anything on the way fails.
pub fn boot(
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
///
/// # Errors
/// When anything on the way fails.
pub fn launch(
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
    let builder =
        ctx.guest(qemu, &kernel, &image)?.name(name).delivery(delivery).port(reader::PORT, &socket);
    // Waiting for its page before the first instruction is what makes the driver's probe certain. The second QMP socket
    // is ours; the lab keeps its own.
    let qmp = host.directory().join(format!("{name}.qmp"));
    let guest = builder
        .paused()
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())])
        .start()?;
    host.cli(&[
        "vm",
        "add",
        "--qmp",
        &qmp.display().to_string(),
        "--name",
        name,
        "--time-type",
        time_type,
        "--resume",
    ])?;
    Ok(Client { name: name.to_owned(), guest, reader: GuestReader::connect(&socket)? })
}

/// What `timevisor vm args` says, as the lab's delivery.
fn prepared(host: &Host, name: &str, time_type: &str) -> anyhow::Result<Delivery> {
    let answer =
        host.json(&["vm", "args", "--name", name, "--memory", "256", "--time-type", time_type])?;
    let text = answer.to_string();
    ensure!(
        text.contains(&format!("addr={NVDIMM_ADDRESS:#x}")),
        "another address than the lab's: {text}"
    );
    let folder: PathBuf = host.directory().join("vms").join(name);
    Ok(Delivery::Nvdimm {
        page: folder.join("page"),
        ssdt: folder.join("vmclock.aml"),
        address: NVDIMM_ADDRESS,
    })
}

/// The offset that `vm list` shows: guest counter = host counter + offset.
///
/// # Errors
/// When anything on the way fails.
pub fn offset(host: &Host, name: &str) -> anyhow::Result<i64> {
    let row = host.vm(name)?;
    let mapping = row["mapping"].as_str().context("no mapping")?;
    mapping
        .strip_prefix("host ")
        .and_then(|o| o.parse().ok())
        .with_context(|| format!("mapping {mapping:?} of {row}"))
}

/// Two guests of each delivery.
///
/// # Errors
/// When one does not boot.
pub fn launch_four(ctx: &Context, host: &Host) -> anyhow::Result<Vec<Client>> {
    let (old, new) = (ctx.qemu()?, ctx.qemu_10()?);
    let wanted = [
        ("a", &new, Way::Vmclock),
        ("b", &new, Way::Vmclock),
        ("c", &old, Way::Nvdimm),
        ("d", &old, Way::Nvdimm),
    ];
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
