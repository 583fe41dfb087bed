//! Saves the kernel's clock settings, changes them while no other program disciplines the clock,
//! and restores them when this program stops. After a program was killed, the next one restores
//! them.
//!
//! A file lock admits one timevisor-guest at a time. The kernel drops it when its holder dies, so
//! that no program cleans up after one that still runs.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use timevisor_estimate::steering::KernelRate;
use timevisor_linux::adjust::saved::Saved;
use timevisor_linux::adjust::{self, Declaration, Rate, Settings, rivals};
use timevisor_linux::clock::boot_id;
use timevisor_time::Duration;

/// Beside the agent's socket.
const DIRECTORY: &str = "/run/timevisor";

/// The settings, as they were; dropped, they are put back.
pub struct SavedClock {
    /// `None`: somebody else's by now.
    original: Option<Settings>,
    saved: Saved,
    ours: Option<Rate>,
    _lock: File,
}

impl SavedClock {
    /// Takes them. `force`: even where somebody else keeps CLOCK_REALTIME. `instead`: what to do if
    /// this is refused.
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

    /// The rate that was found, minus one: right until something better is known.
    pub fn found_rate(&self) -> f64 {
        let rate = self.original.as_ref().map(|s| s.rate);
        rate.map_or(0.0, |r| KernelRate { tick_us: r.tick_us, frequency: r.frequency }.ratio())
    }

    /// Steps the clock.
    pub fn step(&self, by: Duration) -> Result<()> {
        adjust::step(by).context("cannot step CLOCK_REALTIME; run as root (CAP_SYS_TIME)")
    }

    /// Sets rate and phase, and declares how good the clock is.
    ///
    /// The phase goes to the kernel's own loop (ADJ_OFFSET) rather than into the frequency: the
    /// loop stops by itself when the offset is worked off, so that a program that is killed in the
    /// middle leaves no clock that runs fast for ever.
    pub fn steer(&mut self, rate: KernelRate, phase: Duration, say: &Declaration) -> Result<()> {
        let rate = Rate { tick_us: rate.tick_us, frequency: rate.frequency };
        adjust::steer(rate, phase, say)
            .context("cannot slew CLOCK_REALTIME; run as root (CAP_SYS_TIME)")?;
        self.ours = Some(rate);
        Ok(())
    }

    /// True when the rate is not the one that was set: somebody else has taken over.
    pub fn is_contested(&self) -> bool {
        let Some(ours) = self.ours else { return false };
        adjust::settings().is_ok_and(|found| found.rate != ours)
    }

    /// Leaves everything as somebody else has set it.
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

/// Puts back what a killed program of ours has left, unless one that lives is at work.
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
        // It has taken over since, and what is set now is its own.
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

/// `None`: somebody has it.
fn lock() -> Result<Option<File>> {
    let lock = Path::new(DIRECTORY).join("set-clock.lock");
    let open = || {
        fs::create_dir_all(DIRECTORY)?;
        File::options().create(true).truncate(false).write(true).open(&lock)
    };
    let file = open().with_context(|| format!("cannot open {}; run as root", lock.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", lock.display()))
        }
    }
}
