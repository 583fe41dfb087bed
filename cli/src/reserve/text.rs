//! A plan in words, and as JSON.

use core::fmt::Write as _;

use serde_json::{Value, json};
use timevisor_schedule::demand::due_within;
use timevisor_schedule::synthesis::Sharing;
use timevisor_schedule::{Reservation, Task, TaskSet, Verdict};

use super::overheads::{self, Known};
use super::plan::{Found, KERNEL_SHARE, On, Plan};

pub fn words(set: &TaskSet, plan: &Plan, host: &Known) -> String {
    let any = match plan {
        Plan::Found(found) => match found.on {
            On::AnyOf(vcpus) => format!(", on any of {vcpus} vCPUs"),
            On::One | On::Vcpu(_) => String::new(),
        },
        _ => String::new(),
    };
    let mut out = format!(
        "{} tasks want {:.1} % of a processor{any}\n",
        set.tasks().len(),
        set.utilization() * 100.0
    );
    match plan {
        Plan::Found(found) => found_words(&mut out, set, found, host),
        Plan::TooMuch { period, in_theory, because } => {
            if let Some(of) = in_theory {
                line(&mut out, &format!("in theory     {}", size(of)));
                line(&mut out, &this_host(host));
            }
            let in_period = period.map_or(String::new(), |ns| format!(" of {} ms", ms(ns)));
            let here = if in_theory.is_some() { " here" } else { "" };
            line(
                &mut out,
                &format!(
                    "not possible  no reservation{in_period} is enough{here}, not even a whole processor's; give tasks to another vCPU, or make them shorter"
                ),
            );
            because.lines().iter().for_each(|text| line(&mut out, text));
        }
        Plan::Judged { reservation, verdict, in_theory, because } => {
            line(&mut out, &format!("budget        {}", size(reservation)));
            line(&mut out, &this_host(host));
            line(&mut out, &format!("verdict       {}", reason(set, verdict)));
            if in_theory.is_schedulable() != verdict.is_schedulable() {
                line(&mut out, &format!("in theory     {}", reason(set, in_theory)));
            }
            because.lines().iter().for_each(|text| line(&mut out, text));
            if let Verdict::Schedulable(responses) = verdict {
                table(&mut out, set, responses, &[]);
            }
        }
    }
    out
}

fn this_host(host: &Known) -> String {
    format!("this host     {} ({})", overheads::words(&host.overheads), host.from)
}

fn found_words(out: &mut String, set: &TaskSet, found: &Found, host: &Known) {
    let beside = match found.sharing {
        Sharing::Alone if matches!(found.on, On::AnyOf(_)) => {
            "for each vCPU, each the only one on its core"
        }
        Sharing::Alone => "as the only reservation on its core",
        Sharing::Aligned => {
            "as the only reservation on its core, with every release at a replenishment"
        }
        Sharing::Shared => "whatever else is reserved on the core",
    };
    line(out, &format!("in theory     {}, {beside}", size(&found.least)));
    line(out, &format!("why           with less, {}", reason(set, &found.limit)));
    line(out, &this_host(host));
    line(
        out,
        &format!(
            "recommended   {}: with what this host takes, and at least 3 % more than in theory",
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
    apply(found).iter().for_each(|command| line(out, &format!("apply with    {command}")));
}

/// As options take it.
pub fn span(ns: u64) -> String {
    match ns {
        ns if ns % 1_000_000 == 0 => format!("{}ms", ns / 1_000_000),
        ns if ns % 1000 == 0 => format!("{}us", ns / 1000),
        ns => format!("{ns}ns"),
    }
}

/// The commands that reserve what is recommended, one for each vCPU.
pub fn apply(found: &Found) -> Vec<String> {
    let (budget, period) = (span(found.recommended.budget()), span(found.recommended.period()));
    let alone = if found.sharing == Sharing::Shared { "" } else { " --alone" };
    let with =
        |vcpu: &str| format!("timevisor reserve apply VM{vcpu} --budget {budget}/{period}{alone}");
    match found.on {
        On::One => vec![with("")],
        On::Vcpu(vcpu) => vec![with(&format!(" --vcpu {vcpu}"))],
        On::AnyOf(vcpus) => (0..vcpus).map(|vcpu| with(&format!(" --vcpu {vcpu}"))).collect(),
    }
}

fn line(out: &mut String, text: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(out, "{text}");
}

pub fn size(of: &Reservation) -> String {
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
pub fn ms(ns: u64) -> String {
    let text = format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// As JSON, ns. Response times are by the tasks' names.
pub fn json(set: &TaskSet, plan: &Plan, host: &Known) -> Value {
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
                "apply": match found.on {
                    On::AnyOf(_) => Value::from(apply(found)),
                    On::One | On::Vcpu(_) => apply(found).concat().into(),
                },
            });
            (out, &found.responses, &found.greatest)
        }
        Plan::TooMuch { period, in_theory, because } => {
            let least = in_theory.map(|of| of.budget());
            let out = json!({
                "period_ns": period,
                "minimum_budget_ns": least,
                "because": because.json(),
                "possible_period_ns": because.instead.map(|of| of.period()),
            });
            (out, &[], &[])
        }
        Plan::Judged { reservation, verdict, in_theory, because } => {
            let out = json!({
                "budget_ns": reservation.budget(),
                "deadline_ns": reservation.deadline(),
                "period_ns": reservation.period(),
                "reason": reason(set, verdict),
                "schedulable_in_theory": in_theory.is_schedulable(),
                "because": because.json(),
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
    out["overheads"] = overheads::json(host);
    out["schedulable"] = plan.fits().into();
    out["tasks"] = tasks.collect();
    let of = |(task, ns): (&Task, &u64)| (task.name.clone(), Value::from(*ns));
    out["response_times_ns"] = Value::Object(set.tasks().iter().zip(responses).map(of).collect());
    out
}
