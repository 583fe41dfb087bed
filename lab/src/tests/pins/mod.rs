//! Events at pins, and outputs at a time.

pub(crate) mod gpio;

use crate::scenario::Need::{Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "pins", tests: TESTS };

const TESTS: &[Test] = &[Test {
    name: "pins-gpio",
    about: "gpio-sim in a guest: every edge in its interval, lost ones told, outputs at their times or refused; a PTP clock without pins",
    tier: Tier::All,
    needs: &[
        Root,
        Fetched("busybox"),
        Fetched("kernel:trixie-backports:amd64"),
        Fetched("qemu-10"),
    ],
    seconds: 45,
    run: gpio::gpio,
}];
