//! Reservations of VMs that come from another host, or have left for one.
//!
//! | side | when | what |
//! | --- | --- | --- |
//! | destination | the VM has arrived, and its reservation still waits for the vCPU | it is not let run for a moment |
//! | destination | it runs nevertheless, because somebody else let it or the moment is over | how long it lacked its reservation is told |
//! | source | it has left | the reservation is kept for a while: libvirt runs a VM here again that its destination cannot run |
//!
//! What it does not do: make or release reservations.

use timevisor_guests::transit::Transit;
use timevisor_linux::clock::monotonic;
use timevisor_time::Duration;

use super::{Served, Vms};

/// How long a VM that has arrived is kept from running for its reservation. That is in force long before, as a
/// rule; a VM that stands still for longer than this is worse off than one that competes for a moment.
const HELD_AT_MOST: Duration = Duration::from_millis(100);
/// How long a reservation is kept after its VM has left. libvirt's last phase takes less.
const KEPT: Duration = Duration::from_secs(10);

/// A VM's reservation on the way here or away.
#[derive(Default)]
pub(super) struct Moves {
    /// It has one that waits for its vCPU to run.
    waits: bool,
    /// When the VM arrived.
    arrived: Option<Duration>,
    /// Since when it has run without the reservation that waits.
    ran_without: Option<Duration>,
    /// When it left for another host.
    left: Option<Duration>,
    /// Its reservation was taken back after that.
    is_gone: bool,
}

impl Moves {
    pub(super) fn leaves(&mut self, now: Duration) {
        self.left = Some(now);
    }

    /// It runs. The first time after its arrival, it counts from here on how long it lacks its reservation.
    pub(super) fn runs(&mut self, now: Duration) {
        if self.arrived.take().is_some() && self.waits {
            self.ran_without = Some(now);
        }
    }

    /// Whether a VM that has arrived is kept from running at this time.
    fn holds(&self, now: Duration) -> bool {
        self.waits && self.arrived.is_some_and(|at| now < at + HELD_AT_MOST)
    }

    /// Takes in whether its reservation waits. Returns for how long it ran without one that has come into
    /// force, or is none any more.
    fn note(&mut self, waits: bool, now: Duration) -> Option<Duration> {
        self.waits = waits;
        if waits { None } else { self.ran_without.take().map(|since| now - since) }
    }

    /// Whether the reservation of a VM that `is_away` is to be taken back now; once for each time that it left.
    fn takes_back(&mut self, is_away: bool, now: Duration) -> bool {
        if !is_away {
            self.left = None;
        }
        let due = self.left.is_some_and(|left| now >= left + KEPT);
        due && !std::mem::replace(&mut self.is_gone, true)
    }

    /// Whether it runs here again after that; once.
    fn returns(&mut self, is_here: bool) -> bool {
        is_here && std::mem::take(&mut self.is_gone)
    }
}

impl Served {
    /// Whether it was started for a migration that has not come yet.
    pub(super) fn is_to_come(&self) -> bool {
        self.vm.qemu.command_line.incoming && !self.vm.has_arrived()
    }

    pub(super) fn arrives(&mut self, now: Duration) {
        self.moves.arrived = Some(now);
        if self.vm.runs() {
            self.moves.runs(now);
        }
    }

    /// Whether it must not be resumed yet.
    pub(super) fn waits_for_reservation(&self, now: Duration) -> bool {
        self.moves.holds(now)
    }
}

impl Vms {
    /// When a VM need not wait for its reservation any longer, or the reservation of one that has left is to
    /// be taken back.
    pub(super) fn moves_at(&self) -> Option<Duration> {
        let of = |served: &Served| {
            let Moves { waits, arrived, left, is_gone, .. } = served.moves;
            let held = arrived
                .filter(|_| waits && served.may_resume && !served.asking)
                .map(|at| at + HELD_AT_MOST);
            let kept = left.filter(|_| !is_gone).map(|at| at + KEPT);
            held.into_iter().chain(kept).min()
        };
        self.served.iter().filter_map(of).min()
    }

