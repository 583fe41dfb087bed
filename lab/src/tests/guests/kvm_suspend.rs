//! Suspend to RAM (S3) of a guest under the real KVM. QEMU resets the guest's vCPUs when it wakes,
//! and with them their counters, so the page from before is wrong from the guest's first
//! instruction on.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::clock::Bracket;
use timevisor_time::Instant;

use super::kvm::{PROCESSORS, compare, debugfs};
use crate::interrupt;
use crate::nested::{NestedHost, PERIODIC};
use crate::scenario::Context;
use crate::tests::survival::snapshot::holds;
use crate::truth::Truth;

const NAME: &str = "sleeper";
const DIRECTORY: &str = "/run/timevisor";
/// Readings with a time that the guest makes after it woke.
const KNOWN: usize = 50;
/// Readings at most, with those that say that the time is unknown.
const MOST: usize = 1000;
/// How long the guest sleeps at least, while its own clocks stand still.
const ASLEEP: Duration = Duration::from_secs(3);

pub(crate) fn suspend(ctx: &Context) -> anyhow::Result<String> {
    let kernel = ctx.kernel("trixie-backports")?;
    let qemu = ctx.qemu_10()?;
    let kernels = [&kernel, &kernel];
    let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, kernels, PROCESSORS, PERIODIC, Ok)?;
    let mut told = Vec::new();
    for delivery in ["vmclock", "nvdimm"] {
        told.push(sleeps(&mut host, delivery).context(delivery)?);
    }
    Ok(told.join("; "))
}

/// Puts the guest to sleep once, and judges what it reads right before and from its first reading
/// after waking.
fn sleeps(host: &mut NestedHost, delivery: &str) -> anyhow::Result<String> {
    let name = &format!("{NAME}-{delivery}");
    host.launch_on(DIRECTORY, name, delivery, 2, "-S -global ICH9-LPC.disable_s3=0")?;
    host.wait("the inner VM to be found", |host| Ok(host.vm(name).is_ok()))?;
    host.qmp(name, "cont")?;
    host.wait_ready(name, 1)?;
    host.wait("its time", |host| Ok(host.vm(name)?["status"] == "synchronized"))?;
    let before = compare(host, name)?;
    let from = host_clock(host)?;
    let old = offset(host, name)?;
    agrees(host, name, old)?;

    host.sh(&format!("lab-compare sh /run/{name}.lab '{}'", line()))?;
    host.wait("the guest to be suspended", |host| {
        Ok(host.qmp(name, "query-status")?["status"] == "suspended")
    })?;
    host.wait("its page to say nothing", |host| Ok(host.vm(name)?["status"] == "unknown"))?;
    let row = host.vm(name)?;
    ensure!(row["reason"] == "the guest is suspended", "{row}");
    interrupt::sleep(ASLEEP)?;
    let woken = host_clock(host)?.before;
    host.qmp(name, "system_wakeup")?;
    host.wait("the guest to have read its page", |host| {
        Ok(said(host, name)?.lines().any(|line| line.trim() == "LAB-UP"))
    })?;
    host.wait("its time again", |host| Ok(host.vm(name)?["status"] == "synchronized"))?;
    let new = offset(host, name)?;
    let truth = Truth::between(from, host_clock(host)?)?;

    let text = said(host, name)?;
    let mut asleep = Judge { truth, offset: old, known: 0, unknown: 0, ptp: 0 };
    let mut awake = Judge { truth, offset: new, known: 0, unknown: 0, ptp: 0 };
    let (mut marker, mut first) = (Value::Null, None);
    for line in text.lines() {
        if let Some(reading) = line.strip_prefix("BEFORE ") {
            marker = asleep.judge(reading).context("before it slept")?["disruption"].clone();
        } else if let Some(reading) = line.strip_prefix("AWAKE ") {
            let count = awake.known + awake.unknown;
            let reading = awake.judge(reading).with_context(|| format!("reading {count} awake"))?;
            ensure!(reading["disruption"] != marker, "no disruption: {reading}, was {marker}");
            first = first.or(reading["counter"].as_u64());
        }
    }
    ensure!(asleep.known == 1 && asleep.unknown == 0, "{} before it slept", asleep.known);
    ensure!(awake.known == KNOWN, "{} readings of {KNOWN}: {text}", awake.known);
    ensure!(awake.ptp == KNOWN, "/dev/ptp0 {} times of {KNOWN}: {text}", awake.ptp);
    agrees(host, name, new)?;
    let first = first.context("no counter")?.wrapping_add_signed(new.wrapping_neg());
    let later_ms = (truth.at(first) - truth.at(woken)) / 1_000_000;
    ensure!(later_ms >= 0, "it read {later_ms} ms after it was woken");
    host.qmp(name, "quit")?;
    host.wait("the row to go", |host| Ok(host.vm(name).is_err()))?;
    Ok(format!(
        "{delivery}: {before}; asleep the page says nothing; tsc-offset {old:+}, then {new:+}; from the first \
         reading on, {later_ms} ms after it was woken, {} said unknown and {} hold the truth (+-{} ns), and so does /dev/ptp0; none outside",
        awake.unknown,
        awake.known,
        truth.uncertainty_ns()
    ))
}

