//! Published evaluations, repeated: QuartzV (D'Souza and Rajkumar), section V, with Timevisor in
//! its place; and of two further papers what one machine can show (`vebt/`, `rvec/`).
//!
//! | file | owns |
//! | --- | --- |
//! | `table1.rs` | read latency, table I |
//! | `accuracy.rs` | errors and bounds against the truth, figures 8 to 10 |
//! | `scale_cpu.rs`, `scale_net.rs` | the same beside loaded guests, figures 11 to 14 |
//! | `scale_read.rs` | read latency of many guests at once, figure 15 |
//! | `subject.rs` | the guest that is measured: page, chronyd and timevisord inside |
//! | `fleet.rs` | further guests with a page each |
//! | `lan.rs` | the bridge between guests and server, and its limits |
//! | `truth.rs` | what was true at a counter value |
//! | `watch.rs`, `steps.rs` | samples over time, and beside one load after another |
//! | `latency.rs` | runs lab-latency |
//! | `statistics.rs`, `report.rs`, `plot.rs` | figures, tables and files, pictures |
//! | `paper.rs` | QuartzV's figures |
//! | `spread.rs` | quartiles and percentiles |
//! | `job.rs` | a program in a guest that prints one line of JSON |
//! | `vebt/` | Broomhead and others, "Virtualize everything but time" |
//! | `rtvm/` | Cucinotta and others, "Real-time virtual machines" |
//! | `kairos/` | Burns and others, "KairosVM": what a call takes that is trapped |
//! | `rvec/` | Dutra and others, "A highly effective system clock" (RVEC) |
//!
//! It judges nothing: an experiment fails when it cannot be done, not when its outcome is bad.
//! Verdicts are the tests'.

mod accuracy;
mod fleet;
mod job;
mod kairos;
pub(crate) mod lan;
mod latency;
mod paper;
pub(crate) mod plot;
pub(crate) mod report;
mod rtvm;
mod rvec;
mod scale_cpu;
mod scale_net;
mod scale_read;
mod spread;
mod statistics;
mod steps;
mod subject;
mod table1;
pub(crate) mod truth;
mod vebt;
pub(crate) mod watch;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

pub use accuracy::smoke;
pub use vebt::sawtooth::smoke as sawtooth_smoke;

use crate::scenario::Context;

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// The name on the command line, of the log directory and of the result file.
    pub name: &'static str,
    /// One line for `experiment list`.
    pub about: &'static str,
    /// How long it measures unless told otherwise; boots come on top.
    pub minutes: u32,
    run: fn(&Context, Duration) -> anyhow::Result<()>,
}

/// Every experiment.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "quartzv-table1",
        about: "read latency natively, in a guest with the page, and in a guest with an emulated HPET (table I)",
        minutes: 3,
        run: table1::run,
    },
    Experiment {
        name: "quartzv-sync",
        about: "error and bounds against the truth: host, guest's page, synchronization inside the guest (figures 8-10)",
        minutes: 5,
        run: accuracy::run,
    },
    Experiment {
        name: "quartzv-scale-cpu",
        about: "the same beside 1 to 8 guests with a busy processor (figures 11a and 12a)",
        minutes: 5,
        run: scale_cpu::run,
    },
    Experiment {
        name: "quartzv-scale-net",
        about: "the same beside 1 to 4 guests that receive or send, with and without a limit (figures 11b to 14)",
        minutes: 5,
        run: scale_net::run,
    },
    Experiment {
        name: "quartzv-scale-read",
        about: "read latency in 1 to 8 guests that read at once (figure 15)",
        minutes: 2,
        run: scale_read::run,
    },
    Experiment {
        name: "vebt-migration",
        about: "a guest moves between two hosts: its page, and a chronyd inside it (Virtualize everything but time, figure 11)",
        minutes: 8,
        run: vebt::migration::run,
    },
    Experiment {
        name: "vebt-sawtooth",
        about: "a dependent clock that is told the time, but no rate (figure 3), beside the page",
        minutes: 5,
        run: vebt::sawtooth::run,
    },
    Experiment {
        name: "vebt-latency",
        about: "what one access to a counter or clock takes, natively and in guests: quartiles and percentiles (figure 5)",
        minutes: 2,
        run: vebt::latency::run,
    },
    Experiment {
        name: "vebt-noise",
        about: "what the host adds to an exchange with a server, beside 0 to 4 guests, idle and busy (figures 6 and 9)",
        minutes: 3,
        run: vebt::noise::run,
    },
    Experiment {
        name: "rvec-tables",
        about: "execution time and precision by clock, strictly increasing over moves, a benchmark that moves (RVEC, tables 1 to 4)",
        minutes: 3,
        run: rvec::run,
    },
    Experiment {
        name: "rtvm-responses",
        about: "two real-time tasks natively, in a guest, on a loaded host, in a reservation (Real-time virtual machines, figures 1 to 4)",
        minutes: 5,
        run: rtvm::responses::run,
    },
    Experiment {
        name: "rtvm-budget",
        about: "the least budget for the same tasks, by analysis and measured beside a busy host and a busy guest",
        minutes: 5,
        run: rtvm::budget::run,
    },
    Experiment {
        name: "rtvm-apache",
        about: "Apache with a program that computes, on a loaded host and in a reservation (Real-time virtual machines, table 1)",
        minutes: 4,
        run: rtvm::apache::run,
    },
    Experiment {
        name: "rtvm-satisfaction",
        about: "deadlines that 20 to 60 tasks meet over their utilization, with and without a reservation (KairosVM's workload)",
        minutes: 8,
        run: rtvm::satisfaction::run,
    },
    Experiment {
        name: "kairos-latency",
        about: "what system calls take in an emulated guest: not introspected, introspected, with every call trapped, by gdb (KairosVM, figure 6)",
        minutes: 2,
        run: kairos::latency::run,
    },
    Experiment {
        name: "kairos-latency-kvm",
        about: "the same in a guest under KVM, on a host inside a guest, beside bare exits",
        minutes: 2,
        run: kairos::latency_kvm::run,
    },
    Experiment {
        name: "kairos-latency-kvm-bookworm",
        about: "the same on a host with Linux 6.1",
        minutes: 2,
        run: kairos::latency_kvm::run_bookworm,
    },
    Experiment {
        name: "kairos-satisfaction",
        about: "deadlines that 40 tasks of a guest meet while it is introspected, beside a busy thread and bonnie++ (figures 7 and 8, table I)",
        minutes: 6,
        run: kairos::satisfaction::run,
    },
];

impl Experiment {
    /// Measures for `minutes` (or the default), prints tables and writes target/results/NAME.json
    /// and pictures; the logs go to `lab_dir`/NAME.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn run(&self, lab_dir: &Path, minutes: Option<u32>) -> anyhow::Result<()> {
        let minutes = minutes.unwrap_or(self.minutes).max(1);
        report::conditions(self, minutes);
        let ctx = Context::new(lab_dir, self.name, report::kvm())?;
        (self.run)(&ctx, Duration::from_secs(u64::from(minutes) * 60))
    }
}

/// The experiment of this name.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> anyhow::Result<&'static Experiment> {
    ALL.iter()
        .find(|experiment| experiment.name == name)
        .with_context(|| format!("no experiment {name:?}; `experiment list` shows them"))
}
