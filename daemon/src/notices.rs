//! What guests are told of disruptions to come, and migrations that wait until they were told.
//!
//! | who says so | what is on the page |
//! | --- | --- |
//! | `vm notice` | that, until it is taken back or the VM's process ends |
//! | `vm migrate --drain` | soon, from the request until the drain is over |
//! | `vm migrate` | imminent, for [`LEAD`] before the migration begins |
//! | QEMU migrates the VM, by whomever it was told to | imminent, until that has ended |
//!
//! The most urgent one counts. Pure; `vms/requests.rs` writes the pages and talks to QEMU.

use std::collections::BTreeMap;

use timevisor_protocols::control::{Notice, VmMigrate};
use timevisor_time::Duration;

/// From `imminent` to the migration. Without it, the last round of a short migration stops the guest
/// before it has seen the notice and stopped what must not run: an agent looks every 10 ms, and a
/// busy guest takes some 100 ms until its workload stands still (docs/evaluation/coverage.md).
pub const LEAD: Duration = Duration::from_millis(250);

/// What is known of one VM, beyond what QEMU reports.
#[derive(Default)]
struct Known {
    /// What `vm notice` said last.
    said: Notice,
    drain: Option<Drain>,
    /// The page says that the VM is being moved live.
    moving: bool,
}

/// A migration that has not begun.
struct Drain {
    migrate: VmMigrate,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    /// The guest is told `soon` until then.
    Drains(Duration),
    /// The guest is told `imminent`; the migration begins then.
    Leads(Duration),
}

impl Phase {
    fn end(self) -> Duration {
        match self {
            Self::Drains(end) | Self::Leads(end) => end,
        }
    }
}

/// The notices of all VMs, by name.
#[derive(Default)]
pub struct Notices {
    vms: BTreeMap<String, Known>,
}

impl Notices {
    /// Takes what `vm notice` says.
    pub fn say(&mut self, name: &str, notice: Notice) {
        self.known(name).said = notice;
    }

    /// The migration begins when its drain, if it has one, and the lead are over.
    pub fn drain(&mut self, migrate: &VmMigrate, now: Duration) {
        let phase = match migrate.drain_seconds {
            0 => Phase::Leads(now + LEAD),
            seconds => Phase::Drains(now + Duration::from_secs(i64::from(seconds))),
        };
        self.known(&migrate.name).drain = Some(Drain { migrate: migrate.clone(), phase });
    }

    /// Whether a migration of this VM waits.
    pub fn drains(&self, name: &str) -> bool {
        self.vms.get(name).is_some_and(|known| known.drain.is_some())
    }

    /// Cancels a migration that waits; false if there is none.
    pub fn cancel(&mut self, name: &str) -> bool {
        self.vms.get_mut(name).is_some_and(|known| known.drain.take().is_some())
    }

    /// The migrations that begin now. A drain that is over begins its lead; tell the guests
    /// afterwards.
    pub fn due(&mut self, now: Duration) -> Vec<VmMigrate> {
        let begins = |known: &mut Known| {
            let drain = known.drain.as_mut().filter(|drain| now >= drain.phase.end())?;
            match drain.phase {
                // The whole lead, however late this is called.
                Phase::Drains(_) => {
                    drain.phase = Phase::Leads(now + LEAD);
                    None
                }
                Phase::Leads(_) => known.drain.take(),
            }
        };
        self.vms.values_mut().filter_map(begins).map(|drain| drain.migrate).collect()
    }

    /// When [`Self::due`] has something.
    pub fn poll_at(&self) -> Duration {
        let drains = self.vms.values().filter_map(|known| known.drain.as_ref());
        drains.map(|drain| drain.phase.end()).min().unwrap_or(Duration::MAX)
    }

    /// What the VM's guest has to be told. `leaves`: QEMU is migrating it.
    pub fn of(&self, name: &str, leaves: bool) -> Notice {
        let known = self.vms.get(name);
        let drain = known.and_then(|known| known.drain.as_ref());
        let journey = match drain.map(|drain| drain.phase) {
            _ if leaves => Notice::Imminent,
            Some(Phase::Leads(_)) => Notice::Imminent,
            Some(Phase::Drains(_)) => Notice::Soon,
            None => Notice::None,
        };
        known.map_or(Notice::None, |known| known.said).max(journey)
    }

