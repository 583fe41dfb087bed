//! Programs in a stock guest: third-party ones that know nothing of us (ClockBound's reader,
//! phc_ctl, chronyd), our own CLI, and the benchmark.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::image::Image;
use crate::qemu::Delivery;
use crate::reader::HostPage;
use crate::scenario::Context;

/// A guest served by `host`, with the vmclock device and `image`'s programs.
fn serve(ctx: &Context, host: &Host, image: &Image) -> anyhow::Result<Guest> {
    let kernel = ctx.kernel("trixie-backports")?;
    let qmp = host.directory().join("guest.qmp");
    let builder =
        ctx.guest(&ctx.qemu_10()?, &kernel, image)?.delivery(Delivery::VmclockDevice).paused();
    let mut guest = builder
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())])
        .start()?;
    host.cli(&["vm", "add", "--qmp", &qmp.display().to_string(), "--name", "guest", "--resume"])?;
    guest.wait_ready()?;
    host.wait_vm("guest", "synchronized")?;
    Ok(guest)
}

/// ClockBound's vmclock reader, and our CLI, which is the same program as on the host.
pub(crate) fn peers(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let peer = ctx.program("timevisor-lab-peers", "clockbound-vmclock")?;
    let tool = ctx.program("timevisor", "timevisor")?;
    let image = ctx.image(&ctx.kernel("trixie-backports")?)?.program(&peer).program(&tool);
    let mut guest = serve(ctx, &host, &image)?;
    let line = guest.sh("clockbound-vmclock")?;
    mentions(
        &line,
        &["clock_status=Synchronized", "tai_offset_sec=37", "counter_period_shift=20"],
    )?;
    // Programs that wait for the time do so in a guest as on a host.
    let waited = guest.sh("timevisor wait-sync --within 5ms --timeout 60s")?;
    mentions(&waited, &["synchronized, -"])?;
    let narrow = guest.sh("timevisor wait-sync --within 1ns --timeout 100ms 2>&1 || true")?;
    mentions(&narrow, &["not within 100ms", "synchronized"])?;
    let page = HostPage::open(host.directory())?;
    let before = page.read()?;
    let now: Value = serde_json::from_str(&guest.sh("timevisor now --json || [ $? = 1 ]")?)?;
    let after = page.read()?;
    ensure!(now["status"] == "synchronized" && now["timescale"] == "tai", "{now}");
    let (earliest, latest) = (ns(&now, "earliest_ns")?, ns(&now, "latest_ns")?);
    ensure!(
        earliest <= after.latest.ceil_nanos() && latest >= before.earliest.floor_nanos(),
        "the guest's CLI says {earliest}..{latest}, the host {before:?}..{after:?}"
    );
    Ok(format!("clock-bound-vmclock reads: {}", line.trim()))
}

/// phc_ctl reads the stock driver's clock; chronyd keeps the guest's CLOCK_REALTIME, configured
/// with the stanza of docs/how-to/guest-clock.md.
pub(crate) fn chrony(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let stanza = documented_stanza()?;
    let config = ctx.path("chrony.conf");
    std::fs::write(&config, stanza)?;
    // chronyd looks up its user.
    let users = ctx.path("passwd");
    std::fs::write(&users, "root:x:0:0:root:/:/bin/sh\n")?;
    let image = ctx.image(&ctx.kernel("trixie-backports")?)?;
    let mut image =
        image.file(&config, "/etc/chrony.conf", 0o644).file(&users, "/etc/passwd", 0o644);
    // From the tzdata package of any guest (Debian 13 and newer: tzdata-legacy).
    image = image.file("/usr/share/zoneinfo/right/UTC", "/usr/share/zoneinfo/right/UTC", 0o644);
    for program in ["/usr/sbin/chronyd", "/usr/bin/chronyc", "/usr/sbin/phc_ctl"] {
        image = image.dynamic_program(Path::new(program))?;
    }
    let mut guest = serve(ctx, &host, &image)?;
    let phc = guest.sh("phc_ctl /dev/ptp0 get 2>&1")?;
    let read = phc.split("clock time is ").nth(1).with_context(|| format!("phc_ctl says {phc}"))?;
    guest.sh("mkdir -p /run/chrony /var/lib/chrony; chmod 750 /run/chrony; chronyd -u root -f /etc/chrony.conf")?;
    let mut tracking = String::new();
    for _ in 0..60 {
        tracking = guest.sh("chronyc -n tracking 2>&1 || true")?;
        if tracking.contains("Leap status     : Normal") {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    mentions(&tracking, &["Leap status     : Normal", "(PHC0)"])?;
    // phc_ctl, which knows nothing of chronyd, compares the PHC (TAI) with the guest's
    // CLOCK_REALTIME (UTC).
    let compared = guest.sh("phc_ctl /dev/ptp0 cmp 2>&1")?;
    let apart =
        compared.split("CLOCK_REALTIME is ").nth(1).and_then(|rest| rest.split("ns").next());
    let apart: i64 = apart.with_context(|| format!("phc_ctl says {compared}"))?.trim().parse()?;
    let error = apart.abs() - 37_000_000_000;
    ensure!(
        error.abs() < 5_000_000,
        "the guest's CLOCK_REALTIME is {error} ns from its PHC; {tracking}"
    );
    let offset = tracking.lines().find(|l| l.starts_with("Last offset")).unwrap_or_default();
    Ok(format!(
        "phc_ctl: {}; chronyd in the guest: {offset}; CLOCK_REALTIME is {error} ns from the PHC",
        read.lines().next().unwrap_or_default().trim()
    ))
}

/// The stanza that docs/how-to/guest-clock.md tells a user to paste.
fn documented_stanza() -> anyhow::Result<String> {
    let page = crate::programs::workspace()?.join("docs/how-to/guest-clock.md");
    let text = std::fs::read_to_string(page)?;
    let block = text.split("```\n").find(|block| block.starts_with("refclock PHC"));
    Ok(block.context("docs/how-to/guest-clock.md has no refclock stanza")?.to_owned())
}

/// The read-latency table inside a guest. Under emulation its ratios mean nothing, so the test only
/// checks that every row is there.
pub(crate) fn bench(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let bench = ctx.program("timevisor-benches", "bench-read")?;
    let mut guest =
        serve(ctx, &host, &ctx.image(&ctx.kernel("trixie-backports")?)?.program(&bench))?;
    let table = guest.sh("bench-read --json /tmp/table.json 2>&1")?;
    std::fs::write(ctx.path("table.txt"), &table)?;
    mentions(&table, &["/dev/vmclock0", "status synchronized"])?;
    let json: Value = serde_json::from_str(&guest.sh("cat /tmp/table.json")?)?;
    let rows = json["rows"].as_array().context("no rows")?;
    let ours =
        rows.iter().filter(|r| r["clock"].as_str().is_some_and(|c| c.starts_with("timevisor")));
    ensure!(ours.clone().count() == 3, "our three reads are missing: {json}");
    ensure!(
        ours.clone().all(|r| r["median_ns"].is_number()),
        "our reads failed in the guest: {json}"
    );
    Ok(format!(
        "{} rows through /dev/vmclock0; the table is in {}",
        rows.len(),
        ctx.path("table.txt").display()
    ))
}

fn ns(answer: &Value, name: &str) -> anyhow::Result<i64> {
    answer[name].as_i64().with_context(|| format!("no {name} in {answer}"))
}
