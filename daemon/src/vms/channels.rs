//! The facts about VMs that timelines and reservations use: their names, their ports, whether their
//! pages can be read, and the threads of their vCPUs.

use std::io;
use std::os::unix::net::UnixStream;

use timevisor_audit::watch::Vm as Audited;
use timevisor_clock_page::{Counter, NotedBirth};
use timevisor_guests::entries::TimelineEntry;
use timevisor_guests::qemu::Qemu;
use timevisor_guests::transit::Transit;
use timevisor_guests::vcpus::Vcpu;
use timevisor_linux::process::Process;
use timevisor_linux::{descriptors, peer};
use timevisor_time::TimescaleId;
use timevisor_timelines::Scale;

use super::{RESERVED_DESCRIPTORS, Served, Vms};

impl Vms {
    /// The VMs that are served.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.served.iter().map(|served| served.vm.name.as_str())
    }

    /// The VMs that are served, as the audit log records them: by name and process.
    pub fn audited(&self) -> impl Iterator<Item = ((String, u32), Audited)> {
        self.served.iter().map(|served| {
            let state = match served.vm.transit() {
                Transit::Here => "here",
                Transit::Incoming => "incoming",
                Transit::Leaving(_) => "leaving",
                Transit::Left => "left",
                Transit::Failed(_) => "failed",
            };
            let key = (served.vm.name.clone(), served.vm.qemu.process.pid());
            (key, Audited { uid: served.user, state: state.to_owned() })
        })
    }

    /// The timescale of a VM's own clock.
    pub fn scale(&self, name: &str) -> Scale {
        match self.named(name).map(|served| served.vm.timescale()) {
            Some(TimescaleId::Utc) => Scale::Utc,
            _ => Scale::Tai,
        }
    }

    /// The process of a VM.
    pub fn process(&self, name: &str) -> Option<Process> {
        self.named(name).map(|served| served.vm.qemu.process)
    }

    /// The QEMU of a VM.
    pub fn qemu(&self, name: &str) -> Option<&Qemu> {
        self.named(name).map(|served| &served.vm.qemu)
    }

    /// Number of resets of a VM since it was found.
    pub fn resets(&self, name: &str) -> u64 {
        self.named(name).map_or(0, |served| served.resets)
    }

    /// Sets or clears the reason why a VM must not leave this host. While it is set, migrations
    /// that others start are cancelled, and so is one that is under way.
    pub fn hold(&mut self, name: &str, why: Option<&'static str>) {
        let served = self.served.iter_mut().find(|served| served.vm.name == name);
        let Some(served) = served.filter(|served| served.held != why) else { return };
        served.held = why;
        served.forbid_unsafe_move(&mut self.told);
    }

    /// Whether a VM is between two hosts.
    pub fn migrates(&self, name: &str) -> bool {
        self.named(name).is_some_and(|served| served.vm.transit().is_under_way())
    }

    /// Whether a VM runs on another host now.
    pub fn has_left(&self, name: &str) -> bool {
        self.named(name).is_some_and(|served| *served.vm.transit() == Transit::Left)
    }

    /// Stops a running VM, and resumes it at once.
    pub fn pause_for_a_moment(&mut self, name: &str) {
        let served = self.served.iter_mut().find(|served| served.vm.name == name);
        let Some(served) = served.filter(|served| served.vm.runs()) else { return };
        if let Some(monitor) = served.monitor.as_mut() {
            monitor.pause_for_a_moment();
        }
    }

    /// The threads of a VM's vCPUs; empty while they are unknown.
    ///
    /// # Errors
    /// When its threads cannot be read.
    pub fn vcpus(&self, name: &str) -> io::Result<Vec<Vcpu>> {
        self.named(name).map_or(Ok(Vec::new()), Served::vcpus)
    }

    /// Queries a VM's vCPUs again, because QEMU does not report when one is hot-plugged.
    pub fn ask_vcpus(&mut self, name: &str) {
        let served = self.served.iter_mut().find(|served| served.vm.name == name);
        if let Some(monitor) = served.and_then(|served| served.monitor.as_mut()) {
            monitor.ask_cpus();
        }
    }

    /// Whether the guest can read its page, that is, the relation of its counter to the host's is
    /// known.
    pub fn is_readable(&self, name: &str) -> bool {
        self.named(name).is_some_and(|served| served.vm.mapping().is_some())
    }

    /// The VMs on this host, except those that are still arriving.
    pub fn present(&self) -> impl Iterator<Item = &str> {
        let here = self.served.iter().filter(|served| *served.vm.transit() != Transit::Incoming);
        here.map(|served| served.vm.name.as_str())
    }

    /// A number that changes when a VM arrives, and with another VM of this name; and what its page says
    /// of its birth.
    pub fn birth(&self, name: &str) -> (u64, NotedBirth) {
        let of = |s: &Served| ((s.life << 32) + s.vm.arrivals(), s.vm.birth());
        self.named(name).map_or((0, NotedBirth::Nothing), of)
    }

    /// Notes on a VM's page when it was born.
    pub fn set_birth(&self, name: &str, birth: NotedBirth) {
        if let Some(served) = self.named(name) {
            served.vm.set_birth(birth);
        }
    }

    /// Whether no served VM has this process.
    pub fn pid_is_gone(&self, pid: u32) -> bool {
        !self.served.iter().any(|served| served.vm.qemu.process.pid() == pid)
    }

    /// The VM with this vsock context id; `None` also if two VMs claim it: the kernel gives it to
    /// one of them, and does not say to which.
    pub fn with_vsock(&self, cid: u32) -> Option<String> {
        let has = |served: &&Served| served.vm.qemu.command_line.vsock_cid == Some(cid);
        let mut claimants = self.served.iter().filter(has);
        let first = claimants.next()?;
        claimants.next().is_none().then(|| first.vm.name.clone())
    }

    /// Connects to the ports of VMs that are not yet `connected`. QEMU accepts a single client. The
    /// kernel tells whether the VM's process listens on the socket.
    pub fn connect_ports(&self, connected: impl Fn(u32) -> bool) -> Vec<(String, u32, UnixStream)> {
        let mut ports = Vec::new();
        for served in &self.served {
            let pid = served.vm.qemu.process.pid();
            if connected(pid) || !descriptors::are_free(RESERVED_DESCRIPTORS) {
                continue;
            }
            let vms = self.config.run_directory.join("vms");
            let usual = || vms.join(&served.vm.name).join("monitor/channel");
            let path = served.vm.qemu.command_line.channel.clone().unwrap_or_else(usual);
            let Ok(stream) = peer::connect(&path) else { continue };
            match peer::peer_pid(&stream) {
                Ok(listener) if listener == pid => {
                    ports.push((served.vm.name.clone(), pid, stream));
                }
                _ => tracing::debug!("VM {}: {} is not its own", served.vm.name, path.display()),
            }
        }
        ports
    }

    /// Sets the further entries of a VM's page, and the requirement on its clock.
    pub fn write_entries(
        &mut self,
        name: &str,
        required_ns: u64,
        entries: &[TimelineEntry],
        counter: &impl Counter,
    ) {
        if let Some(served) = self.served.iter_mut().find(|served| served.vm.name == name) {
            served.vm.publish_entries(required_ns, entries, counter);
        }
    }

    fn named(&self, name: &str) -> Option<&Served> {
        self.served.iter().find(|served| served.vm.name == name)
    }
}
