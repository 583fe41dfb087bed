//! CLOCK_MONOTONIC_RAW as a counter: the fallback where no architectural counter can be trusted.
//!
//! It costs a vDSO call instead of an instruction and exists only on this machine: never in a VM's page.

use timevisor_clock_page::{Counter, CounterId};

use crate::clock;

/// CLOCK_MONOTONIC_RAW in nanoseconds: exactly 1 GHz by definition, at whatever rate the kernel's clocksource really runs.
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
}
