//! Reservations that follow what introspection learns about a guest's tasks.

use std::collections::BTreeSet;
use std::ops::Range;

use timevisor_schedule::Reservation;

use crate::held::Held;
use crate::host::{Guests, Host};
use crate::machine::Reservations;
use crate::request::{Promise, Reason, Refusal, Request};

/// Where a guest runs the tasks that its reservations follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Followed {
    /// On its only vCPU.
    #[default]
    Only,
    /// On this one of several; the guest keeps them there.
    One(u32),
    /// On any of so many: all that it has.
    AnyOf(u32),
}

impl Followed {
    fn vcpus(self) -> Range<u32> {
        match self {
            Self::Only => 0..1,
            Self::One(vcpu) => vcpu..vcpu.saturating_add(1),
            Self::AnyOf(count) => 0..count,
        }
    }
}

impl<C: Clone + PartialEq + std::fmt::Debug + std::fmt::Display> Reservations<C> {
    /// Whether each vCPU on which a VM's tasks may run has a reservation, one that follows them or another.
    #[must_use]
    pub fn serves(&self, vm: &str, on: Followed) -> bool {
        on.vcpus().all(|vcpu| self.book.find(vm, vcpu).is_some())
    }

    /// The VMs whose guests' tasks a reservation follows, of the vCPUs that a user means.
    #[must_use]
    pub fn followed_vms(&self, vm: Option<&str>, vcpu: Option<u32>) -> BTreeSet<String> {
        let is_meant = |held: &&Held<C>| {
            vm.is_none_or(|vm| *vm == held.vm) && vcpu.is_none_or(|vcpu| vcpu == held.vcpu)
        };
        let followed = self.book.held.iter().filter(|held| held.followed);
        followed.filter(is_meant).map(|held| held.vm.clone()).collect()
    }

    /// Sets the reservation of each vCPU on which a VM's tasks may run to what introspection learned
    /// that they need; with `None`, releases them. Reservations that were made by hand or configured
    /// stay unchanged. Where one vCPU's is refused, the others are as before.
    ///
    /// # Errors
    /// Why the reservations could not be changed.
    pub fn follow_guest<H: Host<Change = C>>(
        &mut self,
        vm: &str,
        wanted: Option<(&Reservation, bool)>,
        on: Followed,
        host: &mut H,
        guests: &impl Guests,
    ) -> Result<(), Refusal> {
        let Some((wanted, alone)) = wanted else { return self.end_following(vm, host) };
        let vcpus = on.vcpus();
        let by_hand = |vcpu| self.book.find(vm, vcpu).is_some_and(|i| !self.book.held[i].followed);
        if vcpus.clone().any(by_hand) {
            let text = "it has a reservation that was made by hand, or is configured".to_owned();
            return Err(Refusal::new(Reason::AlreadyExists, text, "release that first"));
        }
        count_is_planned(on, guests.vcpus(vm))?;
        let mut done: Vec<(u32, Option<Request>)> = Vec::new();
        for vcpu in vcpus {
            let request = |of: &Reservation, alone: bool| Request {
                vm: vm.to_owned(),
                vcpu,
                budget: of.budget(),
                at_most: None,
                deadline: None,
                period: of.period(),
                promise: Promise::Core,
                core: None,
                alone,
                dry_run: false,
            };
            let before = self.book.find(vm, vcpu).map(|index| &self.book.held[index]);
            let before = before.and_then(|held| Some(request(&held.reservation()?, held.alone)));
            if let Err(refusal) = self.try_apply(&request(wanted, alone), host, guests) {
                return Err(self.as_before(vm, done, refusal, host, guests));
            }
            self.mark_followed(vm, vcpu, host);
            done.push((vcpu, before));
        }
        Ok(())
    }

    /// Undoes what was done for other vCPUs before one was refused.
    fn as_before<H: Host<Change = C>>(
        &mut self,
        vm: &str,
        done: Vec<(u32, Option<Request>)>,
        mut refusal: Refusal,
        host: &mut H,
        guests: &impl Guests,
    ) -> Refusal {
        for (vcpu, before) in done.into_iter().rev() {
            let left = match before {
                Some(request) => {
                    let failed = self.try_apply(&request, host, guests).err();
                    self.mark_followed(vm, vcpu, host);
                    failed.map(|failed| failed.message).into_iter().collect()
                }
                None => self.give_back_followed(vm, vcpu, host),
            };
            for text in left {
                refusal.message =
                    format!("{}; vCPU {vcpu} is not as before: {text}", refusal.message);
            }
        }
        refusal
    }

    fn mark_followed<H: Host<Change = C>>(&mut self, vm: &str, vcpu: u32, host: &mut H) {
        if let Some(index) = self.book.find(vm, vcpu) {
            self.book.held[index].followed = true;
            self.book.store(host);
        }
    }

    fn give_back_followed<H: Host<Change = C>>(
        &mut self,
        vm: &str,
        vcpu: u32,
        host: &mut H,
    ) -> Vec<String> {
        let index = self.book.find(vm, vcpu).filter(|index| self.book.held[*index].followed);
        index.map(|index| self.book.give_back(index, host)).unwrap_or_default()
    }

    fn end_following<H: Host<Change = C>>(
        &mut self,
        vm: &str,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let followed = self.book.held.iter().filter(|held| held.vm == vm && held.followed);
        let vcpus: Vec<u32> = followed.map(|held| held.vcpu).collect();
        let left: Vec<String> =
            vcpus.into_iter().flat_map(|vcpu| self.give_back_followed(vm, vcpu, host)).collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(Refusal::new(Reason::Internal, left.join("; "), "bring it back by hand"))
    }
}

/// Whether a plan for these vCPUs is one for the VM. A count that is not known is found wrong, or
/// right, when the vCPUs are looked for.
fn count_is_planned(on: Followed, count: Option<usize>) -> Result<(), Refusal> {
    let Some(count) = count else { return Ok(()) };
    match on {
        Followed::Only if count > 1 => {
            let text =
                format!("its tasks may run on any of its {count} vCPUs, and are planned for one");
            let step = "say where they run: attach with --vcpus, or --vcpu if the guest keeps them on one; or give the guest one vCPU";
            Err(Refusal::new(Reason::Unsupported, text, step))
        }
        Followed::AnyOf(planned) if usize::try_from(planned) != Ok(count) => {
            let text = format!("it has {count} vCPUs, and its tasks are planned for {planned}");
            Err(Refusal::new(Reason::Unsupported, text, "attach again, with --vcpus as it is"))
        }
        _ => Ok(()),
    }
}
