//! Every experiment: its name, what it repeats, and how long it measures.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use timevisor_lab::scenario::Context;

use super::{
    accuracy, arms, kairos, members, report, rtvm, rvec, scale_cpu, scale_net, scale_read, table1,
    vebt,
};

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experiment {
    /// The name on the command line, of the log directory and of the result file.
    pub(crate) name: &'static str,
    /// One line for `list`.
    pub(crate) about: &'static str,
    /// How long it measures by default; boots take additional time.
    pub(crate) minutes: u32,
    run: fn(&Context, Duration) -> anyhow::Result<()>,
    /// A short run that judges what must hold on any machine; lab tests start it.
    smoke: Option<fn(&Context) -> anyhow::Result<String>>,
}

/// Every experiment.
pub(crate) const ALL: &[Experiment] = &[
    Experiment {
        name: "quartzv-table1",
        about: "read latency natively, in a guest with the page, and in a guest with an emulated HPET (table I)",
        minutes: 3,
        run: table1::run,
        smoke: None,
    },
    Experiment {
        name: "quartzv-sync",
        about: "error and bounds against the truth: host, guest's page, synchronization inside the guest (figures 8-10)",
        minutes: 5,
        run: accuracy::run,
        smoke: Some(accuracy::smoke),
    },
    Experiment {
        name: "quartzv-scale-cpu",
        about: "the same beside 1 to 8 guests with a busy processor (figures 11a and 12a)",
        minutes: 5,
        run: scale_cpu::run,
        smoke: None,
    },
    Experiment {
        name: "quartzv-scale-net",
        about: "the same beside 1 to 4 guests that receive or send, with and without a limit (figures 11b to 14)",
        minutes: 5,
        run: scale_net::run,
        smoke: None,
    },
    Experiment {
        name: "quartzv-scale-read",
        about: "read latency in 1 to 8 guests that read at once (figure 15)",
        minutes: 2,
        run: scale_read::run,
        smoke: None,
    },
    Experiment {
        name: "quartzv-groups",
        about: "members of a group in 1, 2, 4 and 8 guests: decisions and fires of proposals (scalability)",
        minutes: 4,
        run: members::run,
        smoke: None,
    },
    Experiment {
        name: "arms",
        about: "two robot arms carry a part while something goes wrong, beside clocks without bounds (section III)",
        minutes: 17,
        run: arms::run,
        smoke: None,
    },
    Experiment {
        name: "arms-endure",
        about: "the same arms with all faults in turn, without clocks that are worse",
        minutes: 30,
        run: arms::endure,
        smoke: None,
    },
    Experiment {
        name: "arms-guests",
        about: "the same arms with the planner and a controller in stock guests: its VM migrates, the controller's has a reservation, or none",
        minutes: 9,
        run: arms::run_in_guests,
        smoke: None,
    },
    Experiment {
        name: "arms-guests-endure",
        about: "these with all faults in turn",
        minutes: 30,
        run: arms::endure_in_guests,
        smoke: None,
    },
    Experiment {
        name: "vebt-migration",
        about: "a guest moves between two hosts: its page, a chronyd inside it, and the hosts' own clocks (Virtualize everything but time, figure 11)",
        minutes: 8,
        run: vebt::migration::run,
        smoke: None,
    },
    Experiment {
        name: "vebt-sawtooth",
        about: "a dependent clock that is told the time, but no rate (figure 3), beside the page",
        minutes: 5,
        run: vebt::sawtooth::run,
        smoke: Some(vebt::sawtooth::smoke),
    },
    Experiment {
        name: "vebt-latency",
        about: "what one access to a counter or clock takes, natively and in guests: quartiles and percentiles (figure 5)",
        minutes: 2,
        run: vebt::latency::run,
        smoke: None,
    },
    Experiment {
        name: "vebt-noise",
        about: "what the host adds to an exchange with a server, beside 0 to 4 guests, idle and busy (figures 6 and 9)",
        minutes: 3,
        run: vebt::noise::run,
        smoke: None,
    },
    Experiment {
        name: "vebt-update",
        about: "from the host's write of its clock to a guest's read of it, beside 0 to 4 busy programs (figure 10)",
        minutes: 2,
        run: vebt::update::run,
        smoke: None,
    },
    Experiment {
        name: "vebt-side",
        about: "two daemons with one server, one with another, and a chronyd, side by side on a host (figure 2)",
        minutes: 3,
        run: vebt::side::run,
        smoke: None,
    },
    Experiment {
        name: "vebt-churn",
        about: "a chronyd with a poll of its choice, and the page, in a guest while other guests come and go (figure 4)",
        minutes: 5,
        run: vebt::churn::run,
        smoke: None,
    },
    Experiment {
        name: "vebt-idle",
        about: "exchanges, and the host's clock, while a processor without work halts, polls or spins (figures 6 and 8, table 1)",
        minutes: 5,
        run: vebt::idle::run,
        smoke: None,
    },
    Experiment {
        name: "vebt-counters",
        about: "clocks synchronized inside two guests at once, by the TSC and by an emulated HPET (figure 7)",
        minutes: 3,
        run: vebt::counters::run,
        smoke: None,
    },
    Experiment {
        name: "rvec-tables",
        about: "execution time and precision by clock, strictly increasing over moves, a benchmark that moves (RVEC, tables 1 to 4)",
        minutes: 3,
        run: rvec::run,
        smoke: None,
    },
    Experiment {
        name: "rtvm-responses",
        about: "two real-time tasks natively, in a guest, on a loaded host, in a reservation (Real-time virtual machines, figures 1 to 4)",
        minutes: 5,
        run: rtvm::responses::run,
        smoke: None,
    },
    Experiment {
        name: "rtvm-runs",
        about: "the same tasks twenty times in the recommended reservation, and in 28 of 50 ms: no job late inside a promise",
        minutes: 20,
        run: rtvm::runs::run,
        smoke: None,
    },
    Experiment {
        name: "rtvm-promises",
        about: "a hundred random task sets, each planned, reserved, run and judged: no job late inside a promise",
        minutes: 75,
        run: rtvm::promises::run,
        smoke: Some(rtvm::promises::smoke),
    },
    Experiment {
        name: "rtvm-budget",
        about: "the least budget for the same tasks, by analysis and measured beside a busy host and a busy guest",
        minutes: 5,
        run: rtvm::budget::run,
        smoke: None,
    },
    Experiment {
        name: "rtvm-apache",
        about: "Apache with a program that computes, on a loaded host and in a reservation (Real-time virtual machines, table 1)",
        minutes: 70,
        run: rtvm::apache::run,
        smoke: None,
    },
    Experiment {
        name: "rtvm-vms",
        about: "three VMs on one core at once, two with tasks and one with Apache under traffic, each in its reservation of one plan",
        minutes: 6,
        run: rtvm::vms::run,
        smoke: None,
    },
    Experiment {
        name: "rtvm-satisfaction",
        about: "deadlines that 20 to 60 tasks meet over their utilization, with and without a reservation (KairosVM's workload)",
        minutes: 8,
        run: rtvm::satisfaction::run,
        smoke: None,
    },
    Experiment {
        name: "kairos-latency",
        about: "what system calls take in an emulated guest: not introspected, introspected, with every call trapped, by gdb (KairosVM, figure 6)",
        minutes: 2,
        run: kairos::latency::run,
        smoke: None,
    },
    Experiment {
        name: "kairos-latency-kvm",
        about: "the same in a guest under KVM, on a host inside a guest, beside bare exits",
        minutes: 2,
        run: kairos::latency_kvm::run,
        smoke: None,
    },
    Experiment {
        name: "kairos-latency-kvm-bookworm",
        about: "the same on a host with Linux 6.1",
        minutes: 2,
        run: kairos::latency_kvm::run_bookworm,
        smoke: None,
    },
    Experiment {
        name: "kairos-satisfaction",
        about: "deadlines that 40 tasks of a guest meet while it is introspected, beside a busy thread and bonnie++ (figures 7 and 8, table I)",
        minutes: 6,
        run: kairos::satisfaction::run,
        smoke: None,
    },
    Experiment {
        name: "kairos-early",
        about: "what jobs that complete early leave of a reservation to an ordinary program on the same core",
        minutes: 2,
        run: kairos::early::run,
        smoke: None,
    },
    Experiment {
        name: "kairos-edf",
        about: "the same as published: EDF, 20 sets of 20 to 60 tasks for each point",
        minutes: 40,
        run: kairos::satisfaction::run_edf,
        smoke: None,
    },
];

