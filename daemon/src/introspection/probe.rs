//! Finds what a VM runs: its kernel in memory, or the image that the user named.
//!
//! A reset does not clear memory, so an earlier kernel may still be there, complete and with page
//! tables that map it. Only the running kernel has a heartbeat.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail, ensure};
use timevisor_introspection::backend::kvm::layout::KvmLayout;
use timevisor_introspection::memory::ram::{InProcess, Ram};
use timevisor_introspection::os::described::{self, Plugins};
use timevisor_introspection::os::guest_os::GuestOs;
use timevisor_introspection::os::running_kernel::{RunningKernel, Verdict};
use timevisor_introspection::registry;
use timevisor_introspection::symbols::image::{self, Image};
use timevisor_linux::clock::monotonic;

use super::known::Kept;
use super::shared::Shared;
use super::target::{Common, Target};

/// How long to wait for a heartbeat; even an idle kernel ticks every few seconds.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long to look for another kernel; a busy one ticks within this time.
const ANOTHER: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(20);
/// How long to wait for the heartbeat of a kernel found earlier. A busy guest ticks within this
/// time; an idle guest's memory may have to be searched.
const KNOWN_HEARTBEAT: Duration = Duration::from_secs(1);
const KNOWN_INTERVAL: Duration = Duration::from_millis(2);

/// What to do where no guest system is found in memory.
const NOT_LINUX: &str = "if the guest is not Linux, `timevisor introspect detach VM` and `attach VM --image FILE` with the ELF file that runs in it (docs/how-to/introspect-rtos.md)";

/// The running guest, and the location of its memory.
pub struct Found {
    pub guest_os: Box<dyn GuestOs>,
    pub memory: Ram<InProcess>,
    /// Address of the guest's memory in QEMU's address space.
    pub base: u64,
    /// Whether no other kernel is in memory, running or not.
    pub is_only: bool,
    /// Offsets in this host's KVM, if an earlier session has found them.
    pub layout: Option<KvmLayout>,
}

/// Finds the running guest.
///
/// # Errors
/// When no known guest system is in memory, or none is running.
pub fn probe(target: &Target, common: &Common, shared: &Shared) -> Result<Found> {
    if let Some(path) = &target.image {
        return by_image(target, path, common);
    }
    if let Some(found) = known(target, common, shared)? {
        return Ok(found);
    }
    let (mut all, mut reasons) = (Vec::new(), Vec::new());
    for (memory, base) in target.memories()? {
        match registry::probe(&memory) {
            Ok(found) => all.push((found, memory, base)),
            Err(why) => reasons.extend(why.iter().map(ToString::to_string)),
        }
    }
    ensure!(!all.is_empty(), "{}; {NOT_LINUX}", reasons.join("; "));
    // If two mappings have the guest's memory size, both map the same memory, or one of them is not
    // the guest's.
    let (found, memory, base) = all.swap_remove(0);
    let is_only = found.len() == 1;
    let guest_os = that_runs(found, &memory, shared)?;
    Ok(Found { guest_os, memory, base, is_only, layout: None })
}

/// The kernel that was found in this VM earlier, if it is still in memory and has a heartbeat.
///
/// # Errors
/// When QEMU's memory cannot be reached.
fn known(target: &Target, common: &Common, shared: &Shared) -> Result<Option<Found>> {
    let Some(kept) = common.known.take(target.process) else { return Ok(None) };
    let Kept { guest_os, base, layout, .. } = kept;
    let memories = target.memories()?;
    let Some((memory, _)) = memories.into_iter().find(|(_, at)| *at == base) else {
        return Ok(None);
    };
    if !guest_os.is_there(&memory) {
        return Ok(None);
    }
    let Some(before) = guest_os.heartbeat(&memory) else { return Ok(None) };
    let late = Instant::now() + KNOWN_HEARTBEAT;
    while guest_os.heartbeat(&memory).is_none_or(|now| now == before) {
        if Instant::now() > late || shared.lock().is_over() {
            return Ok(None);
        }
        std::thread::sleep(KNOWN_INTERVAL);
    }
    Ok(Some(Found { guest_os, memory, base, is_only: true, layout }))
}

