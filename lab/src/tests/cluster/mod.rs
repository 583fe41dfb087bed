//! One clock for a cluster of hosts.

pub(crate) mod energy;
pub(crate) mod guests;
pub(crate) mod hosts;
pub(crate) mod hour;
pub(crate) mod how_to;
pub(crate) mod liar;
mod member;
pub(crate) mod offline;
pub(crate) mod split;
pub(crate) mod thousand;
pub(crate) mod three;
pub(crate) mod timeline;

use std::time::Duration;

use crate::scenario::Need::{Fetched, Root};
use crate::scenario::{Family, Test, Tier, number};

/// The family's table.
pub const FAMILY: Family = Family { name: "cluster", tests: TESTS };

const TESTS: &[Test] = &[
    Test {
        name: "cluster-energy",
        about: "questions and wake-ups in a day, and bounds, of hosts that ask every 16, 64 and 256 s, beside chronyds: truth inside",
        tier: Tier::Weekly { why: "it takes 50 minutes" },
        needs: &[Root],
        seconds: 3100,
        run: energy::energy,
    },
    Test {
        name: "cluster-guests",
        about: "five timevisords on one network, two of them in guests: UTC and a timeline of their own, truth inside; the root ends, another continues the timeline",
        tier: Tier::All,
        needs: &[Root, Fetched("busybox"), Fetched("kernel:trixie-backports"), Fetched("qemu-10")],
        seconds: 90,
        run: guests::guests,
    },
    Test {
        name: "cluster-hosts",
        about: "five timevisords with a key: a root, members that are referred to each other; the root ends; wrong names and keys; truth inside",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 40,
        run: hosts::five,
    },
    Test {
        name: "cluster-liar",
        about: "three hosts with an honest server and one whose server lies at three ports: a member of all names those and no other, truth inside",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 20,
        run: liar::liar,
    },
    Test {
        name: "cluster-offline",
        about: "a host asks once, and again, and runs without a network from what it saved: truth inside, also after a restart of timevisord",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 40,
        run: offline::offline,
    },
    Test {
        name: "cluster-how-to",
        about: "the commands of docs/how-to/cluster.md, one after the other: three hosts in namespaces, the root ends, nothing is left",
        tier: Tier::All,
        needs: &[Root],
        seconds: 20,
        run: how_to::how_to,
    },
    Test {
        name: "cluster-hour",
        about: "an hour (OFFLINE_S) without a network after one visit and after two, beside chronyds without a server: truth inside, error, bound, horizon, wake-ups",
        tier: Tier::Weekly { why: "it takes 77 minutes" },
        needs: &[Root],
        seconds: 4_700,
        run: hour::hour,
    },
    Test {
        name: "cluster-split",
        about: "a network of four hosts is cut in two: two origins of different names, each right; together again one of them stays, said by all who go over",
        tier: Tier::All,
        needs: &[Root],
        seconds: 40,
        run: split::split,
    },
    Test {
        name: "cluster-timeline",
        about: "a timeline whose master is a host, on four different counters: truth inside; the master is killed, another continues it, nobody goes back",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 40,
        run: timeline::succession,
    },
    Test {
        name: "cluster-three",
        about: "section 5.4 of the HPGC paper: a server and two nodes; exchanges until settled, by the published algorithm and by ours; the order of 2000 pairs of stamps",
        tier: Tier::All,
        needs: &[Root],
        seconds: 30,
        run: three::three,
    },
    Test {
        name: "cluster-thousand",
        about: "a thousand nodes over real sockets against one timevisord, without a key and with one: all bounded, truth inside, questions counted",
        tier: Tier::Test,
        needs: &[Root],
        seconds: 30,
        run: thousand::thousand,
    },
];

/// Whole seconds from the environment.
fn seconds(variable: &str, default: u64) -> anyhow::Result<Duration> {
    number(variable, default).map(Duration::from_secs)
}
