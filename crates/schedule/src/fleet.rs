//! Several VMs on one host: the assignment of their vCPUs to cores, all at once.
//!
//! Decreasing by bandwidth, those that need a core for themselves first; each goes to the first core
//! that keeps it beside what is there ([`Fit::First`]), or to the one with the most left
//! ([`Fit::Worst`]). A core keeps its reservations if [`core_keeps`] says so and their bandwidths
//! are within what the kernel admits. Reservations that may share a core are planned for that from
//! the start, so that none has to change when another one comes. Where not everybody may share a core with
//! everybody ([`Wanted::group`]), each core has those of one group.
//!
//! It is a heuristic: another assignment might still fit. What it does not do: plan the
//! reservations, or know which cores a host has.

use crate::admission::{Host, core_keeps};
use crate::edf::Demand;
use crate::reservation::Reservation;

/// What a vCPU wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Beside others on a core, if that is possible at all.
    pub shared: Option<Reservation>,
    /// With a core for itself, if that is possible.
    pub alone: Option<Reservation>,
    /// Only those of one group share a core.
    pub group: usize,
}

/// Which of the cores that have room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fit {
    /// The first: leaves whole cores.
    #[default]
    First,
    /// That with the most left: leaves something on each.
    Worst,
}

/// How cores are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Which core.
    pub fit: Fit,
    /// What the host takes from each reservation.
    pub host: Host,
    /// The maximum bandwidth of a core's reservations, in 1/1000.
    pub most: u64,
}

/// Where a vCPU goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the core.
    pub core: usize,
    /// What it gets there.
    pub reservation: Reservation,
    /// Whether nothing else may come to that core.
    pub alone: bool,
}

/// Why a vCPU has no place. Bandwidths are parts per million of a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unplaced {
    /// No reservation is enough for it.
    Impossible,
    /// It needs more than the kernel admits on any core.
    MoreThanACore(u64),
    /// It needs a core for itself, and none is empty.
    NoEmptyCore(u64),
    /// It needs this much, and only cores of other groups have that left.
    OtherGroups(u64),
    /// It needs this much, and the core that has the most left has the second.
    TooLittle(u64, u64),
    /// It needs this much, and the core of this index has that: but the deadlines of what is there
    /// leave no room.
    TooUrgent(u64, usize),
}

/// A core after the assignment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Core {
    /// The vCPUs there, by their index, and what they get.
    pub reservations: Vec<(usize, Reservation)>,
    /// Whether its only vCPU has it for itself.
    pub alone: bool,
    /// What may still come, in parts per million of the core.
    pub left: u64,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Of each vCPU.
    pub places: Vec<Result<Place, Unplaced>>,
    /// Of each core.
    pub cores: Vec<Core>,
}

/// Assigns vCPUs to this many cores.
#[must_use]
pub fn assign(wanted: &[Wanted], cores: usize, rules: &Rules) -> Assignment {
    let free = Core { left: rules.most.saturating_mul(1000), ..Core::default() };
    let mut cores = vec![free; cores];
    let mut places = vec![Err(Unplaced::Impossible); wanted.len()];
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|index| {
        let one = &wanted[*index];
        let need = one.shared.or(one.alone).map_or(0, |of| bandwidth(&of));
        (one.shared.is_some(), core::cmp::Reverse(need))
    });
    for index in order {
        let may_share = |core: &Core| {
            core.reservations.iter().all(|(there, _)| wanted[*there].group == wanted[index].group)
        };
        let place = place(&wanted[index], &cores, may_share, rules);
        if let Ok(Place { core, reservation, alone }) = place {
            let core = &mut cores[core];
            core.reservations.push((index, reservation));
            core.alone = alone;
            core.left = if alone { 0 } else { core.left.saturating_sub(bandwidth(&reservation)) };
        }
        places[index] = place;
    }
    Assignment { places, cores }
}

