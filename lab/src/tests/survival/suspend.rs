//! Sleep: of a guest (S3), of the daemon (stopped by a signal), and what can be tested of a host's
//! suspend without suspending this one.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_clock_page::ClockStatus;
use timevisor_time::Duration as Span;

use crate::client::{self, Way, compare_many};
use crate::command;
use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::qemu::Qemu;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference, start_through};
use crate::tests::survival::snapshot::holds;
use crate::truth::Truth;

const EVENT: Duration = Duration::from_secs(30);

/// S3 of a stock guest, woken through QMP.
pub(crate) fn guest(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut told = Vec::new();
    for (way, qemu, name) in
        [(Way::Vmclock, ctx.qemu_10()?, "device"), (Way::Nvdimm, ctx.qemu()?, "nvdimm")]
    {
        told.push(sleeps(ctx, &host, &qemu, way, name).context(name)?);
    }
    Ok(told.join("; "))
}

/// Puts the guest to sleep and prints its readings on the console, since its virtio ports do not
/// survive S3. Works once per boot: QEMU sends no second SUSPEND event, because the guest wakes at
/// once.
const SLEEPS: &str = "(sleep 0.3; echo mem >/sys/power/state; for i in $(seq 20); do lab-reader; done >/tmp/awake; \
                      sed \"s/^/AWAKE /\" /tmp/awake >/dev/ttyS0; echo UP >/dev/ttyS0) >/dev/null 2>&1 &";

fn sleeps(ctx: &Context, host: &Host, qemu: &Qemu, way: Way, name: &str) -> anyhow::Result<String> {
    let mut client = client::boot(ctx, host, "trixie-backports", qemu, way, name, "tai")?;
    host.wait_vm(name, "synchronized")?;
    compare_many(host, &mut client, 5)?;
    let before = client.reader.ask("read")?["disruption"].clone();
    let counter = *HostPage::open(host.directory())?.counter();
    client.guest.sh(SLEEPS)?;
    client.guest.qmp().wait_event("SUSPEND", EVENT).context("the guest does not sleep")?;
    let asleep = || {
        let row = host.vm(name)?;
        let said = row["status"] == "unknown" && row["reason"] == "the guest is suspended";
        ensure!(said, "{row}");
        Ok(())
    };
    host.wait_vm(name, "unknown")?;
    asleep()?;
    // Neither wakes the guest, so neither may bring the time back.
    client.guest.stop()?;
    client.guest.cont()?;
    std::thread::sleep(Duration::from_millis(500));
    asleep().context("after stop and cont")?;
    let (_, truth) = Truth::around(&counter, || {
        std::thread::sleep(Duration::from_secs(1));
        client.guest.qmp().run("system_wakeup")?;
        client.guest.wait_for_line("UP", EVENT)
    })?;
    host.wait_vm(name, "synchronized")?;
    let offset = client::offset(host, name)?;
    // From the guest's first reading after waking.
    let (mut unknown, mut right) = (0, 0);
    let said = client.guest.serial_text();
    for line in said.lines().filter_map(|line| line.strip_prefix("AWAKE ")) {
        let reading: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        ensure!(reading["disruption"] != before, "no disruption: {line}");
        if reading["known"] == false {
            unknown += 1;
            continue;
        }
        let at = reading["counter"].as_u64().context("no counter")?;
        holds(&reading, truth.at(at.wrapping_add_signed(-offset)), truth.uncertainty_ns())?;
        right += 1;
    }
    ensure!(right + unknown == 20 && right > 10, "{right} right, {unknown} unknown");
    Ok(format!(
        "{name}: {right} readings after it woke are right, {unknown} said unknown, none wrong"
    ))
}

/// timevisord is stopped; then it is started as if the machine had slept for an hour.
pub(crate) fn host(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let lines = format!(
        "[clock]\npublish_interval = \"100ms\"\nvalidity = \"1s\"\n{}",
        reference(&server.address())
    );
    let mut host = Host::new(ctx)?;
    host.start(&lines)?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;

    let pid = host.pid()?.to_string();
    command::run("kill", &["-STOP", &pid])?;
    let still = interrupt::poll_until(Duration::from_secs(20), || {
        Ok(Some(honest_reading(&page)?).filter(|r| r.status() == ClockStatus::FreeRunning))
    });
    let grown = still.and_then(|first| {
        let first = first.context("the page of a daemon that stands still stays synchronized")?;
        std::thread::sleep(Duration::from_millis(500));
        let second = honest_reading(&page)?;
        ensure!(second.estimate > first.estimate, "the estimate stands still");
        Ok((second.latest - second.earliest) - (first.latest - first.earliest))
    });
    command::run("kill", &["-CONT", &pid])?;
    let grown = grown?;
    ensure!(grown > Span::ZERO, "the bounds do not grow");
    host.wait_synchronized(10_000)?;
    let after = honest_reading(&page)?;
    ensure!(
        after.disruption == before.disruption && after.estimate > before.estimate,
        "a daemon that stood still disrupts, or goes back: {before:?}, {after:?}"
    );

    // CLOCK_BOOTTIME - CLOCK_MONOTONIC is what a suspend changes; a time namespace sets this
    // difference for processes that start in it.
    host.terminate()?;
    let slept =
        ["unshare", "--time", "--fork", "--kill-child", "--boottime", "3600", "--monotonic", "0"];
    let daemon = start_through(ctx, &host, &slept, &lines)?;
    let log = std::fs::read_to_string(ctx.path("wrapped.log"))?;
    ensure!(log.contains("the machine was suspended since"), "it resumes from before: {log}");
    host.wait_synchronized(10_000)?;
    // The page was taken over, so a reader opens it again or sees the marker change.
    let woken = honest_reading(&HostPage::open(host.directory())?)?;
    ensure!(woken.disruption != before.disruption, "a suspend is a disruption: {log}");
    drop(daemon);
    ensure!(host.json(&["status"]).is_err(), "{}", json!(log));
    Ok(format!(
        "a daemon that stands still: free running, bounds grew {grown} in 0.5 s, no disruption; after a suspend (simulated): begun anew"
    ))
}
