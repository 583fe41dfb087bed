//! The elapsed clock, on the host, in guests and in containers.

pub(crate) mod bpf;
pub(crate) mod container;
pub(crate) mod daemon;
pub(crate) mod truth;

use crate::scenario::Need::{Apt, Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "elapsed", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "elapsed",
        about: "the elapsed clock against the truth: on the host, over a daemon's death, in a guest over a migration",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: truth::elapsed,
    },
    Test {
        name: "elapsed-container",
        about: "CRIU moves a container between two timevisords: its age goes on, with and without the blackout",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("qemu-10"),
            Apt("runc"),
            Apt("criu"),
        ],
        seconds: 90,
        run: container::container,
    },
    Test {
        name: "elapsed-container-often",
        about: "CRIU moves a container 200 times (MOVES) between two timevisords: its ages go on",
        tier: Tier::Weekly { why: "200 moves in an emulated machine take half an hour" },
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("qemu-10"),
            Apt("runc"),
            Apt("criu"),
        ],
        seconds: 1800,
        run: container::often,
    },
    Test {
        name: "elapsed-bpf",
        about: "ages by BPF programs where the counter is not invariant: a thread that moves between cores, on an old and a new kernel",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 90,
        run: bpf::elapsed_bpf,
    },
    Test {
        name: "elapsed-bpf-daemon",
        about: "timevisord serves ages of threads where the counter is not invariant: moves, frequencies, restarts, and a page that holds the truth meanwhile",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 240,
        run: daemon::elapsed_bpf_daemon,
    },
];
