//! Members of groups that act together at a time.

pub(crate) mod cell;
pub(crate) mod guests;
pub(crate) mod how_to;
pub(crate) mod lan;
pub(crate) mod ros;
mod trio;

use crate::scenario::Need::{Apt, ExclusiveCpu, Fetched, Rclpy, Root, Wheel};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "groups", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "group-how-to",
        about: "the commands of docs/how-to/act-together.md: a bus, two members, a proposal that all three fire",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: how_to::how_to,
    },
    Test {
        name: "group-guests",
        about: "Rust on the host, C and Python in guests that reach the bus by TLS: all fire together, FIRES times (default 300)",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Wheel,
            Apt("make"),
            Apt("pkg-config"),
        ],
        seconds: 150,
        run: guests::guests,
    },
    Test {
        name: "group-lan",
        about: "three hosts with a bus each in network namespaces: all fire together, PROPOSALS times (default 100)",
        tier: Tier::All,
        needs: &[Root],
        seconds: 40,
        run: lan::lan,
    },
    Test {
        name: "group-cell",
        about: "three hosts with one clock of their own and no other: all fire together, also after its master has died",
        tier: Tier::All,
        needs: &[Root],
        seconds: 25,
        run: cell::cell,
    },
    Test {
        name: "group-ros",
        about: "timevisor-ros beside real rclpy: intervals, diagnostics, trajectories to a group and back",
        tier: Tier::All,
        needs: &[Root, Rclpy],
        seconds: 60,
        run: ros::ros,
    },
];
