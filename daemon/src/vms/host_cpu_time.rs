//! Publishes the processor time of each vCPU on its VM's page.

use std::io;

use timevisor_clock_page::{Counter, Sample};
use timevisor_guests::qemu::Accelerator;
use timevisor_guests::vcpus::{self, Vcpu};
use timevisor_linux::scheduling::{accounting_lag, schedstat, threads};
use timevisor_time::Duration;

use super::monitor::Monitor;
use super::{Served, Vms};
use crate::clock::HostClock;

/// Time between two samples; a reader's bounds are as wide as the time since the last sample.
const INTERVAL: Duration = Duration::from_millis(100);
/// Number of samples between two look-ups of a VM's threads, which seldom change.
const LOOK_AGAIN: u32 = 10;

/// The vCPU threads of one VM.
#[derive(Default)]
pub(super) struct Threads {
    vcpus: Vec<Vcpu>,
    /// Samples until the threads are looked up again.
    left: u32,
}

/// When the next sample is due, and the threads of all VMs.
pub(super) struct Sampler {
    pub(super) next: Duration,
    lag_ns: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { next: Duration::ZERO, lag_ns: accounting_lag() }
    }
}

impl Vms {
    /// Samples every VM whose page can be read, if a sample is due.
    pub(super) fn sample_host_cpu_time(&mut self, now: Duration, clock: &HostClock) {
        if now < self.sampler.next {
            return;
        }
        self.sampler.next = now + INTERVAL;
        for served in self.served.iter_mut().filter(|served| served.vm.mapping().is_some()) {
            served.sample_host_cpu_time(self.sampler.lag_ns, clock);
        }
    }
}

impl Served {
    /// The threads of the VM's vCPUs, identified by name or else by the monitor; empty if neither
    /// identifies them.
    pub(super) fn vcpus(&self) -> io::Result<Vec<Vcpu>> {
        let qemu = &self.vm.qemu;
        let all = threads(qemu.process.pid())?;
        let named = vcpus::named(&all);
        let cpus = self.monitor.as_ref().map(Monitor::cpus).unwrap_or_default();
        let told = vcpus::told(&all, cpus, qemu.accelerator == Accelerator::Tcg);
        Ok(if named.is_empty() { told } else { vcpus::one_each(named, &told) })
    }

    fn sample_host_cpu_time(&mut self, lag_ns: u64, clock: &HostClock) {
        if self.threads.left == 0 {
            self.threads.vcpus = self.vcpus().unwrap_or_default();
            self.threads.left = LOOK_AGAIN;
        }
        self.threads.left -= 1;
        let pid = self.vm.qemu.process.pid();
        let base = clock.counter.read_ordered();
        let mut ran_ns = Vec::new();
        for vcpu in &self.threads.vcpus {
            // The time of a thread that runs several vCPUs cannot be attributed to any of them.
            let Some(index) = vcpu.index.and_then(|index| usize::try_from(index).ok()) else {
                continue;
            };
            // The page has no room for this vCPU.
            if index >= timevisor_clock_page::abi::vcpus::CAPACITY {
                continue;
            }
            if ran_ns.len() <= index {
                ran_ns.resize(index + 1, None);
            }
            ran_ns[index] = schedstat(pid, vcpu.tid).ok().map(|stat| stat.ran);
        }
        self.vm.write_host_cpu_time(&Sample { base, lag_ns, ran_ns: &ran_ns });
    }
}
