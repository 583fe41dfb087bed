//! What each job of a run needed, compared with what its reservation guarantees for exactly that: a
//! job that took longer than declared gets no guarantee, and one that took less gets a better one.

use serde_json::{Value, json};
use timevisor_lab::real_time::costs::{self, Demand, Run};
use timevisor_schedule::{Reservation, Ticked, Worst};

use super::PERIOD_NS;

pub(super) use timevisor_lab::real_time::judge::TICK_NS;

/// A job in a reservation; times in ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    /// Index of the task, from 0 on.
    pub(super) task: usize,
    /// Index of the job within its task.
    pub(super) job: usize,
    /// The processor time that it took itself.
    pub(super) cost: u64,
    /// Time from release to end.
    pub(super) response: u64,
    /// Its period.
    pub(super) deadline: u64,
    /// The minimum budget with which it is in time, whenever it is released.
    pub(super) least: u64,
    /// The longest response that the actual reservation guarantees for it.
    pub(super) promised: u64,
    /// The same if budgets are enforced at ticks.
    pub(super) ticked: u64,
}

impl Needed {
    pub(super) fn late(&self) -> bool {
        self.response > self.deadline
    }

    /// A description as text.
    pub(super) fn text(&self) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        format!(
            "tau{}'s job {}: took {:.1} ms, done after {:.1}; promised {:.1}, with the tick {:.1}; least budget {:.1}",
            self.task + 1,
            self.job,
            ms(self.cost),
            ms(self.response),
            ms(self.promised),
            ms(self.ticked),
            ms(self.least),
        )
    }

    pub(super) fn row(&self) -> Value {
        json!({
            "task": self.task + 1, "cost_ns": self.cost, "response_ns": self.response, "promised_ns": self.promised,
            "promised_with_tick_ns": self.ticked, "least_budget_ns": self.least,
        })
    }
}

/// All jobs of a run in `budget` ns of [`PERIOD_NS`], with no other reservation on the core.
pub(super) fn all(run: &Run, budget: u64) -> anyhow::Result<Vec<Needed>> {
    let supply = Worst(Reservation::alone(budget, PERIOD_NS)?);
    let mut found = Vec::new();
    for (task, jobs) in run.jobs.iter().enumerate() {
        let deadline = costs::period_ns(task);
        for (index, job) in jobs.iter().enumerate() {
            let demand = run.demand(task, index);
            found.push(Needed {
                task,
                job: index,
                cost: run.cost(task, index),
                response: (job.end - job.release).unsigned_abs(),
                deadline,
                least: least(&demand, deadline)?,
                promised: demand.response(&supply),
                ticked: demand.response(&Ticked { supply, tick: TICK_NS }),
            });
        }
    }
    Ok(found)
}

/// The minimum budget with which it is in time, to the microsecond; the period if there is none.
fn least(demand: &Demand, deadline: u64) -> anyhow::Result<u64> {
    let (mut not, mut fits) = (0, PERIOD_NS / 1000);
    while fits - not > 1 {
        let us = not.midpoint(fits);
        let supply = Worst(Reservation::alone(us * 1000, PERIOD_NS)?);
        if demand.response(&supply) <= deadline { fits = us } else { not = us }
    }
    Ok(fits * 1000)
}

/// Selects one of a job's guarantees, ns.
pub(super) type Promise = fn(&Needed) -> u64;

/// For the jobs that are guaranteed to be in time: their number, how many were late nevertheless,
/// and the largest excess of a response over its guarantee, ms.
pub(super) fn kept(jobs: &[Needed], promise: Promise) -> (usize, usize, f64) {
    let promised = || jobs.iter().filter(|job| promise(job) <= job.deadline);
    let beyond = promised().map(|job| (job.response as f64 - promise(job) as f64) / 1e6);
    let late = promised().filter(|job| job.late()).count();
    (promised().count(), late, beyond.fold(f64::NEG_INFINITY, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_papers_example_by_its_jobs() {
        // tau2 with one job of tau1 before it and another one 150 ms later, as the analysis assumes
        // at the critical instant.
        let demand = Demand { first: 80 * MS, later: vec![(150 * MS, 30 * MS)] };
        let supply = Worst(Reservation::alone(28 * MS, 50 * MS).unwrap());
        assert_eq!(demand.response(&supply), 146 * MS);
        // With 4 ms less, it ends exactly at 150 ms, so the second job of tau1 comes too late to
        // count.
        assert_eq!(demand.response(&Ticked { supply, tick: TICK_NS }), 150 * MS);
        assert_eq!(least(&demand, 200 * MS).unwrap(), 26_667_000);
        // A job that takes longer is preempted by the second one.
        let more = Demand { first: 85 * MS, ..demand };
        assert_eq!(more.response(&supply), (200 + 22 + 3) * MS);
    }

    #[test]
    fn who_is_promised_something() {
        let job = |promised, response| Needed {
            task: 1,
            job: 0,
            cost: 0,
            response,
            deadline: 200,
            least: 0,
            promised,
            ticked: promised,
        };
        let jobs = [job(150, 100), job(200, 201), job(201, 500)];
        let (count, late, beyond) = kept(&jobs, |job| job.promised);
        assert_eq!((count, late), (2, 1));
        assert!((beyond - 1e-6).abs() < 1e-12);
    }
}
