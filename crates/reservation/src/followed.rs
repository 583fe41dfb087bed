//! Reservations that follow what introspection learns about a guest's tasks.

use timevisor_schedule::Reservation;

use crate::host::{Guests, Host};
use crate::machine::Reservations;
use crate::request::{Promise, Reason, Refusal, Request};

/// The vCPU whose reservation follows a guest's tasks, which are planned for one processor.
const FOLLOWED_VCPU: u32 = 0;

impl<C: Clone + PartialEq + std::fmt::Debug + std::fmt::Display> Reservations<C> {
    /// Sets the reservation of a VM's first vCPU to what introspection learned that its tasks need;
    /// with `None`, releases it. Reservations that were made by hand or configured stay unchanged.
    ///
    /// # Errors
    /// Why the reservation could not be changed.
    pub fn follow_guest<H: Host<Change = C>>(
        &mut self,
        vm: &str,
        wanted: Option<(&Reservation, bool)>,
        host: &mut H,
        guests: &impl Guests,
    ) -> Result<(), Refusal> {
        let index = self.book.find(vm, FOLLOWED_VCPU);
        let by_hand = index.is_some_and(|index| !self.book.held[index].followed);
        let Some((wanted, alone)) = wanted else {
            let index = index.filter(|_| !by_hand);
            let left = index.map(|index| self.book.give_back(index, host)).unwrap_or_default();
            if left.is_empty() {
                return Ok(());
            }
            return Err(Refusal::new(Reason::Internal, left.join("; "), "bring it back by hand"));
        };
        if by_hand {
            let text = "it has a reservation that was made by hand, or is configured".to_owned();
            return Err(Refusal::new(Reason::AlreadyExists, text, "release that first"));
        }
        if guests.vcpus(vm).is_some_and(|count| count > 1) {
            let text = "its tasks may run on any of its vCPUs, and are planned for one".to_owned();
            return Err(Refusal::new(Reason::Unsupported, text, "give the guest one vCPU"));
        }
        let request = Request {
            vm: vm.to_owned(),
            vcpu: FOLLOWED_VCPU,
            budget: wanted.budget(),
            at_most: None,
            deadline: None,
            period: wanted.period(),
            promise: Promise::Core,
            core: None,
            alone,
            dry_run: false,
        };
        self.try_apply(&request, host, guests)?;
        if let Some(index) = self.book.find(vm, FOLLOWED_VCPU) {
            self.book.held[index].followed = true;
            self.book.store(host);
        }
        Ok(())
    }
}
