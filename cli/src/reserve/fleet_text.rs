//! A fleet's plan in words, and as JSON.

use core::fmt::Write as _;

use serde_json::{Value, json};
use timevisor_schedule::fleet::{Place, Unplaced};

use super::because::Because;
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
    for (index, number) in fleet.cores.iter().enumerate() {
        if let Some(note) = note(fleet, index, *number) {
            line(&format!("note          {note}"));
        }
    }
    for (vm, why) in &fleet.undivided {
        line(&format!("does not fit  {vm}: {why}"));
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
            let why = asked.impossible.as_ref().map(|of| of.why.as_str());
            format!(": {}", why.unwrap_or("no reservation is enough for its tasks"))
        }
        Unplaced::MoreThanACore(need) => format!(
            " needs {} % of a core, and kernels have 95 % for reservations (sched_rt_runtime_us): {} % are missing; try another period, or divide its tasks among more vCPUs",
            percent(need),
            percent(missing(why).unwrap_or(0))
        ),
        Unplaced::OtherGroups(need) => format!(
            " needs {} % of a core, and only cores of VMs in other cgroups have that left; take one more core, or put them into one cgroup (`cgroup` in the file)",
            percent(need)
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
                percent(missing(why).unwrap_or(0))
            )
        }
        Unplaced::TooUrgent(need, core) => format!(
            " needs {} % of a core, which core {} has left, but with what is there some budget would be late (a tick of another's overrun included); give it a longer period, or another core",
            percent(need),
            fleet.cores.get(core).copied().unwrap_or(0)
        ),
    }
}

/// Parts per million of a core, where so much more of one would do.
fn missing(why: Unplaced) -> Option<u64> {
    match why {
        Unplaced::MoreThanACore(need) => {
            Some(need.saturating_sub(1000 * super::plan::KERNEL_SHARE))
        }
        Unplaced::TooLittle(need, left) => Some(need.saturating_sub(left)),
        Unplaced::NoEmptyCore(_)
        | Unplaced::OtherGroups(_)
        | Unplaced::Impossible
        | Unplaced::TooUrgent(..) => None,
    }
}

/// What is to be known of a core that VMs of several cgroups share.
fn note(fleet: &Fleet, index: usize, number: u16) -> Option<String> {
    let vms = fleet.strangers(index);
    let (last, others) = vms.split_last()?;
    let vms = format!("{} and {last}", others.join(", "));
    Some(format!(
        "core {number} is for VMs {vms}: with cgroup v2 they share it only if they are in one cgroup (libvirt gives each its own); plan with --apart, or say so in the file (`cgroup`)"
    ))
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

/// What of the host makes it impossible.
fn because(asked: &Asked) -> Option<&Because> {
    asked.impossible.as_ref().map(|of| &of.because)
}

fn percent(ppm: u64) -> String {
    // Tenths, rounded down.
    format!("{}.{}", ppm / 10_000, ppm % 10_000 / 1000)
}

/// As JSON; ns, and parts per million of a core.
pub fn json(fleet: &Fleet, host: &Known) -> Value {
    let cores = fleet.cores.iter().zip(&fleet.assignment.cores).enumerate();
    let cores = cores.map(|(index, (number, core))| {
        json!({
            "core": number, "alone": core.alone, "left_ppm": core.left, "note": note(fleet, index, *number),
        })
    });
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
                "because": because(asked).map(Because::json),
                "possible_period_ns": because(asked).and_then(|of| of.instead).map(|of| of.period()),
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
    let undivided = fleet.undivided.iter();
    vms.extend(undivided.map(|(vm, why)| json!({"name": vm, "vcpus": [], "reason": why})));
    json!({
        "schedulable": fleet.fits(),
        "cores": cores.collect::<Vec<_>>(),
        "vms": vms,
        "overheads": overheads::json(host),
    })
}
