//! Real KVM on a machine without it: the processor of the host under test is emulated; its kernel
//! and KVM are real.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::interrupt;
use crate::nested::{NestedHost, PERIODIC};
use crate::scenario::Context;

/// How tightly causality alone must bound the error of the offset. A round trip to the inner guest
/// takes a millisecond, on a busy machine tens of them; an offset from before a reset is wrong by
/// seconds.
const SLACK_NS: i64 = 100_000_000;

/// Processors of the emulated host. With two of them, which QEMU emulates in two threads, the host
/// itself or its guest died now and then, so the guest's two vCPUs take turns on one.
pub(super) const PROCESSORS: u32 = 1;

/// Each delivery under real KVM.
pub(crate) fn nested(ctx: &Context) -> anyhow::Result<String> {
    each_delivery(ctx, |_, _| Ok(String::new()))
}

/// The same, with a reset of the inner guest.
pub(crate) fn nested_reset(ctx: &Context) -> anyhow::Result<String> {
    each_delivery(ctx, reset)
}

fn each_delivery(
    ctx: &Context,
    then: fn(&mut NestedHost, &str) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let kernel = ctx.kernel("trixie-backports")?;
    let qemu = ctx.qemu_10()?;
    let kernels = [&kernel, &kernel];
    let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, kernels, PROCESSORS, PERIODIC, Ok)?;
    let mut measured =
        vec![format!("host up in {:.0} s", host.guest().started().elapsed().as_secs_f64())];
    for delivery in ["vmclock", "nvdimm"] {
        let started = Instant::now();
        host.launch(delivery, delivery, 2)?;
        host.qmp(delivery, "cont")?;
        host.wait_ready(delivery, 1)?;
        let boot = started.elapsed().as_secs_f64();
        measured
            .push(format!("{delivery} guest up in {boot:.0} s: {}", check(&mut host, delivery)?));
        measured.push(then(&mut host, delivery)?);
        host.qmp(delivery, "quit")?;
        host.wait("the row to go", |host| Ok(host.vm(delivery).is_err()))?;
    }
    measured.retain(|text| !text.is_empty());
    Ok(measured.join("; "))
}

fn check(host: &mut NestedHost, name: &str) -> anyhow::Result<String> {
    host.wait("the inner VM to be synchronized", |host| {
        Ok(host.vm(name)?["status"] == "synchronized")
    })?;
    let row = host.vm(name)?;
    ensure!(row["accelerator"] == "kvm" && row["delivery"] == name, "{row}");
    let offsets = debugfs(host, &row, "vcpu*/tsc-offset")?;
    let offset = offsets[0];
    ensure!(offset != 0 && offsets == [offset; 2], "two vCPUs with one offset: {offsets:?}");
    ensure!(row["mapping"] == format!("host {offset:+}"), "debugfs says {offset:+}, vm list {row}");
    let exits = debugfs(host, &row, "exits")?[0];
    ensure!(exits > 1000, "KVM ran next to nothing: {exits} exits");
    let before = compare(host, name)?;

    // Stopped vCPUs do not stop a TSC, but whoever stops a VM may load a snapshot into it, so the
    // page says nothing until the VM runs.
    host.qmp(name, "stop")?;
    host.wait("the page to be withdrawn", |host| Ok(host.vm(name)?["status"] == "unknown"))?;
    host.qmp(name, "cont")?;
    host.wait("the inner VM to be synchronized again", |host| {
        Ok(host.vm(name)?["status"] == "synchronized")
    })?;
    let after = compare(host, name)?;
    let resumed = host.vm(name)?;
    ensure!(row["mapping"] == resumed["mapping"], "the TSC was stopped: {row}, then {resumed}");
    ensure!(!same_page(&row, &resumed), "a pause is a disruption: {row}, then {resumed}");
    Ok(format!("tsc-offset {offset:+}, {exits} exits, {before}, after stop and cont {after}"))
}

/// A reset restarts the guest's TSC: the one event under KVM, apart from a migration, that changes
/// the relation between the counters.
fn reset(host: &mut NestedHost, name: &str) -> anyhow::Result<String> {
    let before = host.vm(name)?;
    host.qmp(name, "system_reset")?;
    host.wait_ready(name, 2)?;
    let after = host.vm(name)?;
    ensure!(after["status"] == "synchronized", "after a reset: {after}");
    for changed in ["mapping", "disruption_marker"] {
        ensure!(
            before[changed] != after[changed],
            "{changed} is as before the reset: {before}, {after}"
        );
    }
    Ok(format!("after a reset {}", compare(host, name)?))
}

