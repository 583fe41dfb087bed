//! Timelines, their members, and the examples that use them.

pub(crate) mod commit_wait;
pub(crate) mod controllers;
pub(crate) mod guest;
pub(crate) mod host;
pub(crate) mod real_time;

use crate::scenario::Need::{Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "timelines", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "timelines",
        about: "bind, admission, leases, local timelines, a restart: programs on the host",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: host::host,
    },
    Test {
        name: "timelines-polling",
        about: "the tightest requirement decides how often a server is asked",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: host::polling,
    },
    Test {
        name: "timelines-1000",
        about: "1,000 members on 20 timelines",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: host::thousand,
    },
    Test {
        name: "page-real-time",
        about: "a reader under SCHED_FIFO that interrupts its page's writer, on one processor",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 5,
        run: real_time::interrupts_its_writer,
    },
    Test {
        name: "timelines-guest",
        about: "programs in a guest: through the port alone, through timevisor-guest, and killed",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: guest::agent,
    },
    Test {
        name: "timelines-visible",
        about: "a changed requirement is on a guest's page before the request is answered",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: guest::visible,
    },
    Test {
        name: "timelines-hostile",
        about: "a guest that attacks over its channel hurts nobody but itself",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: guest::hostile,
    },
    Test {
        name: "example-commit-wait",
        about: "a key-value store in two guests of two hosts: commit-wait keeps order, clocks that are believed do not",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: commit_wait::commit_wait,
    },
    Test {
        name: "example-controllers",
        about: "controllers in two guests act together, and refuse while the clock is not good enough",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: controllers::controllers,
    },
];