fn place(
    wanted: &Wanted,
    cores: &[Core],
    may_share: impl Fn(&Core) -> bool,
    rules: &Rules,
) -> Result<Place, Unplaced> {
    let most = rules.most.saturating_mul(1000);
    let mut why = Unplaced::Impossible;
    if let Some(of) = wanted.shared {
        let need = bandwidth(&of);
        let room = |core: &&(usize, &Core)| core.1.left >= need;
        let kept = |core: &&(usize, &Core)| {
            let mut all: Vec<Reservation> = core.1.reservations.iter().map(|(_, of)| *of).collect();
            all.push(of);
            all.len() == 1 || core_keeps(&all, &rules.host) == Demand::Supplied
        };
        let shared = cores.iter().enumerate().filter(|(_, core)| !core.alone);
        let (open, others): (Vec<_>, Vec<_>) = shared.partition(|(_, core)| may_share(core));
        let mut fitting = open.iter().filter(room).filter(kept);
        let best = match rules.fit {
            Fit::First => fitting.next(),
            // Of several, the first.
            Fit::Worst => fitting.min_by_key(|(_, core)| core::cmp::Reverse(core.left)),
        };
        if let Some((core, _)) = best {
            return Ok(Place { core: *core, reservation: of, alone: false });
        }
        let urgent = open.iter().find(room).map(|(core, _)| *core);
        let left = cores.iter().map(|core| core.left).max().unwrap_or(0);
        why = match urgent {
            _ if need > most => Unplaced::MoreThanACore(need),
            Some(core) => Unplaced::TooUrgent(need, core),
            None if others.iter().any(|core| room(&core)) => Unplaced::OtherGroups(need),
            None => Unplaced::TooLittle(need, left),
        };
    }
    let Some(of) = wanted.alone else { return Err(why) };
    let need = bandwidth(&of);
    if need > most {
        return Err(Unplaced::MoreThanACore(need));
    }
    match cores.iter().position(|core| core.reservations.is_empty()) {
        Some(core) => Ok(Place { core, reservation: of, alone: true }),
        None if wanted.shared.is_none() || matches!(why, Unplaced::MoreThanACore(_)) => {
            Err(Unplaced::NoEmptyCore(need))
        }
        None => Err(why),
    }
}

