//! Live migration between two daemons.

pub(crate) mod hosts;
pub(crate) mod kvm;
pub(crate) mod nvdimm;
pub(crate) mod reserved;

use crate::nested::NESTED;
use crate::scenario::Need::{Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "migration", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "migrate-nvdimm",
        about: "the first read after a migration sees the destination host's page, on both QEMUs",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: nvdimm::nvdimm,
    },
    Test {
        name: "migrate-hosts",
        about: "timevisor vm migrate between two daemons, there and back, by both deliveries: right, never back, markers change",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: hosts::there_and_back,
    },
    Test {
        name: "migrate-carries",
        about: "a guest's age, timescale and its programs' bindings go along, by both deliveries",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: hosts::carried,
    },
    Test {
        name: "late-daemon",
        about: "a guest on UTC arrives where the daemon is dead and VMs are on TAI: timescale and age kept, by both deliveries, over restarts",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 100,
        run: hosts::late_daemon,
    },
    Test {
        name: "migrate-cut",
        about: "the process that speaks QMP is killed at eight moments of a move, on either side: right, never back, what both daemons say is true",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 195,
        run: hosts::cut,
    },
    Test {
        name: "migrate-turns",
        about: "three hosts in a ring, back at once, a destination that comes late, cancelled moves, a source without a daemon: right, never back, as old as it is",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 150,
        run: hosts::turns,
    },
    Test {
        name: "migrate-kvm",
        about: "moves under real KVM (itself under TCG) by both deliveries: held, at once, by somebody else's cont, multifd, post-copy (by name only)",
        tier: Tier::Weekly {
            why: "an inner guest hangs at an arrival now and then under two layers of emulation",
        },
        needs: NESTED,
        seconds: 900,
        run: kvm::kvm,
    },
    Test {
        name: "migrate-reserved",
        about: "a VM with a reservation moves under KVM and cgroup v2: admitted before, in force before it runs, given back after; refused, cancelled, run again",
        tier: Tier::All,
        needs: NESTED,
        seconds: 60,
        run: reserved::reserved,
    },
    Test {
        name: "migrate-generation",
        about: "the VM generation counter changes with each load of a snapshot, and not with a live migration",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 60,
        run: hosts::generation,
    },
    Test {
        name: "migrate-oscillators",
        about: "the same between hosts whose counters differ in rate, start and wander",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 100,
        run: hosts::oscillators,
    },
    Test {
        name: "migrate-load",
        about: "the same with a guest that dirties its memory, busy processors and a busy network",
        tier: Tier::All,
        needs: NESTED,
        seconds: 100,
        run: hosts::loaded,
    },
    Test {
        name: "migrate-postcopy",
        about: "the guest runs before its memory is there: right, never back",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: hosts::postcopy,
    },
    Test {
        name: "migrate-no-time",
        about: "to a host that is not synchronized: the guest knows that it does not know, until its host does",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: hosts::no_time,
    },
    Test {
        name: "migrate-no-timevisor",
        about: "to a QEMU that runs the guest before its page is written, or that no timevisord knows: unknown, never wrong",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 80,
        run: hosts::no_timevisor,
    },
    Test {
        name: "migrate-fails",
        about: "migrations that are cancelled, fail, or are refused: the VM stays, its page is right, the reason is told",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 80,
        run: hosts::stays,
    },
];
