//! What timelines and reservations need to know of VMs: who they are, where their ports are, whether their pages can be read, and
//! which threads run their vCPUs.

use std::io;
use std::os::unix::net::UnixStream;

use timevisor_clock_page::Counter;
use timevisor_estimate::Birth;
use timevisor_guests::entries::TimelineEntry;
use timevisor_guests::qemu::Qemu;
use timevisor_guests::transit::Transit;
use timevisor_guests::vcpus::Vcpu;
use timevisor_linux::peer;
use timevisor_linux::process::Process;
use timevisor_protocols::control::TimeType;
use timevisor_timelines::Scale;

use super::{Served, Vms};

impl Vms {
    /// The VMs that are served.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.served.iter().map(|served| served.vm.name.as_str())
    }

    /// The timescale of a VM's own clock.
    pub fn scale(&self, name: &str) -> Scale {
        match self.named(name).map(|served| served.time_type) {
            Some(TimeType::Utc) => Scale::Utc,
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

    /// How often a VM has been reset since it is known.
    pub fn resets(&self, name: &str) -> u64 {
        self.named(name).map_or(0, |served| served.resets)
    }

    /// Why a VM must not leave this host, or that it may: somebody else's migration is cancelled.
    pub fn hold(&mut self, name: &str, why: Option<&'static str>) {
        if let Some(served) = self.served.iter_mut().find(|served| served.vm.name == name) {
            served.held = why;
        }
    }

    /// Stops a VM that runs, and lets it go on at once.
    pub fn pause_for_a_moment(&mut self, name: &str) {
        let served = self.served.iter_mut().find(|served| served.vm.name == name);
        let Some(served) = served.filter(|served| served.vm.runs()) else { return };
        if let Some(monitor) = served.monitor.as_mut() {
            monitor.pause_for_a_moment();
        }
    }

    /// Which of a VM's threads runs which vCPU; empty: nobody says.
    ///
    /// # Errors
    /// When its threads cannot be read.
    pub fn vcpus(&self, name: &str) -> io::Result<Vec<Vcpu>> {
        self.named(name).map_or(Ok(Vec::new()), Served::vcpus)
    }

    /// Has a VM's monitor tell its vCPUs anew: QEMU does not say when one is plugged.
    pub fn ask_vcpus(&mut self, name: &str) {
        let served = self.served.iter_mut().find(|served| served.vm.name == name);
        if let Some(monitor) = served.and_then(|served| served.monitor.as_mut()) {
            let _ = monitor.ask_cpus();
        }
    }

    /// Whether what is published is read rightly in the guest: its counter's relation to the host's is known.
    pub fn is_readable(&self, name: &str) -> bool {
        self.named(name).is_some_and(|served| served.vm.mapping().is_some())
    }

    /// The VMs that are here: not those whose memory is still on its way.
    pub fn present(&self) -> impl Iterator<Item = &str> {
        let here = self.served.iter().filter(|served| *served.vm.transit() != Transit::Incoming);
        here.map(|served| served.vm.name.as_str())
    }

    /// How often a VM has arrived, and when it was born, as far as its page says.
    pub fn birth(&self, name: &str) -> (u64, Option<Birth>) {
        let Some(served) = self.named(name) else { return (0, None) };
        let birth = served.vm.birth().map(|(zero, within)| Birth { zero, within });
        (served.vm.arrivals(), birth)
    }

    /// Says on its page when a VM was born.
    pub fn set_birth(&self, name: &str, birth: &Birth) {
        if let Some(served) = self.named(name) {
            served.vm.set_birth(Some((birth.zero, birth.within)));
        }
    }

    /// No VM that is served has this process.
    pub fn pid_is_gone(&self, pid: u32) -> bool {
        !self.served.iter().any(|served| served.vm.qemu.process.pid() == pid)
    }

    /// The VM with this vsock context.
    pub fn with_vsock(&self, cid: u32) -> Option<String> {
        let has = |served: &&Served| served.vm.qemu.command_line.vsock_cid == Some(cid);
        self.served.iter().find(has).map(|served| served.vm.name.clone())
    }

    /// Connects to the ports of VMs that have one and are not `connected`. QEMU lets one client in, and the kernel says
    /// whether it is the VM's own process that listens.
    pub fn connect_ports(&self, connected: impl Fn(u32) -> bool) -> Vec<(String, u32, UnixStream)> {
        let mut ports = Vec::new();
        for served in &self.served {
            let pid = served.vm.qemu.process.pid();
            if connected(pid) {
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

    /// Makes the further entries of a VM's page be these, and says what is required of its own clock.
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
