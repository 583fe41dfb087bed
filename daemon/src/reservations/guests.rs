//! The daemon's VMs as the guests of the reservation state machine.

use timevisor_guests::vcpus::Vcpu;
use timevisor_reservation::{Guests, Reason, Refusal, Target};

use crate::vms::Vms;

impl Guests for Vms {
    fn process(&self, vm: &str) -> Option<(u32, u64)> {
        let process = Vms::process(self, vm).filter(|_| !self.has_left(vm))?;
        Some((process.pid(), process.started()?))
    }

    fn vcpu(&self, vm: &str, vcpu: u32) -> Result<Target, Refusal> {
        let not_found = |text: String, step| Refusal::new(Reason::NotFound, text, step);
        if self.has_left(vm) {
            let text = format!("VM {vm} has left this host");
            return Err(not_found(text, "reserve where it runs now"));
        }
        let (pid, start_time) = Guests::process(self, vm)
            .ok_or_else(|| not_found(format!("there is no VM {vm}"), "see `timevisor vm list`"))?;
        let gone = |error: &dyn std::error::Error| {
            not_found(format!("VM {vm}: {error}"), "is it running?")
        };
        let vcpus = Vms::vcpus(self, vm).map_err(|error| gone(&error))?;
        if vcpus.is_empty() {
            let text = format!(
                "which thread runs which vCPU of VM {vm} is not known: they have no names, and no QMP socket tells"
            );
            let step =
                "start QEMU with -name NAME,debug-threads=on, or see `timevisor vm add --qmp`";
            return Err(Refusal::new(Reason::Unsupported, text, step));
        }
        let found = vcpus.iter().find(|known| known.index.unwrap_or(vcpu) == vcpu);
        let Some(Vcpu { tid, emulated, .. }) = found.copied() else {
            let text = format!("VM {vm} has no vCPU {vcpu}; it has {}", vcpus.len());
            return Err(not_found(text, "count from 0"));
        };
        Ok(Target { pid, start_time, tid, emulated })
    }

    fn vcpus(&self, vm: &str) -> Option<usize> {
        Vms::vcpus(self, vm).ok().map(|vcpus| vcpus.len())
    }
}
