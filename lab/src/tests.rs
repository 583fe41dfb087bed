//! The table of all lab tests; each module holds one family.

mod arm;
mod boot;
mod clock;
mod container;
mod deadline_kernels;
mod elapsed;
mod elapsed_bpf;
mod elapsed_container;
mod example_commit_wait;
mod example_controllers;
mod experiment;
pub(crate) mod faults;
mod faults_leap;
mod faults_liar;
mod faults_ntp;
mod faults_nts;
mod faults_page;
mod faults_qemu;
mod faults_restart;
mod faults_vm;
mod first_programs;
mod introspect;
pub(crate) mod introspect_calls;
mod introspect_daemon;
mod introspect_flat;
mod introspect_flood;
mod introspect_gdb;
mod introspect_kernels;
mod introspect_kexec;
pub(crate) mod introspect_kvm;
mod introspect_kvm_cycles;
mod introspect_reserve;
mod introspect_symbols;
mod introspect_verifier;
mod ivshmem;
mod kvm;
mod libvirt;
mod migrate;
pub mod migrate_hosts;
mod network;
mod ntp_server;
mod nts;
mod page;
mod references;
mod references_guest;
mod reserve;
mod reserve_again;
mod reserve_kvm;
mod reserve_libvirt;
mod reserve_libvirt_v2;
mod set_clock;
mod simulator;
mod strangers;
mod survive;
mod survive_clone;
mod survive_snapshot;
mod survive_suspend;
mod survive_upgrade;
mod timelines;
mod timelines_guest;
mod truth;

use crate::scenario::Test;

