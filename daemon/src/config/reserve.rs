//! `[[guests.vm.NAME.reserve]]`: processor time that is reserved for a VM's vCPU whenever the VM
//! runs.

use std::time::Duration as StdDuration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use timevisor_protocols::control::{Promise, ReserveApply};
use timevisor_schedule::Reservation;

/// The same keys as the options of `timevisor reserve apply`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveConfig {
    #[serde(default)]
    vcpu: u32,
    #[serde(with = "humantime_serde")]
    budget: StdDuration,
    #[serde(with = "humantime_serde")]
    period: StdDuration,
    #[serde(default, with = "humantime_serde::option")]
    at_most: Option<StdDuration>,
    #[serde(default, with = "humantime_serde::option")]
    deadline: Option<StdDuration>,
    #[serde(default)]
    promise: Promise,
    core: Option<u32>,
    #[serde(default)]
    alone: bool,
}

impl ReserveConfig {
    pub fn request(&self, vm: &str) -> ReserveApply {
        ReserveApply {
            vm: vm.to_owned(),
            vcpu: self.vcpu,
            budget_ns: ns(self.budget),
            at_most_ns: self.at_most.map(ns),
            deadline_ns: self.deadline.map(ns),
            period_ns: ns(self.period),
            promise: self.promise,
            core: self.core,
            alone: self.alone,
            dry_run: false,
        }
    }
}

/// Checks the reservations of one VM.
pub fn validate(all: &[ReserveConfig]) -> Result<()> {
    for (index, one) in all.iter().enumerate() {
        let deadline = one.deadline.unwrap_or(one.period);
        Reservation::new(ns(one.budget), ns(deadline), ns(one.period))?;
        let twice = all[..index].iter().any(|other| other.vcpu == one.vcpu);
        ensure!(!twice, "vCPU {} is listed twice", one.vcpu);
    }
    Ok(())
}

fn ns(span: StdDuration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
