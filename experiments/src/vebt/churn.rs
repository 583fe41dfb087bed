//! Figure 4: a guest that keeps its own time, and chooses its own poll, while other guests come and
//! go; beside it the same guest's page.
//!
//! The paper lets ntpd choose its polling period, has some activity in other guests, and starts and
//! ends guests. Here chronyd chooses it (Debian's default, from 64 s), one guest computes without
//! pause, and one after another boots and is killed. A timevisord inside the measured guest asks
//! once a second: the same place, with a fixed poll.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::json;
use timevisor_lab::guest::Guest;
use timevisor_lab::interrupt;
use timevisor_lab::progress;
use timevisor_lab::scenario::Context;

use super::paper;
use crate::fleet::Fleet;
use crate::steps::{self, Step};
use crate::subject::{self, Options, Subject};
use crate::watch::{Sample, watch};

const NAME: &str = "vebt-churn";
/// How long chronyd settles after that of the others: three of its first periods.
const SETTLE: Duration = Duration::from_secs(180);
/// Time between two arrivals: about what a boot takes beside another guest.
const EVERY: Duration = Duration::from_secs(15);
/// How many of those that come and go are there at once.
const AT_ONCE: usize = 2;

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let options = Options { chronyd: "iburst", ..Options::default() };
    let mut subject = progress::step("the measured guest", || Subject::start(ctx, options))?;
    subject::settle()?;
    progress::step("chronyd settles", || interrupt::sleep(SETTLE))?;
    let epoch = Instant::now();
    let alone = progress::step("no other guest", || watch(&mut subject, epoch, span / 3))?;
    let mut steps = vec![step(&mut subject, "no other guest", 0, alone)?];

    let fleet = Fleet::new(ctx, &["lab-load"])?;
    let mut busy = progress::step("the busy guest", || fleet.launch(&subject.host, "busy", &[]))?;
    busy.sh("lab-load spin /dev/vmclock0 &")?;
    let (mut come, mut there) = (0, VecDeque::<Guest>::new());
    let beside = progress::step("guests come and go", || {
        let (began, mut samples) = (Instant::now(), Vec::new());
        while began.elapsed() < span * 2 / 3 {
            if there.len() == AT_ONCE {
                drop(there.pop_front());
            }
            there.push_back(fleet.begin(&subject.host, &format!("come-{come}"), &[])?);
            come += 1;
            samples.extend(watch(&mut subject, epoch, EVERY)?);
        }
        Ok(samples)
    })?;
    steps.push(step(&mut subject, &format!("{come} guests come and go"), come, beside)?);
    steps::report(ctx, NAME, &steps)?;
    for step in &steps {
        println!("{}: chronyd asks every {} s", step.label, step.facts["chronyd_poll_s"]);
    }
    println!("paper: {}", paper::CHURN);
    Ok(())
}

fn step(
    subject: &mut Subject,
    label: &str,
    come: usize,
    samples: Vec<Sample>,
) -> anyhow::Result<Step> {
    let sources = subject.guest().sh("chronyc -c -n sources")?;
    let poll = poll_s(&sources).with_context(|| format!("chronyc says {sources:?}"))?;
    let facts = json!({"load": label, "guests_come": come, "chronyd_poll_s": poll});
    Ok(Step { label: label.to_owned(), facts, samples })
}

/// The polling period of the only source.
fn poll_s(sources: &str) -> Option<u32> {
    // chronyc(1), sources: mode, state, name, stratum, log2 of the period.
    let log2: u32 = sources.lines().next()?.split(',').nth(4)?.parse().ok()?;
    1u32.checked_shl(log2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_of_a_line_of_sources() {
        let line = "^,*,10.213.1.2,1,6,377,31,-0.000012,-0.000015,0.000201\n";
        assert_eq!(poll_s(line), Some(64));
        assert_eq!(poll_s("506 Cannot talk to daemon"), None);
    }
}
