//! QEMUs that cannot be served, or not yet, and processes that are not QEMU. The only guest code
//! here is the firmware.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::command::{self, Tethered};
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::qemu::Qemu;
use crate::qmp::Qmp;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::{complaint, reference};

/// A QEMU whose guest runs nothing but its firmware.
pub(crate) struct Bare {
    // Declared first, so that QEMU ends before its sockets are removed.
    process: Tethered,
    sockets: TempDir,
}

impl Bare {
    /// Starts `qemu` under TCG and waits for its QMP socket.
    pub(crate) fn start(
        ctx: &Context,
        qemu: &Qemu,
        name: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        Self::start_by(ctx, command::tethered(&qemu.binary), qemu, name, arguments)
    }

    /// As [`Self::start`], run by another user than root.
    pub(crate) fn start_as(
        ctx: &Context,
        user: u32,
        qemu: &Qemu,
        name: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let mut command = command::tethered("setpriv");
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&qemu.binary);
        Self::start_by(ctx, command, qemu, name, arguments)
    }

    fn start_by(
        ctx: &Context,
        mut command: Command,
        qemu: &Qemu,
        name: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let sockets = scratch::directory()?;
        // Whoever runs QEMU makes the sockets.
        fs::set_permissions(sockets.path(), Permissions::from_mode(0o777))?;
        let qmp = sockets.path().join("qmp");
        if let Some(modules) = &qemu.modules {
            command.env("QEMU_MODULE_DIR", modules);
        }
        for folder in &qemu.firmware {
            command.arg("-L").arg(folder);
        }
        command.args(["-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(["-machine", "q35", "-name", name]).args(arguments);
        let own = sockets.path().join("own");
        for socket in [&qmp, &own] {
            command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display()));
        }
        let log = ctx.path(&format!("{name}.qemu.log"));
        let mut process = Tethered::spawn(&mut command, "QEMU", &log)?;
        // QEMU listens before it creates its devices and sends its greeting afterwards.
        let up = interrupt::poll_until(Duration::from_secs(30), || {
            process.check_alive()?;
            Ok(UnixStream::connect(&own).ok())
        })?;
        let greeted = Qmp::new(up.context("QEMU opened no QMP socket")?);
        if let Err(error) = greeted {
            interrupt::poll_until(Duration::from_secs(2), || {
                process.check_alive()?;
                Ok(None::<()>)
            })?;
            return Err(error);
        }
        Ok(Self { process, sockets })
    }

    /// A QEMU 10 with a vmclock device that can be served.
    pub(crate) fn vmclock(ctx: &Context, name: &str, more: &[&str]) -> anyhow::Result<Self> {
        let page = ["-machine", "aux-ram-share=on", "-device", "vmclock"];
        Self::start(ctx, &ctx.qemu_10()?, name, &[&page, more].concat())
    }

    /// The system's QEMU with the nvdimm that `timevisor vm args` prints.
    pub(crate) fn nvdimm(ctx: &Context, host: &Host, name: &str) -> anyhow::Result<Self> {
        let printed = host.json(&["vm", "args", "--name", name, "--memory", "128"])?;
        let words = printed["arguments"].as_array().context("no arguments")?;
        let words: Vec<&str> = words.iter().filter_map(serde_json::Value::as_str).collect();
        Self::start(ctx, &ctx.qemu()?, name, &words)
    }

    pub(crate) fn pid(&self) -> String {
        self.process.pid().to_string()
    }

    /// The QMP socket for the daemon.
    pub(crate) fn qmp_path(&self) -> PathBuf {
        self.sockets.path().join("qmp")
    }

    /// A QMP connection for the test itself, beside the daemon's.
    pub(crate) fn qmp(&self) -> anyhow::Result<Qmp> {
        Qmp::connect(&self.sockets.path().join("own"))
    }

    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        self.process.check_alive()
    }
}

