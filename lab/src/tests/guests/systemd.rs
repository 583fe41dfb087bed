//! A guest with systemd and udev, in which the package's files are installed and nothing else is
//! done: udev loads the driver and names the devices, the units run as shipped, and a unit is held
//! by its name.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::debian::Debian;
use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::programs;
use crate::qemu::Delivery;
use crate::scenario::Context;

const NAME: &str = "guest";
/// An emulated systemd takes its time.
const PATIENCE: Duration = Duration::from_secs(120);
/// The most that `systemd-analyze security` may say of the agent.
const EXPOSURE: f64 = 3.0;

/// What the package installs, and where.
const INSTALLED: &[(&str, &str)] = &[
    ("60-timevisor.rules", "usr/lib/udev/rules.d/60-timevisor.rules"),
    ("timevisor.sysusers", "usr/lib/sysusers.d/timevisor.conf"),
    ("timevisor-guest.service", "usr/lib/systemd/system/timevisor-guest.service"),
    ("timevisor-wait-sync.service", "usr/lib/systemd/system/timevisor-wait-sync.service"),
];

/// What the operator sets.
const OPTIONS: &str = "AGENT_OPTIONS=\"--set-clock step --hold db.service\"\n\
     WAIT_OPTIONS=\"--within 10ms --timeout 2m --clock 1ms\"\n";

/// A workload that must not run with a wrong clock: it says the year ten times a second.
const DB: &str = "[Unit]\nDescription=A workload\nRequires=timevisor-wait-sync.service\nAfter=time-sync.target\n\
     [Service]\nExecStart=/usr/bin/busybox sh -c 'while :; do date +%%Y >>/run/years; sleep 0.1; done'\n";

/// As the documentation has it for chronyd: the clock's device is a unit, and so can be waited for.
const CLOCK: &str = "[Unit]\nDescription=A client of the PTP clock\nWants=modprobe@ptp_vmclock.service\n\
     BindsTo=dev-ptp_vmclock.device\nAfter=modprobe@ptp_vmclock.service dev-ptp_vmclock.device\n\
     [Service]\nExecStart=/usr/bin/busybox sleep infinity\n";

pub(crate) fn systemd(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut lab = Lab { guest: boot(ctx, &host)?, host };
    let took = lab.guest.wait_ready()?;
    lab.host.wait_vm(NAME, "synchronized")?;
    lab.wait("the workload runs", |lab| lab.is_so("test -s /run/years"))?;
    lab.devices()?;
    let exposure = lab.units()?;
    lab.held()?;
    Ok(format!(
        "booted in {:.0} s: driver, names and group by udev; agent at {exposure} of systemd-analyze security; db.service held, \
         also after a restart; thawed after kill -9 and at the end",
        took.as_secs_f64()
    ))
}

fn boot(ctx: &Context, host: &Host) -> anyhow::Result<Guest> {
    let kernel = ctx.kernel("trixie-backports")?;
    let packaging = programs::workspace()?.join("packaging");
    let mut image = Debian::new(ctx, &kernel)?;
    for (from, to) in INSTALLED {
        image = image.file(&packaging.join(from), to, 0o644)?;
    }
    let agent = ctx.program("timevisor-guest", "timevisor-guest")?;
    let wants = |target: &str, unit: &str| {
        format!("/etc/systemd/system/{target}.target.wants/{unit}.service")
    };
    let image = image
        .file(&agent, "usr/bin/timevisor-guest", 0o755)?
        .text("etc/default/timevisor-guest", OPTIONS)
        .text("etc/systemd/system/db.service", DB)
        .text("etc/systemd/system/clock.service", CLOCK)
        // As `systemctl enable` does.
        .link(
            &wants("multi-user", "timevisor-guest"),
            "/usr/lib/systemd/system/timevisor-guest.service",
        )
        .link(
            &wants("sysinit", "timevisor-wait-sync"),
            "/usr/lib/systemd/system/timevisor-wait-sync.service",
        )
        .link(&wants("multi-user", "db"), "/etc/systemd/system/db.service")
        .link(&wants("multi-user", "clock"), "/etc/systemd/system/clock.service");
    let qmp = host.directory().join("guest.qmp");
    let channel = host.directory().join("guest.channel");
    let guest = ctx
        .guest_with_systemd(&ctx.qemu_10()?, &kernel, &image)?
        .name(NAME)
        .delivery(Delivery::VmclockDevice)
        .port(timevisor_protocols::channel::PORT_NAME, &channel)
        .append("no_timer_check")
        .paused()
        .args(["-rtc".into(), "base=2020-01-01T00:00:00".to_owned()])
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())])
        .start()?;
    host.cli(&["vm", "add", "--qmp", &qmp.display().to_string(), "--name", NAME, "--resume"])?;
    Ok(guest)
}

