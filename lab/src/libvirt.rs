//! A private libvirtd and its domains, in their own mount, network and PID namespaces.
//!
//! It uses the packages' own libvirtd and QEMU with Debian's defaults (QEMU runs as an unprivileged
//! user), but none of the host's state. A libvirtd that the user runs is neither contacted nor
//! disturbed, and all domains die with the namespaces' PID 1. The processes are visible in the
//! host's /proc, as timevisord requires. Not covered: sVirt (AppArmor, SELinux), which is switched
//! off because it would load profiles into the host's kernel.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::command::{self, Tethered};
use crate::packages;
use crate::qemu::Qemu;
use crate::reader;
use crate::{interrupt, scratch};

mod cgroups;
mod domain;
pub mod inside;

pub use cgroups::{Cgroups, cpusets};
pub use domain::{Definition, Domain};

const NAMESPACES: &str = include_str!("libvirt-ns.sh");
const LIBVIRTD: &str = r#"listen_tls = 0
listen_tcp = 0
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:stderr"
"#;
const QEMU: &str = r#"security_driver = "none"
stdio_handler = "file"
"#;

/// The UUID of a domain; a domain that migrates has the same one on both hosts.
fn uuid(name: &str) -> String {
    let folded = name.bytes().fold(0, |all: u64, byte| all.wrapping_mul(31) + u64::from(byte));
    format!("5a1c0de0-7157-4e57-8c10-{:012x}", folded & 0xffff_ffff_ffff)
}

/// The program that libvirt uses as QEMU. An unpacked QEMU is put in its place, because libvirt
/// passes neither firmware directories nor an environment, and QEMU's modules must come from the
/// same build.
const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";

/// A running libvirtd; dropping it stops it and all its domains.
#[derive(Debug)]
pub struct Libvirt {
    // Dropped in this order: processes, what they leave behind, files.
    process: Tethered,
    _cgroups: Option<Cgroups>,
    directory: TempDir,
    log_dir: PathBuf,
}

impl Libvirt {
    /// Starts a libvirtd with the QEMU `qemu`, and waits until it answers.
    ///
    /// # Errors
    /// When not root, or when libvirtd is missing or does not answer.
    pub fn start(qemu: &Qemu, log_dir: &Path) -> anyhow::Result<Self> {
        Self::start_host(qemu, log_dir, 1, None)
    }

    /// Starts one that places its domains in these of the machine's cgroup v1 hierarchies.
    ///
    /// # Errors
    /// As [`Self::start`] and [`Cgroups::new`].
    pub fn start_in_cgroups(
        qemu: &Qemu,
        log_dir: &Path,
        controllers: &[&str],
    ) -> anyhow::Result<Self> {
        Self::start_with(qemu, log_dir, 1, None, controllers)
    }