    /// Takes in of which VMs a reservation waits for its vCPU to run. `has_one`: whether a VM has one at all.
    pub fn note_reservations<'a>(
        &mut self,
        waiting: impl Iterator<Item = &'a str>,
        has_one: impl Fn(&str) -> bool,
    ) {
        let waiting: Vec<&str> = waiting.collect();
        let now = monotonic();
        for index in 0..self.served.len() {
            let served = &mut self.served[index];
            let waits = waiting.contains(&served.vm.name.as_str());
            if !waits && !served.moves.waits {
                continue;
            }
            let lacked = served.moves.note(waits, now);
            let name = &served.vm.name;
            if let Some(lacked) = lacked.filter(|_| has_one(name))
                && self.told.take(served.user, now)
            {
                let ms = lacked.ceil_nanos() as f64 / 1e6;
                tracing::warn!(
                    "VM {name} ran for {ms:.1} ms after its arrival without its reservation"
                );
            }
            self.resume_if_ready(index);
        }
    }

    /// The VMs whose reservation is to be taken back because they have left, and those that run here again
    /// after that; each once.
    pub fn take_moves(&mut self) -> (Vec<String>, Vec<String>) {
        let now = monotonic();
        let (mut gone, mut back) = (Vec::new(), Vec::new());
        for served in &mut self.served {
            let Moves { left, is_gone, .. } = served.moves;
            if left.is_none() && !is_gone {
                continue;
            }
            let (is_away, is_here) = (
                *served.vm.transit() == Transit::Left,
                *served.vm.transit() == Transit::Here && served.vm.runs(),
            );
            if served.moves.takes_back(is_away, now) {
                gone.push(served.vm.name.clone());
            } else if served.moves.returns(is_here) {
                back.push(served.vm.name.clone());
            }
        }
        (gone, back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: i64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_vm_is_held_for_its_reservation_only_for_a_moment_and_only_if_it_has_come() {
        let mut moves = Moves::default();
        assert!(!moves.holds(ms(1000)), "it has none");
        assert_eq!(moves.note(true, ms(1000)), None);
        assert!(!moves.holds(ms(1000)), "a VM that has always been here");
        moves.arrived = Some(ms(1000));
        assert!(moves.holds(ms(1000)) && moves.holds(ms(1099)) && !moves.holds(ms(1100)));
        moves.runs(ms(1100));
        assert_eq!(moves.note(true, ms(1105)), None);
        assert_eq!(moves.note(false, ms(1110)), Some(ms(10)));
        assert_eq!(moves.note(false, ms(1111)), None, "told once");
        (moves.arrived, moves.waits) = (Some(ms(2000)), false);
        assert!(!moves.holds(ms(2000)), "in force");
        moves.runs(ms(2000));
        moves.note(true, ms(3000));
        moves.runs(ms(3000));
        assert_eq!(moves.note(false, ms(3001)), None, "later pauses are nobody's arrival");
    }

    #[test]
    fn a_reservation_is_taken_back_once_it_is_clear_that_its_vm_has_left() {
        let mut moves = Moves::default();
        assert!(!moves.takes_back(false, ms(0)) && !moves.returns(true));
        moves.leaves(ms(0));
        assert!(!moves.takes_back(true, ms(9_999)));
        // libvirt has let it run here again.
        assert!(!moves.takes_back(false, ms(9_999)) && !moves.takes_back(true, ms(20_000)));
        assert!(!moves.returns(true), "it has never lost it");
        moves.leaves(ms(20_000));
        assert!(moves.takes_back(true, ms(30_000)) && !moves.takes_back(true, ms(30_001)));
        assert!(!moves.returns(false) && moves.returns(true) && !moves.returns(true));
        // And it leaves once more.
        assert!(!moves.takes_back(false, ms(40_000)));
        moves.leaves(ms(50_000));
        assert!(moves.takes_back(true, ms(60_000)));
    }
}
