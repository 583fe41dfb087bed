//! Composes the command line of a guest and starts it.
//!
//! The result of [`GuestBuilder::start`] is a [`Guest`]. The caller decides whether KVM can be
//! used.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::command;
use crate::guest::Guest;
use crate::oscillator::Oscillator;
use crate::qemu::{Delivery, Qemu};

/// A guest to be started.
#[derive(Debug, Clone)]
pub struct GuestBuilder {
    pub(crate) qemu: Qemu,
    pub(crate) name: String,
    pub(crate) log_dir: PathBuf,
    kernel: PathBuf,
    initramfs: Option<PathBuf>,
    kvm_usable: bool,
    memory_mib: u32,
    cpus: u32,
    paused: bool,
    delivery: Delivery,
    ports: Vec<(String, PathBuf)>,
    append: String,
    args: Vec<OsString>,
    memory_file: Option<PathBuf>,
    serial_input: Option<PathBuf>,
    oscillator: Option<Oscillator>,
}

impl GuestBuilder {
    /// A guest with 256 MiB and one CPU; its logs `guest.serial.log` and `guest.qemu.log` go to
    /// `log_dir`.
    pub fn new(
        qemu: &Qemu,
        kernel: &Path,
        initramfs: &Path,
        log_dir: &Path,
        kvm_usable: bool,
    ) -> Self {
        Self {
            qemu: qemu.clone(),
            name: "guest".into(),
            log_dir: log_dir.to_owned(),
            kernel: kernel.to_owned(),
            initramfs: Some(initramfs.to_owned()),
            kvm_usable,
            memory_mib: 256,
            cpus: 1,
            paused: false,
            delivery: Delivery::None,
            ports: Vec::new(),
            append: String::new(),
            args: Vec::new(),
            memory_file: None,
            serial_input: None,
            oscillator: None,
        }
    }

    /// A guest that is a single ELF file instead of Linux; emulated even where KVM is available.
    pub fn flat(qemu: &Qemu, elf: &Path, log_dir: &Path) -> Self {
        Self { initramfs: None, ..Self::new(qemu, elf, Path::new(""), log_dir, false) }
    }

    /// A `socket` that listens on the host: the guest reads from its serial port what arrives
    /// there.
    #[must_use]
    pub fn serial_input(mut self, socket: &Path) -> Self {
        self.serial_input = Some(socket.to_owned());
        self
    }

    /// Sets the name of the guest and its logs; needed if a test has several guests.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Main memory in MiB.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Puts main memory in this file, which QEMU creates.
    #[must_use]
    pub fn memory_file(mut self, path: &Path) -> Self {
        self.memory_file = Some(path.to_owned());
        self
    }

    /// Number of virtual CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Does not start the CPUs until [`Guest::cont`] is called (QEMU's -S).
    #[must_use]
    pub fn paused(mut self) -> Self {
        self.paused = true;
        self
    }

    /// How the page reaches the guest.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Adds a virtio-serial port: `/dev/virtio-ports/NAME` in the guest, a listening `socket` on
    /// the host.
    #[must_use]
    pub fn port(mut self, name: &str, socket: &Path) -> Self {
        self.ports.push((name.to_owned(), socket.to_owned()));
        self
    }

    /// Adds to the kernel's command line.
    #[must_use]
    pub fn append(mut self, text: &str) -> Self {
        self.append += " ";
        self.append += text;
        self
    }

    /// Waits for a migration instead of booting; see [`crate::migration::migrate`].
    #[must_use]
    pub fn incoming(self) -> Self {
        self.args(["-incoming", "defer"])
    }

    /// Adds arguments to QEMU's command line.
    #[must_use]
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Makes QEMU, and thus the guest, use this oscillator as its counter.
    #[must_use]
    pub fn oscillator(mut self, oscillator: &Oscillator) -> Self {
        self.oscillator = Some(oscillator.clone());
        self
    }

    /// Starts QEMU and connects to its QMP socket and lab port.
    ///
    /// # Errors
    /// When QEMU is too old for the delivery or refuses its command line.
    pub fn start(&self) -> anyhow::Result<Guest> {
        if self.delivery == Delivery::VmclockDevice && self.qemu.version < (10, 0) {
            let (major, minor) = self.qemu.version;
            bail!(
                "the vmclock device needs QEMU 10.0, this is {major}.{minor}; use Context::qemu_10"
            );
        }
        fs::create_dir_all(&self.log_dir)?;
        Guest::start(self)
    }

    pub(crate) fn serial_log(&self) -> PathBuf {
        self.log_dir.join(format!("{}.serial.log", self.name))
    }

    /// The command line; the sockets `qmp` and `lab` are created in `sockets`.
    pub(crate) fn command(&self, sockets: &Path) -> Command {
        let mut command = match &self.oscillator {
            Some(oscillator) => oscillator.tethered(&self.qemu.binary),
            None => command::tethered(&self.qemu.binary),
        };
        if let Some(modules) = &self.qemu.modules {
            command.env("QEMU_MODULE_DIR", modules);
        }
        let mut add = |option: &str, value: String| {
            command.arg(option).arg(value);
        };
        for dir in &self.qemu.firmware {
            add("-L", dir.display().to_string());
        }
        let (accel, cpu) = if self.kvm_usable { ("kvm", "host") } else { ("tcg", "max") };
        let mib = self.memory_mib;
        add("-accel", accel.into());
        add("-cpu", cpu.into());
        add("-smp", self.cpus.to_string());
        // An explicit backend: without one, QEMU 10.0 under TCG aborts a migration if there is an
        // nvdimm.
        let backend = match &self.memory_file {
            None => "memory-backend-ram".to_owned(),
            Some(path) => format!("memory-backend-file,share=on,mem-path={}", path.display()),
        };
        add("-object", format!("{backend},id=ram,size={mib}M"));
        add("-machine", format!("q35,memory-backend=ram{}", self.delivery.machine()));
        add("-m", format!("{mib}M{}", self.delivery.memory(mib)));
        for (option, value) in self.delivery.options() {
            add(option, value);
        }
        let socket = |id: &str, path: &Path| {
            format!("socket,id={id},path={},server=on,wait=off", path.display())
        };
        add("-display", "none".into());
        let log = self.serial_log().display().to_string();
        let serial = match &self.serial_input {
            None => format!("file,id=serial,path={log}"),
            Some(path) => format!("{},logfile={log}", socket("serial", path)),
        };
        add("-chardev", serial);
        add("-serial", "chardev:serial".into());
        add("-chardev", socket("qmp", &sockets.join("qmp")));
        add("-mon", "chardev=qmp,mode=control".into());
        add("-device", "virtio-serial-pci".into());
        // The lab's own port comes last: once it exists, the guest has named all other ports.
        let lab = ("org.timevisor.lab".to_owned(), sockets.join("lab"));
        for (n, (name, path)) in self.ports.iter().chain([&lab]).enumerate() {
            add("-chardev", socket(&format!("port{n}"), path));
            add("-device", format!("virtserialport,chardev=port{n},name={name}"));
        }
        add("-kernel", self.kernel.display().to_string());
        if let Some(initramfs) = &self.initramfs {
            add("-initrd", initramfs.display().to_string());
            // A guest under TCG stands still while its host is busy, and its kernel would take the
            // TSC for unstable; drivers of vmclock then refuse for the rest of its life.
            add("-append", format!("console=ttyS0 panic=-1 tsc=nowatchdog{}", self.append));
        }
        command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
        if self.paused {
            command.arg("-S");
        }
        command.args(&self.args);
        command
    }
}
