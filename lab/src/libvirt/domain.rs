//! A domain of a private libvirtd.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::Libvirt;
use crate::command::tail;
use crate::guest::BOOT;
use crate::interrupt;

/// A domain with only a kernel, a serial console, the reader's port, and what `timevisor vm args`
/// printed.
#[derive(Debug, Clone, Copy)]
pub struct Definition<'a> {
    /// Its name.
    pub name: &'a str,
    /// Main memory in MiB.
    pub memory_mib: u32,
    /// The kernel that it boots.
    pub kernel: &'a Path,
    /// The initramfs.
    pub initramfs: &'a Path,
    /// XML elements that are inserted unchanged.
    pub printed: &'a str,
    /// Whether the vCPUs stay paused at first.
    pub paused: bool,
}

/// A running domain; dropping it destroys it.
#[derive(Debug)]
pub struct Domain<'a> {
    pub(super) libvirt: &'a Libvirt,
    pub(super) name: String,
}

impl Domain<'_> {
    fn serial(&self) -> PathBuf {
        self.libvirt.serial(&self.name)
    }

    /// The socket of the port on which the guest's reader listens.
    pub fn reader(&self) -> PathBuf {
        self.libvirt.reader(&self.name)
    }

    /// Runs `virsh COMMAND NAME`.
    ///
    /// # Errors
    /// When libvirt refuses.
    pub fn virsh(&self, command: &str) -> anyhow::Result<String> {
        self.libvirt.virsh(&[command, &self.name])
    }

    /// Runs `virsh COMMAND NAME ARGUMENTS`.
    ///
    /// # Errors
    /// When libvirt refuses; the message is virsh's.
    pub fn virsh_with(&self, command: &str, arguments: &[&str]) -> anyhow::Result<String> {
        self.libvirt.virsh(&[&[command, &self.name], arguments].concat())
    }

    /// Waits until the guest has booted.
    ///
    /// # Errors
    /// When it does not boot; the message contains the end of the serial console's output.
    pub fn wait_ready(&self) -> anyhow::Result<()> {
        let text = || fs::read(self.serial()).map(|b| String::from_utf8_lossy(&b).into_owned());
        let ready = interrupt::poll_until(BOOT, || {
            Ok(text().is_ok_and(|text| text.contains("LAB-READY")).then_some(()))
        })?;
        ready.with_context(|| {
            let end = tail(&text().unwrap_or_default(), 10);
            format!("domain {} does not boot; its console ends with:\n{end}", self.name)
        })
    }
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        let _ = self.virsh("destroy");
        let log = self.libvirt.log_dir.join(format!("{}.serial.log", self.name));
        let _ = fs::copy(self.serial(), log);
    }
}
