//! Containers of Debian's runc: a read-only root with our static programs, no capabilities, and the
//! host's page.
//!
//! This is what Docker, Podman and Kubernetes ask of runc, without their daemons and images:
//! `docker run --user 65534 --cap-drop ALL --read-only -v /run/timevisor/clock:/run/timevisor/clock:ro`.
//! There is no network, and there are no devices except runc's own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::Context as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command;
use crate::scratch;

/// The first host user ID of the user namespace.
const FIRST_HOST_USER: u32 = 100_000;

/// The page's path in the container, where programs look for it.
pub const PAGE: &str = "/run/timevisor/clock";

const DIRECTORY: &str = "/run/timevisor";

/// Which user IDs the container uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// The host's: user 65534 inside is user 65534 outside.
    Host,
    /// Those of a user namespace, as with rootless Podman: the host's root has no ID inside.
    Namespace,
}

/// A bundle that runc can run any number of times.
#[derive(Debug)]
pub struct Container {
    bundle: TempDir,
}

impl Container {
    /// A container with `programs` in /bin that runs as `user`. The host's page file `source` is
    /// mounted read-only as [`PAGE`], or its whole run directory as the page's directory.
    ///
    /// # Errors
    /// When its files cannot be created.
    pub fn new(programs: &[&Path], source: &Path, users: Users, user: u32) -> anyhow::Result<Self> {
        let bundle = scratch::directory()?;
        let root = bundle.path().join("rootfs");
        for folder in ["bin", "proc", "dev", "run/timevisor"] {
            fs::create_dir_all(root.join(folder))?;
        }
        // The mount needs a mount point, and the root is already read-only when runc looks for one.
        fs::write(root.join(PAGE.trim_start_matches('/')), "")?;
        for program in programs {
            let name = program.file_name().context("a program without a name")?;
            fs::copy(program, root.join("bin").join(name))
                .with_context(|| format!("cannot copy {}", program.display()))?;
        }
        // Users that are not root on the host must be able to reach the files.
        fs::set_permissions(bundle.path(), Permissions::from_mode(0o755))?;
        let spec = specification(source, users, user);
        fs::write(bundle.path().join("config.json"), spec.to_string())?;
        Ok(Self { bundle })
    }

    /// Unpacks the tar archive `archive` into its root.
    ///
    /// # Errors
    /// When tar fails.
    pub fn unpack(self, archive: &Path) -> anyhow::Result<Self> {
        let root = self.bundle.path().join("rootfs");
        command::output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(root))?;
        Ok(self)
    }

    /// Makes the page's mount writable.
    ///
    /// # Errors
    /// When the bundle cannot be written.
    pub fn writable(self) -> anyhow::Result<Self> {
        self.change(|spec| {
            // The last mount is the page's.
            let mounts = spec["mounts"].as_array_mut();
            if let Some(mount) = mounts.and_then(|mounts| mounts.last_mut()) {
                mount["options"] = json!(["bind", "rw"]);
            }
        })?;
        Ok(self)
    }

    /// Runs one command in a new container.
    ///
    /// # Errors
    /// When runc cannot be run at all. The output tells whether the command succeeded.
    pub fn run(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.change(|spec| spec["process"]["args"] = json!(arguments))?;
        let mut command: Command = command::tethered("runc");
        command.arg("--root").arg(self.bundle.path().join("state")).arg("run");
        command.arg("--bundle").arg(self.bundle.path()).arg(scratch::name("container"));
        command.output().context("cannot run runc; install the package runc")
    }

    fn change(&self, change: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        let config = self.bundle.path().join("config.json");
        let mut spec: Value = serde_json::from_str(&fs::read_to_string(&config)?)?;
        change(&mut spec);
        fs::write(&config, spec.to_string()).context("cannot write the container's config.json")
    }
}

/// config.json of the OCI runtime specification 1.0.
fn specification(source: &Path, users: Users, user: u32) -> Value {
    let destination = if source.is_dir() { DIRECTORY } else { PAGE };
    let mut namespaces = vec!["pid", "network", "ipc", "uts", "mount"];
    let mut linux = json!({});
    if users == Users::Namespace {
        namespaces.push("user");
        let mapping = json!([{"containerID": 0, "hostID": FIRST_HOST_USER, "size": 65536}]);
        linux["uidMappings"] = mapping.clone();
        linux["gidMappings"] = mapping;
    }
    linux["namespaces"] = namespaces.iter().map(|kind| json!({"type": kind})).collect();
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": [],
            "env": ["PATH=/bin"],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": destination, "type": "bind", "source": source,
             "options": ["bind", "ro", "nosuid", "nodev", "noexec"]},
        ],
        "linux": linux,
    })
}
