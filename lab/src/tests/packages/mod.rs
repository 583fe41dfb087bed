//! Packages as operators meet them: installed, upgraded, rebooted and purged in a real Debian with its own systemd,
//! chronyd, libvirtd and AppArmor; and what is published beside them.

pub(crate) mod life;
pub(crate) mod machine;
pub(crate) mod supply;

use crate::scenario::Need::{Apt, Disk, Fetched, Packages, Plugin, Processors, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "packages", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "packages-bookworm",
        about: "Debian 12: install, order of start, reserve, kill, upgrade, reboot, purge, with the shipped unit and AppArmor",
        tier: Tier::Weekly {
            why: "has not run to its end yet: by hand, its steps up to the refused reservation were seen to work",
        },
        needs: &[
            Root,
            Processors,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("qemu-10"),
            Disk("bookworm"),
            Packages,
        ],
        seconds: 400,
        run: life::bookworm,
    },
    Test {
        name: "packages-trixie",
        about: "Debian 13 with a 7.3 kernel: the same, introspection, and timevisor-guest with a vmclock device beside it",
        tier: Tier::Weekly {
            why: "has not run to its end yet: in parts and by hand all but introspection, upgrade's reads and reboot were seen to work",
        },
        needs: &[
            Root,
            Processors,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Disk("trixie"),
            Packages,
            Plugin,
        ],
        seconds: 500,
        run: life::trixie,
    },
    Test {
        name: "packages-supply",
        about: "RPM packages, make install and uninstall, AppArmor's parser, signed checksums, SBOM, the stated Rust",
        tier: Tier::Test,
        needs: &[
            Apt("rpm"),
            Apt("apparmor"),
            Apt("openssh-client"),
            Apt("python3"),
            Apt("dpkg-dev"),
        ],
        seconds: 30,
        run: supply::supply,
    },
    Test {
        name: "packages-reproducible",
        about: "two builds of timevisor-guest's package, in different folders, are equal bit by bit",
        tier: Tier::Weekly { why: "builds the program and all that it links twice" },
        needs: &[Apt("dpkg-dev"), Apt("make")],
        seconds: 600,
        run: supply::reproducible,
    },
];
