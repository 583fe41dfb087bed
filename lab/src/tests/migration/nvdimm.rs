//! Migrates a guest between two "hosts" whose pages differ. The daemon's tests check the contents
//! of the page.

use anyhow::ensure;

use crate::builder::GuestBuilder;
use crate::guest::Guest;
use crate::migration;
use crate::qemu::{Delivery, NVDIMM_ADDRESS};
use crate::scenario::Context;
use crate::ssdt;
use crate::tests::guests::page;

/// Reads the low byte of the generation counter at offset 0x68; the tests use only that byte.
const READ_GENERATION: &str = "dd if=/dev/vmclock0 bs=1 skip=104 count=1 2>/dev/null | od -An -tu1";

pub(crate) fn nvdimm(ctx: &Context) -> anyhow::Result<String> {
    let kernel = ctx.kernel("trixie-backports")?;
    let image = ctx.image(&kernel)?;
    let mut measured = Vec::new();
    for qemu in [ctx.qemu()?, ctx.qemu_10()?] {
        let version = format!("{}.{}", qemu.version.0, qemu.version.1);
        let host = |name: &str, generation: u64| -> anyhow::Result<GuestBuilder> {
            let name = format!("{version}-{name}");
            let delivery = Delivery::Nvdimm {
                page: page::write_minimal(&ctx.path(&format!("{name}.page")), generation)?,
                ssdt: ssdt::compile(NVDIMM_ADDRESS, ctx.log_dir())?,
                address: NVDIMM_ADDRESS,
            };
            Ok(ctx.guest(&qemu, &kernel, &image)?.name(&name).delivery(delivery))
        };
        let mut source = host("source", 7)?.start()?;
        source.wait_ready()?;
        ensure!(generation(&mut source)? == "7", "the guest does not read the source's page");
        let mut destination = host("destination", 8)?.incoming().start()?;
        let migration = migration::migrate(&mut source, &mut destination, true)?;
        let after = generation(&mut destination)?;
        ensure!(after == "8", "QEMU {version}: after migration the guest reads {after}, not 8");
        let downtime = migration.downtime.unwrap_or_default().as_secs_f64() * 1e3;
        measured.push(format!("QEMU {version}: {downtime:.0} ms downtime"));
    }
    Ok(measured.join(", "))
}

fn generation(guest: &mut Guest) -> anyhow::Result<String> {
    Ok(guest.sh(READ_GENERATION)?.trim().to_owned())
}