pub(crate) fn attach(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    host.start(&reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let mut well = Bare::vmclock(ctx, "well", &[])?;
    host.wait_vm("well", "synchronized")?;
    let before = host.vm("well")?["disruption_marker"].clone();

    no_qemu(ctx, &host).context("no QEMU")?;
    too_old(ctx, &host).context("too old")?;
    without_page(ctx, &host).context("without a page")?;
    not_running(ctx, &host).context("not running")?;
    names(ctx, &host).context("names")?;

    host.wait_vm("well", "synchronized")?;
    // As in fault-vm-end: doubts caused by a busy machine are in the log.
    let undisturbed = host.vm("well")?["disruption_marker"] == before;
    ensure!(undisturbed || host.log_text().contains("contradicted"), "another VM was disturbed");
    well.check_alive()?;
    Ok("each says what is wrong and what to do; a well VM beside them is not disturbed".to_owned())
}

fn no_qemu(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let ours = std::process::id().to_string();
    let socket = ctx.path("no-socket").display().to_string();
    for (arguments, parts) in [
        (
            &["--qmp", &socket][..],
            &["cannot connect to the QMP socket", &socket, "is the VM running"][..],
        ),
        (&["--pid", &ours], &["is not a QEMU", &ours]),
        (&["--pid", "4194304"], &["no such process", "4194304"]),
        (&["--pid", "0"], &["no such process"]),
        (&[], &["neither a QMP socket nor a process", "--qmp PATH or --pid N"]),
        (&["--resume", "--pid", "1"], &["only QMP can resume", "--qmp PATH"]),
    ] {
        let text = complaint(host, &[&["vm", "add"], arguments].concat())?;
        mentions(&text, parts)?;
    }
    let gone = complaint(host, &["vm", "remove", "nobody"])?;
    mentions(&gone, &["there is no VM nobody", "timevisor vm list"])?;
    mentions(&complaint(host, &["vm", "args", "--name", "../x"])?, &["../x"])
}

fn too_old(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let vmclock = ["vm", "args", "--name", "old", "--delivery", "vmclock"];
    for more in [&["--json"][..], &["--format", "qemu"], &["--format", "libvirt"]] {
        let out = host.cli_output(&[&vmclock[..], more].concat())?;
        ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        // On stderr, so that the arguments on stdout can be pasted into a command as they are.
        mentions(&String::from_utf8_lossy(&out.stderr), &["QEMU 10", "--delivery nvdimm"])?;
        ensure!(!String::from_utf8_lossy(&out.stdout).contains("QEMU 10"), "among the arguments");
    }
    let system = ctx.qemu()?;
    if system.version < (10, 0) {
        let words = ["-machine", "aux-ram-share=on", "-device", "vmclock"];
        let refused =
            Bare::start(ctx, &system, "old", &words).err().context("it has the device")?;
        mentions(&format!("{refused:#}"), &["aux-ram-share"])?;
    }
    Ok(())
}

fn without_page(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let bare = Bare::start(ctx, &ctx.qemu()?, "bare", &[])?;
    let by_pid = complaint(host, &["vm", "add", "--pid", &bare.pid()])?;
    mentions(&by_pid, &["bare has no page for us", "timevisor vm args"])?;
    let by_qmp = complaint(host, &["vm", "add", "--qmp", &bare.qmp_path().display().to_string()])?;
    mentions(&by_qmp, &["bare has no page for us", "timevisor vm args"])?;
    // A VM without a page is not an error; one whose page we cannot map is worth a message.
    let private = Bare::start(ctx, &ctx.qemu_10()?, "private", &["-device", "vmclock"])?;
    let text = complaint(host, &["vm", "add", "--pid", &private.pid()])?;
    mentions(&text, &["private has a vmclock device", "not shared", "-machine aux-ram-share=on"])?;
    host.wait_until("discovery says so too", |h| {
        Ok(h.log_text().contains("private cannot be served")
            && h.log_text().contains("aux-ram-share=on"))
    })?;
    ensure!(!host.log_text().contains("bare cannot be served"), "a VM without a page is reported");
    ensure!(host.vm("private").is_err() && host.vm("bare").is_err(), "they are listed");
    Ok(())
}

fn not_running(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let _counted = Bare::vmclock(ctx, "counted", &["-icount", "shift=auto"])?;
    host.wait_vm("counted", "unknown")?;
    let row = host.vm("counted")?;
    ensure!(row["mapping"] == "unknown", "{row}");
    mentions(&row["reason"].to_string(), &["-icount", "start it without"])?;

    let stopped = Bare::vmclock(ctx, "stopped", &["-S"])?;
    host.wait_vm("stopped", "unknown")?;
    let row = host.vm("stopped")?;
    mentions(&row["reason"].to_string(), &["does not run"])?;
    host.cli(&["vm", "add", "--qmp", &stopped.qmp_path().display().to_string(), "--resume"])?;
    host.wait_vm("stopped", "synchronized")
}

fn names(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let first = Bare::vmclock(ctx, "twin", &[])?;
    host.wait_vm("twin", "synchronized")?;
    let second = Bare::vmclock(ctx, "twin", &[])?;
    let text = complaint(host, &["vm", "add", "--pid", &second.pid()])?;
    mentions(&text, &["there is a VM twin already", "--name"])?;
    host.wait_until("discovery says so too", |h| {
        Ok(h.log_text().contains("there is a VM twin already"))
    })?;
    let list = host.json(&["vm", "list"])?;
    let twins: Vec<_> =
        list.as_array().into_iter().flatten().filter(|r| r["name"] == "twin").collect();
    ensure!(twins.len() == 1 && twins[0]["pid"] == first.pid().parse::<u32>()?, "{twins:?}");
    host.cli(&["vm", "add", "--pid", &second.pid(), "--name", "twin-2"])?;
    host.wait_vm("twin-2", "synchronized")?;
    let odd = Bare::vmclock(ctx, "odd name", &[])?;
    let id = |h: &Host| -> anyhow::Result<Option<String>> {
        let list = h.json(&["vm", "list"])?;
        let row = list.as_array().into_iter().flatten().find(|r| r["qemu_name"] == "odd name");
        Ok(row.and_then(|row| row["name"].as_str()).map(str::to_owned))
    };
    host.wait_until("a name with a space is served", |h| Ok(id(h)?.is_some()))?;
    let id = id(host)?.context("it is gone")?;
    ensure!(id.starts_with("odd-name-"), "{id}");
    host.wait_vm(&id, "synchronized")?;
    host.cli(&["vm", "add", "--pid", &odd.pid(), "--name", "even"])?;
    host.wait_vm("even", "synchronized")
}
