//! Guests read the host's time: each delivery, old and new kernels, programs of other projects.

pub(crate) mod attack;
pub(crate) mod boot;
pub(crate) mod clock;
pub(crate) mod clockbound;
pub(crate) mod held_exec;
pub(crate) mod hold;
pub(crate) mod hold_cycles;
pub(crate) mod hotplug;
pub(crate) mod ivshmem;
pub(crate) mod kvm;
pub(crate) mod kvm_resumes;
pub(crate) mod kvm_suspend;
pub(crate) mod leap;
pub(crate) mod many;
pub(crate) mod owners;
pub(crate) mod page;
pub(crate) mod ptp;
pub(crate) mod real_boot;
pub(crate) mod reboot;
pub(crate) mod references;
mod resumed;
pub(crate) mod set_clock;
pub(crate) mod shipped_unit;
pub(crate) mod strangers;
pub(crate) mod stuck;
pub(crate) mod systemd;

use crate::nested::NESTED;
use crate::scenario::Need::{self, Apt, ExclusiveCpu, Fetched, Plugin, Processors, Root};
use crate::scenario::{Family, Test, Tier};

/// A UTC guest and a TAI guest, on two kernels.
const LEAP_NEEDS: &[Need] = &[
    Root,
    Processors,
    Fetched("busybox"),
    Fetched("kernel:trixie-backports"),
    Fetched("kernel:trixie-backports:6.17"),
    Fetched("qemu-10"),
];

