//! Short runs of the experiments.

pub(crate) mod smoke;

use crate::scenario::Need::{ExclusiveCpu, Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "experiments", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "experiment-quartzv",
        about: "error and bounds of the host's page, a guest's page, and a timevisord and a chronyd inside it, for 15 s",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 90,
        run: smoke::quartzv,
    },
    Test {
        name: "experiment-sawtooth",
        about: "a dependent clock that is told no rate beside the page, for 20 s, on a counter that is 40 ppm off",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 80,
        run: smoke::sawtooth,
    },
    Test {
        name: "experiment-promises",
        about: "four random task sets, each in the reservation that its plan recommends, beside a busy host: no job late inside its promise",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 120,
        run: smoke::promises,
    },
];
