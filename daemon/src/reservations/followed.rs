//! Reservations that follow what introspection learns of a guest's tasks.

use timevisor_protocols::control::{ErrorCode, Promise, ReserveApply};
use timevisor_schedule::Reservation;

use super::{Problem, Reservations};
use crate::vms::Vms;

/// Its tasks are planned for one processor.
const VCPU: u32 = 0;

impl Reservations {
    /// Makes what a VM has be this, or nothing. What was reserved by hand, or is configured, stays as it is.
    pub fn follow_guest(
        &mut self,
        vm: &str,
        wanted: Option<&Reservation>,
        alone: bool,
        vms: &Vms,
    ) -> Result<(), Problem> {
        let index = self.held.iter().position(|held| held.vm == vm && held.vcpu == VCPU);
        let by_hand = index.is_some_and(|index| !self.held[index].followed);
        if by_hand && wanted.is_none() {
            return Ok(());
        }
        if by_hand {
            let text = "it has a reservation that was made by hand, or is configured".to_owned();
            return Err((ErrorCode::AlreadyExists, text, "release that first"));
        }
        let Some(wanted) = wanted else {
            let left = index.map(|index| self.give_back(index)).unwrap_or_default();
            return match left.is_empty() {
                true => Ok(()),
                false => Err((ErrorCode::Internal, left.join("; "), "bring it back by hand")),
            };
        };
        if vms.vcpus(vm).is_ok_and(|vcpus| vcpus.len() > 1) {
            let text = "its tasks may run on any of its vCPUs, and are planned for one".to_owned();
            return Err((ErrorCode::Unsupported, text, "give the guest one vCPU"));
        }
        let apply = ReserveApply {
            vm: vm.to_owned(),
            vcpu: VCPU,
            budget_ns: wanted.budget(),
            at_most_ns: None,
            deadline_ns: None,
            period_ns: wanted.period(),
            promise: Promise::Core,
            core: None,
            alone,
            dry_run: false,
        };
        self.try_apply(&apply, vms)?;
        if let Some(held) = self.held.iter_mut().find(|held| held.vm == vm && held.vcpu == VCPU) {
            held.followed = true;
            self.note();
        }
        Ok(())
    }
}
