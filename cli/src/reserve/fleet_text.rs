//! A fleet's plan in words, and as JSON.

use core::fmt::Write as _;

use serde_json::{Value, json};
use timevisor_schedule::fleet::{Place, Unplaced};

use super::fleet::{Asked, Fleet};
use super::overheads::{self, Known};
use super::text::{size, span};

pub fn words(fleet: &Fleet, host: &Known) -> String {
    let mut out = String::new();
    let mut line = |text: &str| {
        // Writing to a String does not fail.
        let _ = writeln!(out, "{text}");
    };
    line(&format!("this host     {} ({})", overheads::words(&host.overheads), host.from));
    for (number, core) in fleet.cores.iter().zip(&fleet.assignment.cores) {
        let there = core.reservations.iter().map(|(index, of)| {
            let Asked { vm, vcpu, .. } = &fleet.asked[*index];
            format!("{vm} vCPU {vcpu} {}", size(of))
        });
        let there: Vec<String> = there.collect();
        let left = percent(core.left);
        let text = match (there.is_empty(), core.alone) {
            (true, _) => format!("nothing; {left} % are left"),
            (false, true) => format!("{}, alone; nothing is left", there.concat()),
            (false, false) => format!("{}; {left} % are left", there.join(", ")),
        };
        line(&format!("{:<13} {text}", format!("core {number}")));
    }
    for (asked, place) in fleet.asked.iter().zip(&fleet.assignment.places) {
        if let Err(why) = place {
            line(&format!(
                "does not fit  {} vCPU {}{}",
                asked.vm,
                asked.vcpu,
                reason(fleet, asked, *why)
            ));
        }
    }
    for (asked, place) in fleet.asked.iter().zip(&fleet.assignment.places) {
        let Ok(place) = place else { continue };
        line(&format!("apply with    {}", apply(fleet, asked, place)));
        if let Some(pinned) = &asked.pinned {
            line(&format!("in the guest  {}: {pinned}", asked.vm));
        }
    }
    out
}

fn reason(fleet: &Fleet, asked: &Asked, why: Unplaced) -> String {
    match why {
        Unplaced::Impossible => {
            let why = asked.impossible.as_deref();
            format!(": {}", why.unwrap_or("no reservation is enough for its tasks"))
        }
        Unplaced::MoreThanACore(need) => format!(
            " needs {} % of a core, and kernels have 95 % for reservations (sched_rt_runtime_us): {} % are missing; try another period, or divide its tasks among more vCPUs",
            percent(need),
            percent(missing(why))
        ),
        Unplaced::NoEmptyCore(need) => format!(
            " needs a core for itself, of which it takes {} %, and none is empty; take one more core",
            percent(need)
        ),
        Unplaced::TooLittle(need, left) => {
            let most = fleet.assignment.cores.iter().position(|core| core.left == left);
            let core = most.and_then(|index| fleet.cores.get(index)).copied().unwrap_or(0);
            format!(
                " needs {} % of a core, and core {core} has the most left, {} %: {} % are missing",
                percent(need),
                percent(left),
                percent(missing(why))
            )
        }
        Unplaced::TooUrgent(need, core) => format!(
            " needs {} % of a core, which core {} has left, but with what is there some budget would be late (a tick of another's overrun included); give it a longer period, or another core",
            percent(need),
            fleet.cores.get(core).copied().unwrap_or(0)
        ),
    }
}

/// Parts per million of a core.
fn missing(why: Unplaced) -> u64 {
    match why {
        Unplaced::MoreThanACore(need) => need.saturating_sub(1000 * super::plan::KERNEL_SHARE),
        Unplaced::TooLittle(need, left) => need.saturating_sub(left),
        Unplaced::NoEmptyCore(need) => need,
        Unplaced::Impossible | Unplaced::TooUrgent(..) => 0,
    }
}

fn apply(fleet: &Fleet, asked: &Asked, place: &Place) -> String {
    let Asked { vm, vcpu, .. } = asked;
    let core = fleet.cores.get(place.core).copied().unwrap_or(0);
    let (budget, period) = (span(place.reservation.budget()), span(place.reservation.period()));
    let alone = if place.alone { " --alone" } else { "" };
    format!(
        "timevisor reserve apply {vm} --vcpu {vcpu} --core {core} --budget {budget}/{period}{alone}"
    )
}

fn percent(ppm: u64) -> String {
    // Tenths, rounded down.
    format!("{}.{}", ppm / 10_000, ppm % 10_000 / 1000)
}

/// As JSON; ns, and parts per million of a core.
pub fn json(fleet: &Fleet, host: &Known) -> Value {
    let cores =
        fleet.cores.iter().zip(&fleet.assignment.cores).map(
            |(number, core)| json!({"core": number, "alone": core.alone, "left_ppm": core.left}),
        );
    let mut vms: Vec<Value> = Vec::new();
    for (asked, place) in fleet.asked.iter().zip(&fleet.assignment.places) {
        let row = match place {
            Ok(place) => json!({
                "vcpu": asked.vcpu,
                "core": fleet.cores.get(place.core),
                "budget_ns": place.reservation.budget(),
                "period_ns": place.reservation.period(),
                "alone": place.alone,
                "in_the_guest": asked.pinned,
                "apply": apply(fleet, asked, place),
            }),
            Err(why) => json!({
                "vcpu": asked.vcpu,
                "core": null,
                "reason": reason(fleet, asked, *why).trim_start_matches([':', ' ']),
                "missing_ppm": missing(*why),
            }),
        };
        match vms.last_mut() {
            Some(last) if last["name"] == asked.vm.as_str() => {
                if let Some(all) = last["vcpus"].as_array_mut() {
                    all.push(row);
                }
            }
            _ => vms.push(json!({"name": asked.vm, "vcpus": [row]})),
        }
    }
    json!({
        "schedulable": fleet.fits(),
        "cores": cores.collect::<Vec<_>>(),
        "vms": vms,
        "overheads": overheads::json(host),
    })
}
