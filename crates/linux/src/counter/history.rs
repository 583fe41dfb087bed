//! What decides whether something that was learned of a counter is still valid.

use std::io;

use serde::{Deserialize, Serialize};
use timevisor_clock_page::Counter;

use crate::clock::{boot_id, suspended};

/// Two readings of CLOCK_BOOTTIME - CLOCK_MONOTONIC differ by less than this unless the host was
/// suspended in between.
const SUSPEND_NOISE_NS: u64 = 1_000_000;

/// The part of the counter's history that decides whether old lines are still valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CounterHistory {
    /// The boot's id.
    pub boot_id: String,
    /// The name of the counter.
    pub counter: String,
    /// CLOCK_BOOTTIME - CLOCK_MONOTONIC, ns.
    pub suspended_ns: i64,
}

impl CounterHistory {
    /// That of this machine's counter until now.
    ///
    /// # Errors
    /// As [`boot_id`].
    pub fn of(counter: &impl Counter) -> io::Result<Self> {
        Ok(Self {
            boot_id: boot_id()?.iter().map(|byte| format!("{byte:02x}")).collect(),
            counter: counter.id().name().to_owned(),
            suspended_ns: suspended().0.floor_nanos(),
        })
    }

    /// Checks that what was learned in this history is still valid in the history `now`.
    ///
    /// # Errors
    /// Why it is not.
    pub fn same_as(&self, now: &Self) -> Result<(), String> {
        if self.boot_id != now.boot_id {
            return Err("the machine was booted since".to_owned());
        }
        if self.counter != now.counter {
            return Err(format!("the counter was {} then", self.counter));
        }
        if self.suspended_ns.abs_diff(now.suspended_ns) > SUSPEND_NOISE_NS {
            return Err("the machine was suspended since".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::MonotonicRaw;

    #[test]
    fn a_history_goes_on_until_a_boot_a_suspend_or_another_counter() {
        let now = CounterHistory::of(&MonotonicRaw).unwrap();
        assert_eq!(now.same_as(&CounterHistory::of(&MonotonicRaw).unwrap()), Ok(()));
        let with = |change: fn(&mut CounterHistory)| {
            let mut then = now.clone();
            change(&mut then);
            then.same_as(&now).unwrap_err()
        };
        assert!(with(|then| then.boot_id.push('0')).contains("booted"));
        assert!(with(|then| then.counter = "sundial".to_owned()).contains("sundial"));
        assert!(with(|then| then.suspended_ns -= 2_000_000).contains("suspended"));
    }
}
