//! `[[guests.vm.NAME.reserve]]`: made once for each start of the VM, so that whoever changes or releases it by hand has the last word
//! until then.

use timevisor_protocols::control::ReserveApply;

use super::Reservations;
use crate::vms::Vms;

pub(super) struct Configured {
    wanted: ReserveApply,
    /// QEMU's pid and start, see [`timevisor_guests::reservation::Held`].
    made_for: Option<(u32, u64)>,
    problem: Option<String>,
}

impl Configured {
    pub(super) fn new(wanted: ReserveApply) -> Self {
        Self { wanted, made_for: None, problem: None }
    }

    /// Why it is not made, with the VM's name.
    pub(super) fn problem(&self) -> Option<String> {
        let ReserveApply { vm, vcpu, .. } = &self.wanted;
        self.problem.as_ref().map(|why| format!("VM {vm} vCPU {vcpu}, as configured: {why}"))
    }
}

impl Reservations {
    /// Those whose VMs are there and have none yet; what fails is tried again.
    pub(super) fn make_configured(&mut self, vms: &Vms) {
        for index in 0..self.configured.len() {
            let Configured { wanted, made_for, .. } = &self.configured[index];
            let process = vms.process(&wanted.vm);
            let this = process.and_then(|qemu| Some((qemu.pid(), qemu.start_time().ok()?)));
            if this.is_none() {
                self.configured[index].problem = None;
                continue;
            }
            if *made_for == this {
                continue;
            }
            let wanted = wanted.clone();
            let problem = match self.try_apply(&wanted, vms) {
                Ok(_) => {
                    self.configured[index].made_for = this;
                    None
                }
                Err((_, text, step)) => Some(format!("{text}; {step}")),
            };
            let configured = &mut self.configured[index];
            if problem.is_some() && problem != configured.problem {
                tracing::warn!("VM {} vCPU {}: {problem:?}", wanted.vm, wanted.vcpu);
            }
            configured.problem = problem;
        }
    }
}
