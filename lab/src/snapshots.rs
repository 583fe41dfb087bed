//! Snapshots of a running guest in a qcow2 file, using only QMP: no qemu-img, and no disk in the
//! guest.
//!
//! [`save`] and [`load`] are QMP's `snapshot-save` and `snapshot-load`, which do what the monitor's
//! `savevm` and `loadvm` do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::{Value, json};
use timevisor_guests::{counter_mapping, qemu};
use timevisor_linux::process::Process;

use crate::guest::Guest;
use crate::interrupt;
use crate::scenario::Context;

/// The block node for snapshots.
const NODE: &str = "snapshots";
/// The time limit for the lab's guests, whose state is about 50 MB.
const LIMIT: Duration = Duration::from_secs(60);
/// Polling interval of [`frozen`].
const LOOK: Duration = Duration::from_micros(200);

/// Gives a guest its own disk image for snapshots; creates the file.
///
/// # Errors
/// When QEMU refuses.
pub fn attach(ctx: &Context, guest: &mut Guest, name: &str) -> anyhow::Result<()> {
    let path = ctx.path(&format!("{name}.qcow2"));
    let _ = std::fs::remove_file(&path);
    let file = path.display().to_string();
    let create = |options: Value| json!({ "options": options });
    job(guest, "blockdev-create", create(json!({"driver": "file", "filename": file, "size": 0})))?;
    let qmp = guest.qmp();
    qmp.execute("blockdev-add", &json!({"driver": "file", "node-name": "file", "filename": file}))?;
    job(
        guest,
        "blockdev-create",
        create(json!({"driver": "qcow2", "file": "file", "size": 16 << 20})),
    )?;
    let node = json!({"driver": "qcow2", "node-name": NODE, "file": "file"});
    guest.qmp().execute("blockdev-add", &node).map(drop)
}

/// Saves the guest's state under `tag`; a running guest keeps running.
///
/// # Errors
/// When QEMU refuses, fails or ends.
pub fn save(guest: &mut Guest, tag: &str) -> anyhow::Result<()> {
    job(guest, "snapshot-save", json!({"tag": tag, "vmstate": NODE, "devices": [NODE]}))
}

/// Restores the guest's state saved under `tag`; a running guest continues from there.
///
/// # Errors
/// When QEMU refuses, fails or ends.
pub fn load(guest: &mut Guest, tag: &str) -> anyhow::Result<()> {
    job(guest, "snapshot-load", json!({"tag": tag, "vmstate": NODE, "devices": [NODE]}))
}

/// Removes the state saved under `tag`.
///
/// # Errors
/// When QEMU refuses, fails or ends.
pub fn delete(guest: &mut Guest, tag: &str) -> anyhow::Result<()> {
    job(guest, "snapshot-delete", json!({"tag": tag, "devices": [NODE]}))
}

fn job(guest: &mut Guest, command: &str, mut arguments: Value) -> anyhow::Result<()> {
    arguments["job-id"] = json!("lab");
    guest.qmp().execute(command, &arguments)?;
    let ended = interrupt::poll_until(LIMIT, || {
        let jobs = guest.qmp().run("query-jobs")?;
        let job = jobs.as_array().into_iter().flatten().find(|job| job["id"] == "lab");
        Ok(job.filter(|job| job["status"] == "concluded").cloned())
    })?;
    let ended = ended.with_context(|| format!("{command} does not end"))?;
    guest.qmp().execute("job-dismiss", &json!({"id": "lab"}))?;
    ensure!(ended["error"].is_null(), "{command}: {}", ended["error"]);
    Ok(())
}

/// The value of the counter of a guest that stands still under TCG.
///
/// # Errors
/// When it runs, or QEMU's state cannot be read.
pub fn stopped_at(guest: &Guest) -> anyhow::Result<u64> {
    let state = counter(guest)?.read()?;
    ensure!(!state.running, "the guest runs");
    Ok(state.guest_from_host(0))
}

fn counter(guest: &Guest) -> anyhow::Result<Box<dyn counter_mapping::MappingSource + Send>> {
    let qemu = qemu::Qemu::open(Process::open(guest.pid())?)?;
    let mut programs = counter_mapping::Programs::default();
    let icount = qemu.command_line.icount;
    Ok(counter_mapping::source(qemu.process, qemu.accelerator, icount, &mut programs)?)
}

/// The first value at which the guest's counter stood still while `act` stopped the guest under
/// TCG.
///
/// # Errors
/// When `act` fails, or the guest was not stopped.
pub fn frozen(
    guest: &mut Guest,
    act: impl FnOnce(&mut Guest) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let mut source = counter(guest)?;
    let over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&over);
    let watch = std::thread::spawn(move || {
        while !flag.load(Ordering::Relaxed) {
            if let Ok(state) = source.read()
                && !state.running
            {
                return Some(state.guest_from_host(0));
            }
            std::thread::sleep(LOOK);
        }
        None
    });
    let acted = act(guest);
    over.store(true, Ordering::Relaxed);
    let seen = watch.join().map_err(|_| anyhow!("the watch panicked"))?;
    acted?;
    seen.context("the guest was not stopped")
}
