//! A plan in words, and as JSON.

use core::fmt::Write as _;

use serde_json::{Value, json};
use timevisor_schedule::demand::due_within;
use timevisor_schedule::synthesis::Sharing;
use timevisor_schedule::{Reservation, TaskSet, Verdict};

use super::plan::{Found, Plan};

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

pub fn json(set: &TaskSet, plan: &Plan) -> Value {
    let reservation = |of: &Reservation| json!({"budget_ns": of.budget(), "deadline_ns": of.deadline(), "period_ns": of.period()});
    let tasks = |responses: &[u64], greatest: &[u64]| -> Vec<Value> {
        let row = |(index, task): (usize, &timevisor_schedule::Task)| {
            json!({
                "name": task.name, "cost_ns": task.cost, "period_ns": task.period, "deadline_ns": task.deadline,
                "worst_response_ns": responses.get(index), "greatest_cost_ns": greatest.get(index),
            })
        };
        set.tasks().iter().enumerate().map(row).collect()
    };
    match plan {
        Plan::Found(found) => json!({
            "schedulable": true,
            "least": reservation(&found.least),
            "recommended": reservation(&found.recommended),
            "with_less": reason(set, &found.limit),
            "tasks": tasks(&found.responses, &found.greatest),
        }),
        Plan::TooMuch { .. } => json!({"schedulable": false, "tasks": tasks(&[], &[])}),
        Plan::Judged { reservation: of, verdict } => json!({
            "schedulable": verdict.is_schedulable(),
            "reservation": reservation(of),
            "reason": reason(set, verdict),
            "tasks": tasks(if let Verdict::Schedulable(r) = verdict { r } else { &[] }, &[]),
        }),
    }
}
