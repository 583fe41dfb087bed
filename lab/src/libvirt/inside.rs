//! A libvirtd on a host inside a guest ([`NestedHost`]): real KVM, cgroup v2, and domains in the
//! slice where systemd puts them.
//!
//! There is no systemd: a shell creates its slices, and libvirtd creates a domain's cgroups itself,
//! `machine.slice/qemu-1-NAME.libvirt-qemu` with the threaded `emulator` and `vcpu0`. (Under
//! systemd the first is `machine-qemu\x2d1\x2dNAME.scope/libvirt`.)

use std::path::Path;

use anyhow::Context as _;

use crate::image::Image;
use crate::nested::{self, GUEST_MIB, NestedHost};
use crate::scenario::Context;

const PROGRAMS: [&str; 2] = ["/usr/sbin/libvirtd", "/usr/bin/virsh"];
const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so";
const CPU_MAP: &str = "/usr/share/libvirt/cpu_map";
const LIBVIRTD: &str = "auth_unix_ro = \"none\"\nauth_unix_rw = \"none\"\nlog_outputs = \"3:stderr\"\n\
                        host_uuid = \"11111111-2222-4333-8444-000000000001\"\n";
/// The inner host has only one user, and how libvirt handles file ownership is not under test.
const QEMU: &str = "user = \"+0\"\ngroup = \"+0\"\nsecurity_driver = \"none\"\nstdio_handler = \"file\"\nnamespaces = []\n\
                    remember_owner = 0\ndynamic_ownership = 0\n";
/// Debian's libvirt looks up its default user before it reads which user to use.
const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:64055:103::/:/bin/sh\n";
const GROUPS: &str = "root:x:0:\nkvm:x:103:\nlibvirt-qemu:x:64055:\n";

/// The slices as systemd creates them; running processes go into their own slice.
const SLICES: &str = "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; mkdir init.scope system.slice machine.slice; \
                      for p in $(cat cgroup.procs); do echo $p >init.scope/cgroup.procs 2>/dev/null; done; \
                      echo +cpuset +cpu +memory +pids >cgroup.subtree_control; \
                      echo +cpuset +cpu +memory +pids >machine.slice/cgroup.subtree_control; \
                      mkdir system.slice/libvirtd.service";
const START: &str = "mkdir -p /usr/share /var/lib /var/cache /var/log /root; ln -s /lab/firmware /usr/share/qemu; ln -s /run /var/run; \
                     sh -c \"echo \\$\\$ >/sys/fs/cgroup/system.slice/libvirtd.service/cgroup.procs; exec libvirtd\" \
                     >/run/libvirtd.log 2>&1 &";

/// Adds libvirt to a host's image.
///
/// # Errors
/// When it is not installed here.
pub fn with_libvirt(ctx: &Context, mut image: Image) -> anyhow::Result<Image> {
    for program in PROGRAMS {
        image = image.dynamic_program(Path::new(program))?;
    }
    for library in nested::libraries(Path::new(DRIVER))? {
        image = image.file(library.clone(), &library.to_string_lossy(), 0o755);
    }
    image = image.file(DRIVER, DRIVER, 0o755);
    for entry in std::fs::read_dir(CPU_MAP).context("is libvirt-daemon installed?")? {
        let path = entry?.path();
        image = image.file(path.clone(), &path.to_string_lossy(), 0o644);
    }
    let files = [
        ("libvirtd.conf", LIBVIRTD, "/etc/libvirt/libvirtd.conf"),
        ("qemu.conf", QEMU, "/etc/libvirt/qemu.conf"),
        ("passwd", USERS, "/etc/passwd"),
        ("group", GROUPS, "/etc/group"),
    ];
    for (name, text, to) in files {
        image = image.file(nested::write(ctx, name, text)?, to, 0o644);
    }
    Ok(image)
}

/// Creates systemd's slices and starts libvirtd.
///
/// # Errors
/// When it does not answer.
pub fn start(host: &mut NestedHost) -> anyhow::Result<()> {
    host.sh(SLICES)?;
    host.sh(START)?;
    host.wait("libvirtd", |host| host.sh("virsh list").map(|_| true))
}

/// Starts a domain under KVM with what `timevisor vm args` prints. Its console is
/// /run/NAME-serial.log, and its port for [`NestedHost::inner_sh`] is /run/NAME.lab.
///
/// # Errors
/// When libvirt refuses the domain.
pub fn create(host: &mut NestedHost, name: &str) -> anyhow::Result<()> {
    let uuid = super::uuid(name);
    let text = format!(
        "<domain type=\"kvm\" xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\"><name>{name}</name><uuid>{uuid}</uuid>\
         <memory unit=\"MiB\">{GUEST_MIB}</memory><resource><partition>/machine.slice</partition></resource>\
         <os><type arch=\"x86_64\" machine=\"q35\">hvm</type><kernel>/lab/inner/kernel</kernel><initrd>/lab/inner/initramfs</initrd>\
         <cmdline>console=ttyS0 panic=-1 quiet tsc=reliable</cmdline></os><features><acpi/></features>\
         <cpu mode=\"host-passthrough\"/><devices><emulator>/bin/qemu-system-x86_64</emulator>\
         <controller type=\"usb\" model=\"none\"/><memballoon model=\"none\"/>\
         <serial type=\"file\"><source path=\"/run/{name}-serial.log\"/></serial>\
         <channel type=\"unix\"><source mode=\"bind\" path=\"/run/{name}.lab\"/>\
         <target type=\"virtio\" name=\"org.timevisor.lab\"/></channel></devices>"
    );
    host.sh(&format!(
        "(echo '{text}'; timevisor vm args --name {name} --memory {GUEST_MIB} --delivery nvdimm --format libvirt --user root; \
         echo '</domain>') >/run/{name}.xml"
    ))?;
    host.sh(&format!("virsh create /run/{name}.xml >/run/{name}-virsh.log 2>&1 &"))?;
    host.wait("the domain to run and to be found", |host| {
        let state = host.sh(&format!("virsh domstate {name}"))?;
        Ok(state.trim() == "running" && host.vm(name).is_ok())
    })
}