    /// Notes that the page says that the VM is being moved live.
    pub fn moves(&mut self, name: &str) {
        self.known(name).moving = true;
    }

    /// True once, if the page says so.
    pub fn take_moving(&mut self, name: &str) -> bool {
        self.vms.get_mut(name).is_some_and(|known| std::mem::take(&mut known.moving))
    }

    /// Forgets VMs that are gone, and those of which nothing is said.
    pub fn retain(&mut self, is_served: impl Fn(&str) -> bool) {
        self.vms.retain(|name, known| {
            let says = known.said != Notice::None || known.drain.is_some() || known.moving;
            says && is_served(name)
        });
    }

    fn known(&mut self, name: &str) -> &mut Known {
        self.vms.entry(name.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migrate(drain_seconds: u32) -> VmMigrate {
        VmMigrate { name: "db".to_owned(), to: Some("tcp:b:4444".to_owned()), drain_seconds }
    }

    fn at(seconds: i64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_drain_says_soon_and_then_imminent() {
        let mut notices = Notices::default();
        assert_eq!((notices.of("db", false), notices.poll_at()), (Notice::None, Duration::MAX));
        notices.drain(&migrate(30), at(100));
        assert_eq!(notices.of("db", false), Notice::Soon);
        assert_eq!((notices.due(at(129)), notices.poll_at()), (vec![], at(130)));
        assert_eq!((notices.due(at(131)), notices.poll_at()), (vec![], at(131) + LEAD), "late");
        assert_eq!(notices.of("db", false), Notice::Imminent);
        assert_eq!(notices.due(at(131) + LEAD), [migrate(30)]);
        assert!(notices.due(at(132)).is_empty() && !notices.drains("db"), "once");
        assert_eq!(notices.of("db", true), Notice::Imminent);
        assert_eq!(notices.of("db", false), Notice::None, "it failed, or was cancelled");
        assert_eq!(notices.of("web", false), Notice::None, "nobody else is told");
    }

    #[test]
    fn a_guest_is_told_before_it_is_moved_without_a_drain() {
        let mut notices = Notices::default();
        notices.drain(&migrate(0), at(100));
        assert_eq!(notices.of("db", false), Notice::Imminent);
        assert_eq!((notices.due(at(100)), notices.poll_at()), (vec![], at(100) + LEAD));
        assert_eq!(notices.due(at(100) + LEAD), [migrate(0)]);
    }

    #[test]
    fn a_drain_that_is_cancelled_is_taken_back() {
        let mut notices = Notices::default();
        assert!(!notices.cancel("db"));
        notices.drain(&migrate(30), at(0));
        assert!(notices.cancel("db") && !notices.cancel("db"));
        assert_eq!(notices.of("db", false), Notice::None);
        assert!(notices.due(at(1000)).is_empty());
    }

    #[test]
    fn the_most_urgent_notice_counts() {
        let mut notices = Notices::default();
        notices.say("db", Notice::Soon);
        assert_eq!(notices.of("db", true), Notice::Imminent);
        assert_eq!(notices.of("db", false), Notice::Soon, "a migration takes back its own only");
        notices.say("db", Notice::Imminent);
        notices.drain(&migrate(5), at(0));
        assert_eq!(notices.of("db", false), Notice::Imminent);
        notices.say("db", Notice::None);
        assert_eq!(notices.of("db", false), Notice::Soon);
    }

    #[test]
    fn what_was_said_of_a_vm_ends_with_it() {
        let mut notices = Notices::default();
        notices.say("db", Notice::Soon);
        notices.say("web", Notice::None);
        notices.moves("db");
        notices.retain(|_| true);
        assert!(!notices.vms.contains_key("web"), "nothing is said of it");
        assert!(notices.take_moving("db") && !notices.take_moving("db"));
        notices.retain(|name| name != "db");
        assert_eq!(notices.of("db", false), Notice::None);
    }
}
