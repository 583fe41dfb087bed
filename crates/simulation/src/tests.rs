//! Complete runs: they are reproducible, pass with correct code, and fail with deliberately broken
//! code.

use std::path::Path;

use timevisor_estimate::{Ensemble, Exchange, Knowledge, Observation, RateLimits, Slot};
use timevisor_host_clock::Synchronizer;
use timevisor_time::{Duration, Interval};

use super::*;

/// Twenty minutes, the first five of them convergence.
fn short(deltas: &str) -> Scenario {
    let text = format!("description = 'test'\nduration_s = 1200\nwarmup_s = 300\n{deltas}");
    Scenario::parse(&text, Path::new("test.toml")).unwrap()
}

fn missed(report: &Report) -> Vec<&str> {
    report.failures.iter().map(|f| f.limit.as_str()).collect()
}

#[test]
fn a_seed_is_a_run() {
    let scenario = short("[[reference]]\nlink.loss = 0.2\n[[reference]]\nlink.duplicate = 0.5\n");
    let (report, points) = record(&scenario);
    assert_eq!((report.clone(), points.clone()), record(&scenario));
    let (other, _) = record(&Scenario { seed: 2, ..scenario });
    assert!(other.rms_us != report.rms_us && other.exchanges != report.exchanges);
    assert_eq!(points.len(), 1200);
}

#[test]
fn a_lan_is_covered_and_accurate() {
    // 304 requests: one at the start, seven 2 s apart, then one in 4 s.
    let report = run(&short(
        "[limits]\nmax_us = 60\nhalfwidth_median_us = 150\nnever = ['unreliable', 'freerunning']\n",
    ));
    assert_eq!(report.failures, []);
    assert_eq!((report.coverage, report.exchanges), (1.0, 304));
    // The shortest path takes 30 us, so a smaller half-width would be dishonest.
    assert!(report.halfwidth_median_us > 30.0, "{}", report.halfwidth_median_us);
}

#[test]
fn limits_bite() {
    let report = run(&short(
        "[limits]\nrms_us = 0.001\nhalfwidth_p99_us = 30\nsee = ['unreliable']\nat_end = 'unknown'\nfalsetickers = ['reference 1']\n\
         [[limits.window]]\nfrom_s = 600\nmax_us = 0.001\n",
    ));
    assert_eq!(
        missed(&report),
        ["rms_us", "halfwidth_p99_us", "max_us", "see", "at_end", "falsetickers"]
    );
    assert_eq!(report.verdict(), Verdict::Failed);
    let excused =
        short("[limits]\nrms_us = 0.001\n[known_failure]\nlimits = ['rms_us']\nreason = 'test'\n");
    assert_eq!(run(&excused).verdict(), Verdict::KnownFailure);
}

#[test]
fn rules_hold_without_being_stated() {
    let scenario = short("");
    let mut outcomes = crate::world::World::new(&scenario, &|parameters, names, nominal, error| {
        Box::new(Ensemble::new(parameters, names, nominal, error))
    })
    .run();
    assert_eq!(missed(&Report::new(&scenario, &outcomes)), [""; 0]);
    outcomes.checks.unnested = 1;
    outcomes.checks.backward = 1;
    outcomes.checks.uncovered = 1;
    outcomes.checks.disruptions = 1;
    let report = Report::new(&scenario, &outcomes);
    assert_eq!(missed(&report), ["coverage", "nesting", "monotonic", "disruptions"]);
}

#[test]
fn every_stamp_is_noisy() {
    // A millisecond between each stamp and the wire: truth is that far from both bounds.
    let scenario = short("[host]\noutliers = { probability = 1, from_us = 1000, to_us = 1000 }\n");
    let (report, points) = record(&scenario);
    assert_eq!(report.failures, []);
    let beyond = |p: &&Point| p.latest_us > 1030.0 && p.earliest_us < -1030.0;
    assert_eq!(points.iter().filter(beyond).count(), points.len());
}

#[test]
fn a_stepping_server_is_noticed_before_truth_is_lost() {
    let report = run(&short(
        "fault_at_s = 600\n[[reference]]\nserver.steps = [{ at_s = 600, by_us = 1000 }]\n\
         [limits]\ncoverage = 0\ndetected = true\ndisruptions = 10\nsee = ['unreliable']\n",
    ));
    assert_eq!(report.failures, []);
    // At the first poll after the step.
    let alarm = report.alarm_s.unwrap();
    assert!((600.0..618.0).contains(&alarm), "{alarm}");
    assert_eq!(report.false_alarms, 0);
    // Readers are told that the next bounds need not nest.
    assert!(report.disruptions >= 1);
    // In the end the only server is trusted again, because there is no other source; coverage shows
    // it.
    assert!(report.coverage < 1.0);
}

#[test]
fn an_outvoted_server_is_named() {
    let report = run(&short(
        "[[reference]]\n[[reference]]\nname = 'liar'\nserver.steps = [{ at_s = 0, by_us = 5000 }]\n[[reference]]\n\
         [limits]\nfalsetickers = ['liar']\nnever = ['unreliable']\nmax_us = 60\n",
    ));
    assert_eq!(report.failures, []);
}