impl Experiment {
    /// Measures for `minutes` (or the default), prints tables, and writes target/results/NAME.json
    /// and pictures; the logs go to `lab_dir`/NAME.
    ///
    /// # Errors
    /// When the measurement is not possible.
    pub(crate) fn run(&self, lab_dir: &Path, minutes: Option<u32>) -> anyhow::Result<()> {
        let minutes = minutes.unwrap_or(self.minutes).max(1);
        report::conditions(self, minutes);
        let ctx = Context::new(lab_dir, self.name, report::kvm())?;
        (self.run)(&ctx, Duration::from_secs(u64::from(minutes) * 60))
    }

    /// Runs it briefly; returns what it measured.
    ///
    /// # Errors
    /// When it has no smoke test, or when something does not hold that must hold on any machine.
    pub(crate) fn smoke(&self, ctx: &Context) -> anyhow::Result<String> {
        let smoke = self.smoke.with_context(|| format!("{} has no smoke test", self.name))?;
        smoke(ctx)
    }
}

/// The experiment with this name.
///
/// # Errors
/// When there is none.
pub(crate) fn find(name: &str) -> anyhow::Result<&'static Experiment> {
    ALL.iter()
        .find(|experiment| experiment.name == name)
        .with_context(|| format!("no experiment {name:?}; `timevisor-experiments list` shows them"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_experiment_has_one_name_and_a_time() {
        let distinct: BTreeSet<&str> = ALL.iter().map(|experiment| experiment.name).collect();
        assert_eq!(distinct.len(), ALL.len());
        for experiment in ALL {
            assert!(experiment.minutes > 0, "{}", experiment.name);
            assert!(find(experiment.name).is_ok());
        }
        assert!(find("none").is_err());
    }
}
