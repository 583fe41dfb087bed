//! A guest in which a real systemd is init, with udev: Debian's packages, unpacked, as an initramfs.
//!
//! No package's script has run, so there are only the users and the units that the test adds. What a
//! guest of [`crate::image`] does by hand (modules, names of ports, groups), udev and systemd do
//! here.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::command;
use crate::cpio::Cpio;
use crate::image::SERVE;
use crate::kernel::Kernel;
use crate::scenario::Context;

/// What no guest reads: a third of the size.
const LEFT_OUT: &[&str] =
    &["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/lib/udev/hwdb.d"];

/// Debian's links of merged directories.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];

/// Where the unit of the lab's own shell is.
const UNIT: &str = "etc/systemd/system/lab-serve.service";

/// Answers [`crate::guest::Guest::sh`]. The port's name is made by udev's own rules.
const SERVE_UNIT: &str = "[Unit]\nDescription=The lab's shell\n\
     [Service]\nExecStart=/usr/bin/busybox sh /lab/run\nOOMScoreAdjust=-1000\n";

const RUN: &str = "\
export PATH=/usr/bin:/usr/sbin
. /lab/serve
while [ ! -e /dev/virtio-ports/org.timevisor.lab ]; do sleep 0.05; done
echo \"LAB-READY $(uname -r)\" >/dev/ttyS0
serve
";

/// Modules of the guest's devices. Nothing names them in the guest: udev loads what matches.
const MODULES: &[&str] = &["virtio_pci", "virtio_console", "ptp_vmclock"];

/// An initramfs with systemd under construction.
pub(crate) struct Debian {
    root: PathBuf,
    kernel: Kernel,
    busybox: PathBuf,
    files: Vec<(String, u32, Vec<u8>)>,
    links: Vec<(String, String)>,
}

impl Debian {
    /// Trixie's systemd on `kernel`.
    ///
    /// # Errors
    /// When something cannot be fetched.
    pub(crate) fn new(ctx: &Context, kernel: &Kernel) -> anyhow::Result<Self> {
        let root = ctx.systemd()?;
        let (kernel, busybox) = (kernel.clone(), ctx.busybox()?);
        let users =
            "root:x:0:0:root:/root:/usr/bin/sh\nnobody:x:65534:65534::/:/usr/sbin/nologin\n";
        let wanted = "/etc/systemd/system/multi-user.target.wants/lab-serve.service";
        let this = Self { root, kernel, busybox, files: Vec::new(), links: Vec::new() };
        Ok(this
            .text("etc/passwd", users)
            .text("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n")
            .text("etc/shadow", "root:*:20000::::::\n")
            .text("etc/gshadow", "root:*::\n")
            .text("etc/os-release", "ID=debian\nNAME=Lab\nVERSION_ID=13\n")
            .text("etc/machine-id", "0123456789abcdef0123456789abcdef\n")
            .text(UNIT, SERVE_UNIT)
            .text("lab/serve", SERVE)
            .text("lab/run", RUN)
            .link("/etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target")
            .link(wanted, &format!("/{UNIT}")))
    }

    /// Adds a file with this text.
    #[must_use]
    pub(crate) fn text(mut self, to: &str, text: &str) -> Self {
        self.files.push((to.to_owned(), 0o644, text.as_bytes().to_vec()));
        self
    }

    /// Copies a file of the host.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn file(mut self, from: &Path, to: &str, mode: u32) -> anyhow::Result<Self> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.files.push((to.to_owned(), mode, bytes));
        Ok(self)
    }

    /// Adds a symbolic link, as `systemctl enable` makes them.
    #[must_use]
    pub(crate) fn link(mut self, path: &str, target: &str) -> Self {
        self.links.push((path.to_owned(), target.to_owned()));
        self
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// When a file is missing, or depmod fails.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut cpio = Cpio::new();
        for directory in ["proc", "sys", "tmp", "run", "dev", "root", "var/lib", "usr/sbin"] {
            cpio.directory(directory);
        }
        cpio.character_device("dev/console", 0o600, 5, 1);
        for name in MERGED {
            cpio.symlink(name, &format!("usr/{name}"));
        }
        self.add_tree(&mut cpio, Path::new(""))?;
        self.add_busybox(&mut cpio)?;
        self.add_modules(&mut cpio)?;
        for (to, mode, bytes) in &self.files {
            cpio.file(to, *mode, bytes);
        }
        for (from, to) in &self.links {
            cpio.symlink(from, to);
        }
        cpio.symlink("init", "/usr/lib/systemd/systemd");
        fs::write(path, cpio.finish()).with_context(|| format!("cannot write {}", path.display()))
    }

    fn add_tree(&self, cpio: &mut Cpio, folder: &Path) -> anyhow::Result<()> {
        let mut entries: Vec<_> =
            fs::read_dir(self.root.join(folder))?.collect::<Result<_, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = folder.join(entry.file_name());
            let name = path.to_str().context("an odd file name")?;
            let own = self.files.iter().any(|(to, _, _)| to == name);
            let merged = MERGED.contains(&name) && entry.file_type()?.is_symlink();
            if LEFT_OUT.contains(&name) || own || merged {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                ensure!(!MERGED.contains(&name), "a package with files in /{name}");
                cpio.directory(name);
                self.add_tree(cpio, &path)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(entry.path())?;
                cpio.symlink(name, target.to_str().context("an odd link")?);
            } else {
                cpio.file(name, entry.metadata()?.permissions().mode(), &fs::read(entry.path())?);
            }
        }
        Ok(())
    }

    /// Busybox for everything that Debian's packages here do not have.
    fn add_busybox(&self, cpio: &mut Cpio) -> anyhow::Result<()> {
        cpio.file("usr/bin/busybox", 0o755, &fs::read(&self.busybox)?);
        for applet in command::run(&self.busybox.to_string_lossy(), &["--list"])?.lines() {
            let there = ["usr/bin", "usr/sbin"]
                .iter()
                .any(|folder| self.root.join(folder).join(applet).symlink_metadata().is_ok());
            if !there && !["busybox", "init", "halt", "poweroff", "reboot"].contains(&applet) {
                cpio.symlink(&format!("usr/bin/{applet}"), "busybox");
            }
        }
        Ok(())
    }

    /// The modules with their aliases, as depmod writes them.
    fn add_modules(&self, cpio: &mut Cpio) -> anyhow::Result<()> {
        let version = &self.kernel.version;
        let staging = tempfile::tempdir()?;
        let folder = staging.path().join("usr/lib/modules").join(version);
        fs::create_dir_all(&folder)?;
        std::os::unix::fs::symlink("usr/lib", staging.path().join("lib"))?;
        let wanted: Vec<String> = MODULES.iter().map(ToString::to_string).collect();
        for module in self.kernel.modules(&wanted)? {
            fs::write(folder.join(&module.file_name), &module.bytes)?;
        }
        let args = ["-b".as_ref(), staging.path().as_os_str(), version.as_ref()];
        command::run("/sbin/depmod", &args)?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let to = format!("usr/lib/modules/{version}/{}", name.to_string_lossy());
            cpio.file(&to, 0o644, &fs::read(entry.path())?);
        }
        Ok(())
    }
}
