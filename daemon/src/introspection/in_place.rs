//! The traps that this daemon has placed in guests, and whose guests need the host's switch, which
//! has to be on while any trap of anybody is a prefix.
//!
//! Traps that cannot be removed are not forgotten: they stay in the journal, where the introspector
//! that starts after a crash finds them, too, and are tried again.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use timevisor_introspection::backend::kvm::patch_journal::{InPlace, Patched, file};
use timevisor_introspection::backend::kvm::patches::{Patch, take};
use timevisor_linux::clock::monotonic;
use timevisor_linux::crash_file::CrashFile;
use timevisor_linux::kvm::prefix_users::PrefixUsers;
use timevisor_linux::process::{Process, ProcessMemory, while_stopped};
use timevisor_time::Duration;

/// From a failed removal to the next attempt, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

pub struct Prefixes {
    file: CrashFile<InPlace>,
    state: Mutex<State>,
    users: PrefixUsers,
    /// Why the journal of an earlier daemon cannot be read. It must not be overwritten then.
    unknown: Option<String>,
}

#[derive(Default)]
struct State {
    now: InPlace,
    stuck: Vec<Stuck>,
}

/// A VM whose traps could not be removed.
struct Stuck {
    pid: u32,
    why: String,
    again_at: Duration,
    pause: Duration,
}

