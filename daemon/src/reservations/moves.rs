//! Reservations of VMs that come from another host, or have gone to one.

use timevisor_protocols::control::{ErrorBody, ErrorCode};

use super::{Reservations, control};
use crate::vms::Vms;

impl Reservations {
    /// Makes what is configured for an incoming VM, before its migration is awaited.
    ///
    /// # Errors
    /// Why that cannot be made.
    pub fn admit(&mut self, vm: &str, vms: &Vms) -> Result<(), ErrorBody> {
        self.machine.admit(vm, &mut self.host, vms).map_err(|refusal| {
            let ErrorBody { code, message, next_step } = control::error(refusal);
            let code = if code == ErrorCode::MakingRoom { code } else { ErrorCode::NotReserved };
            let message = format!(
                "VM {vm} is not awaited here, because its configured reservation cannot be made: {message}"
            );
            ErrorBody { code, message, next_step }
        })
    }

    /// Does what VMs ask for that have arrived or left.
    pub fn follow_moves(&mut self, vms: &mut Vms) {
        let has_one = |vm: &str| self.machine.held().iter().any(|held| held.vm == vm);
        vms.note_reservations(self.machine.waiting(), has_one);
        let (gone, back) = vms.take_moves();
        for vm in gone {
            self.leave(vm, vms);
        }
        for vm in back {
            self.come_back(&vm, vms);
        }
    }

    fn leave(&mut self, vm: String, vms: &Vms) {
        // Another VM of that name may have left before.
        self.left.remove(&vm);
        let process = process(vms, &vm);
        let requests = self.machine.requests(&vm);
        // Most VMs have no reservation.
        let Ok(problems) = self.machine.release(Some(&vm), None, &mut self.host) else { return };
        tracing::info!("VM {vm} runs on another host: its reservation here is given back");
        for problem in problems {
            tracing::warn!("VM {vm}: {problem}");
        }
        self.left.retain(|vm, _| vms.process(vm).is_some());
        self.left.insert(vm, (process, requests));
    }

    fn come_back(&mut self, vm: &str, vms: &Vms) {
        let Some((process, requests)) = self.left.remove(vm) else { return };
        if process != self::process(vms, vm) {
            return;
        }
        self.machine.come_back(requests, &mut self.host, vms);
    }
}

/// Which process a VM is, also of one that has left: as the reservations' guest it is none then.
fn process(vms: &Vms, vm: &str) -> Option<(u32, u64)> {
    let process = vms.process(vm)?;
    Some((process.pid(), process.started()?))
}
