//! What others do to reserved cores while they are reserved.
//!
//! Kubelet and libvirt give their containers and VMs cores without asking. On cgroup v2 a partition keeps its core:
//! whoever is told to run there alone runs elsewhere, and nobody says so. This does.

use std::collections::BTreeSet;

use timevisor_linux::affinity;
use timevisor_linux::cpuset::{Claim, Cpusets};
use timevisor_linux::scheduling::Change;
use timevisor_reservation::Held;

/// Between two looks at everybody's cpusets, ns: kubelet reconciles them every 10 s.
const INTERVAL: u64 = 10_000_000_000;

/// The reserved cores, and what was said of them.
#[derive(Debug, Default)]
pub struct Watch {
    reserved: Vec<Reserved>,
    /// The core, and the cpuset that has it for itself.
    told: BTreeSet<(usize, String)>,
    next: u64,
}

#[derive(Debug)]
struct Reserved {
    name: String,
    tid: u32,
    core: usize,
    made: Vec<Change>,
}

impl Watch {
    /// These are held from now on.
    pub fn hold(&mut self, held: &[Held<Change>]) {
        let reserved = held.iter().filter_map(|held| {
            let files = held.changes.iter().map(|(_, change)| change);
            let files = files.filter(|change| matches!(change, Change::File { .. }));
            let (name, tid, core) = (held.name(), held.tid, held.core()?);
            Some(Reserved { name, tid, core, made: files.cloned().collect() })
        });
        self.reserved = reserved.collect();
        let cores: BTreeSet<usize> = self.reserved.iter().map(|reserved| reserved.core).collect();
        self.told.retain(|(core, _)| cores.contains(core));
    }

    /// What to tell of cpusets that have a reserved core for themselves since the last look. `now`: ns.
    ///
    /// # Errors
    /// What the kernel says of a reserved core that is no partition any more.
    pub fn look(&mut self, now: u64) -> Result<Vec<String>, String> {
        for reserved in &self.reserved {
            let lost = reserved.made.iter().find_map(|change| Cpusets::check(change).err());
            if let Some(error) = lost {
                return Err(format!("core {}: {error}", reserved.core));
            }
        }
        if now < self.next || self.reserved.is_empty() {
            return Ok(Vec::new());
        }
        self.next = now + INTERVAL;
        let (Ok(cpusets), Ok(online)) = (Cpusets::find(), affinity::online()) else {
            return Ok(Vec::new());
        };
        let claims = cpusets.claims(&online);
        let (mut found, mut still) = (Vec::new(), BTreeSet::new());
        for Reserved { name, tid, core, made } in &self.reserved {
            // Without a partition, who is told to run there does.
            let apart = |change: &Change| matches!(change, Change::File { path, .. } if path.ends_with("cpuset.cpus.partition"));
            if !made.iter().any(apart) {
                continue;
            }
            let own = cpusets.of_thread(*tid);
            if own.is_some()
                && let Some(Claim::Own(who)) = claims.on(*core, own.as_deref())
                && still.insert((*core, who.clone()))
                && !self.told.contains(&(*core, who.clone()))
            {
                found.push(format!(
                    "core {core} is reserved for {name}, and now {who} has it for itself, too: that runs elsewhere; release or \
                     move the reservation, or give {who} another core"
                ));
            }
        }
        self.told = still;
        Ok(found)
    }
}
