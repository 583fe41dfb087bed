//! This host's cores, and what sysfs and cgroups say of them.

use timevisor_linux::affinity;
use timevisor_linux::cpuset::{self, Cpusets};
use timevisor_linux::scheduling::processor_of;
use timevisor_linux::topology;
use timevisor_reservation::{Claim, Core};

/// All cores, for a thread, or for one that is pinned to nothing.
pub fn cores(tid: Option<u32>) -> Vec<Core> {
    let online = affinity::online().unwrap_or_default();
    let (isolated, without_tick) = (topology::isolated(), topology::without_tick());
    let cpusets = Cpusets::find();
    let taken = cpusets.as_ref().map(|all| all.taken(&online)).unwrap_or_default();
    let claims = cpusets.as_ref().map(|all| all.claims(&online)).unwrap_or_default();
    let own = tid.and_then(|tid| cpusets.as_ref().ok()?.of_thread(tid));
    // A thread that has ended is refused later, with a better reason.
    let allowed = tid.and_then(|tid| affinity::allowed_of(tid).ok());
    let is_allowed = |number: usize| match &allowed {
        Some(allowed) => allowed.contains(&number),
        None => !isolated.contains(&number) && !taken.contains(&number),
    };
    let last = tid.and_then(|tid| processor_of(tid, tid).ok());
    let near = last.map(topology::neighbours).unwrap_or_default();
    let mut present = topology::present();
    // A container's sysfs may say less.
    present.extend(
        online.iter().filter(|number| !present.contains(number)).copied().collect::<Vec<_>>(),
    );
    let taken_by = |number: usize| {
        let partition = claims.partition(number);
        partition.map_or_else(
            || "another cgroup's partition".to_owned(),
            |name| format!("the partition {name}"),
        )
    };
    let claim = |number: usize| {
        claims.on(number, own.as_deref()).map(|claim| match claim {
            cpuset::Claim::Shared => Claim::Shared,
            cpuset::Claim::Own(who) => Claim::Own(who),
        })
    };
    // A thread shares a core that is set apart only if its own cgroup has it.
    let can_share = |number: usize| {
        let own = own.as_deref().and_then(|own| cpuset::shared_folder(own, number));
        !taken.contains(&number) || own.is_some_and(|folder| folder.exists())
    };
    let core = |number: usize| Core {
        number,
        is_online: online.contains(&number),
        is_allowed: is_allowed(number),
        is_isolated: isolated.contains(&number),
        is_quiet: isolated.contains(&number) || without_tick.contains(&number),
        is_near: near.is_empty() || near.contains(&number),
        siblings: topology::siblings(number),
        taken: taken.contains(&number).then(|| taken_by(number)),
        claim: claim(number),
        can_share: can_share(number),
    };
    present.into_iter().map(core).collect()
}