/// Every test, in the order of `test all`.
pub const ALL: &[Test] = &[
    Test {
        name: "boot-6.1",
        about: "a kernel without the vmclock driver boots and has no /dev/vmclock0",
        run: boot::without_driver,
    },
    Test {
        name: "boot-7.2-vmclock",
        about: "QEMU 10's vmclock device is seen by a stock 7.2 kernel",
        run: boot::vmclock_device,
    },
    Test {
        name: "boot-7.2-nvdimm",
        about: "a page file behind a read-only nvdimm is a vmclock and a PTP clock to a stock 7.2 kernel",
        run: boot::nvdimm,
    },
    Test {
        name: "elapsed",
        about: "the elapsed clock against the truth: on the host, over a daemon's death, in a guest over a migration",
        run: elapsed::elapsed,
    },
    Test {
        name: "elapsed-container",
        about: "CRIU moves a container between two timevisords: its age goes on, with and without the blackout",
        run: elapsed_container::container,
    },
    Test {
        name: "elapsed-bpf",
        about: "ages by BPF programs where the counter is not invariant: a thread that moves between cores, on an old and a new kernel",
        run: elapsed_bpf::elapsed_bpf,
    },
    Test {
        name: "reserve",
        about: "a guest's real-time tasks on a loaded host, with a reservation and without; soft ones; every setting as before afterwards",
        run: reserve::reserve,
    },
    Test {
        name: "reserve-again",
        about: "a busy guest's reservation is released and made again, also while it is out of budget: it always goes on; so it does after somebody else's change that Linux takes for a pause without end",
        run: reserve_again::reserve_again,
    },
    Test {
        name: "reserve-kvm",
        about: "reservations under KVM and cgroup v2 on a host inside: kept, configured; every setting as before afterwards",
        run: reserve_kvm::reserve_kvm,
    },
    Test {
        name: "reserve-libvirt",
        about: "reservations beside a real libvirtd and its cpusets: kept while VMs come and go and virsh works; every setting as before afterwards",
        run: reserve_libvirt::reserve_libvirt,
    },
    Test {
        name: "introspect-symbols",
        about: "symbols and types of stock 6.1, 6.12 and 7.3 kernels found in memory, with and without KASLR: what the guests themselves say",
        run: introspect_symbols::symbols,
    },
    Test {
        name: "introspect-daemon",
        about: "timevisord attaches to a guest through QEMU's plugin: every call of a program with its time; refusals; its own end by kill -9",
        run: introspect_daemon::daemon,
    },
    Test {
        name: "introspect-kexec",
        about: "an introspected guest starts another kernel by kexec: the trap points are in that one then, and every call of a program is told again",
        run: introspect_kexec::kexec,
    },
    Test {
        name: "introspect-freertos",
        about: "timevisord and FreeRTOS with its file: every call of its tasks, in order with its arguments; files that are not what runs",
        run: introspect_flat::freertos,
    },
    Test {
        name: "introspect-segments",
        about: "the same for a program without an operating system that says where its real-time segments begin and end",
        run: introspect_flat::segments,
    },
    Test {
        name: "migrate-nvdimm",
        about: "the first read after a migration sees the destination host's page, on both QEMUs",
        run: migrate::nvdimm,
    },
    Test {
        name: "migrate-hosts",
        about: "timevisor vm migrate between two daemons, there and back, by both deliveries: right, never back, markers change",
        run: migrate_hosts::there_and_back,
    },
    Test {
        name: "migrate-carries",
        about: "a guest's age, timescale and its programs' bindings go along, by both deliveries",
        run: migrate_hosts::carried,
    },
    Test {
        name: "migrate-oscillators",
        about: "the same between hosts whose counters differ in rate, start and wander",
        run: migrate_hosts::oscillators,
    },
    Test {
        name: "migrate-load",
        about: "the same with a guest that dirties its memory, busy processors and a busy network",
        run: migrate_hosts::loaded,
    },
    Test {
        name: "migrate-postcopy",
        about: "the guest runs before its memory is there: right, never back",
        run: migrate_hosts::postcopy,
    },
    Test {
        name: "migrate-no-time",
        about: "to a host that is not synchronized: the guest knows that it does not know, until its host does",
        run: migrate_hosts::no_time,
    },
    Test {
        name: "migrate-no-timevisor",
        about: "to a QEMU that runs the guest before its page is written, or that no timevisord knows: unknown, never wrong",
        run: migrate_hosts::no_timevisor,
    },
    Test {
        name: "migrate-fails",
        about: "migrations that are cancelled, fail, or are refused: the VM stays, its page is right, the reason is told",
        run: migrate_hosts::stays,
    },
    Test {
        name: "chronyd",
        about: "two chronyds serve time in their own network namespaces",
        run: network::chronyd,
    },
    Test {
        name: "network-simulator",
        about: "timevisord --csv under our simulator: a line a second, right, by the allowed calls alone",
        run: simulator::own,
    },
    Test {
        name: "clock-truth",
        about: "the host's bounds hold the truth, read directly, from the first exchange on",
        run: truth::bounds_hold_the_truth,
    },
    Test {
        name: "chrony-import",
        about: "a real chronyd's knowledge, read over its command sockets: sign, bound, end, no synchronization",
        run: references::chrony,
    },
    Test {
        name: "ptp4l-import",
        about: "a real ptp4l's measurements over its management socket; the master ends",
        run: references::ptp,
    },
    Test {
        name: "guest-references",
        about: "timevisord in a guest: the host's page and PHC as references, CLOCK_REALTIME steered and put back",
        run: references_guest::guest,
    },
    Test {
        name: "clock-vmclock",
        about: "a 7.2 guest reads the host's time through QEMU 10's vmclock device: page and /dev/ptp0",
        run: clock::vmclock,
    },
    Test {
        name: "clock-nvdimm",
        about: "the same through a read-only nvdimm under QEMU 7.2",
        run: clock::nvdimm,
    },
    Test {
        name: "clock-ivshmem",
        about: "a 6.1 guest without the driver reads it from an ivshmem device, under both QEMUs, and cannot write it",
        run: ivshmem::ivshmem,
    },
    Test {
        name: "container",
        about: "unprivileged containers read the host's time through a read-only mount, and cannot write it",
        run: container::container,
    },
    Test {
        name: "first-programs",
        about: "the C, Rust and Python first programs, the same files on the host, in a container and in a stock guest",
        run: first_programs::first_programs,
    },
    Test {
        name: "clock-6.17-utc",
        about: "a kernel before 7.0 with a UTC page",
        run: clock::older_kernel,
    },
    Test {
        name: "clock-four-guests",
        about: "four guests of both deliveries at once; one is killed",
        run: clock::four_guests,
    },
    Test {
        name: "fault-config",
        about: "unknown keys and bad values are refused by name; a running daemon does not mind",
        run: faults::config,
    },
    Test {
        name: "fault-counter",
        about: "a counter that this machine does not have; VMs on a host that counts with monotonic-raw",
        run: faults::counter,
    },
    Test {
        name: "fault-two-daemons",
        about: "a second daemon on one run directory, and on one VM's page",
        run: faults::two_daemons,
    },
    Test {
        name: "fault-ntp-unreachable",
        about: "servers that do not answer, with one, two and three references; a dead name server",
        run: faults_ntp::unreachable,
    },
    Test {
        name: "fault-ntp-impostor",
        about: "garbage, forged, useless and refused answers are inside by reason and never used",
        run: faults_ntp::impostors,
    },
    Test {
        name: "fault-ntp-liar",
        about: "the only server steps by a second: unreliable, wide, then rebuilt",
        run: faults_liar::alone,
    },
    Test {
        name: "fault-ntp-outvoted",
        about: "one of three servers lies: named, outvoted, and readers notice nothing",
        run: faults_liar::outvoted,
    },
    Test {
        name: "ntp-server",
        about: "real chronyds follow timevisord's server, also interleaved; root distances cover the bounds",
        run: ntp_server::served,
    },
    Test {
        name: "ntp-interleaved",
        about: "timevisord follows a chronyd in interleaved mode; the bounds hold the truth",
        run: ntp_server::interleaved_client,
    },
    Test {
        name: "ntp-server-limit",
        about: "who asks too often gets one RATE kiss, which a chronyd obeys, and then nothing",
        run: ntp_server::limited,
    },
    Test {
        name: "nts",
        about: "time from a chronyd with NTS: synchronized, cookies renewed, a server's restart and new keys survived",
        run: nts::synchronized,
    },
    Test {
        name: "nts-ntpd-rs",
        about: "the same from ntpd-rs, another implementation: synchronized, and again after its restart with new keys",
        run: nts::ntpd_rs,
    },
    Test {
        name: "fault-nts-certificate",
        about: "unknown authority, expired certificate, wrong name, no NTS at all: refused, and the next step is named",
        run: faults_nts::refused_servers,
    },
    Test {
        name: "fault-nts-altered",
        about: "somebody on the path alters, strips and forges answers: not one is accepted",
        run: faults_nts::altered,
    },
    Test {
        name: "fault-page",
        about: "page files that are not ours, not pages, or whose writer died",
        run: faults_page::page,
    },
    Test {
        name: "fault-leap",
        about: "an expired leap second table, the operator's offset, and a reload",
        run: faults_leap::leap,
    },
    Test {
        name: "fault-restart",
        about: "kill -9 again and again under a reader: the estimate never goes back, bounds nest",
        run: faults_restart::kills,
    },
    Test {
        name: "fault-stop",
        about: "pages after SIGTERM and after kill -9: free running, growing bounds",
        run: faults_restart::ends,
    },
    Test {
        name: "fault-qemu",
        about: "QEMUs without a page, with a private one, with -icount, and things that are no QEMU",
        run: faults_qemu::attach,
    },
    Test {
        name: "fault-qmp",
        about: "a QMP socket that is lost, mute or crowded: the VM is still served",
        run: faults_vm::qmp,
    },
    Test {
        name: "fault-vm-end",
        about: "QEMU killed, removed, restarted with the same pid, unreadable: others are not affected",
        run: faults_vm::ends,
    },
    Test {
        name: "arm",
        about: "time, clock-page and linux pass their tests as 64-bit Arm programs under emulation",
        run: arm::arm,
    },
    Test {
        name: "survive-stop-cont",
        about: "after stop and cont a guest's first read is right, or honest about not knowing",
        run: survive::stop_cont,
    },
    Test {
        name: "survive-kill-9",
        about: "timevisord killed -9 ten times while a guest reads: never back, restart resumes",
        run: survive::kill_daemon,
    },
    Test {
        name: "survive-sigterm",
        about: "SIGTERM leaves pages free running with growing bounds",
        run: survive::end_daemon,
    },
    Test {
        name: "survive-snapshot",
        about: "snapshots saved and loaded under a reader, by both deliveries: no read is wrong, markers change",
        run: survive_snapshot::snapshot,
    },
    Test {
        name: "survive-clone",
        about: "two VMs from one saved state: each has its own page, marker, epoch and id",
        run: survive_clone::clones,
    },
    Test {
        name: "survive-suspend",
        about: "a guest in S3: its page says nothing until it is awake, and is right from then on",
        run: survive_suspend::guest,
    },
    Test {
        name: "survive-host-suspend",
        about: "a daemon that stands still, and one that starts after a suspend of its host (simulated)",
        run: survive_suspend::host,
    },
    Test {
        name: "survive-upgrade",
        about: "another timevisord binary takes over from a running one while a guest reads: never back, no disruption on the host",
        run: survive_upgrade::upgrade,
    },
    Test {
        name: "no-driver",
        about: "a kernel without the driver is not disturbed by a page",
        run: survive::no_driver,
    },
    Test {
        name: "timelines",
        about: "bind, admission, leases, local timelines, a restart: programs on the host",
        run: timelines::host,
    },
    Test {
        name: "timelines-polling",
        about: "the tightest requirement decides how often a server is asked",
        run: timelines::polling,
    },
    Test {
        name: "timelines-1000",
        about: "1,000 members on 20 timelines",
        run: timelines::thousand,
    },
    Test {
        name: "timelines-guest",
        about: "programs in a guest: through the port alone, through timevisor-guest, and killed",
        run: timelines_guest::agent,
    },
    Test {
        name: "timelines-visible",
        about: "a changed requirement is on a guest's page before the request is answered",
        run: timelines_guest::visible,
    },
    Test {
        name: "timelines-hostile",
        about: "a guest that attacks over its channel hurts nobody but itself",
        run: timelines_guest::hostile,
    },
    Test {
        name: "example-commit-wait",
        about: "a key-value store in two guests of two hosts: commit-wait keeps order, clocks that are believed do not",
        run: example_commit_wait::commit_wait,
    },
    Test {
        name: "docs-commands",
        about: "the documentation's cheap commands, page by page, against a daemon in a scratch directory",
        run: crate::docs::commands,
    },
    Test {
        name: "example-controllers",
        about: "controllers in two guests act together, and refuse while the clock is not good enough",
        run: example_controllers::controllers,
    },
    Test {
        name: "peers",
        about: "clock-bound's vmclock reader and our CLI inside a stock guest",
        run: strangers::peers,
    },
    Test {
        name: "guest-chrony",
        about: "phc_ctl and a chronyd with the documented stanza inside a stock guest",
        run: strangers::chrony,
    },
    Test {
        name: "guest-set-clock",
        about: "timevisor-guest steps a guest's CLOCK_REALTIME after a boot and a stop of 3 s, and slews it; everything put back",
        run: set_clock::set_clock,
    },
    Test {
        name: "guest-bench",
        about: "the read-latency table inside a guest, through /dev/vmclock0",
        run: strangers::bench,
    },
    Test {
        name: "libvirt-nvdimm",
        about: "a domain of a real libvirtd with the printed XML: found, right, and right again after suspend",
        run: libvirt::nvdimm,
    },
    Test {
        name: "libvirt-ivshmem",
        about: "the same with an ivshmem device and a kernel without the driver",
        run: libvirt::ivshmem,
    },
    Test {
        name: "libvirt-vmclock",
        about: "the same with QEMU 10's vmclock device",
        run: libvirt::vmclock,
    },
    Test {
        name: "libvirt-migrate",
        about: "virsh migrate between two real libvirtds, each with its timevisord: right before and after, by both deliveries",
        run: libvirt::migrate,
    },
];

