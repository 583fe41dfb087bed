//! A guest that is itself a host: KVM, a dynamically linked QEMU, timevisord and the CLI inside a
//! lab guest.
//!
//! QEMU's translator (TCG) emulates AMD's SVM well enough for Linux, so the inner guest runs under
//! the real KVM module, with its real debugfs, on any machine. It is slow, because every exit of
//! the inner guest is emulated. Intel's VMX cannot be tested this way, and after a live migration
//! the inner guest hung in 5 of 18 arrivals.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::command;
use crate::guest::Guest;
use crate::image::Image;
use crate::interrupt::{self, Late};
use crate::kernel::Kernel;
use crate::qemu::Qemu;
use crate::reader;
use crate::scenario::Need::{Fetched, Processors, Root};
use crate::scenario::{Context, Need};

/// What such a host needs.
pub const NESTED: &[Need] =
    &[Root, Processors, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")];
/// Main memory of the inner host: its programs are in an initramfs.
const HOST_MIB: u32 = 1536;
/// Main memory of the inner guest.
pub const GUEST_MIB: u32 = 256;
/// The directory of the inner QEMU's firmware.
const FIRMWARE: &str = "/lab/firmware";
/// The firmware that q35 needs with `-kernel` and without a display.
const FIRMWARE_FILES: &[&str] = &["bios-256k.bin", "linuxboot_dma.bin", "kvmvapic.bin"];
/// For a host's kernel that needs no precise timers: its timer is periodic. Beside a guest, TCG
/// occasionally loses a timer interrupt, and a timer that each interrupt re-arms then stops (seen
/// with Linux 7.3: a soft lockup of 112 to 114 s, three times, also while none of our code ran). An
/// inner guest boots in a third of the time, too: 43,000 exits where there were 125,000.
pub const PERIODIC: &str = "nohz=off highres=off";
/// Between two questions to a host; on a busy one, a question alone takes seconds.
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// The inner guest takes minutes for what takes an ordinary one seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// The run directory of the daemon that [`NestedHost::start_daemon`] starts.
const RUN_DIRECTORY: &str = "/run/timevisor";

/// The daemon's configuration: there is no network and no leap second table in the inner host.
const CONFIG: &str = r#"[clock]
tai_offset = 37

[[reference]]
type = "system"
assumed_max_error = "1ms"
poll = "1s"
"#;

/// A running host inside a guest, with a timevisord.
#[derive(Debug)]
pub struct NestedHost {
    guest: Guest,
    /// QEMU's log of processor resets, if there are several processors: see [`Self::sh`].
    resets: Option<PathBuf>,
}

impl NestedHost {
    /// Boots the host on `kernel`. Its guests will run under `qemu`, on the same kernel.
    ///
    /// # Errors
    /// When it does not boot, or KVM does not work in it.
    pub fn boot(ctx: &Context, outer: &Qemu, qemu: &Qemu, kernel: &Kernel) -> anyhow::Result<Self> {
        Self::boot_with(ctx, outer, qemu, kernel, Ok)
    }

    /// Like [`Self::boot`], with changes to the image.
    ///
    /// # Errors
    /// As [`Self::boot`].
    pub fn boot_with(
        ctx: &Context,
        outer: &Qemu,
        qemu: &Qemu,
        kernel: &Kernel,
        more: impl FnOnce(Image) -> anyhow::Result<Image>,
    ) -> anyhow::Result<Self> {
        Self::boot_for(ctx, outer, qemu, [kernel, kernel], 2, "", more)
    }

    /// Like [`Self::boot_with`], with separate kernels for the host and its guests, a number of
    /// processors, and more arguments for the host's kernel.
    ///
    /// # Errors
    /// As [`Self::boot`].
    pub fn boot_for(
        ctx: &Context,
        outer: &Qemu,
        qemu: &Qemu,
        [kernel, inner_kernel]: [&Kernel; 2],
        processors: u32,
        append: &str,
        more: impl FnOnce(Image) -> anyhow::Result<Image>,
    ) -> anyhow::Result<Self> {
        let inner = inner_image(ctx, inner_kernel)?;
        let mut image = ctx
            .image(kernel)?
            .without_module("ptp_vmclock")
            .module("kvm-amd")
            .file(inner_kernel.image.clone(), "/lab/inner/kernel", 0o644)
            .file(inner, "/lab/inner/initramfs", 0o644)
            .file(write(ctx, "timevisord.toml", CONFIG)?, "/etc/timevisord.toml", 0o644);
        let programs = [
            ("timevisord", "timevisord"),
            ("timevisor", "timevisor"),
            ("timevisor-lab-guest", "lab-compare"),
        ];
        for (package, bin) in programs {
            image = image.program(&ctx.program(package, bin)?);
        }
        let image = more(with_qemu(image, qemu)?)?;
        let resets = ctx.path("host-cpu.log").display().to_string();
        let mut guest = ctx
            .guest(outer, kernel, &image)?
            .name("host")
            .memory_mib(HOST_MIB)
            .cpus(processors)
            // Nobody uses TCG's SVM with five-level page tables. TCG's TSC is the machine's own;
            // timevisord accepts it only if the processor declares it invariant.
            .args(["-cpu", "max,la57=off,+invtsc,x-force-features=on"])
            // The guest can die without a message on its console: QEMU logs a triple fault here.
            .args(["-d", "cpu_reset", "-D", resets.as_str()])
            // Tests inspect the threads of its processors.
            .args(["-name", "host,debug-threads=on"])
            .append(format!("tsc=reliable {append}").trim_end())
            .start()?;
        guest.wait_ready()?;
        let resets = (processors > 1).then(|| ctx.path("host-cpu.log"));
        let mut host = Self { guest, resets };
        host.sh("test -c /dev/kvm").context("KVM does not work in the guest")?;
        host.sh("mount -t debugfs none /sys/kernel/debug")?;
        host.start_daemon()?;
        Ok(host)
    }

    /// Starts timevisord.
    ///
    /// # Errors
    /// When it does not synchronize.
    pub fn start_daemon(&mut self) -> anyhow::Result<()> {
        self.sh("timevisord --config /etc/timevisord.toml >>/run/timevisord.log 2>&1 &")?;
        self.wait("timevisord to be synchronized", |host| {
            let status = host.json("timevisor status --json")?;
            Ok(status["clock"]["status"] == "synchronized")
        })
    }

    /// The outer guest.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Runs one line of shell on it.
    ///
    /// # Errors
    /// As [`Guest::sh`]. If a host with several processors has died of a triple fault, the error
    /// counts as [`Late`], so that the test is repeated at the end: TCG's multi-threaded emulation
    /// of SVM occasionally does that, even where none of our code has run.
    pub fn sh(&mut self, line: &str) -> anyhow::Result<String> {
        self.guest.sh(line).map_err(|error| {
            let said = self.resets.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
            if said.is_some_and(|said| fell(&said)) {
                error.context("the emulated host fell (a triple fault)").context(Late)
            } else {
                error
            }
        })
    }

    /// Like [`Self::sh`], for a program that prints JSON.
    ///
    /// # Errors
    /// As [`Self::sh`], or when it prints anything else.
    pub fn json(&mut self, line: &str) -> anyhow::Result<Value> {
        // Exit status 1 with an object says that what it shows is not vouched for.
        let text = self.sh(&format!("{line} || [ $? = 1 ]"))?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// The row of the inner VM `name` in `vm list`.
    ///
    /// # Errors
    /// When there is no such row.
    pub fn vm(&mut self, name: &str) -> anyhow::Result<Value> {
        self.vm_on(RUN_DIRECTORY, name)
    }

    /// The same, of the timevisord with this run directory.
    ///
    /// # Errors
    /// As [`Self::vm`].
    pub fn vm_on(&mut self, directory: &str, name: &str) -> anyhow::Result<Value> {
        let list = self.json(&format!("timevisor vm list --json --run-directory {directory}"))?;
        let row = list.as_array().into_iter().flatten().find(|row| row["name"] == name);
        row.cloned().with_context(|| format!("no VM {name} in {list}"))
    }

    /// Waits until `done` returns true; errors meanwhile count as "not yet". There is a pause after
    /// each question, because it starts programs on the emulated processor that runs the inner
    /// guest, too.
    ///
    /// # Errors
    /// When it takes too long; the message contains the ends of the inner logs.
    pub fn wait(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut last = None;
        let reached = interrupt::poll_until(PATIENCE, || {
            let asked = Instant::now();
            match done(self) {
                Ok(true) => return Ok(Some(())),
                Ok(false) => {}
                Err(error) => last = Some(format!("{error:#}")),
            }
            interrupt::sleep(MOST_PAUSE.min(4 * asked.elapsed())).map(|()| None)
        })?;
        if reached.is_none() {
            let logs = self.logs(8);
            return Err(anyhow::Error::new(Late).context(format!(
                "{what}: not within {PATIENCE:?} ({last:?}); the logs inside end:\n{logs}"
            )));
        }
        Ok(())
    }

    /// The last lines of all inner logs, or the error if there are none.
    pub fn logs(&mut self, lines: u32) -> String {
        self.sh(&format!("tail -n {lines} /run/*.log")).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Starts a VM under KVM with what `timevisor vm args` prints, paused, and returns when
    /// timevisord has found it.
    ///
    /// Its sockets are `/run/NAME.reader`, `/run/NAME.qmp` for [`Self::qmp`], and `/run/NAME.lab`
    /// for [`Self::inner_sh`].
    ///
    /// # Errors
    /// When it does not start or is not found.
    pub fn launch(&mut self, name: &str, delivery: &str, cpus: u32) -> anyhow::Result<()> {
        self.launch_on(RUN_DIRECTORY, name, delivery, cpus, "-S")?;
        self.wait("the inner VM to be found", |host| Ok(host.vm(name).is_ok()))
    }

    /// Starts a VM that the timevisord with this run directory serves, with more options for QEMU,
    /// and does not wait for anything.
    ///
    /// # Errors
    /// When it does not start.
    pub fn launch_on(
        &mut self,
        directory: &str,
        name: &str,
        delivery: &str,
        cpus: u32,
        more: &str,
    ) -> anyhow::Result<()> {
        let socket = |id: &str| format!("socket,id={id},path=/run/{name}.{id},server=on,wait=off");
        let options = format!(
            "-L {FIRMWARE} -name {name},debug-threads=on -accel kvm -cpu host -smp {cpus} -machine q35 -m {GUEST_MIB}M \
             -display none -nodefaults -no-user-config {more} \
             -chardev file,id=serial,path=/run/{name}-serial.log -serial chardev:serial \
             -device virtio-serial-pci \
             -chardev {reader} -device virtserialport,chardev=reader,name={port} \
             -chardev {lab} -device virtserialport,chardev=lab,name=org.timevisor.lab \
             -chardev {qmp} -mon chardev=qmp,mode=control \
             -d cpu_reset -D /run/{name}-cpu.log -kernel /lab/inner/kernel -initrd /lab/inner/initramfs \
             -append \"console=ttyS0 panic=-1 quiet tsc=reliable\"",
            reader = socket("reader"),
            lab = socket("lab"),
            qmp = socket("qmp"),
            port = reader::PORT,
        );
        // A script, because the printed text is quoted for a shell.
        self.sh(&format!(
            "(echo 'exec qemu-system-x86_64 {options} ' \\\\; timevisor vm args --name {name} \
             --memory {GUEST_MIB} --delivery {delivery} --run-directory {directory}) >/run/{name}.sh"
        ))?;
        self.sh(&format!("sh /run/{name}.sh >/run/{name}-qemu.log 2>&1 &"))?;
        Ok(())
    }

    /// Runs a QMP command on a VM that [`Self::launch`] started.
    ///
    /// # Errors
    /// When QEMU refuses it.
    pub fn qmp(&mut self, name: &str, command: &str) -> anyhow::Result<Value> {
        self.json(&format!("lab-compare qmp /run/{name}.qmp {command}"))
    }

    /// Like [`Self::qmp`], for a command with arguments; they must not contain single quotes.
    ///
    /// # Errors
    /// When QEMU refuses it.
    pub fn execute(
        &mut self,
        name: &str,
        command: &str,
        arguments: &Value,
    ) -> anyhow::Result<Value> {
        self.json(&format!("lab-compare qmp /run/{name}.qmp {command} '{arguments}'"))
    }

    /// Runs `blockdev-create` with these options, to its end.
    ///
    /// # Errors
    /// When QEMU refuses it, or it fails.
    pub fn create(&mut self, name: &str, options: &Value) -> anyhow::Result<()> {
        self.finish(name, "blockdev-create", &serde_json::json!({ "options": options }))
    }

    /// Runs `snapshot-save` or `snapshot-load` with the block node `snapshots`, to its end.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn job(&mut self, name: &str, command: &str, tag: &str) -> anyhow::Result<()> {
        let devices = ["snapshots"];
        let job = serde_json::json!({"tag": tag, "vmstate": "snapshots", "devices": devices});
        self.finish(name, command, &job)
    }

    fn finish(&mut self, name: &str, command: &str, arguments: &Value) -> anyhow::Result<()> {
        let mut arguments = arguments.clone();
        arguments["job-id"] = Value::from("job");
        self.execute(name, command, &arguments)?;
        let mut job = Value::Null;
        self.wait("a job of QEMU", |host| {
            let all = host.qmp(name, "query-jobs")?;
            let found = all.as_array().into_iter().flatten().find(|job| job["id"] == "job");
            job = found.cloned().unwrap_or_default();
            Ok(job["status"] == "concluded")
        })?;
        self.execute(name, "job-dismiss", &serde_json::json!({"id": "job"}))?;
        ensure!(job["error"].is_null(), "{command}: {job}");
        Ok(())
    }

    /// Runs one line of shell, without single quotes, in a VM that [`Self::launch`] started, and
    /// waits up to `patience`.
    ///
    /// # Errors
    /// When it fails, or `patience` runs out.
    pub fn inner_sh(
        &mut self,
        name: &str,
        line: &str,
        patience: Duration,
    ) -> anyhow::Result<String> {
        let file = format!("/run/{name}.said");
        self.sh(&format!("rm -f {file}.end; (lab-compare sh /run/{name}.lab '{line}' >{file} 2>&1; echo $? >{file}.end) &"))?;
        let ended = interrupt::poll_until(patience, || {
            interrupt::sleep(Duration::from_millis(500))?;
            let ended = self.sh(&format!("cat {file}.end 2>/dev/null || true"))?;
            Ok(Some(ended.trim().to_owned()).filter(|text| !text.is_empty()))
        })?;
        let said = self.sh(&format!("cat {file}"))?;
        let ended =
            ended.context(Late).with_context(|| format!("{name}: `{line}` did not end: {said}"))?;
        ensure!(ended == "0", "{name}: {said}");
        Ok(said)
    }

    /// Waits until the VM has booted for the `boot`-th time, from 1 on.
    ///
    /// # Errors
    /// When it does not boot.
    pub fn wait_ready(&mut self, name: &str, boot: u32) -> anyhow::Result<()> {
        self.wait("the inner VM to boot", |host| {
            let count = host.sh(&format!("grep -c LAB-READY /run/{name}-serial.log || true"))?;
            Ok(count.trim() == boot.to_string())
        })
    }

    /// Compares the VM's reader with this host's page `times` times; returns the worst results.
    ///
    /// # Errors
    /// As [`crate::comparison::Worst::add`].
    pub fn compare(&mut self, name: &str, times: u32) -> anyhow::Result<Value> {
        self.compare_on(RUN_DIRECTORY, name, times)
    }

    /// The same, with the page of the timevisord with this run directory.
    ///
    /// # Errors
    /// As [`Self::compare`].
    pub fn compare_on(&mut self, directory: &str, name: &str, times: u32) -> anyhow::Result<Value> {
        let row = self.vm_on(directory, name)?;
        let mapping = row["mapping"].as_str().unwrap_or_default();
        let offset =
            mapping.strip_prefix("host ").with_context(|| format!("scaled or unknown: {row}"))?;
        let compared =
            self.json(&format!("lab-compare {directory} /run/{name}.reader {offset} {times}"));
        compared.with_context(|| {
            let state =
                self.qmp(name, "query-status").map_or_else(|e| e.to_string(), |s| s.to_string());
            let logs = self.sh(&format!("tail -n 5 /run/{name}-*.log")).unwrap_or_default();
            format!("{row}, {state}; the logs inside end:\n{logs}\n")
        })
    }
}

/// Whether a processor's last reset, in QEMU's `-d cpu_reset` log, was due to a triple fault.
fn fell(log: &str) -> bool {
    log.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .is_some_and(|line| line == "Triple fault")
}

/// The image that the inner guest boots.
fn inner_image(ctx: &Context, kernel: &Kernel) -> anyhow::Result<PathBuf> {
    let reader = ctx.program("timevisor-lab-guest", "lab-reader")?;
    let real_time = ctx.program("timevisor-lab-guest", "lab-rt")?;
    let calls = ctx.program("timevisor-lab-guest", "lab-calls")?;
    let costs = ctx.program("timevisor-lab-guest", "lab-call-costs")?;
    ctx.image(kernel)?
        .program(&reader)
        .program(&real_time)
        .program(&calls)
        .program(&costs)
        .snippet(reader::SNIPPET)
        .write(&ctx.path("inner.cpio"))
}

pub(crate) fn write(ctx: &Context, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = ctx.path(name);
    std::fs::write(&path, text)?;
    Ok(path)
}

/// Adds a QEMU with its shared libraries, the loader and the firmware.
fn with_qemu(mut image: Image, qemu: &Qemu) -> anyhow::Result<Image> {
    let binary = command::run("which", &[&qemu.binary])?;
    let binary = PathBuf::from(binary.trim());
    for library in libraries(&binary)? {
        image = image.file(library.clone(), &library.to_string_lossy(), 0o755);
    }
    let folders: Vec<PathBuf> = match qemu.firmware.as_slice() {
        [] => vec!["/usr/share/qemu".into(), "/usr/share/seabios".into()],
        folders => folders.to_vec(),
    };
    for file in FIRMWARE_FILES {
        let from = folders.iter().map(|folder| folder.join(file)).find(|path| path.exists());
        let from = from.with_context(|| format!("no firmware {file} in {folders:?}"))?;
        image = image.file(from, &format!("{FIRMWARE}/{file}"), 0o644);
    }
    Ok(image.file(binary, "/bin/qemu-system-x86_64", 0o755))
}

/// All libraries that `ldd` lists for `program`, at the paths where the loader will look.
pub(crate) fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let text = command::output(Command::new("ldd").arg(program))?;
    let path = |line: &str| {
        let path = line.split("=> ").last()?.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    let found: Vec<PathBuf> = text.lines().filter_map(path).collect();
    ensure!(!found.is_empty(), "ldd says nothing of {}: {text}", program.display());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::fell;

    #[test]
    fn only_a_triple_fault_at_the_end_is_a_fall() {
        assert!(fell("CPU Reset (CPU 0)\nEAX=0\n\nTriple fault\n"));
        assert!(!fell("Triple fault\nCPU Reset (CPU 0)\nEAX=0\n"));
        assert!(!fell(""));
    }
}
