//! An upgrade in place: the new binary is at another path and starts in the same run directory
//! while a guest reads.
//!
//! Both binaries are built from this workspace, so this tests the procedure, not two versions.

use anyhow::{Context as _, ensure};

use crate::client::{self, Way, compare_many};
use crate::host::{Host, ntp_reference};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, start_through};

pub(crate) fn upgrade(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let lines = ntp_reference(&server.address().ip().to_string());
    let mut host = Host::new(ctx)?;
    host.start(&lines)?;
    host.wait_synchronized(200)?;
    let qemu = ctx.qemu_10()?;
    let mut client =
        client::boot(ctx, &host, "trixie-backports", &qemu, Way::Vmclock, "guest", "tai")?;
    host.wait_vm("guest", "synchronized")?;
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;
    let old = client.reader.ask("read")?;

    let newer = ctx.path("timevisord-newer");
    std::fs::copy(host.daemon_program(), &newer)?;
    client.reader.ask("watch 12000")?;
    // As a package upgrade does it: the old daemon is terminated, then the new one is started.
    host.terminate()?;
    let between = honest_reading(&page)?;
    ensure!(between.disruption == before.disruption, "the end disrupts");
    let newer = newer.display().to_string();
    // The shell gets the newer binary as `$0` and the old binary's path as `$1`; it drops the
    // latter and executes the former.
    let wrapper = ["sh", "-c", "shift; exec \"$0\" \"$@\"", &newer];
    let _daemon = start_through(ctx, &host, &wrapper, &lines)?;
    let log = std::fs::read_to_string(ctx.path("wrapped.log"))?;
    ensure!(log.contains("resuming from the lines"), "no recovery: {log}");
    host.wait_vm("guest", "synchronized")?;
    let report = client.reader.answer()?;
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads: {report}");
    }
    host.wait_synchronized(10_000)?;
    let after = honest_reading(&page)?;
    ensure!(
        after.disruption == before.disruption && after.estimate > before.estimate,
        "an upgrade disrupts the host's readers: {before:?}, {after:?}"
    );
    let new = client.reader.ask("read")?;
    ensure!(new["epoch"] != old["epoch"], "the guest's page was not taken over: {old}, {new}");
    ensure!(new["disruption"] != old["disruption"], "a page that is begun anew is a disruption");
    let exe = format!("/proc/{}/exe", _daemon.pid());
    let runs = std::fs::read_link(&exe).context(exe)?;
    ensure!(runs.ends_with("timevisord-newer"), "{} runs", runs.display());
    let worst = compare_many(&host, &mut client, 10)?;
    Ok(format!(
        "{} reads across it, none back; the host's page is not disrupted, the guest's begins anew; then {}",
        report["reads"],
        worst.text()
    ))
}
