//! Faults, and what timevisord says and does about them.

pub(crate) mod common;
pub(crate) mod counter;
pub(crate) mod forbidden;
pub(crate) mod leap;
pub(crate) mod liar;
pub(crate) mod ntp;
pub(crate) mod nts;
pub(crate) mod outage;
pub(crate) mod page;
pub(crate) mod qemu;
pub(crate) mod references;
pub(crate) mod restart;
pub(crate) mod vm;

use crate::scenario::Need::{Fetched, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "faults", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "fault-config",
        about: "unknown keys and bad values are refused by name; a running daemon does not mind",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: common::config,
    },
    Test {
        name: "fault-counter",
        about: "a counter that this machine does not have; VMs on a host that counts with monotonic-raw",
        tier: Tier::Test,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: common::counter,
    },
    Test {
        name: "fault-counter-dropped",
        about: "the kernel's watchdog drops the TSC: unreliable at once with the next step, which works",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 25,
        run: counter::dropped,
    },
    Test {
        name: "fault-discipline-forbidden",
        about: "clock.discipline without CAP_SYS_TIME: told once",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: forbidden::discipline,
    },
    Test {
        name: "fault-two-daemons",
        about: "a second daemon on one run directory, and on one VM's page",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: common::two_daemons,
    },
    Test {
        name: "fault-ntp-unreachable",
        about: "servers that do not answer, with one, two and three references; a dead name server",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: ntp::unreachable,
    },
    Test {
        name: "references-move",
        about: "a name with a dead first address, a server that moves, two names of one server, routes that change",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 25,
        run: references::moves,
    },
    Test {
        name: "references-log",
        about: "a server that alternates between two clocks, answers from elsewhere and late ones: said, and said once",
        tier: Tier::All,
        needs: &[Root],
        seconds: 60,
        run: references::log,
    },
    Test {
        name: "outage-5min",
        about: "a pool, and no network for 5 minutes: free running, bounds hold, nobody is replaced, back without a disruption",
        tier: Tier::All,
        needs: &[Root],
        seconds: 340,
        run: outage::five_minutes,
    },
    Test {
        name: "fault-ntp-impostor",
        about: "garbage, forged, useless and refused answers are inside by reason and never used",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: ntp::impostors,
    },
    Test {
        name: "fault-ntp-liar",
        about: "the only server steps by a second: unreliable, wide, then rebuilt",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: liar::alone,
    },
    Test {
        name: "fault-ntp-outvoted",
        about: "one of three servers lies: named, outvoted, and readers notice nothing",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: liar::outvoted,
    },
    Test {
        name: "fault-nts-certificate",
        about: "unknown authority, expired certificate, wrong name, no NTS at all: refused, and the next step is named",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: nts::refused_servers,
    },
    Test {
        name: "fault-nts-altered",
        about: "somebody on the path alters, strips and forges answers: not one is accepted",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: nts::altered,
    },
    Test {
        name: "fault-page",
        about: "page files that are not ours, not pages, or whose writer died",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: page::page,
    },
    Test {
        name: "fault-leap",
        about: "leap second tables: useless, renewed in time without a reload, older, about to expire; the operator's offset",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 30,
        run: leap::leap,
    },
    Test {
        name: "fault-restart",
        about: "kill -9 again and again under a reader: the estimate never goes back, bounds nest",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 60,
        run: restart::kills,
    },
    Test {
        name: "fault-stop",
        about: "pages after SIGTERM and after kill -9: free running, growing bounds",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: restart::ends,
    },
    Test {
        name: "fault-qemu",
        about: "QEMUs without a page, with a private one, with -icount, and things that are no QEMU",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: qemu::attach,
    },
    Test {
        name: "fault-qmp",
        about: "a QMP socket that is lost, mute or crowded, or whose helper hangs or ends: the VM is still served",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: vm::qmp,
    },
    Test {
        name: "fault-vm-end",
        about: "QEMU killed, removed, restarted with the same pid, unreadable: others are not affected",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 45,
        run: vm::ends,
    },
];
