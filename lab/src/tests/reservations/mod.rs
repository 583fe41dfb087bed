//! Reservations of processor time.

pub(crate) mod again;
pub(crate) mod deadline_kernels;
pub(crate) mod floors;
pub(crate) mod hosts;
pub(crate) mod inherits;
pub(crate) mod kvm;
pub(crate) mod late;
pub(crate) mod libvirt;
pub(crate) mod libvirt_v2;
pub(crate) mod many;
pub(crate) mod moves;
pub(crate) mod reserve;
pub(crate) mod smp;
pub(crate) mod unplug;

use crate::nested::NESTED;
use crate::scenario::Need::{Apt, ExclusiveCpu, Fetched, Plugin, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "reservations", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "reserve",
        about: "a guest's real-time tasks on a loaded host, with a reservation and without; soft ones; every setting as before afterwards",
        tier: Tier::Test,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 150,
        run: reserve::reserve,
    },
    Test {
        name: "reserve-again",
        about: "a busy guest's reservation is released and made again, also while it is out of budget: it always goes on; so it does after somebody else's change that Linux takes for a pause without end",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 120,
        run: again::reserve_again,
    },
    Test {
        name: "reserve-inherits",
        about: "threads that QEMU starts during a reservation (a plugged vCPU, a block worker) are ordinary ones, and all are as before afterwards",
        tier: Tier::All,
        needs: &[Root, ExclusiveCpu, Apt("qemu-system-x86")],
        seconds: 15,
        run: inherits::inherits,
    },
    Test {
        name: "reserve-at-once",
        about: "a vCPU that sleeps on another core has its reservation when apply answers, 200 times of 200; the quantiles of how long that takes",
        tier: Tier::All,
        needs: &[Root, ExclusiveCpu, Apt("qemu-system-x86")],
        seconds: 60,
        run: many::at_once,
    },
    Test {
        name: "reserve-audit-cost",
        about: "fifty reserved threads are audited with one read each; the share of a processor that takes",
        tier: Tier::All,
        needs: &[Root, ExclusiveCpu, Apt("qemu-system-x86")],
        seconds: 60,
        run: many::audit_cost,
    },
    Test {
        name: "reserve-unplug",
        about: "a vCPU is unplugged from a running guest: its reservation ends by itself and says so; a configured one comes again with the vCPU",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 60,
        run: unplug::unplug_ends,
    },
    Test {
        name: "reserve-late",
        about: "an introspected guest's late jobs and their causes: what its own program measures, with longer jobs, a promise that somebody breaks, and without either",
        tier: Tier::Weekly {
            why: "on a machine that is itself robbed, jobs are late in the quiet part, too",
        },
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
        ],
        seconds: 190,
        run: late::late,
    },
    Test {
        name: "reserve-move",
        about: "a reservation moves from core to core on a host inside with four cores, KVM and cgroup v2: always under SCHED_DEADLINE; every setting as before afterwards",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 240,
        run: moves::moves,
    },
    Test {
        name: "reserve-smp",
        about: "a guest of two vCPUs on a host inside with four cores: what plans print is run as it is, and no job is late, tasks pinned or not; two VMs are planned and reserved at once; every setting as before afterwards",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 300,
        run: smp::smp,
    },
    Test {
        name: "reserve-kvm",
        about: "reservations under KVM and cgroup v2 on a host inside: kept, configured; every setting as before afterwards",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 240,
        run: kvm::reserve_kvm,
    },
    Test {
        name: "reserve-libvirt",
        about: "reservations beside a real libvirtd and its cpusets: kept while VMs come and go and virsh works; every setting as before afterwards",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
        ],
        seconds: 150,
        run: libvirt::reserve_libvirt,
    },
    Test {
        name: "deadline-kernels",
        about: "guests with Linux 6.1, 6.12 and 7.3: how often a busy thread leaves SCHED_DEADLINE and comes back until it is never let run again (by name only)",
        tier: Tier::Weekly {
            why: "it shows three kernels' defect, not our code, and takes minutes",
        },
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("kernel:bookworm-backports"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 300,
        run: deadline_kernels::kernels,
    },
    Test {
        name: "reserve-floors",
        about: "what the kernel's fair server gives one busy thread beside a busy SCHED_FIFO one, alone and beside others; SCHED_DEADLINE beside it (by name only)",
        tier: Tier::Weekly { why: "it measures a kernel, not our code" },
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 90,
        run: floors::floors,
    },
    Test {
        name: "reserve-libvirt-v2",
        about: "reserve-libvirt under real KVM, cgroup v2 and systemd's slices, on a host inside a guest (by name only)",
        tier: Tier::Weekly {
            why: "reserve-libvirt and reserve-kvm cover its parts in tier all; this takes minutes under two layers of emulation",
        },
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("libvirt-daemon-system"),
            Apt("libvirt-clients"),
        ],
        seconds: 300,
        run: libvirt_v2::reserve_libvirt_v2,
    },
    Test {
        name: "reserve-isolcpus",
        about: "on a host with isolcpus and nohz_full, a pinned vCPU gets its own isolated core and any other none of them; every setting as before afterwards",
        tier: Tier::All,
        needs: NESTED,
        seconds: 90,
        run: hosts::isolcpus::isolcpus,
    },
    Test {
        name: "reserve-kubernetes",
        about: "beside kubelet's static CPU manager: no container's own core is taken, reservations stay in force when pods come and go, conflicts are told; every setting as before afterwards",
        tier: Tier::All,
        needs: NESTED,
        seconds: 120,
        run: hosts::kubernetes::kubernetes,
    },
    Test {
        name: "reserve-slices",
        about: "systemd's AllowedCPUs=, libvirt's pins and others' partitions decide which core is taken; every setting as before afterwards",
        tier: Tier::All,
        needs: NESTED,
        seconds: 120,
        run: hosts::slices::slices,
    },
    Test {
        name: "reserve-hotplug",
        about: "cores that go offline and come back: the next core, and a reserved one stays; every setting as before afterwards",
        tier: Tier::All,
        needs: NESTED,
        seconds: 60,
        run: hosts::hotplug::hotplug,
    },
];