struct Lab {
    guest: Guest,
    host: Host,
}

impl Lab {
    /// Nothing in the image loads a module or makes a name.
    fn devices(&mut self) -> anyhow::Result<()> {
        let look =
            |lab: &mut Self, line: &str| lab.guest.sh(line).map(|text| text.trim().to_owned());
        ensure!(look(self, "cat /proc/modules")?.contains("ptp_vmclock"), "no driver");
        ensure!(look(self, "stat -c %a /dev/vmclock0")? == "444", "the page is not for everybody");
        let name = "cat /sys/class/ptp/$(readlink /dev/ptp_vmclock)/clock_name";
        ensure!(look(self, name)?.starts_with("vmclock"), "/dev/ptp_vmclock is another clock");
        let port = "stat -L -c '%G %a' /dev/virtio-ports/org.timevisor.0";
        let found = look(self, port)?;
        ensure!(found == "timevisor 660", "the channel's port is {found:?}");
        ensure!(
            look(
                self,
                "udevadm verify --resolve-names=never /usr/lib/udev/rules.d/60-timevisor.rules"
            )?
            .contains("Success")
        );
        Ok(())
    }

    /// The units run; returns what systemd thinks of the agent's restrictions.
    fn units(&mut self) -> anyhow::Result<f64> {
        for unit in
            ["timevisor-guest", "timevisor-wait-sync", "db", "clock", "dev-ptp_vmclock.device"]
        {
            let line = format!("systemctl is-active {unit}; true");
            self.wait(unit, |lab| Ok(lab.guest.sh(&line)?.trim() == "active"))?;
        }
        let years = self.guest.sh("sort -u /run/years")?;
        ensure!(!years.contains("2020"), "db.service ran with a wrong clock: {years}");
        let text = self
            .guest
            .sh("systemd-analyze security timevisor-guest.service --no-pager | tail -n 1")?;
        let number = text.split(": ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let exposure: f64 = number.and_then(|word| word.parse().ok()).context(text.clone())?;
        ensure!(exposure <= EXPOSURE, "{text}");
        Ok(exposure)
    }

    fn held(&mut self) -> anyhow::Result<()> {
        let is_frozen = "grep -q 'frozen 1' /sys/fs/cgroup/system.slice/db.service/cgroup.events";
        let runs = "grep -q 'frozen 0' /sys/fs/cgroup/system.slice/db.service/cgroup.events";
        self.host.cli(&["vm", "notice", NAME, "imminent"])?;
        self.wait("it is held", |lab| lab.is_so(is_frozen))?;
        // Another process in another group of the same name, before it has read a clock for long.
        self.guest.sh("systemctl kill -s KILL db.service; systemctl restart db.service")?;
        self.wait("the new one is held", |lab| lab.is_so(is_frozen))?;
        // An agent that is killed leaves nothing frozen; systemd starts it again, and it holds again.
        self.guest.sh("kill -9 $(systemctl show -P MainPID timevisor-guest)")?;
        self.wait("another agent", |lab| {
            lab.is_so("systemctl is-active timevisor-guest && test $(systemctl show -P NRestarts timevisor-guest) = 1")
        })?;
        self.wait("the new agent holds it", |lab| lab.is_so(is_frozen))?;
        self.host.cli(&["vm", "notice", NAME, "none"])?;
        self.wait("it goes on", |lab| lab.is_so(runs))?;
        self.host.cli(&["vm", "notice", NAME, "imminent"])?;
        self.wait("it is held again", |lab| lab.is_so(is_frozen))?;
        self.guest.sh("systemctl stop timevisor-guest")?;
        self.wait("an agent that ends thaws it", |lab| lab.is_so(runs))?;
        mentions(&self.log()?, &["held: the host announces a disruption", "no longer held"])
    }

    fn log(&mut self) -> anyhow::Result<String> {
        self.guest.sh("journalctl --no-pager -o cat -u timevisor-guest")
    }

    fn is_so(&mut self, line: &str) -> anyhow::Result<bool> {
        Ok(self.guest.sh(&format!("({line}) >/dev/null 2>&1; echo $?"))?.trim() == "0")
    }

    fn wait(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let found = interrupt::poll_until(PATIENCE, || {
            std::thread::sleep(Duration::from_millis(100));
            Ok(is_so(self)?.then_some(()))
        })?;
        match found {
            Some(()) => Ok(()),
            None => {
                let units = self
                    .guest
                    .sh("systemctl --no-pager --failed; systemctl list-jobs --no-pager")?;
                bail!("in vain: {what}; {units}; the agent: {}", self.log()?)
            }
        }
    }
}
