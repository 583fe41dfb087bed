//! The machine of these tests: a Debian on a disk, a time server beside it, and what every step asks it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::chronyd::Chronyd;
use crate::cpio::Cpio;
use crate::debs;
use crate::disk::Disk;
use crate::guest::Guest;
use crate::interrupt::{self, Late};
use crate::kernel::Kernel;
use crate::scenario::Context;

/// An emulated machine takes its time, and installs 60 MB.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a program that reads throughout counted.
pub(super) const READER: &str = "/run/lab-reads.json";

/// A machine, and the time server that its chronyd follows.
pub(super) struct Machine<'a> {
    disk: Disk<'a>,
    pub(super) guest: Guest,
    server: Chronyd,
    pub(super) booted: Duration,
}

impl<'a> Machine<'a> {
    /// Boots `suite`, whose second disk has both versions of the packages and the lab's programs.
    pub(super) fn boot(ctx: &'a Context, suite: &str) -> anyhow::Result<Self> {
        let server = ctx.chronyd("server")?;
        let extra = ctx.path("extra");
        fs::create_dir_all(&extra)?;
        for version in ["first", "second"] {
            copy_folder(&debs::folder(ctx.lab_dir()).join(version), &extra.join(version))?;
        }
        let reads = ctx.program("timevisor-lab-guest", "lab-reads")?;
        fs::copy(&reads, extra.join("lab-reads"))?;
        let kernel_spec = if suite == "bookworm" { "bookworm" } else { "trixie-backports" };
        nested(ctx, &ctx.kernel(kernel_spec)?, &extra)?;
        let with_vmclock = suite == "trixie";
        if with_vmclock {
            fs::copy(ctx.introspection_plugin()?, extra.join("libtimevisor-introspect.so"))?;
        }
        let mut disk = Disk::new(ctx, suite, &extra, with_vmclock)?;
        let (guest, booted) = disk.boot()?;
        let mut machine = Self { disk, guest, server, booted };
        machine.follow()?;
        Ok(machine)
    }

    /// Tells the machine's chronyd whom to follow; it is kept over a reboot.
    fn follow(&mut self) -> anyhow::Result<()> {
        // The lab's shell is there before the boot has ended.
        self.wait(
            "the boot ends",
            "systemctl -q is-active multi-user.target chrony libvirtd.socket",
        )?;
        let address = self.server.address();
        self.sh(&format!(
            "echo 'server {} port {} iburst minpoll 0 maxpoll 2' >/etc/chrony/sources.d/lab.sources",
            address.ip(),
            address.port()
        ))?;
        self.wait("chronyd knows its server", "chronyc reload sources")?;
        self.wait("chronyd keeps the clock", "chronyc tracking | grep -q 'Leap status *: Normal'")
    }

    /// Shuts the machine down as a reboot does, and boots what is on its disk.
    pub(super) fn reboot(&mut self) -> anyhow::Result<()> {
        self.guest.sh("sync; systemctl --no-block reboot")?;
        // QEMU ends instead of booting again.
        self.guest.wait_power_off(PATIENCE)?;
        (self.guest, _) = self.disk.boot()?;
        Ok(())
    }

    /// Runs a line, which has to succeed.
    pub(super) fn sh(&mut self, line: &str) -> anyhow::Result<String> {
        let said = self.guest.sh_within(line, PATIENCE)?;
        Ok(said.trim().to_owned())
    }

    /// Runs a line whose output is JSON.
    pub(super) fn json(&mut self, line: &str) -> anyhow::Result<Value> {
        let said = self.sh(line)?;
        serde_json::from_str(&said).with_context(|| format!("{line}: {said}"))
    }

    /// Waits until a line succeeds.
    pub(super) fn wait(&mut self, what: &str, line: &str) -> anyhow::Result<()> {
        let mut said = String::new();
        let found = interrupt::poll_until(PATIENCE, || {
            said = self.guest.sh(&format!("({line}) 2>&1 && echo LAB-YES; true"))?;
            Ok(said.contains("LAB-YES").then_some(()))
        })?;
        if found.is_some() {
            return Ok(());
        }
        let log =
            self.sh("journalctl -b --no-pager -o short-monotonic -u 'timevisor*' | tail -n 20")?;
        Err(anyhow::Error::new(Late).context(format!("in vain: {what}: {said}; {log}")))
    }

    /// Everything that AppArmor refused one of ours.
    pub(super) fn refused(&mut self) -> anyhow::Result<String> {
        self.sh("journalctl -b -k --no-pager -o cat | grep 'apparmor=\"DENIED\"' | grep 'profile=\"timevisor' || true")
    }

    /// Seconds since the machine's boot.
    pub(super) fn uptime(&mut self) -> anyhow::Result<f64> {
        Ok(self.sh("cut -d ' ' -f 1 /proc/uptime")?.parse()?)
    }

    /// The property of a unit as a number.
    pub(super) fn moment(&mut self, unit: &str, property: &str) -> anyhow::Result<u64> {
        let said = self.sh(&format!("systemctl show -P {property} {unit}"))?;
        let moment: u64 = said.parse().with_context(|| format!("{unit}: {property}={said}"))?;
        ensure!(moment > 0, "{unit}: {property} is 0: it never happened");
        Ok(moment)
    }

    /// The page's inode and the sequence of its first lock.
    pub(super) fn page(&mut self) -> anyhow::Result<(u64, u64)> {
        let said = self.sh(
            "stat -c %i /run/timevisor/clock; od -An -tu4 -j12 -N4 /run/timevisor/clock | tr -d ' '",
        )?;
        let mut lines = said.lines();
        let mut number = || lines.next().context("no number")?.trim().parse().context(said.clone());
        Ok((number()?, number()?))
    }

    /// Starts the program that reads throughout.
    pub(super) fn start_reader(&mut self) -> anyhow::Result<()> {
        self.sh(&format!("systemd-run --unit=reader --collect /mnt/lab-reads {READER}"))?;
        self.wait("the reader reads", &format!("test -s {READER}"))
    }

    /// What it counted so far: nothing that must not be.
    pub(super) fn read_throughout(&mut self, what: &str) -> anyhow::Result<u64> {
        let seen = self.json(&format!("cat {READER}"))?;
        for never in ["back", "disordered", "errors", "unknown", "disruptions"] {
            ensure!(seen[never] == 0, "{what}: {never}: {seen}");
        }
        seen["reads"].as_u64().context("no reads")
    }
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// A kernel with one program, for a VM inside the machine: a real-time task of 20 ms every 100 ms.
fn nested(ctx: &Context, kernel: &Kernel, into: &Path) -> anyhow::Result<()> {
    fs::copy(&kernel.image, into.join("vmlinuz"))?;
    let task = ctx.program("timevisor-lab-guest", "lab-dl")?;
    let mut cpio = Cpio::new();
    cpio.directory("dev");
    cpio.character_device("dev/console", 0o600, 5, 1);
    cpio.file("init", 0o755, &fs::read(task)?);
    fs::write(into.join("nested.cpio"), cpio.finish())?;
    Ok(())
}