/// Parts per million of a core, rounded up.
fn bandwidth(of: &Reservation) -> u64 {
    let ppm = (u128::from(of.budget()) * 1_000_000).div_ceil(u128::from(of.period()));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const RULES: Rules =
        Rules { fit: Fit::First, host: Host { switch: 0, blocking: 0, tick: 0 }, most: 950 };

    fn shared(budget: u64, period: u64) -> Wanted {
        let of = Reservation::shared(budget * MS, period * MS).unwrap();
        Wanted { shared: Some(of), alone: None, group: 0 }
    }

    fn alone(budget: u64, period: u64) -> Wanted {
        let of = Reservation::alone(budget * MS, period * MS).unwrap();
        Wanted { shared: None, alone: Some(of), group: 0 }
    }

    fn cores(of: &Assignment) -> Vec<Option<usize>> {
        of.places.iter().map(|place| place.ok().map(|place| place.core)).collect()
    }

    #[test]
    fn the_largest_come_first() {
        let all = [shared(10, 50), shared(30, 50), shared(20, 100), shared(12, 50), alone(5, 50)];
        let first = assign(&all, 3, &RULES);
        // 5 of 50 has core 0 for itself; 60, 24, then 20 and 20 % elsewhere.
        assert_eq!(cores(&first), [Some(2), Some(1), Some(2), Some(1), Some(0)]);
        let left: Vec<u64> = first.cores.iter().map(|core| core.left).collect();
        assert_eq!(left, [0, 110_000, 550_000]);
        let worst = assign(&all, 3, &Rules { fit: Fit::Worst, ..RULES });
        assert_eq!(cores(&worst), [Some(2), Some(1), Some(2), Some(2), Some(0)]);
        assert_eq!(worst.cores[2].left, 310_000);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let why = |all: &[Wanted], cores| *assign(all, cores, &RULES).places.last().unwrap();
        let all = [shared(30, 50), shared(30, 50), shared(20, 50)];
        assert_eq!(why(&all, 2), Err(Unplaced::TooLittle(400_000, 350_000)));
        assert_eq!(why(&[shared(49, 50)], 2), Err(Unplaced::MoreThanACore(980_000)));
        assert_eq!(why(&[shared(30, 50), alone(5, 50)], 0), Err(Unplaced::NoEmptyCore(100_000)));
        let none = Wanted { shared: None, alone: None, group: 0 };
        assert_eq!(why(&[none], 2), Err(Unplaced::Impossible));
        // What nothing keeps beside others may have a core for itself.
        let either = Wanted { alone: alone(30, 50).alone, ..shared(49, 50) };
        assert!(matches!(why(&[either], 1), Ok(Place { core: 0, alone: true, .. })));
        // The bandwidths are 60 %: but a tick of 4 ms of the other is more than 3 ms leave.
        let host = Host { tick: 4 * MS, ..RULES.host };
        let all = [shared(15, 50), shared(3, 10)];
        let ticked = assign(&all, 1, &Rules { host, ..RULES });
        assert!(ticked.places.iter().all(Result::is_ok), "{ticked:?}");
        let all = [shared(15, 50), shared(6, 10)];
        let ticked = assign(&all, 1, &Rules { host, ..RULES });
        assert_eq!(ticked.places[0], Err(Unplaced::TooUrgent(300_000, 0)));
    }

    #[test]
    fn groups_share_no_core() {
        let of = |group, one: Wanted| Wanted { group, ..one };
        let all = [of(0, shared(20, 50)), of(1, shared(10, 50)), of(0, shared(5, 50))];
        assert_eq!(cores(&assign(&all, 2, &RULES)), [Some(0), Some(1), Some(0)]);
        let one = assign(&all, 1, &RULES);
        assert_eq!(one.places[1], Err(Unplaced::OtherGroups(200_000)), "there is room, not for it");
        let all = [of(0, shared(45, 50)), of(1, shared(10, 50))];
        assert_eq!(assign(&all, 1, &RULES).places[1], Err(Unplaced::TooLittle(200_000, 50_000)));
    }

    proptest! {
        /// Each core by itself passes admission, whatever the order.
        #[test]
        fn every_core_keeps_what_it_is_given(
            wants in prop::collection::vec((1..60u64, 0..90u64, any::<bool>()), 1..12), cores in 1..5usize, worst: bool, tick in 0..3u64,
            groups in 1..4usize,
        ) {
            let wanted: Vec<Wanted> = wants.iter().enumerate().map(|(index, (budget, idle, only))| {
                let (shared, alone) = (shared(*budget, budget + idle), alone(*budget, budget + idle));
                Wanted { shared: if *only { None } else { shared.shared }, alone: alone.alone, group: index % groups }
            }).collect();
            let fit = if worst { Fit::Worst } else { Fit::First };
            let host = Host { switch: MS / 20, blocking: 0, tick: tick * MS };
            let of = assign(&wanted, cores, &Rules { fit, host, most: 950 });
            let mut placed = 0;
            for (index, core) in of.cores.iter().enumerate() {
                placed += core.reservations.len();
                let all: Vec<Reservation> = core.reservations.iter().map(|(_, of)| *of).collect();
                prop_assert!(all.iter().map(Reservation::bandwidth).sum::<f64>() <= 0.95 + 1e-9);
                prop_assert!(all.len() < 2 || (!core.alone && core_keeps(&all, &host) == Demand::Supplied));
                let mut of_groups = core.reservations.iter().map(|(vcpu, _)| wanted[*vcpu].group);
                prop_assert!(of_groups.next().is_none_or(|first| of_groups.all(|group| group == first)));
                for (vcpu, reservation) in &core.reservations {
                    let alone = core.alone;
                    prop_assert_eq!(of.places[*vcpu], Ok(Place { core: index, reservation: *reservation, alone }));
                }
            }
            prop_assert_eq!(placed, of.places.iter().filter(|place| place.is_ok()).count());
        }
    }
}
