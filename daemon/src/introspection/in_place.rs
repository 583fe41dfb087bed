//! The traps that this daemon has placed in guests, and the host's switch, which has to be on while
//! any of them is a prefix.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use timevisor_introspection::backend::kvm::patch_journal::{InPlace, Patched, file};
use timevisor_introspection::backend::kvm::patches::{Patch, take};
use timevisor_linux::crash_file::CrashFile;
use timevisor_linux::kvm::prefix::{forced_emulation, set_forced_emulation};
use timevisor_linux::process::{Process, ProcessMemory, while_stopped};

pub struct Prefixes {
    file: CrashFile<InPlace>,
    now: Mutex<InPlace>,
    /// Why the journal of an earlier daemon cannot be read. It must not be overwritten then.
    unknown: Option<String>,
}

impl Prefixes {
    /// Removes the traps that an earlier daemon left behind. Those that cannot be removed stay in
    /// the journal, and the switch stays on for them.
    pub fn start(directory: &Path) -> Self {
        let file = file(directory);
        let (mut now, unknown) = match file.read() {
            Ok(now) => (now, None),
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                tracing::error!("{text}");
                (InPlace::default(), Some(text))
            }
        };
        if now != InPlace::default() {
            now.vms.retain(|patched| match remove(patched) {
                Ok(taken) => {
                    tracing::info!("process {}: {taken} trap points removed", patched.pid);
                    false
                }
                Err(error) => {
                    tracing::error!(
                        "process {}: cannot remove trap points: {error:#}",
                        patched.pid
                    );
                    true
                }
            });
            switch_off_if_unused(&mut now);
            if let Err(error) = file.write(&now) {
                tracing::error!("{error}");
            }
        }
        Self { file, now: Mutex::new(now), unknown }
    }

    /// Call before these patches are applied: writes them to the journal, and turns the host's
    /// switch on if they need it.
    pub fn begin(&self, process: Process, patches: &[Patch]) -> Result<()> {
        if let Some(unknown) = &self.unknown {
            bail!("{unknown}");
        }
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = now.clone();
        let (pid, start_time) = (process.pid(), process.start_time()?);
        next.vms.push(Patched { pid, start_time, patches: patches.to_vec() });
        let switches = next.needs_switch() && !forced_emulation()?;
        next.switched_on |= switches;
        self.file.write(&next)?;
        if switches {
            if let Err(error) = set_forced_emulation(true) {
                // No patch was applied, so the journal must not list any.
                self.file.write(&now)?;
                return Err(error.into());
            }
            tracing::info!("KVM's force_emulation_prefix is on");
        }
        *now = next;
        Ok(())
    }

    /// Removes this VM's traps, and turns the switch off if no VM needs it.
    pub fn end(&self, process: Process) -> Result<()> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (these, others): (Vec<_>, Vec<_>) =
            now.vms.drain(..).partition(|patched| patched.pid == process.pid());
        now.vms = others;
        let mut failed = Ok(());
        for patched in these {
            if let Err(error) = remove(&patched) {
                failed = Err(error);
                now.vms.push(patched);
            }
        }
        switch_off_if_unused(&mut now);
        self.file.write(&now)?;
        failed
    }
}

/// Removes the traps that are still in place. Does nothing for a QEMU that has ended.
fn remove(patched: &Patched) -> Result<usize> {
    let Some(process) = patched.process() else { return Ok(0) };
    let done = ProcessMemory::writable(process).map_err(anyhow::Error::from).and_then(|memory| {
        while_stopped(process, || take(&memory, &patched.patches))?.context("the guest's code")
    });
    // QEMU has ended in the meantime.
    if done.is_err() && !process.is_running() { Ok(0) } else { done }
}

fn switch_off_if_unused(now: &mut InPlace) {
    if now.switched_on && !now.needs_switch() {
        match set_forced_emulation(false) {
            Ok(()) => {
                tracing::info!("KVM's force_emulation_prefix is off again");
                now.switched_on = false;
            }
            Err(error) => tracing::error!("{error}"),
        }
    }
}
