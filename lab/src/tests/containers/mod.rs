//! Containers and the first programs that users copy.

pub(crate) mod container;
pub(crate) mod first_programs;

use crate::scenario::Need::{Apt, Fetched, Root, Wheel};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "containers", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "container",
        about: "unprivileged containers read the host's time through a read-only mount, and cannot write it",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Apt("runc")],
        seconds: 15,
        run: container::container,
    },
    Test {
        name: "first-programs",
        about: "the C, Rust and Python first programs, the same files on the host, in a container and in a stock guest",
        tier: Tier::Test,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Wheel,
            Apt("runc"),
            Apt("make"),
            Apt("pkg-config"),
        ],
        seconds: 90,
        run: first_programs::first_programs,
    },
];