/// The guest reads its page, sleeps, reads it until the time was known [`KNOWN`] times, and only
/// then prints it all on its console: its virtio ports do not survive S3.
fn line() -> String {
    format!(
        "(sleep 1; lab-reader >/run/before; echo deep >/sys/power/mem_sleep; echo mem >/sys/power/state; \
         n=0; k=0; while [ $k -lt {KNOWN} ] && [ $n -lt {MOST} ]; do n=$((n+1)); said=$(lab-reader); echo \"$said\"; \
         case $said in *\\\"known\\\":false*) ;; *) k=$((k+1)) ;; esac; done >/run/awake; \
         sed \"s/^/BEFORE /\" /run/before >/dev/ttyS0; sed \"s/^/AWAKE /\" /run/awake >/dev/ttyS0; echo LAB-UP >/dev/ttyS0) \
         >/dev/null 2>&1 &"
    )
}

/// Compares readings with the host's own clock at the same counter value.
struct Judge {
    truth: Truth,
    offset: i64,
    known: usize,
    unknown: usize,
    /// Readings of /dev/ptp0.
    ptp: usize,
}

impl Judge {
    fn judge(&mut self, line: &str) -> anyhow::Result<Value> {
        let reading: Value = serde_json::from_str(line.trim()).with_context(|| line.to_owned())?;
        if reading["known"] == false {
            self.unknown += 1;
            return Ok(reading);
        }
        self.known += 1;
        let at = reading["counter"].as_u64().with_context(|| format!("no counter: {line}"))?;
        let utc = self.truth.at(at.wrapping_add_signed(self.offset.wrapping_neg()));
        holds(&reading, utc, self.truth.uncertainty_ns()).with_context(|| line.to_owned())?;
        self.judge_ptp(&reading).with_context(|| line.to_owned())?;
        Ok(reading)
    }

    /// The stock driver's clock, which the guest reads between two readings of its counter; it may
    /// be as wrong as the page's bounds are wide.
    fn judge_ptp(&mut self, reading: &Value) -> anyhow::Result<()> {
        let number = |value: &Value| value.as_i64().context("no number");
        let Some(ptp) = reading["ptp"]["ns"].as_i64() else { return Ok(()) };
        let tai = number(&reading["tai_offset"])? * 1_000_000_000;
        let width = number(&reading["latest_ns"])? - number(&reading["earliest_ns"])?;
        let at = |name: &str| -> anyhow::Result<i64> {
            let counter = reading["ptp"][name].as_u64().context("no counter")?;
            Ok(self.truth.at(counter.wrapping_add_signed(self.offset.wrapping_neg())) + tai - ptp)
        };
        let slack = width + self.truth.uncertainty_ns();
        let (from, to) = (at("before")?, at("after")?);
        ensure!(from - slack <= 0 && 0 <= to + slack, "/dev/ptp0 is not within {from} and {to} ns");
        self.ptp += 1;
        Ok(())
    }
}

/// What the guest has printed on its console.
fn said(host: &mut NestedHost, name: &str) -> anyhow::Result<String> {
    host.sh(&format!("cat /run/{name}-serial.log"))
}

/// The host's clock between two readings of its counter. Nobody steers this clock.
fn host_clock(host: &mut NestedHost) -> anyhow::Result<Bracket> {
    let said = host.json(&format!("lab-compare clock {DIRECTORY}"))?;
    let counter = |name: &str| said[name].as_u64().with_context(|| format!("no {name}: {said}"));
    let ns = said["realtime_ns"].as_i64().context("no time")?;
    let realtime = Instant::from_unix_nanos(ns.into());
    Ok(Bracket { before: counter("before")?, realtime, after: counter("after")? })
}

/// What KVM adds to the host's counter, by its debugfs.
fn offset(host: &mut NestedHost, name: &str) -> anyhow::Result<i64> {
    let row = host.vm(name)?;
    let offsets = debugfs(host, &row, "vcpu*/tsc-offset")?;
    let offset = *offsets.first().context("no vCPU")?;
    ensure!(offsets.iter().all(|other| *other == offset), "vCPUs disagree: {offsets:?}");
    Ok(offset)
}

/// `vm list` has this offset.
fn agrees(host: &mut NestedHost, name: &str, offset: i64) -> anyhow::Result<()> {
    let row = host.vm(name)?;
    ensure!(row["mapping"] == format!("host {offset:+}"), "debugfs says {offset:+}, vm list {row}");
    Ok(())
}