/// A vCPU is plugged into the inner guest, and a snapshot is loaded into it: its counters change under
/// KVM's hands.
pub(crate) fn nested_states(ctx: &Context) -> anyhow::Result<String> {
    const NAME: &str = "states";
    let kernel = ctx.kernel("trixie-backports")?;
    let qemu = ctx.qemu_10()?;
    let kernels = [&kernel, &kernel];
    let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, kernels, PROCESSORS, PERIODIC, Ok)?;
    let directory = "/run/timevisor";
    host.launch_on(directory, NAME, "vmclock", 1, "-S -smp 1,maxcpus=2")?;
    host.wait("the inner VM to be found", |host| Ok(host.vm(NAME).is_ok()))?;
    make_disk(&mut host, NAME)?;
    host.qmp(NAME, "cont")?;
    host.wait_ready(NAME, 1)?;
    host.wait("its time", |host| Ok(host.vm(NAME)?["status"] == "synchronized"))?;
    let before = compare(&mut host, NAME)?;

    let all = host.qmp(NAME, "query-hotpluggable-cpus")?;
    let free = all.as_array().into_iter().flatten().find(|cpu| cpu["qom-path"].is_null());
    let free = free.with_context(|| format!("no vCPU can be plugged: {all}"))?;
    let mut device = free["props"].clone();
    device["driver"] = free["type"].clone();
    device["id"] = json!("plugged");
    host.execute(NAME, "device_add", &device)?;
    let row = host.vm(NAME)?;
    host.wait("KVM to show two vCPUs", |host| {
        Ok(debugfs(host, &row, "vcpu*/tsc-offset")?.len() == 2)
    })?;
    let offsets = debugfs(&mut host, &row, "vcpu*/tsc-offset")?;
    let line = "echo 1 >/sys/devices/system/cpu/cpu1/online; nproc";
    let processors = host.inner_sh(NAME, line, Duration::from_secs(200))?;
    let plugged = if offsets[0] == offsets[1] {
        ensure!(processors.trim() == "2", "the guest has {processors} processors");
        compare(&mut host, NAME)?
    } else {
        let row = host.vm(NAME)?;
        ensure!(row["status"] == "unknown", "vCPUs disagree ({offsets:?}), and {row}");
        "they disagree, and the page says nothing".to_owned()
    };

    host.job(NAME, "snapshot-save", "tag")?;
    let saved = host.vm(NAME)?;
    interrupt::sleep(Duration::from_secs(5))?;
    host.job(NAME, "snapshot-load", "tag")?;
    host.qmp(NAME, "cont")?;
    host.wait("its time again", |host| Ok(host.vm(NAME)?["status"] == "synchronized"))?;
    let loaded = host.vm(NAME)?;
    ensure!(!same_page(&saved, &loaded), "a load is a disruption: {saved}, then {loaded}");
    let after = compare(&mut host, NAME)?;
    Ok(format!(
        "{before}; with a plugged vCPU (offsets {offsets:?}): {plugged}; after a snapshot was loaded: {after}"
    ))
}

/// Gives an inner VM a place for snapshots.
fn make_disk(host: &mut NestedHost, name: &str) -> anyhow::Result<()> {
    let file = format!("/run/{name}.qcow2");
    host.create(name, &json!({"driver": "file", "filename": file, "size": 0}))?;
    let file = json!({"driver": "file", "node-name": "file", "filename": file});
    host.execute(name, "blockdev-add", &file)?;
    host.create(name, &json!({"driver": "qcow2", "file": "file", "size": 16 << 20}))?;
    let node = json!({"driver": "qcow2", "node-name": "snapshots", "file": "file"});
    host.execute(name, "blockdev-add", &node).map(drop)
}

/// Values in KVM's debugfs for the VM of `row`.
pub(super) fn debugfs(host: &mut NestedHost, row: &Value, files: &str) -> anyhow::Result<Vec<i64>> {
    let text = host.sh(&format!("cat /sys/kernel/debug/kvm/{}-*/{files}", row["pid"]))?;
    text.lines().map(|line| line.parse().with_context(|| format!("{files}: {text:?}"))).collect()
}

/// Compares 50 of the guest's readings with the host's page.
pub(super) fn compare(host: &mut NestedHost, name: &str) -> anyhow::Result<String> {
    let worst = host.compare(name, 50)?;
    let slack = [0, 1].map(|n| worst["slack_ns"][n].as_i64().unwrap_or(i64::MIN));
    let limit = 0..SLACK_NS;
    ensure!(
        slack.iter().all(|ns| limit.contains(ns)),
        "the offset is wrong or not proven: {worst}"
    );
    let text = worst["text"].as_str().unwrap_or_default();
    let [low, high] = slack.map(|ns| ns / 1000);
    Ok(format!("{text}, the offset itself by causality within -{low} and +{high} us"))
}

fn same_page(a: &Value, b: &Value) -> bool {
    ["status", "mapping", "disruption_marker"].iter().all(|key| a[key] == b[key])
}
