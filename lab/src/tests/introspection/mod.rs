//! Introspection of guests: symbols, calls, tasks, backends.

pub(crate) mod brickos;
pub(crate) mod calls;
pub(crate) mod daemon;
pub(crate) mod flat;
pub(crate) mod flood;
pub(crate) mod gdb;
pub(crate) mod kernels;
pub(crate) mod kexec;
pub(crate) mod kvm;
pub(crate) mod kvm_cycles;
pub(crate) mod kvm_losses;
pub(crate) mod kvm_moves;
pub(crate) mod kvm_traced;
pub(crate) mod plugin;
pub(crate) mod reserve;
pub(crate) mod symbols;
pub(crate) mod verifier;

use crate::nested::NESTED;
use crate::scenario::Need::{
    Apt, BrickOs, ExclusiveCpu, Fetched, FlatPrograms, Plugin, Processors, Root,
};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "introspection", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "introspect-symbols",
        about: "symbols and types of stock 6.1, 6.12 and 7.3 kernels found in memory, with and without KASLR: what the guests themselves say",
        tier: Tier::All,
        needs: &[
            Root,
            Processors,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("kernel:bookworm-backports"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 90,
        run: symbols::symbols,
    },
    Test {
        name: "introspect-daemon",
        about: "timevisord attaches to a guest through QEMU's plugin: every call of a program with its time; refusals; its own end by kill -9",
        tier: Tier::Test,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
        ],
        seconds: 45,
        run: daemon::daemon,
    },
    Test {
        name: "introspect-kexec",
        about: "an introspected guest starts another kernel by kexec: the trap points are in that one then, and every call of a program is told again",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:bookworm-backports"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
            Apt("kexec-tools"),
        ],
        seconds: 70,
        run: kexec::kexec,
    },
    Test {
        name: "introspect-freertos",
        about: "timevisord and FreeRTOS with its file: every call of its tasks, in order with its arguments; files that are not what runs",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), FlatPrograms, Fetched("qemu-10"), Plugin],
        seconds: 45,
        run: flat::freertos,
    },
    Test {
        name: "introspect-segments",
        about: "the same for a program without an operating system that says where its real-time segments begin and end",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), FlatPrograms, Fetched("qemu-10"), Plugin],
        seconds: 45,
        run: flat::segments,
    },
    Test {
        name: "introspect-described",
        about: "the same for a guest with a note of its own, by a plugin's file that is added while timevisord runs, beside broken files",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), FlatPrograms, Fetched("qemu-10"), Plugin],
        seconds: 45,
        run: flat::described,
    },
    Test {
        name: "introspect-brickos",
        about: "brickOS, which timevisord knows by a plugin's file only: every call of 32 tasks in one order, with its arguments; tasks that end or are killed",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), BrickOs, Fetched("qemu-10"), Plugin],
        seconds: 45,
        run: brickos::brickos,
    },
    Test {
        name: "introspect-flood",
        about: "100,000 events at 10,000/s through timevisord, none lost; beyond its limit each one is seen or counted as dropped",
        tier: Tier::Weekly {
            why: "its rate of 10,000 events a second needs a machine without neighbours",
        },
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
        ],
        seconds: 100,
        run: flood::flood,
    },
    Test {
        name: "introspect-gdb",
        about: "a program through QEMU's gdb stub: the same events as the plugin's; timevisord killed -9, and the guest goes on",
        tier: Tier::Weekly {
            why: "the gdb stub is a fallback; introspect-tcg and introspect-daemon judge the same events",
        },
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
        ],
        seconds: 45,
        run: gdb::gdb,
    },
    Test {
        name: "introspect-kernels",
        about: "guests with Linux 6.1 and 6.12: every call of a program, with its arguments and its time; refused while they trace themselves",
        tier: Tier::Weekly {
            why: "two further kernels; introspect-symbols covers their layout in tier all",
        },
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("kernel:bookworm-backports"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
        ],
        seconds: 120,
        run: kernels::kernels,
    },
    Test {
        name: "introspect-kvm",
        about: "timevisord attaches to a guest under real KVM (itself under TCG): every call of a program with its time; kill -9; cycles; a reset",
        tier: Tier::All,
        needs: NESTED,
        seconds: 400,
        run: kvm::kvm,
    },
    Test {
        name: "introspect-kvm-bookworm",
        about: "introspect-kvm on a host with Linux 6.1",
        tier: Tier::Weekly {
            why: "a second kernel for introspect-kvm, which takes minutes under two layers of emulation",
        },
        needs: &[
            Root,
            Processors,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 400,
        run: kvm::kvm_bookworm,
    },
    Test {
        name: "introspect-kvm-cycles",
        about: "attached and detached 1000 times (CYCLES) while a guest with two vCPUs works: its kernel says nothing, events are exact before and after",
        tier: Tier::Weekly { why: "a thousand cycles take tens of minutes" },
        needs: NESTED,
        seconds: 1800,
        run: kvm_cycles::kvm_cycles,
    },
    Test {
        name: "introspect-kvm-losses",
        about: "other kprobes and changes of BPF maps make the host's kernel skip our programs: seen and dropped are as many as the guest's calls",
        tier: Tier::Weekly { why: "takes minutes under two layers of emulation" },
        needs: NESTED,
        seconds: 200,
        run: kvm_losses::newest,
    },
    Test {
        name: "introspect-kvm-losses-bookworm",
        about: "the same on a host with Linux 6.1, which does not count what it skips: `introspect list` says so",
        tier: Tier::Weekly { why: "takes minutes under two layers of emulation" },
        needs: &[
            Root,
            Processors,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 200,
        run: kvm_losses::bookworm,
    },
    Test {
        name: "introspect-kvm-moves",
        about: "`detach && migrate` 100 times (CYCLES) under KVM: the destination's kernel text is byte by byte that of before the attachment",
        tier: Tier::Weekly { why: "a hundred moves take many minutes" },
        needs: NESTED,
        seconds: 900,
        run: kvm_moves::kvm_moves,
    },
    Test {
        name: "introspect-kvm-traced",
        about: "a guest under KVM traces itself after the attachment: other functions as ever; of ours its ftrace says that it fails, and the guest goes on",
        tier: Tier::Weekly { why: "shows a documented limit, under two layers of emulation" },
        needs: NESTED,
        seconds: 200,
        run: kvm_traced::kvm_traced,
    },
    Test {
        name: "introspect-port",
        about: "introspect-kvm by writes to a port: no switch is touched",
        tier: Tier::Weekly {
            why: "a variant of introspect-kvm, which takes minutes under two layers of emulation",
        },
        needs: NESTED,
        seconds: 400,
        run: kvm::port,
    },
    Test {
        name: "introspect-reserve",
        about: "an unmodified guest starts SCHED_DEADLINE tasks beside a busy host: late when nobody looks, none late in the reservation that follows",
        tier: Tier::All,
        needs: &[
            Root,
            ExclusiveCpu,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
        ],
        seconds: 120,
        run: reserve::reserve,
    },
    Test {
        name: "introspect-verifier",
        about: "the verifiers of Linux 6.1 and 7.3 take the BPF programs for guests under KVM, far below their limit",
        tier: Tier::Weekly {
            why: "the BPF programs change rarely; introspect-kvm loads them in tier all",
        },
        needs: &[
            Root,
            Processors,
            Fetched("busybox"),
            Fetched("kernel:bookworm"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
        ],
        seconds: 120,
        run: verifier::verifier,
    },
    Test {
        name: "introspect-tcg",
        about: "a real-time program in a guest through QEMU's plugin: every call, in order, exact; floods counted; its reader killed -9",
        tier: Tier::All,
        needs: &[
            Root,
            Fetched("busybox"),
            Fetched("kernel:trixie-backports"),
            Fetched("qemu-10"),
            Plugin,
        ],
        seconds: 80,
        run: plugin::tcg,
    },
];
