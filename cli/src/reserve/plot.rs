//! The SVG of a plan: what the reservation supplies in every interval, and what the tasks ask for
//! in it.

use timevisor_schedule::demand::due_within;
use timevisor_schedule::fixed_priority::requested_by;
use timevisor_schedule::supply::{Supply, Worst};
use timevisor_schedule::synthesis::Sharing;
use timevisor_schedule::{Aligned, Policy, Reservation, TaskSet, Verdict};

use super::plan::Plan;
use crate::plot::{self, Line};

/// So many places are looked at.
const COLUMNS: u64 = 1000;

/// `None` where there is no reservation to be drawn.
pub fn svg(set: &TaskSet, plan: &Plan, sharing: Sharing) -> Option<String> {
    let (supplies, limiting) = match plan {
        Plan::Found(found) => {
            let supplies = vec![("least", found.least), ("recommended", found.recommended)];
            (supplies, limit(&found.limit))
        }
        Plan::Judged { reservation, verdict, .. } => {
            (vec![("given", *reservation)], limit(verdict))
        }
        Plan::TooMuch { .. } => return None,
    };
    // The task that would be late first; where none is said to be, the one that waits for all
    // others.
    let task = limiting.unwrap_or(set.tasks().len() - 1);
    let deadline = set.tasks()[task].deadline;
    let edf = set.policy() == Policy::Edf;
    let longest = set.tasks().iter().map(|task| task.deadline).max()?;
    let end = if edf { longest.saturating_mul(2) } else { deadline + deadline / 5 };
    let asked = |t| if edf { due_within(set, t) } else { requested_by(set, task, t).unwrap_or(0) };
    let name = if edf {
        "due".to_owned()
    } else {
        format!("asked for until {} is done", set.tasks()[task].name)
    };
    let mut lines = vec![line(curve(end, asked), "#cc3311", name)];
    for ((name, reservation), color) in supplies.into_iter().zip(["#4477aa", "#999999"]) {
        let name =
            format!("{name}: {} ms of {} ms", ms(reservation.budget()), ms(reservation.period()));
        lines.push(line(curve(end, |t| supplied(sharing, reservation, t)), color, name));
    }
    if !edf {
        let high = lines.iter().flat_map(|line| &line.points).map(|at| at.1).fold(0.0, f64::max);
        let points = vec![(ms(deadline), 0.0), (ms(deadline), high)];
        lines.push(Line { dashed: true, ..line(points, "#000000", "its deadline".to_owned()) });
    }
    let title = if edf { "Supply and demand" } else { "Supply and requests" };
    Some(plot::svg(title, "interval, ms", "processor time, ms", lines))
}

fn limit(verdict: &Verdict) -> Option<usize> {
    if let Verdict::Late(index) = verdict { Some(*index) } else { None }
}

fn supplied(sharing: Sharing, reservation: Reservation, t: u64) -> u64 {
    match sharing {
        Sharing::Aligned => Aligned(reservation).within(t),
        Sharing::Alone | Sharing::Shared => Worst(reservation).within(t),
    }
}

fn curve(end: u64, of: impl Fn(u64) -> u64) -> Vec<(f64, f64)> {
    let at = |n: u64| {
        u64::try_from(u128::from(end) * u128::from(n) / u128::from(COLUMNS)).unwrap_or(end)
    };
    (1..=COLUMNS).map(at).map(|t| (ms(t), ms(of(t)))).collect()
}

fn line(points: Vec<(f64, f64)>, color: &'static str, name: String) -> Line {
    Line { points, color, width: 1.5, dashed: false, name }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
