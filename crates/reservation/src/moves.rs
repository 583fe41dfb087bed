//! Reservations of VMs that come from another host, or have gone to one.
//!
//! An incoming VM is admitted before its migration is awaited, and its reservation is in force before it
//! runs. The source keeps its reservation until the VM has left for good.

use crate::book::Book;
use crate::configured::Configured;
use crate::host::{Guests, Host, Severity};
use crate::machine::Reservations;
use crate::request::{Promise, Reason, Refusal, Request};
use crate::{Guarantee, Held};

impl<C: Clone + PartialEq + std::fmt::Debug + std::fmt::Display> Reservations<C> {
    /// Makes what is configured for a VM now, and not at the next look: all of it or nothing.
    ///
    /// # Errors
    /// Why one of them cannot be made.
    pub fn admit<H: Host<Change = C>>(
        &mut self,
        vm: &str,
        host: &mut H,
        guests: &impl Guests,
    ) -> Result<(), Refusal> {
        let process = guests.process(vm);
        let mut made = Vec::new();
        for index in 0..self.configured.len() {
            let configured = &self.configured[index];
            if configured.request.vm != vm || !configured.is_due(process) {
                continue;
            }
            let request = configured.request.clone();
            if let Err(refusal) = self.try_apply(&request, host, guests) {
                self.configured[index].refused = Some(refusal.to_string());
                for index in made {
                    self.unmake(index, host);
                }
                return Err(refusal);
            }
            let configured = &mut self.configured[index];
            (configured.made_for, configured.refused) = (process, None);
            made.push(index);
        }
        Ok(())
    }

    /// Gives a configured reservation back, to be made at a later look.
    fn unmake<H: Host<Change = C>>(&mut self, index: usize, host: &mut H) {
        let Configured { request, made_for, .. } = &mut self.configured[index];
        *made_for = None;
        if let Some(held) = self.book.find(&request.vm, request.vcpu) {
            for problem in self.book.give_back(held, host) {
                host.tell(Severity::Warn, &problem);
            }
        }
    }

    /// The VMs of which a reservation waits for its vCPU to run before it is in force.
    pub fn waiting(&self) -> impl Iterator<Item = &str> {
        let Book { held, waiting, .. } = &self.book;
        let waits = |of: &&Held<C>| waiting.iter().any(|waiting| waiting.tid == of.tid);
        // As a rule, none waits.
        let held = if waiting.is_empty() { &[][..] } else { &held[..] };
        held.iter().filter(waits).map(|of| of.vm.as_str())
    }

    /// Requests that would make a VM's reservations again, on any core, those that [`Self::come_back`] has
    /// not made yet included. Those that follow its guest's tasks are left out: introspection makes them.
    #[must_use]
    pub fn requests(&self, vm: &str) -> Vec<Request> {
        let of_vm = self.book.held.iter().filter(|held| held.vm == vm && !held.followed);
        let returning = self.returning.iter().filter(|back| back.request.vm == vm);
        of_vm.map(request).chain(returning.map(|back| back.request.clone())).collect()
    }

    /// Makes again what a VM had ([`Self::requests`]) that runs here again after it had left. Its threads may
    /// have to pay back first, or its core be made room on: these are tried again until something else comes
    /// of it. Where the vCPU has a reservation by now, that stays.
    pub fn come_back<H: Host<Change = C>>(
        &mut self,
        requests: Vec<Request>,
        host: &mut H,
        guests: &impl Guests,
    ) {
        let back =
            |request: Request| Some(Returning { process: guests.process(&request.vm)?, request });
        self.returning.extend(requests.into_iter().filter_map(back));
        self.make_returning(host, guests);
    }

    /// Tries what [`Self::come_back`] could not make yet.
    pub(crate) fn make_returning<H: Host<Change = C>>(
        &mut self,
        host: &mut H,
        guests: &impl Guests,
    ) {
        for back in std::mem::take(&mut self.returning) {
            let Request { vm, vcpu, .. } = &back.request;
            let (pid, start_time) = back.process;
            match guests.process(vm) {
                _ if self.book.find(vm, *vcpu).is_some() => continue,
                Some(process) if process == back.process => {}
                // It has left again, and may come back again.
                None if host.is_alive(pid, start_time, pid) => {
                    self.returning.push(back);
                    continue;
                }
                _ => continue,
            }
            match self.try_apply(&back.request, host, guests) {
                Ok(_) => {}
                Err(refusal) if refusal.reason == Reason::MakingRoom => {
                    self.next_look = self.next_look.min(host.now() + RETURNING_INTERVAL);
                    self.returning.push(back);
                }
                Err(refusal) => {
                    let text = format!(
                        "VM {vm} vCPU {vcpu} runs here again, without its former reservation: {refusal}"
                    );
                    host.tell(Severity::Warn, &text);
                }
            }
        }
    }

    /// Somebody has decided otherwise about this vCPU, or all of this VM, or everything.
    pub(crate) fn forget_returning(&mut self, vm: Option<&str>, vcpu: Option<u32>) -> bool {
        let before = self.returning.len();
        self.returning.retain(|Returning { request, .. }| {
            vm.is_some_and(|vm| vm != request.vm) || vcpu.is_some_and(|vcpu| vcpu != request.vcpu)
        });
        self.returning.len() < before
    }
}

/// Between two attempts to make what a VM had that has come back, ns.
const RETURNING_INTERVAL: u64 = 20_000_000;

/// A reservation that is still to be made again.
#[derive(Debug)]
pub(crate) struct Returning {
    /// The VM's process and its start time.
    process: (u32, u64),
    request: Request,
}

fn request<C>(held: &Held<C>) -> Request {
    let (budget, at_most) = match held.soft {
        Some((least, most)) => (least, Some(most)),
        None => (held.budget, None),
    };
    Request {
        vm: held.vm.clone(),
        vcpu: held.vcpu,
        budget,
        at_most,
        deadline: Some(held.deadline),
        period: held.period,
        promise: match held.guarantee {
            Guarantee::Core(_) => Promise::Core,
            Guarantee::Global => Promise::Global,
            Guarantee::Fifo => Promise::Fifo,
            Guarantee::Limit => Promise::Limit,
        },
        core: None,
        alone: held.alone,
        dry_run: false,
    }
}
