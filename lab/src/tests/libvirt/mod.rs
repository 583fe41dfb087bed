//! Domains of a real libvirtd.

pub(crate) mod domain;
mod hook;
mod saves;

use crate::scenario::Need::{Apt, Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "libvirt", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "libvirt-nvdimm",
        about: "a domain of a real libvirtd with the printed XML: found, right, and right again after suspend",
        tier: Tier::Test,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
        ],
        seconds: 45,
        run: domain::nvdimm,
    },
    Test {
        name: "libvirt-ivshmem",
        about: "the same with an ivshmem device and a kernel without the driver",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("qemu-10"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
        ],
        seconds: 45,
        run: domain::ivshmem,
    },
    Test {
        name: "libvirt-vmclock",
        about: "the same with QEMU 10's vmclock device",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
        ],
        seconds: 45,
        run: domain::vmclock,
    },
    Test {
        name: "libvirt-migrate",
        about: "virsh migrate between two real libvirtds, each with its timevisord: right before and after, by both deliveries",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
        ],
        seconds: 90,
        run: domain::migrate,
    },
    Test {
        name: "libvirt-saves",
        about: "virsh managedsave and snapshot-create, with timevisord and without, by both deliveries: right, unknown, or refused",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
            Apt("qemu-utils"),
        ],
        seconds: 120,
        run: saves::saves,
    },
    Test {
        name: "libvirt-hook",
        about: "libvirt's hook with an odd name, and beside a timevisord that hangs: what would crash is refused, the rest runs, both are told, in time",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
        ],
        seconds: 90,
        run: hook::hook,
    },
];