impl Prefixes {
    /// Removes the traps that an earlier daemon left behind. Those that cannot be removed stay in
    /// the journal, and the switch stays on for them.
    pub fn start(directory: &Path) -> Self {
        let file = file(directory);
        let (now, unknown) = match file.read() {
            Ok(now) => (now, None),
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                tracing::error!("{text}");
                (InPlace::default(), Some(text))
            }
        };
        let users = PrefixUsers::of_this_host();
        let state = Mutex::new(State { now, stuck: Vec::new() });
        let this = Self { file, state, users, unknown };
        {
            let mut state = this.lock();
            if std::mem::take(&mut state.now.switched_on)
                && let Err(error) = this.users.was_switched_on()
            {
                tracing::error!("{error}");
            }
            for left in &state.now.vms {
                // An earlier version noted nothing there.
                if left.needs_switch()
                    && !left.process().has_ended()
                    && let Err(error) = this.users.join(left.pid, left.start_time)
                {
                    tracing::error!("{error}");
                }
            }
        }
        for patched in this.all() {
            let pid = patched.pid;
            match this.remove(&patched) {
                Ok(taken) => tracing::info!("process {pid}: {taken} trap points removed"),
                Err(error) => {
                    tracing::error!("process {pid}: cannot remove trap points: {error:#}");
                }
            }
        }
        if this.unknown.is_none() && this.file.exists() {
            this.write(&this.lock());
        }
        this
    }

    /// Call before these patches are applied: writes them to the journal, and turns the host's
    /// switch on if they need it.
    pub fn begin(&self, process: Process, patches: &[Patch]) -> Result<()> {
        if let Some(unknown) = &self.unknown {
            bail!("{unknown}");
        }
        let mut state = self.lock();
        let pid = process.pid();
        if let Some(stuck) = state.stuck.iter().find(|stuck| stuck.pid == pid) {
            bail!("trap points of an earlier session are still in place: {}", stuck.why);
        }
        let start_time = process.start_time()?;
        let patched = Patched { pid, start_time, patches: patches.to_vec() };
        let mut next = state.now.clone();
        next.vms.push(patched.clone());
        self.file.write(&next)?;
        if patched.needs_switch() {
            match self.users.join(pid, start_time) {
                Ok(true) => tracing::info!("KVM's force_emulation_prefix is on"),
                Ok(false) => {}
                Err(error) => {
                    // No patch was applied, so the journal must not list any.
                    self.file.write(&state.now)?;
                    return Err(error.into());
                }
            }
        }
        state.now = next;
        Ok(())
    }

    /// Removes this VM's traps, and turns the switch off if no VM needs it.
    ///
    /// # Errors
    /// When they cannot be removed; [`Self::try_again`] does it later.
    pub fn end(&self, process: Process) -> Result<()> {
        self.end_of(process.pid())
    }

    fn end_of(&self, pid: u32) -> Result<()> {
        let mut failed = Ok(());
        for patched in self.all().iter().filter(|patched| patched.pid == pid) {
            failed = failed.and(self.remove(patched).map(drop));
        }
        self.file.write(&self.lock().now)?;
        failed
    }

    /// Tries again to remove what could not be removed, where its time has come: one VM's, because a
    /// QEMU that does not stand still takes seconds.
    pub fn try_again(&self, now: Duration) {
        let is_due = |stuck: &&Stuck| now >= stuck.again_at;
        let due = self.lock().stuck.iter().find(is_due).map(|stuck| stuck.pid);
        let Some(pid) = due else { return };
        match self.end_of(pid) {
            Ok(()) => tracing::info!("process {pid}: its trap points are removed now"),
            Err(error) => tracing::debug!("process {pid}: {error:#}"),
        }
    }

    fn all(&self) -> Vec<Patched> {
        self.lock().now.vms.clone()
    }

    /// The processes whose traps could not be removed, and why.
    pub fn stuck(&self) -> Vec<(u32, String)> {
        self.lock().stuck.iter().map(|stuck| (stuck.pid, stuck.why.clone())).collect()
    }

    /// Removes the traps of one VM, or notes that they stay. Nobody waits for the lock meanwhile.
    fn remove(&self, patched: &Patched) -> Result<usize> {
        let done = taken(patched);
        let mut state = self.lock();
        let former = state.stuck.iter().position(|stuck| stuck.pid == patched.pid);
        let former = former.map(|at| state.stuck.remove(at));
        match done {
            Ok(count) => {
                state.now.vms.retain(|other| other != patched);
                if patched.needs_switch() {
                    match self.users.leave(patched.pid, patched.start_time) {
                        Ok(true) => tracing::info!("KVM's force_emulation_prefix is off again"),
                        Ok(false) => {}
                        Err(error) => tracing::error!("{error}"),
                    }
                }
                Ok(count)
            }
            Err(error) => {
                let pause = former.map_or(FIRST_PAUSE, |of| (of.pause + of.pause).min(LAST_PAUSE));
                state.stuck.push(Stuck {
                    pid: patched.pid,
                    why: format!("{error:#}"),
                    again_at: monotonic() + pause,
                    pause,
                });
                Err(error)
            }
        }
    }

    fn write(&self, state: &State) {
        if let Err(error) = self.file.write(&state.now) {
            tracing::error!("{error}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the traps that are still in place. Does nothing for a QEMU that has ended.
///
/// # Errors
/// When it cannot be known that none is left.
fn taken(patched: &Patched) -> Result<usize> {
    let process = patched.process();
    if process.has_ended() {
        return Ok(0);
    }
    let done = ProcessMemory::writable(process).map_err(anyhow::Error::from).and_then(|memory| {
        while_stopped(process, || take(&memory, &patched.patches))?.context("the guest's code")
    });
    // QEMU has ended in the meantime.
    if done.is_err() && process.has_ended() { Ok(0) } else { done }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use timevisor_introspection::backend::kvm::trap::Trap;
    use timevisor_introspection::point::SLOT;

    use super::*;

    struct Victim(Child);

    impl Drop for Victim {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn victim() -> (Victim, Process) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        (Victim(child), process)
    }

    /// Nothing is mapped there, so it can be neither read nor written.
    fn unreachable() -> Vec<Patch> {
        vec![Patch { address: 8, original: SLOT, patched: Trap::Port.bytes() }]
    }

    #[test]
    fn what_cannot_be_removed_is_kept_tried_again_and_found_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let prefixes = Prefixes::start(folder.path());
        let (victim, process) = victim();
        prefixes.begin(process, &unreachable()).unwrap();
        assert!(prefixes.end(process).is_err());
        let stuck = prefixes.stuck();
        assert!(matches!(&stuck[..], [(pid, _)] if *pid == process.pid()), "{stuck:?}");
        assert_eq!(file(folder.path()).read().unwrap().vms.len(), 1, "the journal has it");
        let refused = prefixes.begin(process, &unreachable()).unwrap_err().to_string();
        assert!(refused.contains("still in place"), "{refused}");
        // Not at once, and less and less often.
        prefixes.try_again(monotonic());
        let again = |prefixes: &Prefixes| prefixes.lock().stuck[0].again_at;
        let first = again(&prefixes);
        prefixes.try_again(first);
        assert!(again(&prefixes) > first && prefixes.stuck().len() == 1);

        // Another daemon finds it, and knows when there is nothing left to remove.
        drop(prefixes);
        let prefixes = Prefixes::start(folder.path());
        assert_eq!(prefixes.stuck().len(), 1);
        drop(victim);
        prefixes.try_again(again(&prefixes));
        assert!(prefixes.stuck().is_empty());
        assert_eq!(file(folder.path()).read().unwrap(), InPlace::default());
    }
}
