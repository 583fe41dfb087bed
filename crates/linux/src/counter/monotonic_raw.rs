//! CLOCK_MONOTONIC_RAW as a counter: the fallback where no architectural counter can be trusted.
//!
//! It costs a vDSO call instead of an instruction and is valid only on this machine, so it never
//! appears in a VM's page.

use timevisor_clock_page::{Counter, CounterId};

use crate::clock;

/// CLOCK_MONOTONIC_RAW in nanoseconds: exactly 1 GHz by definition, at whatever rate the kernel's
/// clocksource really runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicRaw;

impl Counter for MonotonicRaw {
    fn id(&self) -> CounterId {
        CounterId::MonotonicRaw
    }

    fn read_ordered(&self) -> u64 {
        clock::monotonic_raw_nanos()
    }
}

/// CLOCK_MONOTONIC_RAW of the initial time namespace, which is the counter of pages. In a container
/// that CRIU has restored, CLOCK_MONOTONIC_RAW differs from it, because the container has another
/// time namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMonotonicRaw {
    /// Offset of this process's clock from the initial one, ns.
    ahead: u64,
}

impl HostMonotonicRaw {
    /// For a process in the initial time namespace.
    pub const INITIAL: Self = Self { ahead: 0 };

    /// For the time namespace that this process is in now (time_namespaces(7)).
    #[must_use]
    pub fn from_here() -> Self {
        Self { ahead: clock::time_namespace_offset() }
    }
}

impl Counter for HostMonotonicRaw {
    fn id(&self) -> CounterId {
        CounterId::MonotonicRaw
    }

    #[inline]
    fn read_ordered(&self) -> u64 {
        clock::monotonic_raw_nanos().wrapping_sub(self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_nanoseconds() {
        let before = MonotonicRaw.read_ordered();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let passed = MonotonicRaw.read_ordered() - before;
        assert!(passed >= 1_900_000, "{passed}");
    }

    #[test]
    fn this_test_runs_where_the_pages_are_written() {
        let (own, hosts) =
            (MonotonicRaw.read_ordered(), HostMonotonicRaw::from_here().read_ordered());
        assert!(hosts >= own && hosts - own < 1_000_000_000, "{own} {hosts}");
    }
}