#[test]
fn a_silent_server_leaves_growing_bounds_that_hold() {
    let report = run(&short(
        "[[reference]]\nserver.silent = [{ from_s = 500, to_s = 1200 }]\n\
         [limits]\nsee = ['freerunning']\nnever = ['unreliable']\nat_end = 'freerunning'\n",
    ));
    assert_eq!(report.failures, []);
    assert!(report.halfwidth_p99_us > 1000.0, "{}", report.halfwidth_p99_us);
}

#[test]
fn a_warm_restart_is_no_disruption_and_a_cold_one_is() {
    let warm = run(&short(
        "[host]\nrestarts = [{ at_s = 600.5, down_s = 30 }]\n\
         [limits]\nsee = ['freerunning']\nnever = ['unknown', 'unreliable']\nat_end = 'synchronized'\n",
    ));
    assert_eq!(warm.failures, []);
    let cold = run(&short("[host]\nrestarts = [{ at_s = 600.5, down_s = 30, warm = false }]\n"));
    assert_eq!((missed(&cold), cold.disruptions), (vec!["disruptions"], 1));
}

#[test]
fn a_counter_may_wrap() {
    // 600 s before 2^64.
    let wrapping = short("[host]\ncounter_start = 18_446_743_473_709_551_616\n");
    let report = run(&wrapping);
    assert_eq!(report.failures, []);
    assert_eq!(report, run(&Scenario { host: Default::default(), ..wrapping }));
}

#[test]
fn a_leap_second_is_no_event_in_tai() {
    let report = run(&short("leap_at_s = 700\n[limits]\nmax_us = 60\nnever = ['unreliable']\n"));
    assert_eq!(report.failures, []);
}

#[test]
fn a_utc_page_is_right_around_a_leap_second_with_and_without_its_daemon() {
    for deleted in [false, true] {
        let world =
            |more: &str| run(&short(&format!("leap_at_s = 700\nleap_deleted = {deleted}\n{more}")));
        let report = world("[limits]\nmax_us = 60\nnever = ['unreliable']\n");
        assert_eq!(report.failures, []);
        assert_eq!((report.utc_coverage, report.utc_disruptions), (1.0, 1), "one step");
        for down_s in [30, 500] {
            let dead = format!("[host]\nrestarts = [{{ at_s = 690, down_s = {down_s} }}]\n");
            let report = world(&dead);
            assert_eq!(report.failures, []);
        }
    }
}

#[test]
fn kisses_are_obeyed() {
    let kiss = |code| {
        short(&format!(
            "[[reference]]\nserver.kisses = [{{ from_s = 600, to_s = 700, code = '{code}' }}]\n"
        ))
    };
    let plain = run(&short("")).exchanges;
    // RATE permanently doubles the interval; DENY stops polling for an hour.
    let (rate, deny) = (run(&kiss("RATE")).exchanges, run(&kiss("DENY")).exchanges);
    assert!(deny < rate && rate < plain, "{deny} {rate} {plain}");
    assert_eq!(deny, plain - 600_u64.div_ceil(4));
}

/// The estimate with its interval halved: an understated error budget, a forgotten term.
struct Halved(Ensemble);

impl Synchronizer for Halved {
    fn observe(&mut self, index: usize, exchange: &Exchange) -> Observation {
        self.0.observe(index, exchange)
    }
    fn forget(&mut self, index: usize) {
        self.0.forget(index);
    }
    fn set_witnesses(&mut self, witnesses: &[usize]) {
        self.0.set_witnesses(witnesses);
    }
    fn rearrange(&mut self, slots: &[Slot], stale_after: Duration) {
        self.0.rearrange(slots, stale_after);
    }
    fn at(&mut self, counter: u64) -> Knowledge {
        let mut knowledge = self.0.at(counter);
        if let Some(clock) = &mut knowledge.clock {
            let quarter = clock.interval.width().half().half();
            let (earliest, latest) =
                (clock.interval.earliest() + quarter, clock.interval.latest() - quarter);
            clock.interval = Interval::new(earliest, latest).unwrap();
            clock.estimate = clock.estimate.max(earliest).min(latest);
        }
        knowledge
    }
    fn disruptions(&self) -> u64 {
        self.0.disruptions()
    }
    fn adopt_rate(&mut self, measured: &RateLimits) {
        self.0.adopt_rate(measured);
    }
}

#[test]
fn bounds_that_are_half_as_wide_are_caught() {
    // An asymmetric path, where truth is not in the middle; the honest bounds cover it.
    let scenario = short("[[reference]]\nbackward.minimum_us = 530\n");
    assert_eq!(run(&scenario).failures, []);
    let (report, _) = run_with(&scenario, &|parameters, names, nominal, error| {
        Box::new(Halved(Ensemble::new(parameters, names, nominal, error)))
    });
    assert_eq!(missed(&report), ["coverage", "coverage"], "of the host's page and of a VM's");
    assert!(report.worst_excess_us > 50.0, "{}", report.worst_excess_us);
}

#[test]
fn every_scenario_file_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = paths.filter(|p| p.extension().is_some_and(|e| e == "toml")).collect();
    assert!(files.len() >= 25, "{}", files.len());
    for file in files {
        let scenario = Scenario::load(&file).unwrap_or_else(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            panic!("{error}: {}", source.unwrap_or_default())
        });
        let default = Scenario { limits: Default::default(), ..Scenario::default() };
        assert!(scenario.limits != default.limits, "{} has no limit of its own", scenario.name);
    }
}