/// Waits until one of these kernels is seen to run.
fn that_runs(
    mut found: Vec<Box<dyn GuestOs>>,
    memory: &Ram<InProcess>,
    shared: &Shared,
) -> Result<Box<dyn GuestOs>> {
    let heartbeats = |found: &[Box<dyn GuestOs>]| -> Vec<Option<u64>> {
        found.iter().map(|guest_os| guest_os.heartbeat(memory)).collect()
    };
    let kernels = RunningKernel::new(heartbeats(&found), monotonic());
    loop {
        let (over, was_reset) = {
            let told = shared.lock();
            (told.is_over(), told.was_reset)
        };
        ensure!(!over, "the session was ended, or the guest was reset");
        match kernels.take(&heartbeats(&found), was_reset, monotonic()) {
            Verdict::Again => std::thread::sleep(INTERVAL),
            Verdict::Runs(which) => return Ok(found.swap_remove(which)),
            Verdict::Several => bail!(
                "several kernels run in the guest's memory: a program imitates one, or a guest runs in it"
            ),
            Verdict::NoneRuns => bail!(
                "the kernel in the guest's memory does not run: the guest is paused, or was reset and has not booted yet"
            ),
        }
    }
}

/// The name of another kernel in memory whose heartbeat advances while this one's does not.
pub fn another_runs(guest_os: &dyn GuestOs, memory: &Ram<InProcess>) -> Option<String> {
    let found = registry::probe(memory).ok()?;
    let own = guest_os.heartbeat(memory);
    let before: Vec<_> = found.iter().map(|other| other.heartbeat(memory)).collect();
    let late = Instant::now() + ANOTHER;
    while Instant::now() < late && guest_os.heartbeat(memory) == own {
        let mut pairs = found.iter().zip(&before);
        if let Some((other, _)) = pairs.find(|(other, before)| other.heartbeat(memory) != **before)
        {
            return Some(other.name());
        }
        std::thread::sleep(INTERVAL);
    }
    None
}

/// Waits until the heartbeat advances.
///
/// # Errors
/// When it does not advance in time.
pub fn surely_runs(guest_os: &dyn GuestOs, memory: &Ram<InProcess>) -> Result<()> {
    let before = guest_os.heartbeat(memory);
    let late = Instant::now() + HEARTBEAT;
    while before.is_some() && guest_os.heartbeat(memory) == before {
        ensure!(Instant::now() < late, "the guest is paused, or has nothing to do");
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Recognizes the guest by its image, if that image is in QEMU's memory.
fn by_image(target: &Target, path: &Path, common: &Common) -> Result<Found> {
    let named = || path.display().to_string();
    // Refuses a pipe, because opening it would block until it has a writer.
    ensure!(std::fs::metadata(path).with_context(named)?.is_file(), "{} is no file", named());
    let (mut bytes, most) = (Vec::new(), image::MOST_BYTES as u64 + 1);
    let file = File::open(path).with_context(named)?;
    file.take(most).read_to_end(&mut bytes).with_context(named)?;
    let image = Image::parse(&bytes).with_context(named)?;
    // Read each time: a plugin may be added while timevisord runs.
    let plugins = described::read_directory(&target.plugins);
    tell_of_broken(&plugins, common);
    let guest_os = registry::probe_image_or_plugin(&image, &plugins)
        .map_err(|why| Error::msg(why).context(named()))?;
    let mut not = Vec::new();
    for (memory, base) in target.memories()? {
        match image.is_in(&memory) {
            Ok(()) => {
                return Ok(Found { guest_os, memory, base, is_only: false, layout: None });
            }
            Err(why) => not.push(why.to_string()),
        }
    }
    bail!("{}: {}", named(), not.join("; "))
}

/// Logs which plugins are broken, once for each change: an attachment is tried every second.
fn tell_of_broken(plugins: &Plugins, common: &Common) {
    let broken = plugins.broken.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let mut told = common.broken.lock().unwrap_or_else(PoisonError::into_inner);
    if *told != broken {
        if !broken.is_empty() {
            tracing::warn!("introspection: broken plugins are left out: {broken}");
        }
        *told = broken;
    }
}
