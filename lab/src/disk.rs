//! A Debian on a disk: made by mmdebstrap, so that every package's own scripts have run, and booted into its own systemd
//! with the lab's kernel of that suite. Packages are installed in it as an operator does.
//!
//! Images are made before tests run ([`prepare`]); a test boots its own copy, which outlives a reboot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::apt;
use crate::command;
use crate::fetch::Fetcher;
use crate::guest::Guest;
use crate::guest_daemon::CPU;
use crate::image::{Afterwards, Image};
use crate::kernel::Kernel;
use crate::nested::PERIODIC;
use crate::programs;
use crate::qemu::Delivery;
use crate::scenario::Context;

/// The recipe; a change of any of these makes the image again.
const RECIPE: &[(&str, &str)] = &[
    ("lab/disk/make.sh", include_str!("../disk/make.sh")),
    ("lab/disk/packages", include_str!("../disk/packages")),
    ("lab/disk/run", include_str!("../disk/run")),
    ("lab/disk/lab-serve.service", include_str!("../disk/lab-serve.service")),
    ("lab/disk/10-lab.network", include_str!("../disk/10-lab.network")),
    ("lab/src/serve.sh", crate::image::SERVE),
];

/// A boot with AppArmor, libvirtd and chronyd takes a minute under emulation on two idle cores.
const BOOT: Duration = Duration::from_secs(900);

/// Hands the machine over to the disk. The modules come from [`Image`].
const SWITCH: &str = "while [ ! -e /dev/vda ]; do sleep 0.1; done\nmkdir /root\nmount -t ext4 /dev/vda /root\n\
     umount /tmp /run\nfor folder in dev proc sys; do mount --move /$folder /root/$folder; done\n\
     exec switch_root /root /lib/systemd/systemd\n";

/// The kernel that `suite`'s image boots: trixie's own has no vmclock driver.
fn kernel_of(suite: &str) -> &'static str {
    if suite == "bookworm" { "kernel:bookworm" } else { "kernel:trixie-backports" }
}

fn folder(lab_dir: &Path, suite: &str) -> PathBuf {
    lab_dir.join("cache").join(format!("disk-{suite}"))
}

/// Makes `suite`'s image below `lab_dir` unless it is there. Takes two minutes.
///
/// # Errors
/// When not root, or when the mirror or mmdebstrap fails.
pub(crate) fn prepare(lab_dir: &Path, suite: &str) -> anyhow::Result<()> {
    let root = Fetcher::new(lab_dir.join("cache")).artifact(kernel_of(suite))?;
    let kernel = Kernel::open(&root)?;
    let recipe: String = RECIPE.iter().map(|(name, text)| format!("{name}\n{text}\n")).collect();
    let recipe = format!("{suite} {}\n{recipe}", kernel.version);
    let folder = folder(lab_dir, suite);
    if fs::read_to_string(folder.join("made")).is_ok_and(|made| made == recipe) {
        return Ok(());
    }
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let workspace = programs::workspace()?;
    let mut make = Command::new(workspace.join("lab/disk/make.sh"));
    make.args([suite, &apt::mirror()?]).arg(kernel.module_tree());
    make.arg(workspace.join("lab/src/serve.sh")).arg(folder.join("root.img"));
    command::output(&mut make).with_context(|| format!("no image of {suite}"))?;
    fs::write(folder.join("made"), recipe)?;
    Ok(())
}

/// A machine with its own copy of `suite`'s disk, which is not booted yet.
pub(crate) struct Disk<'a> {
    ctx: &'a Context,
    kernel: Kernel,
    image: PathBuf,
    extra: PathBuf,
    /// How often it was booted: logs are named by it.
    boots: u32,
    vmclock: bool,
}

impl<'a> Disk<'a> {
    /// A copy of `suite`'s image; the folder `extra` is the machine's second disk, mounted at /mnt. With QEMU's vmclock device
    /// if `vmclock` says so.
    ///
    /// # Errors
    /// When the image was not made, or the disk is full.
    pub(crate) fn new(
        ctx: &'a Context,
        suite: &str,
        extra: &Path,
        vmclock: bool,
    ) -> anyhow::Result<Self> {
        let made = folder(ctx.lab_dir(), suite).join("root.img");
        ensure!(made.exists(), "{} is not made; `timevisor-lab test` makes it", made.display());
        let image = ctx.path("root.img");
        command::run("cp", &["--sparse=always".as_ref(), made.as_os_str(), image.as_os_str()])?;
        let second = ctx.path("extra.img");
        let mut make = Command::new("/sbin/mke2fs");
        make.args(["-q", "-t", "ext4", "-d"]).arg(extra).arg(&second).arg("700M");
        command::output(&mut make)?;
        let kernel = ctx.kernel(kernel_of(suite).trim_start_matches("kernel:"))?;
        Ok(Self { ctx, kernel, image, extra: second, boots: 0, vmclock })
    }

    /// Boots, and waits for the machine's shell. The second result is how long that took.
    ///
    /// # Errors
    /// When it does not boot.
    pub(crate) fn boot(&mut self) -> anyhow::Result<(Guest, Duration)> {
        self.boots += 1;
        let image = Image::new(&self.kernel, &self.ctx.busybox()?)
            .module("virtio_blk")
            .module("ext4")
            .without_module("ptp_vmclock")
            .afterwards(Afterwards::Stay)
            .snippet(SWITCH);
        let drive = |path: &Path, more: &str| {
            ["-drive".to_owned(), format!("file={},if=virtio,format=raw{more}", path.display())]
        };
        let qemu = self.ctx.qemu_10()?;
        let began = Instant::now();
        let mut builder = self
            .ctx
            .guest(&qemu, &self.kernel, &image)?
            .name(&format!("boot-{}", self.boots))
            .memory_mib(1536)
            .cpus(2)
            .append("tsc=reliable")
            .append(PERIODIC)
            .args(CPU)
            .args(drive(&self.image, ""))
            .args(drive(&self.extra, ",readonly=on"))
            .args(["-netdev", "user,id=net"])
            .args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        if self.vmclock {
            builder = builder.delivery(Delivery::VmclockDevice);
        }
        let mut guest = builder.start()?;
        guest.wait_for_line("LAB-SYSTEMD", BOOT)?;
        guest.sh("mountpoint -q /mnt || mount -o ro /dev/vdb /mnt")?;
        Ok((guest, began.elapsed()))
    }
}
