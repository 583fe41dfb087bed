//! Kills, snapshots, clones, suspends and upgrades while a reader runs.

pub(crate) mod clone;
pub(crate) mod snapshot;
pub(crate) mod survive;
pub(crate) mod suspend;
pub(crate) mod upgrade;

use crate::scenario::Need::{Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "survival", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "survive-stop-cont",
        about: "after stop and cont a guest's first read is right, or honest about not knowing",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: survive::stop_cont,
    },
    Test {
        name: "survive-kill-9",
        about: "timevisord killed -9 ten times while a guest reads: never back, restart resumes",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: survive::kill_daemon,
    },
    Test {
        name: "survive-sigterm",
        about: "SIGTERM leaves pages free running with growing bounds",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: survive::end_daemon,
    },
    Test {
        name: "survive-snapshot",
        about: "snapshots saved and loaded under a reader, by both deliveries: no read is wrong, markers change",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: snapshot::snapshot,
    },
    Test {
        name: "survive-clone",
        about: "two VMs from one saved state: each has its own page, marker, epoch and id",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: clone::clones,
    },
    Test {
        name: "survive-clones",
        about: "a hundred VMs from one saved state (CLONES): each has its own page, marker, epoch and id, and its original's age",
        tier: Tier::Weekly { why: "a hundred emulated guests take minutes, and 14 GB of memory" },
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 400,
        run: clone::hundred,
    },
    Test {
        name: "survive-suspend",
        about: "a guest in S3: its page says nothing until it is awake, and is right from then on",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: suspend::guest,
    },
    Test {
        name: "survive-host-suspend",
        about: "a daemon that stands still, and one that starts after a suspend of its host (simulated)",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: suspend::host,
    },
    Test {
        name: "survive-upgrade",
        about: "another timevisord binary takes over from a running one while a guest reads: never back, no disruption on the host",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: upgrade::upgrade,
    },
    Test {
        name: "no-driver",
        about: "a kernel without the driver is not disturbed by a page",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:bookworm"), Fetched("qemu-10")],
        seconds: 45,
        run: survive::no_driver,
    },
];