/// The family's table.
pub const FAMILY: Family = Family { name: "guests", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "boot-6.1",
        about: "a kernel without the vmclock driver boots and has no /dev/vmclock0",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:bookworm"), Fetched("qemu-10")],
        seconds: 45,
        run: boot::without_driver,
    },
    Test {
        name: "boot-7.2-vmclock",
        about: "QEMU 10's vmclock device is seen by a stock 7.2 kernel",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: boot::vmclock_device,
    },
    Test {
        name: "boot-7.2-nvdimm",
        about: "a page file behind a read-only nvdimm is a vmclock and a PTP clock to a stock 7.2 kernel",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: boot::nvdimm,
    },
    Test {
        name: "reboot",
        about: "what was prepared is there again after a reboot, for QEMUs that start before and after anybody looks",
        tier: Tier::All,
        needs: &[Root, Fetched("qemu-10")],
        seconds: 25,
        run: reboot::reboot,
    },
    Test {
        name: "memory-hotplug",
        about: "a VM with an nvdimm page and DIMMs of its own: one from the start, one plugged while it runs",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports")],
        seconds: 40,
        run: hotplug::hotplug,
    },
    Test {
        name: "guest-references",
        about: "timevisord in a guest: the host's page and PHC as references, CLOCK_REALTIME steered and put back",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("linuxptp"),
        ],
        seconds: 90,
        run: references::guest,
    },
    Test {
        name: "ptp-guest",
        about: "a real ptp4l steers a guest's CLOCK_REALTIME, and timevisord in the guest imports it; a PHC that is unplugged",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("linuxptp"),
        ],
        seconds: 120,
        run: ptp::guest,
    },
    Test {
        name: "clock-vmclock",
        about: "a 7.2 guest reads the host's time through QEMU 10's vmclock device: page and /dev/ptp0",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: clock::vmclock,
    },
    Test {
        name: "clock-nvdimm",
        about: "the same through a read-only nvdimm under QEMU 7.2",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: clock::nvdimm,
    },
    Test {
        name: "clock-ivshmem",
        about: "a 6.1 guest without the driver reads it from an ivshmem device, under both QEMUs, and cannot write it",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:bookworm"), Fetched("qemu-10")],
        seconds: 45,
        run: ivshmem::ivshmem,
    },
    Test {
        name: "clock-6.17-utc",
        about: "a kernel before 7.0 with a UTC page",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports:6.17"),
            Fetched("qemu-10"),
        ],
        seconds: 45,
        run: clock::older_kernel,
    },
    Test {
        name: "clock-four-guests",
        about: "four guests of both deliveries at once; one is killed",
        tier: Tier::All,
        needs: NESTED,
        seconds: 80,
        run: clock::four_guests,
    },
    Test {
        name: "peers",
        about: "clock-bound's vmclock reader and our CLI inside a stock guest",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: strangers::peers,
    },
    Test {
        name: "guest-chrony",
        about: "phc_ctl and a chronyd with the documented stanza inside a stock guest",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("linuxptp"),
        ],
        seconds: 60,
        run: strangers::chrony,
    },
    Test {
        name: "guest-clockbound",
        about: "AWS ClockBound's own clients, 2.0.3 and 3.0.0-rc.0, in a guest with --set-clock: truth inside; disrupted after a stop",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: clockbound::clients,
    },
    Test {
        name: "guest-set-clock",
        about: "timevisor-guest steps a guest's CLOCK_REALTIME after a boot and a stop of 3 s, and slews it; everything put back",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: set_clock::set_clock,
    },
    Test {
        name: "guest-hold",
        about: "notices reach a guest, a migration drains, and timevisor-guest --hold stops a workload while it must not run",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: hold::hold,
    },
    Test {
        name: "guest-systemd",
        about: "a guest with systemd and udev, with what the package installs: modules, names, groups, units, a unit that is held",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("systemd"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 90,
        run: systemd::systemd,
    },
    Test {
        name: "hold-cycles",
        about: "a workload under timevisor-guest --hold, restored and moved CYCLES times (100): every read of CLOCK_REALTIME is right",
        tier: Tier::Weekly { why: "a hundred restores and moves take a quarter of an hour" },
        needs: NESTED,
        seconds: 900,
        run: hold_cycles::hold_cycles,
    },
    Test {
        name: "guest-bench",
        about: "the read-latency table inside a guest, through /dev/vmclock0",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 45,
        run: strangers::bench,
    },
    Test {
        name: "owners",
        about: "uid 4001 claims root's VM before and after it starts: not served, said once, root's VM is not touched; her own VM is served",
        tier: Tier::All,
        needs: &[Root],
        seconds: 60,
        run: owners::owners,
    },
    Test {
        name: "attack",
        about: "uid 4001 attacks with whatever looks like a QEMU or may connect (ATTACK_S seconds): no effect on the clock, root's VM and root's commands",
        tier: Tier::All,
        needs: &[Root],
        seconds: 90,
        run: attack::attack,
    },
    Test {
        name: "held-exec",
        about: "uid 4001 keeps processes in the middle of exec, where no question about them is answered: nobody else waits",
        tier: Tier::All,
        needs: &[Root],
        seconds: 60,
        run: held_exec::held_exec,
    },
    Test {
        name: "many-vms",
        about: "200 VMs on one host: all served, written together, little memory",
        tier: Tier::All,
        needs: &[Root],
        seconds: 60,
        run: many::many,
    },
    Test {
        name: "reboot-systemd",
        about: "a host with systemd boots again and again: the shipped unit, and a VM that was prepared once",
        tier: Tier::All,
        needs: &[Root, Apt("systemd")],
        seconds: 40,
        run: real_boot::real_boot,
    },
    Test {
        name: "shipped-unit",
        about: "privileges, owners, reboot, memory-hotplug, fault-qemu and attack again, with timevisord under the shipped unit in a real systemd",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("systemd"),
        ],
        seconds: 200,
        run: shipped_unit::shipped_unit,
    },
    Test {
        name: "shipped-drop-in",
        about: "reserve-again and introspect-daemon with timevisord under the shipped unit and packaging/reservations.conf",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Plugin,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Apt("systemd"),
        ],
        seconds: 120,
        run: shipped_unit::shipped_drop_in,
    },
    Test {
        name: "leap-inserted",
        about: "23:59:60 while a UTC and a TAI guest read: no reading is wrong, UTC is withdrawn around it",
        tier: Tier::All,
        needs: LEAP_NEEDS,
        seconds: 75,
        run: leap::inserted,
    },
    Test {
        name: "leap-deleted",
        about: "the same with a second that is left out",
        tier: Tier::All,
        needs: LEAP_NEEDS,
        seconds: 75,
        run: leap::deleted,
    },
    Test {
        name: "leap-inserted-dead",
        about: "kill -9 20 s before 23:59:60: the UTC page expires before it, and its bounds hold it",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("kernel:trixie-backports:6.17"),
            Fetched("qemu-10"),
        ],
        seconds: 80,
        run: leap::inserted_dead,
    },
    Test {
        name: "leap-deleted-dead",
        about: "kill -9 7 s before a second that is left out: the same",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("kernel:trixie-backports:6.17"),
            Fetched("qemu-10"),
        ],
        seconds: 80,
        run: leap::deleted_dead,
    },
    Test {
        name: "kvm-nested",
        about: "a guest under real KVM (itself under TCG): mapping from debugfs, right across stop and cont",
        tier: Tier::All,
        needs: NESTED,
        seconds: 120,
        run: kvm::nested,
    },
    Test {
        name: "kvm-nested-states",
        about: "under real KVM (itself under TCG) a vCPU is plugged and a snapshot is loaded: right, or unknown (by name only)",
        tier: Tier::Weekly { why: "an inner guest that is emulated twice hangs now and then" },
        needs: NESTED,
        seconds: 300,
        run: kvm::nested_states,
    },
    Test {
        name: "kvm-nested-resumes",
        about: "under real KVM (itself under TCG) 100 times stop and cont (CYCLES): how long until the page vouches",
        tier: Tier::Weekly { why: "an inner guest that is emulated twice hangs now and then" },
        needs: NESTED,
        seconds: 400,
        run: kvm_resumes::kvm_resumes,
    },
    Test {
        name: "kvm-nested-suspend",
        about: "under real KVM (itself under TCG) a guest is suspended to RAM (S3) and woken: asleep its page says nothing, then every reading is right or unknown",
        tier: Tier::Weekly {
            why: "survive-suspend shows S3 in each run of tier all; this is its variant under two layers of emulation",
        },
        needs: NESTED,
        seconds: 200,
        run: kvm_suspend::suspend,
    },
    Test {
        name: "kvm-nested-reset",
        about: "kvm-nested with a reset of the inner guest, which moves its counter (by name only)",
        tier: Tier::Weekly {
            why: "the inner guest hangs at a reset now and then under two layers of emulation; the cause is unknown",
        },
        needs: NESTED,
        seconds: 300,
        run: kvm::nested_reset,
    },
];