    /// Starts host `number` of several, each with its own identity. `hook`, a shell text, is its
    /// hook for domains.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_host(
        qemu: &Qemu,
        log_dir: &Path,
        number: u8,
        hook: Option<&str>,
    ) -> anyhow::Result<Self> {
        Self::start_with(qemu, log_dir, number, hook, &[])
    }

    fn start_with(
        qemu: &Qemu,
        log_dir: &Path,
        number: u8,
        hook: Option<&str>,
        controllers: &[&str],
    ) -> anyhow::Result<Self> {
        if !packages::is_root() {
            bail!("a private libvirtd needs root; run the lab as root");
        }
        let cgroups = Some(controllers).filter(|c| !c.is_empty()).map(Cgroups::new).transpose()?;
        let directory = scratch::directory()?;
        let at = directory.path();
        // The user that runs QEMU must be able to reach the kernel and the sockets here.
        fs::set_permissions(at, Permissions::from_mode(0o755))?;
        for folder in ["etc", "sockets"] {
            fs::create_dir(at.join(folder))?;
        }
        let sockets = at.join("sockets");
        let config = format!(
            "{LIBVIRTD}unix_sock_dir = \"{}\"\nhost_uuid = \"11111111-2222-4333-8444-0000000000{number:02x}\"\n",
            sockets.display()
        );
        if let Some(hook) = hook {
            fs::create_dir(at.join("etc/hooks"))?;
            fs::write(at.join("etc/hooks/qemu"), hook)?;
            fs::set_permissions(at.join("etc/hooks/qemu"), Permissions::from_mode(0o755))?;
        }
        fs::create_dir_all(log_dir)?;
        fs::write(at.join("etc/libvirtd.conf"), config)?;
        fs::write(at.join("etc/qemu.conf"), QEMU)?;
        let mut command = command::tethered("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c"]);
        command.args([NAMESPACES, "sh"]).arg(at).env("LAB_CONTROLLERS", controllers.join(" "));
        for (from, to) in in_place(qemu) {
            command.arg(from).arg(to);
        }
        let log = log_dir.join("libvirtd.log");
        let process = Tethered::spawn(&mut command, "libvirtd", &log)?;
        let mut libvirt =
            Self { process, _cgroups: cgroups, directory, log_dir: log_dir.to_owned() };
        let up = interrupt::poll_until(Duration::from_secs(30), || {
            libvirt.process.check_alive()?;
            Ok(libvirt.virsh(&["list"]).ok())
        })?;
        up.with_context(|| format!("libvirtd does not answer: {}", log.display()))?;
        Ok(libvirt)
    }

    /// A directory that domains can use.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs `virsh ARGUMENTS` against this libvirtd.
    ///
    /// # Errors
    /// When it fails; the message is virsh's.
    pub fn virsh(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let uri = self.uri();
        let mut all = vec!["--connect", &uri];
        all.extend(arguments);
        command::run("virsh", &all)
    }

    fn serial(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.serial.log"))
    }

    fn reader(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.reader"))
    }

    fn uri(&self) -> String {
        let socket = self.directory().join("sockets/libvirt-sock");
        format!("qemu+unix:///system?socket={}", socket.display())
    }

    /// Migrates `domain` here, live, with this `definition`; if `paused` is set there, the domain
    /// stays paused on arrival.
    ///
    /// # Errors
    /// When libvirt refuses or the migration fails.
    pub fn migrate_here<'a>(
        &'a self,
        domain: &Domain<'_>,
        definition: &Definition<'_>,
    ) -> anyhow::Result<Domain<'a>> {
        let file = self.define(definition)?;
        let socket = format!("unix://{}", self.directory().join("migration").display());
        // QEMU's user creates and opens the socket.
        fs::set_permissions(self.directory(), Permissions::from_mode(0o777))?;
        let (uri, file) = (self.uri(), file.display().to_string());
        let mut arguments =
            vec!["migrate", "--live", &domain.name, &uri, "--migrateuri", &socket, "--xml", &file];
        arguments.extend(definition.paused.then_some("--suspend"));
        domain.libvirt.virsh(&arguments)?;
        Ok(Domain { libvirt: self, name: definition.name.to_owned() })
    }

    /// The versions of libvirt and of its QEMU, as text.
    ///
    /// # Errors
    /// As [`Self::virsh`].
    pub fn version(&self) -> anyhow::Result<String> {
        let text = self.virsh(&["version"])?;
        let value = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            line.rsplit(": ").next().map(str::to_owned)
        };
        let versions = value("Using library").zip(value("Running hypervisor"));
        let (libvirt, qemu) = versions.with_context(|| format!("odd versions: {text}"))?;
        Ok(format!("{libvirt}, {qemu}"))
    }

    /// Creates a domain that boots the kernel and the image; see [`Domain`].
    ///
    /// # Errors
    /// When libvirt refuses the definition or QEMU does not start.
    pub fn create(&self, domain: &Definition<'_>) -> anyhow::Result<Domain<'_>> {
        let file = self.define(domain)?;
        let created = Domain { libvirt: self, name: domain.name.to_owned() };
        let file = file.to_string_lossy();
        let mut arguments = vec!["create", &*file];
        arguments.extend(domain.paused.then_some("--paused"));
        self.virsh(&arguments)?;
        Ok(created)
    }

    /// Defines a domain that outlives its QEMU, which can be saved so, and starts it.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn keep(&self, domain: &Definition<'_>) -> anyhow::Result<Domain<'_>> {
        let file = self.define(domain)?;
        self.virsh(&["define", &file.to_string_lossy()])?;
        let created = Domain { libvirt: self, name: domain.name.to_owned() };
        created.virsh("start")?;
        Ok(created)
    }

    /// Writes the definition and the files of a domain of this host.
    fn define(&self, domain: &Definition<'_>) -> anyhow::Result<PathBuf> {
        let name = domain.name;
        let copy = |from: &Path, what: &str| -> anyhow::Result<PathBuf> {
            // A copy, because libvirt changes the file's owner to QEMU's user, who must also be
            // able to reach it.
            let to = self.directory().join(format!("{name}.{what}"));
            fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
            Ok(to)
        };
        let (kernel, initrd) = (copy(domain.kernel, "kernel")?, copy(domain.initramfs, "initrd")?);
        let text = format!(
            r"<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{memory}</memory>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>console=ttyS0 panic=-1 tsc=nowatchdog</cmdline>
  </os>
  <features><acpi/></features>
  <devices>
    <emulator>{EMULATOR}</emulator>
    <serial type='file'><source path='{serial}'/></serial>
    <channel type='unix'>
      <source mode='bind' path='{reader}'/>
      <target type='virtio' name='{port}'/>
    </channel>
  </devices>
{printed}</domain>
",
            uuid = uuid(name),
            memory = domain.memory_mib,
            kernel = kernel.display(),
            initrd = initrd.display(),
            serial = self.serial(name).display(),
            reader = self.reader(name).display(),
            port = reader::PORT,
            printed = domain.printed,
        );
        let file = self.log_dir.join(format!("{name}.xml"));
        fs::write(&file, text)?;
        Ok(file)
    }
}

/// The target path of each part of `qemu`; empty for an installed one.
fn in_place(qemu: &Qemu) -> Vec<(PathBuf, PathBuf)> {
    let Some(modules) = &qemu.modules else { return Vec::new() };
    let mut pairs = vec![
        (qemu.binary.clone(), EMULATOR.into()),
        (modules.clone(), "/usr/lib/x86_64-linux-gnu/qemu".into()),
    ];
    for folder in &qemu.firmware {
        let name = folder.file_name().unwrap_or_default();
        pairs.push((folder.clone(), Path::new("/usr/share").join(name)));
    }
    pairs
}
