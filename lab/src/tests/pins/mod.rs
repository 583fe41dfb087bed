//! Events at pins, and outputs at a time.

pub(crate) mod gpio;

use crate::scenario::Need::{Apt, Fetched, Root, Wheel};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "pins", tests: TESTS };

const TESTS: &[Test] = &[Test {
    name: "pins-gpio",
    about: "gpio-sim in a guest, in Rust, C and Python: every edge in its interval, lost ones told, outputs at their times or refused; a PTP clock without pins",
    tier: Tier::All,
    needs: &[
        Root,
        Fetched("busybox"),
        Fetched("kernel:trixie-backports:amd64"),
        Fetched("qemu-10"),
        Wheel,
        Apt("make"),
        Apt("pkg-config"),
    ],
    seconds: 90,
    run: gpio::gpio,
}];
