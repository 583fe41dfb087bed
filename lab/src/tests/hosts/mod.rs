//! The host's clock without guests: references, truth, NTP server, NTS.

pub(crate) mod arm;
pub(crate) mod audit;
pub(crate) mod cli;
pub(crate) mod clockbound;
pub(crate) mod keeper;
pub(crate) mod network;
pub(crate) mod ntp_precise;
pub(crate) mod ntp_server;
pub(crate) mod nts;
pub(crate) mod nts_server;
pub(crate) mod observe;
pub(crate) mod privileges;
pub(crate) mod ptp;
pub(crate) mod ptp_cost;
pub(crate) mod references;
pub(crate) mod simulator;
pub(crate) mod sources;
pub(crate) mod traces;
pub(crate) mod truth;
pub(crate) mod watch;
pub(crate) mod wrong_rtc;

use crate::scenario::Need::{Apt, ArmToolchain, Fetched, Processors, Root};
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "hosts", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "chronyd",
        about: "two chronyds serve time in their own network namespaces",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: network::chronyd,
    },
    Test {
        name: "network-simulator",
        about: "timevisord --csv under our simulator: a line a second, right, by the allowed calls alone",
        tier: Tier::Test,
        needs: &[Root, Processors],
        seconds: 90,
        run: simulator::own,
    },
    Test {
        name: "cli",
        about: "what scripts rely on: exit statuses, closed pipes, full disks, UTC, a look that goes on",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 20,
        run: cli::scripts,
    },
    Test {
        name: "audit",
        about: "the audit log over a server's end, kill -9, a full disk and changed bytes; what it proves",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 40,
        run: audit::audit_log,
    },
    Test {
        name: "sources-record",
        about: "exchanges with two chronyds, recorded from the running daemon, replayed and drawn",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 30,
        run: traces::record_and_replay,
    },
    Test {
        name: "clock-truth",
        about: "the host's bounds hold the truth, read directly, from the first exchange on",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: truth::bounds_hold_the_truth,
    },
    Test {
        name: "clockbound",
        about: "AWS ClockBound's own clients read the host's clock: truth inside, unknown after kill -9 and after the end, another writer",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 40,
        run: clockbound::clients,
    },
    Test {
        name: "chrony-import",
        about: "a real chronyd's knowledge, read over its command sockets: sign, bound, end, no synchronization",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: references::chrony,
    },
    Test {
        name: "undeclared-keeper",
        about: "CLOCK_REALTIME whose keeper declares no error is refused, with the lines to paste; assumed_max_error takes it",
        tier: Tier::All,
        needs: &[Root],
        seconds: 20,
        run: keeper::undeclared,
    },
    Test {
        name: "ptp4l-import",
        about: "a real ptp4l's measurements over its management socket; the master ends",
        tier: Tier::Test,
        needs: &[Root, Apt("linuxptp")],
        seconds: 20,
        run: ptp::import,
    },
    Test {
        name: "ptp4l-masters",
        about: "a ptp4l between two masters: the better one ends and comes back; truth inside throughout, each change told once",
        tier: Tier::All,
        needs: &[Root, Apt("linuxptp")],
        seconds: 50,
        run: ptp::masters,
    },
    Test {
        name: "ptp4l-utc-offset",
        about: "a grandmaster that vouches for TAI - UTC = 36 s is refused with both values; one that vouches for 37 is right",
        tier: Tier::All,
        needs: &[Root, Apt("linuxptp")],
        seconds: 40,
        run: ptp::utc_offset,
    },
    Test {
        name: "ptp4l-cost",
        about: "what the import of ptp4l's measurements costs in width, by term, beside NTP over the same link (decision 44)",
        tier: Tier::All,
        needs: &[Root, Apt("linuxptp")],
        seconds: 90,
        run: ptp_cost::cost,
    },
    Test {
        name: "ntp-server",
        about: "real chronyds follow timevisord's server, also interleaved; root distances cover the bounds",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: ntp_server::served,
    },
    Test {
        name: "ntp-interleaved",
        about: "timevisord follows a chronyd in interleaved mode; the bounds hold the truth",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: ntp_server::interleaved_client,
    },
    Test {
        name: "ntp-server-limit",
        about: "who asks too often gets one RATE kiss, which a chronyd obeys, and then nothing",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: ntp_server::limited,
    },
    Test {
        name: "ntp-precise",
        about: "between timevisords the field saves 20 us of half-width; chronyd and ntpd-rs serve who asks with it",
        tier: Tier::Test,
        needs: &[Root, Fetched("ntpd-rs")],
        seconds: 40,
        run: ntp_precise::precise,
    },
    Test {
        name: "sources",
        about: "sources, tracking and clients beside chronyc; references and the configuration change while it runs",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 30,
        run: sources::sources,
    },
    Test {
        name: "observe",
        about: "timevisor-observe by another user: promtool, events, 10,000 requests each, kill -9: the clock is published as before",
        tier: Tier::Test,
        needs: &[Root, Apt("prometheus")],
        seconds: 60,
        run: observe::observe,
    },
    Test {
        name: "nts",
        about: "time from a chronyd with NTS: synchronized, cookies renewed, a server's restart and new keys survived",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: nts::synchronized,
    },
    Test {
        name: "nts-ntpd-rs",
        about: "the same from ntpd-rs, another implementation: synchronized, and again after its restart with new keys",
        tier: Tier::Test,
        needs: &[Root, Fetched("ntpd-rs")],
        seconds: 15,
        run: nts::ntpd_rs,
    },
    Test {
        name: "privileges",
        about: "every thread of a timevisord with NTS references, an NTS server and a channel has the rights that the threat model states",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: privileges::privileges,
    },
    Test {
        name: "nts-server",
        about: "a chronyd, an ntpd-rs and a timevisord get time from timevisord with NTS; a new certificate, a restart",
        tier: Tier::All,
        needs: &[Root, Fetched("ntpd-rs")],
        seconds: 60,
        run: nts_server::served,
    },
    Test {
        name: "wrong-rtc",
        about: "CLOCK_REALTIME in 1970, 2019, 2036, 2099 and 2163 beside two honest servers: outvoted, and all else right",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 30,
        run: wrong_rtc::eras,
    },
    Test {
        name: "wrong-rtc-nts",
        about: "CLOCK_REALTIME in 1970: an NTS certificate is judged at the time that other servers have told",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 30,
        run: wrong_rtc::certificates,
    },
    Test {
        name: "docs-commands",
        about: "the documentation's cheap commands, page by page, against a daemon in a scratch directory",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 15,
        run: crate::docs::commands,
    },
    Test {
        name: "arm",
        about: "time, clock-page and linux pass their tests as 64-bit Arm programs under emulation",
        tier: Tier::All,
        needs: &[Root, Processors, ArmToolchain],
        seconds: 240,
        run: arm::arm,
    },
    Test {
        name: "clknetsim",
        about: "three days on clknetsim's LAN with chronyd as server; CLKNETSIM names its directory (by name only)",
        tier: Tier::Weekly {
            why: "it needs a build of clknetsim, which Debian does not package (CLKNETSIM names its directory)",
        },
        needs: &[Root],
        seconds: 600,
        run: simulator::clknetsim,
    },
];
