//! Every number that the model uses, with its unit and its reason.

use timevisor_protocols::channel::Limits;
use timevisor_time::Duration;

use crate::tenant::Tenant;

/// Limits, pages and quarantine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Limits of `uid:0`. Root can do worse than bind, so they only catch programs that run wild.
    pub root: Limits,
    /// Limits of every other user of the host. 1,024 bindings suffice for a service with a worker
    /// per core, with room to spare.
    pub user: Limits,
    /// Limits of every VM. Its page holds 17 timelines in addition to its clock, so 16 for the VM's
    /// own leave room for a configured one.
    pub vm: Limits,
    /// 4 KiB pages of the host's file. 4 hold 68 timelines in addition to the clock; readers map
    /// the file once.
    pub host_pages: u32,
    /// How long a freed entry stays unused. Readers always notice another generation. With 1 s, a
    /// client that has not read for a while, or whose answer is still on its way, finds an empty
    /// entry instead of another tenant's timeline.
    pub quarantine: Duration,
}

/// An invalid parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {problem}")]
pub struct InvalidParameter {
    /// The field's name.
    pub name: &'static str,
    /// What is wrong and what would be right.
    pub problem: &'static str,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            root: Limits {
                bindings: 4096,
                timelines: 64,
                requests_per_second: 1000,
                lease_ms: None,
            },
            user: Limits {
                bindings: 1024,
                timelines: 16,
                // A program binds once and then reads; 100 allows a service to restart all its
                // workers.
                requests_per_second: 100,
                lease_ms: None,
            },
            vm: Limits {
                bindings: 256,
                timelines: 16,
                requests_per_second: 100,
                // A port outlives the guest's programs, and its host side does not always notice
                // their end.
                lease_ms: Some(30_000),
            },
            host_pages: 4,
            quarantine: Duration::from_secs(1),
        }
    }
}

impl Parameters {
    /// Checks all parameters.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        let kinds = [("root", self.root), ("user", self.user), ("vm", self.vm)];
        for (name, limits) in kinds {
            let checks = [
                (limits.bindings >= 1, "bindings must be 1 or more"),
                (limits.requests_per_second >= 1, "requests_per_second must be 1 or more"),
                (
                    limits.lease_ms.is_none_or(|ms| (1000..=86_400_000).contains(&ms)),
                    "lease_ms must be 1000 to 86400000 (a day), or absent",
                ),
            ];
            if let Some((_, problem)) = checks.into_iter().find(|(good, _)| !good) {
                return Err(InvalidParameter { name, problem });
            }
        }
        if !(1..=4).contains(&self.host_pages) {
            return Err(InvalidParameter { name: "host_pages", problem: "must be 1 to 4" });
        }
        if self.quarantine.is_negative() || self.quarantine > Duration::from_secs(60) {
            let problem =
                "must be 0 to 60 s: a longer quarantine fills the pages with unused entries";
            return Err(InvalidParameter { name: "quarantine", problem });
        }
        Ok(())
    }

    /// What a tenant may do.
    #[must_use]
    pub const fn limits(&self, tenant: &Tenant) -> Limits {
        match tenant {
            Tenant::User(0) => self.root,
            Tenant::User(_) => self.user,
            Tenant::Vm(_) => self.vm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_their_neighbours_are_not() {
        let good = Parameters::default();
        assert_eq!(good.validate(), Ok(()));
        let mut all = [good; 6];
        all[0].root.bindings = 0;
        all[1].user.requests_per_second = 0;
        all[2].vm.lease_ms = Some(999);
        all[3].host_pages = 5;
        all[4].quarantine = Duration::from_secs(61);
        all[5].quarantine = -Duration::EPSILON;
        let names = all.map(|bad| bad.validate().unwrap_err().name);
        assert_eq!(names, ["root", "user", "vm", "host_pages", "quarantine", "quarantine"]);
    }

    #[test]
    fn limits_follow_the_kind_of_tenant() {
        let parameters = Parameters::default();
        let bindings = |tenant: &Tenant| parameters.limits(tenant).bindings;
        assert_eq!(bindings(&Tenant::User(0)), 4096);
        assert_eq!(bindings(&Tenant::User(1)), 1024);
        assert_eq!(bindings(&Tenant::vm("root")), 256);
    }
}
