//! The ages of the host and of each VM, computed from publications and from the birth instants on
//! their pages.

use std::collections::BTreeMap;

use timevisor_clock_page::{Lines, NotedBirth};
use timevisor_estimate::RateLimits;
use timevisor_host_clock::age::Moment;
use timevisor_host_clock::{Age, Publication};
use timevisor_time::Local;
use timevisor_timelines::Owner;

use crate::clock::HostClock;
use crate::vms::Vms;

/// The ages of all page owners.
#[derive(Default)]
pub struct Ages {
    ages: BTreeMap<Owner, Age>,
    moment: Option<Moment>,
}

impl Ages {
    /// Updates the ages from a publication at counter value `now`.
    pub fn update(&mut self, publication: &Publication, clock: &HostClock, vms: &Vms, now: u64) {
        let calibrated = RateLimits::around(clock.calibration.period, clock.calibration.error);
        let moment = Moment::new(&publication.clock, calibrated, now, clock.policy().expiry(now));
        self.moment = Some(moment);
        let owners: Vec<Owner> =
            std::iter::once(Owner::Host).chain(vms.present().map(Owner::vm)).collect();
        self.ages.retain(|owner, _| owners.contains(owner));
        for owner in owners {
            let (arrivals, found) = found(&owner, clock, vms);
            let age = self.ages.entry(owner.clone()).or_default();
            note(&owner, age.update(&moment, arrivals, found), clock, vms);
        }
    }

    /// Somebody is going to read an owner's age.
    pub fn before_reading(&self, owner: &Owner, clock: &HostClock, vms: &Vms) {
        let Some(age) = self.ages.get(owner) else { return };
        note(owner, age.before_reading(found(owner, clock, vms).1), clock, vms);
    }

    /// Handles a disturbance of the counter: ages continue from the birth instants once the time is
    /// known again.
    pub fn start_over(&mut self) {
        self.ages.values_mut().for_each(Age::start_over);
    }

    /// Returns an owner's age as lines on the host's counter, and a count that grows whenever
    /// earlier values become void.
    pub fn lines(&self, owner: &Owner) -> (Option<Lines<Local>>, u64) {
        let (Some(age), Some(moment)) = (self.ages.get(owner), &self.moment) else {
            return (None, 0);
        };
        age.lines(moment)
    }
}

/// How often an owner came from another host, and what its page says of its birth.
fn found(owner: &Owner, clock: &HostClock, vms: &Vms) -> (u64, NotedBirth) {
    match owner {
        Owner::Host => (0, clock.birth()),
        Owner::Vm(name) => vms.birth(name),
    }
}

fn note(owner: &Owner, birth: Option<NotedBirth>, clock: &HostClock, vms: &Vms) {
    match (owner, birth) {
        (_, None) => {}
        (Owner::Host, Some(birth)) => clock.set_birth(birth),
        (Owner::Vm(name), Some(birth)) => vms.set_birth(name, birth),
    }
}
