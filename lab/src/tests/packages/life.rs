//! The life of the packages on one machine, in the order in which an operator lives it.

use anyhow::ensure;

use super::machine::Machine;
use crate::scenario::Context;

/// With the unit enabled that makes time-sync.target mean this clock, the order of everything that starts. Each starts
/// after the one before it is up.
const ORDER: &[&str] =
    &["chrony.service", "timevisord.service", "timevisord-wait-sync.service", "time-sync.target"];

pub(crate) fn bookworm(ctx: &Context) -> anyhow::Result<String> {
    life(&mut Machine::boot(ctx, "bookworm")?, to_the_top, |_| Ok(()))
}

pub(crate) fn trixie(ctx: &Context) -> anyhow::Result<String> {
    let mut machine = Machine::boot(ctx, "trixie")?;
    // Before anything of ours is installed: what the driver's own alias and udev do.
    machine.wait("the clock page's device", "test -c /dev/vmclock0")?;
    let said = life(&mut machine, needs_sys_admin, introspect)?;
    let beside = beside_a_host(&mut machine)?;
    Ok(format!("{said}; {beside}"))
}

/// Everything but the agent; `before` is done while a VM is there, and `with_vm` when it is reserved for.
fn life(
    machine: &mut Machine,
    before: impl Fn(&mut Machine) -> anyhow::Result<()>,
    with_vm: impl Fn(&mut Machine) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let installed = install(machine)?;
    machine.start_reader()?;
    reserve(machine, before)?;
    let restarted = kill(machine)?;
    let upgraded = upgrade(machine)?;
    with_vm(machine)?;
    released(machine)?;
    ordered(machine)?;
    purge(machine)?;
    Ok(format!(
        "booted in {:.0} s; {installed}; reserved under the shipped unit and AppArmor; kill -9: {restarted} reads, upgrade: \
         {upgraded} reads, none back, one page throughout; order of start; purged",
        machine.booted.as_secs_f64()
    ))
}

/// From the package to a synchronized page, with nothing configured.
fn install(machine: &mut Machine) -> anyhow::Result<String> {
    let began = machine.uptime()?;
    machine.sh("apt-get install -y /mnt/first/timevisor_*.deb /mnt/first/timevisor-bus_*.deb /mnt/first/libtimevisor*.deb")?;
    let unpacked = machine.uptime()?;
    machine.sh("timevisor wait-sync --timeout 5m")?;
    let synchronized = machine.uptime()?;
    machine.sh("systemctl is-active timevisord timevisor-bus")?;
    machine.sh("systemctl is-enabled timevisord timevisor-bus")?;
    let off = machine.sh("systemctl is-enabled timevisord-wait-sync; true")?;
    ensure!(off == "disabled", "timevisord-wait-sync is {off}");
    let verified = machine.sh("dpkg -V timevisor timevisor-bus libtimevisor0 libtimevisor-dev")?;
    ensure!(verified.is_empty(), "dpkg -V: {verified}");
    machine.sh("getent group timevisor && getent passwd timevisor-bus")?;
    machine.sh("systemd-analyze verify --man=no timevisord.service timevisor-bus.service timevisord-wait-sync.service")?;
    machine.sh("man -w timevisor && man -w timevisor-reserve-apply && man -w timevisord && man -w timevisor-bus")?;
    machine.sh("bash -n /usr/share/bash-completion/completions/timevisor")?;
    machine.sh("ldconfig -p | grep -q libtimevisor.so.0")?;
    let confined = machine.sh("cat /proc/$(systemctl show -P MainPID timevisord)/attr/current")?;
    ensure!(confined == "timevisord (enforce)", "AppArmor: {confined}");
    Ok(format!(
        "package to a synchronized page {:.1} s, of which {:.1} s after the installation",
        synchronized - began,
        synchronized - unpacked
    ))
}