/// Tests that run by name only: under two layers of emulation the inner guest now and then hangs, why is not known; what needs
/// a program that is not here; what wants the machine for itself; what shows a kernel, not us; a guest that hung once at its boot under QEMU's plugin, why is not known.
pub const EXTRA: &[Test] = &[
    Test {
        name: "introspect-flood",
        about: "100,000 events at 10,000/s through timevisord, none lost; beyond its limit each one is seen or counted as dropped",
        run: introspect_flood::flood,
    },
    Test {
        name: "introspect-gdb",
        about: "a program through QEMU's gdb stub: the same events as the plugin's; timevisord killed -9, and the guest goes on",
        run: introspect_gdb::gdb,
    },
    Test {
        name: "introspect-kernels",
        about: "guests with Linux 6.1 and 6.12: every call of a program, with its arguments and its time; refused while they trace themselves",
        run: introspect_kernels::kernels,
    },
    Test {
        name: "introspect-kvm",
        about: "timevisord attaches to a guest under real KVM (itself under TCG): every call of a program with its time; kill -9; cycles; a reset",
        run: introspect_kvm::kvm,
    },
    Test {
        name: "introspect-kvm-bookworm",
        about: "introspect-kvm on a host with Linux 6.1",
        run: introspect_kvm::kvm_bookworm,
    },
    Test {
        name: "introspect-kvm-cycles",
        about: "attached and detached 1000 times (CYCLES) while a guest with two vCPUs works: its kernel says nothing, events are exact before and after",
        run: introspect_kvm_cycles::kvm_cycles,
    },
    Test {
        name: "introspect-port",
        about: "introspect-kvm by writes to a port: no switch is touched",
        run: introspect_kvm::port,
    },
    Test {
        name: "introspect-reserve",
        about: "an unmodified guest starts SCHED_DEADLINE tasks beside a busy host: late when nobody looks, none late in the reservation that follows",
        run: introspect_reserve::reserve,
    },
    Test {
        name: "introspect-verifier",
        about: "the verifiers of Linux 6.1 and 7.3 take the BPF programs for guests under KVM, far below their limit",
        run: introspect_verifier::verifier,
    },
    Test {
        name: "introspect-tcg",
        about: "a real-time program in a guest through QEMU's plugin: every call, in order, exact; floods counted; its reader killed -9",
        run: introspect::tcg,
    },
    Test {
        name: "kvm-nested",
        about: "a guest under real KVM (itself under TCG): mapping from debugfs, right across stop and cont",
        run: kvm::nested,
    },
    Test {
        name: "kvm-nested-reset",
        about: "kvm-nested with a reset of the inner guest, which moves its counter (by name only)",
        run: kvm::nested_reset,
    },
    Test {
        name: "deadline-kernels",
        about: "guests with Linux 6.1, 6.12 and 7.3: how often a busy thread leaves SCHED_DEADLINE and comes back until it is never let run again (by name only)",
        run: deadline_kernels::kernels,
    },
    Test {
        name: "reserve-libvirt-v2",
        about: "reserve-libvirt under real KVM, cgroup v2 and systemd's slices, on a host inside a guest (by name only)",
        run: reserve_libvirt_v2::reserve_libvirt_v2,
    },
    Test {
        name: "experiment-quartzv",
        about: "error and bounds of the host's page, a guest's page, and a timevisord and a chronyd inside it, for 15 s",
        run: experiment::quartzv,
    },
    Test {
        name: "experiment-sawtooth",
        about: "a dependent clock that is told no rate beside the page, for 20 s, on a counter that is 40 ppm off",
        run: experiment::sawtooth,
    },
    Test {
        name: "clknetsim",
        about: "three days on clknetsim's LAN with chronyd as server; CLKNETSIM names its directory (by name only)",
        run: simulator::clknetsim,
    },
];
