//! A plan in words, and as JSON.

use core::fmt::Write as _;

use serde_json::{Value, json};
use timevisor_schedule::demand::due_within;
use timevisor_schedule::synthesis::Sharing;
use timevisor_schedule::{Reservation, Task, TaskSet, Verdict};

use super::plan::{Found, KERNEL_SHARE, Plan};

pub fn words(set: &TaskSet, plan: &Plan) -> String {
    let mut out = format!(
        "{} tasks want {:.1} % of a processor\n",
        set.tasks().len(),
        set.utilization() * 100.0
    );
    match plan {
        Plan::Found(found) => found_words(&mut out, set, found),
        Plan::TooMuch { period } => {
            let in_period = period.map_or(String::new(), |ns| format!(" of {} ms", ms(ns)));
            line(
                &mut out,
                &format!(
                    "not possible  no reservation{in_period} is enough, not even a whole processor's; give tasks to another vCPU, or make them shorter"
                ),
            );
        }
        Plan::Judged { reservation, verdict } => {
            line(&mut out, &format!("budget        {}", size(reservation)));
            line(&mut out, &format!("verdict       {}", reason(set, verdict)));
            if let Verdict::Schedulable(responses) = verdict {
                table(&mut out, set, responses, &[]);
            }
        }
    }
    out
}

fn found_words(out: &mut String, set: &TaskSet, found: &Found) {
    let beside = match found.sharing {
        Sharing::Alone => "as the only reservation on its core",
        Sharing::Aligned => {
            "as the only reservation on its core, with every release at a replenishment"
        }
        Sharing::Shared => "whatever else is reserved on the core",
    };
    line(out, &format!("least budget  {}, {beside}", size(&found.least)));
    line(out, &format!("why           with less, {}", reason(set, &found.limit)));
    line(
        out,
        &format!(
            "recommended   {}: with a timer tick's delay, and at least 3 % more",
            size(&found.recommended)
        ),
    );
    if !found.is_usual() {
        line(
            out,
            &format!(
                "note          kernels have {} % of a core for reservations (sched_rt_runtime_us): this is refused there; give tasks to another vCPU, or try another --period",
                KERNEL_SHARE / 10
            ),
        );
    }
    table(out, set, &found.responses, &found.greatest);
}

fn line(out: &mut String, text: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(out, "{text}");
}

fn size(of: &Reservation) -> String {
    format!("{} ms in {} ms ({:.1} %)", ms(of.budget()), ms(of.period()), of.bandwidth() * 100.0)
}

fn reason(set: &TaskSet, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Schedulable(_) => "every job is done by its deadline".to_owned(),
        Verdict::Late(index) => {
            let task = &set.tasks()[*index];
            format!("{} would be done after its deadline of {} ms", task.name, ms(task.deadline))
        }
        Verdict::Short(t) => format!(
            "{} ms of work can be due within {} ms, and the reservation does not supply them in that time",
            ms(due_within(set, *t)),
            ms(*t)
        ),
        Verdict::NotKnown => "nothing would be left to run with".to_owned(),
    }
}

fn table(out: &mut String, set: &TaskSet, responses: &[u64], greatest: &[u64]) {
    line(
        out,
        &format!(
            "{:<20} {:>12} {:>12} {:>12} {:>14} {:>14}",
            "task", "cost ms", "period ms", "deadline ms", "worst response", "cost may reach"
        ),
    );
    for (index, task) in set.tasks().iter().enumerate() {
        let of = |list: &[u64]| list.get(index).map_or("-".to_owned(), |ns| ms(*ns));
        line(
            out,
            &format!(
                "{:<20} {:>12} {:>12} {:>12} {:>14} {:>14}",
                task.name,
                ms(task.cost),
                ms(task.period),
                ms(task.deadline),
                of(responses),
                of(greatest)
            ),
        );
    }
}

/// Milliseconds with as many places as there are.
fn ms(ns: u64) -> String {
    let text = format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// As JSON, ns. Response times are by the tasks' names.
pub fn json(set: &TaskSet, plan: &Plan) -> Value {
    let (mut out, responses, greatest): (Value, &[u64], &[u64]) = match plan {
        Plan::Found(found) => {
            let (least, recommended) = (&found.least, &found.recommended);
            let out = json!({
                "minimum_budget_ns": least.budget(),
                "recommended_budget_ns": recommended.budget(),
                "slack_ns": recommended.budget() - least.budget(),
                "deadline_ns": recommended.deadline(),
                "period_ns": recommended.period(),
                "usual_kernels_admit": found.is_usual(),
                "reason": format!("with less, {}", reason(set, &found.limit)),
            });
            (out, &found.responses, &found.greatest)
        }
        Plan::TooMuch { period } => (json!({"period_ns": period}), &[], &[]),
        Plan::Judged { reservation, verdict } => {
            let out = json!({
                "budget_ns": reservation.budget(),
                "deadline_ns": reservation.deadline(),
                "period_ns": reservation.period(),
                "reason": reason(set, verdict),
            });
            (out, if let Verdict::Schedulable(all) = verdict { all } else { &[] }, &[])
        }
    };
    let tasks = set.tasks().iter().enumerate().map(|(index, task)| {
        json!({
            "name": task.name, "cost_ns": task.cost, "period_ns": task.period, "deadline_ns": task.deadline,
            "worst_response_ns": responses.get(index), "greatest_cost_ns": greatest.get(index),
        })
    });
    out["schedulable"] = plan.fits().into();
    out["tasks"] = tasks.collect();
    let of = |(task, ns): (&Task, &u64)| (task.name.clone(), Value::from(*ns));
    out["response_times_ns"] = Value::Object(set.tasks().iter().zip(responses).map(of).collect());
    out
}
