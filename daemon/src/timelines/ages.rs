//! How long the host and each VM have been running: an elapsed clock each, on the host's counter.
//!
//! The clock itself is crates/estimate's; here its inputs are fetched: the counter's rate and the global clock from every
//! publication, and from the page when whoever owns it was born, which outlives a daemon and goes with a VM.

use std::collections::BTreeMap;

use timevisor_clock_page::{ClockStatus, Line, Lines};
use timevisor_estimate::elapsed::Rate;
use timevisor_estimate::{Global, Lifetime, RateLimits};
use timevisor_guests::vm::Publication;
use timevisor_time::{Duration, Instant, Local};
use timevisor_timelines::Owner;

use crate::clock::HostClock;
use crate::vms::Vms;

/// One owner's.
#[derive(Default)]
struct Aged {
    lifetime: Lifetime,
    /// Another number: it has come from elsewhere since.
    arrivals: u64,
    /// What was published before is void.
    disruptions: u64,
}

/// Everybody's.
#[derive(Default)]
pub struct Ages {
    aged: BTreeMap<Owner, Aged>,
    holdover: u64,
    expiry: u64,
    now: u64,
}

impl Ages {
    /// Takes a publication in.
    pub fn update(&mut self, publication: &Publication, clock: &HostClock, vms: &Vms, now: u64) {
        self.now = now;
        self.expiry = clock.policy().expiry(now);
        self.holdover = publication.target.as_ref().map_or(0, |lines| lines.holdover);
        let owners: Vec<Owner> =
            std::iter::once(Owner::Host).chain(vms.present().map(Owner::vm)).collect();
        self.aged.retain(|owner, _| owners.contains(owner));
        let Some(rate) = rate(publication, clock) else { return };
        let global = global(publication, now);
        for owner in owners {
            let aged = self.aged.entry(owner.clone()).or_default();
            let (arrivals, found) = match &owner {
                Owner::Host => (0, clock.birth()),
                Owner::Vm(name) => vms.birth(name),
            };
            if aged.arrivals != arrivals {
                *aged = Aged { arrivals, disruptions: aged.disruptions + 1, ..Aged::default() };
            }
            if let Some(birth) = found {
                aged.lifetime.born(birth);
            }
            if let Some(born) = aged.lifetime.update(now, rate, global.as_ref()) {
                match &owner {
                    Owner::Host => clock.set_birth(&born),
                    Owner::Vm(name) => vms.set_birth(name, &born),
                }
            }
        }
    }

    /// The counter was disturbed: ages go on from the births, once the time is known again.
    pub fn start_anew(&mut self) {
        for aged in self.aged.values_mut() {
            aged.lifetime.lose_counter();
            aged.disruptions += 1;
        }
    }

    /// An owner's age as lines on the host's counter, and a number that changes when what they said before is void.
    pub fn lines(&self, owner: &Owner) -> (Option<Lines<Local>>, u64) {
        let Some(aged) = self.aged.get(owner) else { return (None, 0) };
        let lines = aged.lifetime.clock().map(|clock| {
            let (age, limits) = (clock.at(self.now), clock.rate().limits());
            let line =
                |span: Duration, period| Line { time: Instant::from_bits(span.to_bits()), period };
            Lines {
                base: self.now,
                expiry: self.expiry,
                earliest: line(age.earliest, limits.shortest),
                estimate: line(age.estimate, clock.rate().period()),
                latest: line(age.latest, limits.longest),
                holdover: self.holdover,
            }
        });
        (lines, aged.disruptions)
    }
}

/// What is known of the counter's rate: as published, or as calibrated.
fn rate(publication: &Publication, clock: &HostClock) -> Option<Rate> {
    let limits = match &publication.target {
        Some(lines) => {
            let (shortest, longest) = lines.rate_limits();
            RateLimits { shortest, longest }
        }
        None => RateLimits::around(clock.calibration.period, clock.calibration.error),
    };
    Rate::new(limits.middle(), limits).ok()
}

/// The global clock now, while its bounds may be relied on.
fn global(publication: &Publication, now: u64) -> Option<Global> {
    let reliable =
        matches!(publication.status, ClockStatus::Synchronized | ClockStatus::FreeRunning);
    let at = publication.target.filter(|_| reliable)?.at(now);
    Some(Global { earliest: at.earliest, estimate: at.estimate, latest: at.latest })
}
