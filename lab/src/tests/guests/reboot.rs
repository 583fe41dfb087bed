//! A reboot of the host empties the run directory. VMs whose definitions name files in it, as `vm args`
//! printed them once, start again. Real QEMUs; the reboot is a stopped daemon and a removed directory.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::ensure;

use super::owners::{prepared, served, words};
use crate::host::Host;
use crate::ntp_impostor::Impostor;
use crate::scenario::Context;
use crate::tests::faults::common::reference;
use crate::tests::faults::qemu::Bare;

const NOBODY: u32 = 65_534;

pub(crate) fn reboot(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    let state = ctx.path("state");
    let _ = fs::remove_dir_all(&state);
    let lines = reference(&server.address());
    host.start(&format!(
        "state_directory = {state:?}\n{lines}[guests]\ndiscover = \"prepared\"\n"
    ))?;
    host.wait_synchronized(10_000)?;
    let qemu = ctx.qemu()?;
    let web = prepared(&host, &["--name", "web"])?;
    let hers = prepared(&host, &["--name", "hers", "--user", "nobody", "--time-type", "utc"])?;
    prepared(&host, &["--name", "gone"])?;
    host.cli(&["vm", "remove", "gone"])?;
    let before = table(&host, "web")?;

    for boot in 1..=2 {
        host.terminate()?;
        fs::remove_dir_all(host.directory())?;
        host.restart()?;
        ensure!(table(&host, "web")? == before, "another table after boot {boot}");
        let monitor = host.directory().join("vms/hers/monitor");
        ensure!(fs::metadata(&monitor)?.uid() == NOBODY, "hers cannot make its sockets");
        ensure!(!host.directory().join("vms/gone").exists(), "what was removed came back");
        let first = Bare::start(ctx, &qemu, "web", &words(&web.all))?;
        let second = Bare::start_as(ctx, NOBODY, &qemu, "hers", &words(&hers.all))?;
        served(&host, "web", &first)?;
        served(&host, "hers", &second)?;
        ensure!(host.vm("hers")?["time_type"] == "utc", "{}", host.vm("hers")?);
    }
    Ok("two VMs of two users started with the same words after each of 2 reboots".to_owned())
}

fn table(host: &Host, name: &str) -> anyhow::Result<Vec<u8>> {
    Ok(fs::read(host.directory().join("vms").join(name).join("vmclock.aml"))?)
}
