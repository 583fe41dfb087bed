//! Migrations that fail or are cancelled.

use anyhow::{Context as _, ensure};

use crate::client::{self, Client, Launch, Way, compare_many};
use crate::host::{Host, mentions};
use crate::migration::pair::Hosts;
use crate::scenario::Context;

/// A migration that does not complete must have no effect.
pub(crate) fn stays(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let [a, b] = &hosts.hosts;
    let qemu = ctx.qemu_10()?;
    let mut guest = client::boot(ctx, a, super::KERNEL, &qemu, Way::Vmclock, "guest", "tai")?;
    a.wait_vm("guest", "synchronized")?;
    let mut check = |what: &str, host: &Host| -> anyhow::Result<()> {
        host.wait_vm("guest", "synchronized")?;
        compare_many(host, &mut guest, 5).with_context(|| format!("after {what}")).map(drop)
    };
    let refused = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = a.cli_output(&[&["vm", "migrate", "guest"], arguments].concat())?;
        ensure!(!output.status.success(), "{arguments:?} succeeded: {output:?}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };

    let nobody = format!("unix:{}", b.directory().join("nobody").display());
    mentions(&refused(&["--to", &nobody])?, &["stays here", "failed"])?;
    check("nobody listened", a)?;
    mentions(&refused(&["--to", "nonsense"])?, &["stays here", "failed"])?;
    check("nonsense", a)?;
    mentions(
        &a.cli_output(&["vm", "migrate", "other", "--to", &nobody])
            .map(|o| String::from_utf8_lossy(&o.stderr).into_owned())?,
        &["there is no VM other", "timevisor vm list"],
    )?;

    // Another machine type cannot take the guest: the migration fails on the way, when the memory
    // has already arrived.
    let uri = format!("unix:{}", b.directory().join("m").display());
    let other = Launch::new(ctx, b, &qemu, Way::Nvdimm, "other").incoming(&uri).start()?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("other")?["migration"] == "incoming"))?;
    mentions(&refused(&["--to", &uri])?, &["stays here", "failed"])?;
    check("the destination was another machine", a)?;
    drop(other);

    // Slow enough to be cancelled in time.
    guest_bandwidth(&mut guest, 100_000)?;
    let there = Launch::new(ctx, b, &qemu, Way::Vmclock, "late").incoming(&uri).start()?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("late")?["migration"] == "incoming"))?;
    mentions(
        &refused(&["--to", &uri, "--timeout", "1"])?,
        &["not arrived within 1 s", "cancelled"],
    )?;
    a.wait_until("the end of it", |h| {
        Ok(h.vm("guest")?["migration"].as_str().is_some_and(|m| m.starts_with("failed: cancelled")))
    })?;
    drop(there);
    a.wait_vm("guest", "synchronized")?;
    compare_many(a, &mut guest, 5).context("after it was cancelled")?;
    Ok("nobody there, nonsense, another machine, cancelled: the VM stays, and its page is right"
        .to_owned())
}

fn guest_bandwidth(guest: &mut Client, bytes_per_second: u64) -> anyhow::Result<()> {
    let limit = serde_json::json!({"max-bandwidth": bytes_per_second});
    guest.guest.qmp().execute("migrate-set-parameters", &limit).map(drop)
}
