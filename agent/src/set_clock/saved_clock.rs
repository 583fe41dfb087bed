//! Saves the kernel's clock settings, changes them while no other program disciplines the clock,
//! and restores them when this program stops. If this program is killed, the next timevisor-guest
//! restores them.
//!
//! A file lock admits one timevisor-guest at a time. The kernel releases it when its holder dies,
//! so no program cleans up after one that is still running.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use timevisor_estimate::steering::KernelRate;
use timevisor_linux::adjust::saved::Saved;
use timevisor_linux::adjust::{self, Declaration, Rate, Settings, rivals};
use timevisor_linux::clock::boot_id;
use timevisor_linux::lock_file::{self, LockError};
use timevisor_time::Duration;

/// The directory of the agent's socket.
const DIRECTORY: &str = "/run/timevisor";

/// The original settings; restored on drop.
pub struct SavedClock {
    /// `None` once another program has taken over.
    original: Option<Settings>,
    saved: Saved,
    ours: Option<Rate>,
    _lock: File,
}

impl SavedClock {
    /// Saves the settings. `force`: even if another program keeps CLOCK_REALTIME. `instead`: what
    /// to do if this is refused.
    pub fn take(force: bool, instead: &str) -> Result<Self> {
        let lock = lock()?.context(
            "another timevisor-guest keeps CLOCK_REALTIME already; let it, or stop it first",
        )?;
        let saved = saved()?;
        restore_saved(&saved);
        let original = adjust::settings().context("clock_adjtime is forbidden here")?;
        if let Some(conflict) = rivals::conflict(&original, instead).filter(|_| !force) {
            bail!("CLOCK_REALTIME is not ours to set: {conflict}");
        }
        saved.write(&original).with_context(|| {
            format!("cannot note the kernel's present settings in {DIRECTORY}; run as root")
        })?;
        Ok(Self { original: Some(original), saved, ours: None, _lock: lock })
    }

    /// The original rate, minus one: used until something better is known.
    pub fn found_rate(&self) -> f64 {
        let rate = self.original.as_ref().map(|s| s.rate);
        rate.map_or(0.0, |r| KernelRate { tick_us: r.tick_us, frequency: r.frequency }.ratio())
    }

    /// Steps the clock.
    pub fn step(&self, by: Duration) -> Result<()> {
        adjust::step(by).context("cannot step CLOCK_REALTIME; run as root (CAP_SYS_TIME)")
    }

    /// Sets rate and phase, and declares the clock's accuracy.
    ///
    /// The phase goes to the kernel's own loop (ADJ_OFFSET) rather than into the frequency: the
    /// loop stops by itself once the offset has been worked off, so a program that is killed midway
    /// does not leave a clock that runs fast forever.
    pub fn steer(&mut self, rate: KernelRate, phase: Duration, say: &Declaration) -> Result<()> {
        let rate = Rate { tick_us: rate.tick_us, frequency: rate.frequency };
        adjust::steer(rate, phase, say)
            .context("cannot slew CLOCK_REALTIME; run as root (CAP_SYS_TIME)")?;
        self.ours = Some(rate);
        Ok(())
    }

    /// True if the rate is not the one that we set: another program has taken over.
    pub fn is_contested(&self) -> bool {
        let Some(ours) = self.ours else { return false };
        adjust::settings().is_ok_and(|found| found.rate != ours)
    }

    /// Leaves the settings as another program has set them.
    pub fn give_up(mut self) {
        self.original = None;
        self.saved.clear();
    }
}

impl Drop for SavedClock {
    fn drop(&mut self) {
        if let Some(original) = &self.original {
            put_back(original, &self.saved);
        }
    }
}

/// Restores what a killed instance of this program left behind, unless another instance is running.
pub fn clean_up() {
    if !path().exists() {
        return;
    }
    if let (Ok(Some(_lock)), Ok(saved)) = (lock(), saved()) {
        restore_saved(&saved);
    }
}

fn path() -> PathBuf {
    Path::new(DIRECTORY).join("set-clock.json")
}

fn saved() -> Result<Saved> {
    let boot = boot_id().context("cannot tell which boot this is; mount /proc")?;
    Ok(Saved::at(path(), format!("{:032x}", u128::from_be_bytes(boot))))
}

fn restore_saved(saved: &Saved) {
    let Some(left) = saved.read() else { return };
    if rivals::running().is_some() {
        // It has taken over since, and the current settings are its own.
        saved.clear();
    } else {
        tracing::info!(
            "putting the kernel's clock settings back that an earlier timevisor-guest changed"
        );
        put_back(&left, saved);
    }
}

fn put_back(original: &Settings, saved: &Saved) {
    match adjust::restore(original) {
        Ok(()) => saved.clear(),
        Err(error) => tracing::error!(
            "the kernel's clock settings cannot be put back: {error}; frequency was {} (2^-16 ppm), tick {}; set them with \
             adjtimex, or reboot",
            original.rate.frequency,
            original.rate.tick_us
        ),
    }
}

/// Takes the lock; `None` if another process holds it.
fn lock() -> Result<Option<File>> {
    fs::create_dir_all(DIRECTORY)
        .with_context(|| format!("cannot create {DIRECTORY}; run as root"))?;
    match lock_file::take(&Path::new(DIRECTORY).join("set-clock.lock")) {
        Ok(file) => Ok(Some(file)),
        Err(LockError::Held { .. }) => Ok(None),
        Err(error) => Err(error).context("run as root"),
    }
}