/// A VM of this machine, a service in its own cgroup, reserved for after the one documented command.
fn reserve(
    machine: &mut Machine,
    before: impl Fn(&mut Machine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    machine.sh(
        "install -d /etc/systemd/system/timevisord.service.d; \
                ln -s /usr/share/timevisor/reservations.conf /etc/systemd/system/timevisord.service.d/; \
                systemctl daemon-reload; systemctl restart timevisord",
    )?;
    machine.sh("timevisor wait-sync --timeout 5m")?;
    // Only the machine that introspects has a plugin.
    let plugin = "$(test ! -e /mnt/libtimevisor-introspect.so || echo -plugin /mnt/libtimevisor-introspect.so,socket=/run/web.introspect)";
    machine.sh(&format!(
        "{{ echo \"exec qemu-system-x86_64 -accel tcg -name web,debug-threads=on -nodefaults -no-user-config -display none \
         -machine q35 -kernel /mnt/vmlinuz -initrd /mnt/nested.cpio -append 'panic=-1 tsc=reliable -- 20 100' {plugin} \\\\\"; \
         timevisor vm args --name web --memory 128 2>/dev/null; }} >/run/web.sh"
    ))?;
    machine.sh("systemd-run --unit=web --collect /bin/sh /run/web.sh")?;
    machine.wait("the VM is served", "timevisor vm list | grep -E '^web .*synchronized'")?;
    before(machine)?;
    machine.wait(
        "a reservation",
        "timevisor reserve apply web --budget 40ms/50ms --alone || { sleep 2; false; }",
    )?;
    // The kernel's own word: one thread under SCHED_DEADLINE (policy 6, field 41; a thread's name has spaces).
    machine.wait("it is in force", "test $(sed 's/.*) //' /proc/$(pidof qemu-system-x86_64)/task/*/stat | cut -d ' ' -f 39 | grep -c 6) = 1")?;
    let refused = machine.refused()?;
    ensure!(refused.is_empty(), "AppArmor refused: {refused}");
    Ok(())
}

/// Debian 12's kernel sets processors apart at the top of the cgroup tree only, and timevisord says so.
fn to_the_top(machine: &mut Machine) -> anyhow::Result<()> {
    let apply = "timevisor reserve apply web --budget 40ms/50ms --alone 2>&1 || echo LAB-REFUSED";
    let said = machine.sh(apply)?;
    ensure!(said.contains("LAB-REFUSED") && said.contains("Linux 6.7"), "{said}");
    machine.sh("echo $(pidof qemu-system-x86_64) >/sys/fs/cgroup/cgroup.procs").map(drop)
}

/// What reservations.conf says of CAP_SYS_ADMIN: the kernel asks for it where a partition is below another group, and not
/// at the top.
fn needs_sys_admin(machine: &mut Machine) -> anyhow::Result<()> {
    let partition = |rights: &str, group: &str| {
        format!(
            "cd /sys/fs/cgroup; echo +cpuset >cgroup.subtree_control; mkdir -p lab-top/below; \
             echo +cpuset >lab-top/cgroup.subtree_control; \
             for of in lab-top $(test {group} = lab-top || echo {group}); do echo 1 >$of/cpuset.cpus.exclusive; done; \
             echo 1 >{group}/cpuset.cpus; {rights} sh -c 'echo root >{group}/cpuset.cpus.partition'; \
             cat {group}/cpuset.cpus.partition; echo member >{group}/cpuset.cpus.partition; rmdir lab-top/below lab-top"
        )
    };
    let without = "setpriv --bounding-set=-sys_admin";
    for (rights, group, valid) in
        [(without, "lab-top", true), (without, "lab-top/below", false), ("", "lab-top/below", true)]
    {
        let said = machine.sh(&partition(rights, group))?;
        ensure!((said == "root") == valid, "{group}, {rights:?}: {said}");
    }
    Ok(())
}

/// The VM's one real-time task, 20 ms of every 100, as its kernel has it.
fn introspect(machine: &mut Machine) -> anyhow::Result<()> {
    machine.sh("timevisor introspect attach web")?;
    machine.wait("the VM's task", "timevisor introspect list --json | grep -q 20000000")?;
    machine.sh("timevisor introspect detach web")?;
    let refused = machine.refused()?;
    ensure!(refused.is_empty(), "AppArmor refused while introspecting: {refused}");
    Ok(())
}

/// The same page goes on: what the reader has mapped, with a greater sequence.
fn same_page(machine: &mut Machine, before: (u64, u64), what: &str) -> anyhow::Result<()> {
    let after = machine.page()?;
    ensure!(after.0 == before.0, "{what}: the page is another file: {before:?}, {after:?}");
    ensure!(after.1 > before.1, "{what}: the page's sequence: {before:?}, {after:?}");
    Ok(())
}

fn kill(machine: &mut Machine) -> anyhow::Result<u64> {
    let before = machine.page()?;
    machine.sh("kill -9 $(systemctl show -P MainPID timevisord)")?;
    machine.wait(
        "systemd starts it again",
        "test $(systemctl show -P NRestarts timevisord) = 1 && systemctl -q is-active timevisord",
    )?;
    machine.sh("timevisor wait-sync --timeout 5m")?;
    same_page(machine, before, "kill -9")?;
    machine.wait("the VM is served again", "timevisor vm list | grep -E '^web .*synchronized'")?;
    machine.wait("the reservation goes on", "timevisor reserve list | grep -q web")?;
    machine.read_throughout("kill -9")
}

fn upgrade(machine: &mut Machine) -> anyhow::Result<u64> {
    let before = machine.page()?;
    let daemon = "systemctl show -P MainPID timevisord";
    let old = machine.sh(daemon)?;
    // The operator's words in a configuration stay.
    machine.sh("echo '# ours' >>/etc/timevisor/timevisord.toml")?;
    machine
        .sh("apt-get install -y -o Dpkg::Options::=--force-confold /mnt/second/timevisor_*.deb")?;
    let version = machine.sh("dpkg-query -W -f '${Version}' timevisor")?;
    ensure!(version == "0.1.0+next", "{version}");
    machine.sh("grep -q '^# ours' /etc/timevisor/timevisord.toml")?;
    let new = machine.sh(daemon)?;
    ensure!(new != old && new != "0", "the daemon was not restarted: {old}, {new}");
    machine.sh("timevisor wait-sync --timeout 5m")?;
    same_page(machine, before, "upgrade")?;
    machine.wait("the VM is served again", "timevisor vm list | grep -E '^web .*synchronized'")?;
    machine.wait("the reservation goes on", "timevisor reserve list | grep -q web")?;
    machine.read_throughout("upgrade")
}

/// Removing the package gives everything back to a VM that runs on.
fn released(machine: &mut Machine) -> anyhow::Result<()> {
    machine.sh("systemctl stop reader")?;
    machine.sh("apt-get remove -y timevisor")?;
    machine.sh("systemctl is-active web")?;
    let policies = machine.sh(
        "sed 's/.*) //' /proc/$(pidof qemu-system-x86_64)/task/*/stat | cut -d ' ' -f 39 | sort -u",
    )?;
    ensure!(policies == "0", "scheduling policies of QEMU's threads after the removal: {policies}");
    let left = machine.sh(
        "pidof timevisord; find /sys/fs/cgroup -name '*timevisor*' ! -path '*timevisor-bus*'; \
                           grep -L '^member' $(find /sys/fs/cgroup -name cpuset.cpus.partition)",
    )?;
    ensure!(left.is_empty(), "left after the removal: {left}");
    machine.sh("systemctl stop web")?;
    machine.sh("apt-get install -y /mnt/second/timevisor_*.deb")?;
    machine.sh("timevisor wait-sync --timeout 5m").map(drop)
}

/// What starts when, after a boot of the machine.
fn ordered(machine: &mut Machine) -> anyhow::Result<()> {
    machine.sh("systemctl enable timevisord-wait-sync.service")?;
    machine.reboot()?;
    // libvirtd ends by itself after two idle minutes.
    machine.wait("the boot ends", "systemctl is-active multi-user.target timevisord-wait-sync")?;
    let mut last = 0;
    for unit in ORDER {
        let began = if unit.ends_with(".target") { "ActiveEnter" } else { "InactiveExit" };
        let began = machine.moment(unit, &format!("{began}TimestampMonotonic"))?;
        ensure!(
            began >= last,
            "{unit} started at {began} us, before its predecessor was up at {last} us"
        );
        last = machine.moment(unit, "ActiveEnterTimestampMonotonic")?;
    }
    let host = machine.moment("timevisord.service", "ActiveEnterTimestampMonotonic")?;
    let libvirt = machine.moment("libvirtd.service", "InactiveExitTimestampMonotonic")?;
    ensure!(libvirt >= host, "libvirtd started at {libvirt} us, timevisord was up at {host} us");
    let cycles =
        machine.sh("journalctl -b --no-pager -o cat | grep -i 'ordering cycle' || true")?;
    ensure!(cycles.is_empty(), "{cycles}");
    // What was prepared before the boot is there before libvirt starts VMs.
    machine.sh("test -e /run/timevisor/vms/web/page && timevisor status --json >/run/status")?;
    let refused = machine.refused()?;
    ensure!(refused.is_empty(), "AppArmor refused after the boot: {refused}");
    Ok(())
}

fn purge(machine: &mut Machine) -> anyhow::Result<()> {
    machine.sh("apt-get purge -y timevisor timevisor-bus libtimevisor0 libtimevisor-dev")?;
    // The group and the bus's user stay, as Debian's policy advises.
    let left = machine.sh(
        "pidof timevisord timevisor-bus; systemctl list-unit-files --no-legend 'timevisor*'; \
         find / -xdev '(' -name '*timevisor*' -o -path '*/run/timevisor*' ')' ! -path '/mnt/*' ! -path '/proc/*' \
         ! -path '/var/log/*' ! -path '/var/lib/dpkg/*' ! -path '/var/cache/*'; ls -d /run/timevisor* 2>/dev/null; \
         find /sys/fs/cgroup -name '*timevisor*'; true",
    )?;
    ensure!(left.is_empty(), "left after the purge: {left}");
    let loaded = machine.sh("systemctl list-units --failed --no-legend 'timevisor*'; true")?;
    ensure!(loaded.is_empty(), "failed units after the purge: {loaded}");
    Ok(())
}

/// timevisor-guest on a machine that is itself a host, and alone.
fn beside_a_host(machine: &mut Machine) -> anyhow::Result<String> {
    machine.sh("apt-get install -y /mnt/first/timevisor_*.deb")?;
    machine.sh("timevisor wait-sync --timeout 5m")?;
    machine.sh("apt-get install -y /mnt/first/timevisor-guest_*.deb")?;
    machine.wait("both run", "systemctl is-active timevisord timevisor-guest")?;
    let log = machine.sh("journalctl -b -u timevisor-guest -o cat --no-pager")?;
    ensure!(log.contains("this agent shares no channel"), "{log}");
    // No PTP clock: the driver makes one only of a page that names its counter, and nobody serves this one.
    machine.sh("test $(stat -c %a /dev/vmclock0) = 444")?;
    machine.sh("apt-get purge -y timevisor")?;
    machine.sh("systemctl restart timevisor-guest")?;
    let confined =
        machine.sh("cat /proc/$(systemctl show -P MainPID timevisor-guest)/attr/current")?;
    ensure!(confined == "timevisor-guest (enforce)", "AppArmor: {confined}");
    machine.sh("test -S /run/timevisor/timelines")?;
    let refused = machine.refused()?;
    ensure!(refused.is_empty(), "AppArmor refused: {refused}");
    machine.sh("apt-get purge -y timevisor-guest")?;
    let left = machine.sh("pidof timevisor-guest; ls -d /run/timevisor 2>/dev/null; true")?;
    ensure!(left.is_empty(), "left after the agent's purge: {left}");
    Ok("timevisor-guest beside timevisord, and alone".to_owned())
}
