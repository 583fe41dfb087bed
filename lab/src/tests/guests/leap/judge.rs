//! What a page may say around a leap second.

use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};

use crate::interrupt::{Late, in_time};
use crate::tests::guests::leap::calendar::{Calendar, Change, SECOND_NS};
use crate::tests::guests::leap::samples::{Ptp, Recording, Said, Sample};
use crate::tests::guests::leap::track::Track;

/// The page's timescale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scale {
    Utc,
    Tai,
}

impl Scale {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Utc => "utc",
            Self::Tai => "tai",
        }
    }
}

/// A sample with its TAI time and the uncertainty of that time, ns.
pub(super) struct Timed {
    tai: i64,
    within: i64,
    sample: Sample,
}

/// What the reader of one page saw.
pub(super) struct Seen {
    pub(super) calendar: Calendar,
    pub(super) scale: Scale,
    pub(super) reads: u64,
    /// In chronological order.
    pub(super) samples: Vec<Timed>,
    /// Times of the newest publications, TAI in ns, as far as samples show them.
    pub(super) publications: Vec<i64>,
    /// How far the stock driver's clock was ahead of TAI, with the uncertainty, both in s, at a TAI
    /// instant in ns; `None` where the driver refused.
    pub(super) ptp: Vec<(i64, Option<(f64, f64)>)>,
}

/// The largest error of `[earliest, latest]` over all numbers that UTC may have at this instant;
/// ns.
fn excess(said: &Said, calendar: Calendar, scale: Scale, tai: i64) -> i64 {
    let outside = |truth: i64| {
        let (early, late) =
            (said.earliest.saturating_sub(truth), truth.saturating_sub(said.latest));
        early.max(late)
    };
    match scale {
        Scale::Tai => outside(tai),
        Scale::Utc => {
            let each = calendar.offsets(tai).iter().map(|offset| outside(tai - offset * SECOND_NS));
            each.max().unwrap_or(0)
        }
    }
}

impl Seen {
    pub(super) fn of(
        recording: Recording,
        calendar: Calendar,
        scale: Scale,
        track: &Track,
    ) -> anyhow::Result<Self> {
        let mut samples = Vec::new();
        let (mut publications, mut ptp) = (Vec::new(), Vec::new());
        for sample in recording.samples {
            let (realtime, within) = track.realtime(sample.counter)?;
            let tai = calendar.tai(realtime);
            if publications.last().is_none_or(|(base, _)| *base != sample.base) {
                // A withdrawn page has base 0.
                if let Ok((realtime, _)) = track.realtime(sample.base) {
                    publications.push((sample.base, calendar.tai(realtime)));
                }
            }
            if let Some(answer) = sample.ptp {
                let ahead = match answer {
                    Ptp::Refused => None,
                    Ptp::Time(ns, before, after) => {
                        let (from, to) = (track.realtime(before)?.0, track.realtime(after)?.0);
                        let ahead = ns - calendar.tai(from.midpoint(to));
                        Some((seconds(ahead), seconds(to - from) / 2.0))
                    }
                };
                ptp.push((tai, ahead));
            }
            samples.push(Timed { tai, within, sample });
        }
        let publications = publications.into_iter().map(|(_, tai)| tai).collect();
        Ok(Self { calendar, scale, reads: recording.reads, samples, publications, ptp })
    }

    /// What holds for every reading at any time: a usable status, in entry 0 and in vmclock_abi,
    /// never comes with bounds that exclude the truth or with an outdated TAI - UTC.
    pub(super) fn check_truth(&self) -> anyhow::Result<()> {
        for Timed { tai, within, sample } in &self.samples {
            let when = seconds(tai - self.calendar.begins());
            for (what, said) in [("entry 0", &sample.entry), ("vmclock_abi", &sample.abi)] {
                let excess = excess(said, self.calendar, self.scale, *tai);
                ensure!(
                    !said.is_usable() || excess <= *within,
                    "{} page, {what}: {excess} ns wrong {when:.3} s after the leap second's begin: \
                     {sample:?}",
                    self.scale.name(),
                );
            }
            let offsets = self.calendar.offsets(*tai);
            let offset = sample.tai_offset.filter(|_| sample.entry.is_usable());
            ensure!(
                offset.is_none_or(|offset| offsets.contains(&offset)),
                "TAI - UTC is {offsets:?} s {when:.3} s after the leap second's begin: {sample:?}"
            );
        }
        Ok(())
    }

    /// The samples whose time since the start of the leap second is in this range, s.
    fn between(&self, from: f64, to: f64) -> impl Iterator<Item = &Sample> {
        let within = move |tai: i64| (from..to).contains(&seconds(tai - self.calendar.begins()));
        self.samples.iter().filter(move |s| within(s.tai)).map(|s| &s.sample)
    }

    /// The leap indicators in the order in which they appeared.
    fn indicators(&self) -> Vec<u64> {
        let mut shown: Vec<u64> = self.samples.iter().map(|s| s.sample.leap_indicator).collect();
        shown.dedup();
        shown
    }

    /// The leap indicator of a page whose daemon is alive: 1 or 2; then 3 during an inserted
    /// second, unless no publication falls into it; then 4 or 5.
    pub(super) fn check_indicators(&self) -> anyhow::Result<Vec<u64>> {
        let shown = self.indicators();
        let expected: [&[u64]; 2] = match self.calendar.change {
            Change::Inserted => [&[1, 3, 4], &[1, 4]],
            Change::Deleted => [&[2, 5], &[2, 5]],
        };
        ensure!(
            expected.contains(&&shown[..]),
            "{} page: leap_indicator {shown:?} instead of {expected:?}",
            self.scale.name()
        );
        Ok(shown)
    }

    /// A TAI page is not affected: it stays `synchronized` without a disruption.
    pub(super) fn check_undisturbed(&self) -> anyhow::Result<()> {
        let Timed { sample: first, .. } = self.samples.first().context("no samples")?;
        for Timed { tai, sample, .. } in &self.samples {
            let when = seconds(tai - self.calendar.begins());
            ensure!(
                sample.disruption == first.disruption && !sample.entry.is("unreliable"),
                "the TAI page was disrupted {when:.3} s after the leap second's begin: {sample:?}"
            );
            // The page expires where the daemon does not get to run for 10 s.
            in_time(sample.entry.is("synchronized"), || format!("{when:.3}: {sample:?}"))?;
        }
        Ok(())
    }

    /// vmclock_abi holds the current TAI - UTC wherever the status lets a driver use it.
    pub(super) fn check_stock_offset(&self) -> anyhow::Result<()> {
        for Timed { tai, sample, .. } in self.samples.iter().filter(|s| s.sample.abi.is_usable()) {
            let (offset, offsets) = (sample.abi_tai_offset, self.calendar.offsets(*tai));
            ensure!(
                offset.is_none_or(|offset| offsets.contains(&offset)),
                "vmclock_abi: TAI - UTC is {offsets:?} s by now: {sample:?}"
            );
        }
        Ok(())
    }

    /// While the daemon is alive, the stock driver is right or refuses, and it answers before and
    /// after the leap second.
    pub(super) fn check_stock_driver(&self) -> anyhow::Result<()> {
        self.check_stock_offset()?;
        let mut answered = (false, false);
        for (tai, ahead) in &self.ptp {
            let when = seconds(tai - self.calendar.begins());
            let Some((ahead, within)) = *ahead else { continue };
            let is_near = |offset: i64| (ahead + offset as f64).abs() < within + PTP_S;
            let is_right = match self.scale {
                Scale::Tai => is_near(0),
                Scale::Utc => self.calendar.offsets(*tai).iter().all(|offset| is_near(*offset)),
            };
            ensure!(
                is_right,
                "{} page: /dev/ptp0 is {ahead:.3} s ahead of TAI {when:.3} s after the leap \
                 second's begin",
                self.scale.name()
            );
            answered = (answered.0 || when < 0.0, answered.1 || when > 0.0);
        }
        ensure!(answered == (true, true), "/dev/ptp0 answered before and after: {answered:?}");
        Ok(())
    }

    /// A UTC page says nothing around the leap second and then shows the time of a new clock.
    /// Returns when it is last usable before, in s from the start of the leap second, and when it
    /// is first usable after, in s from its end.
    pub(super) fn check_withdrawn(&self) -> anyhow::Result<(f64, f64)> {
        let (begins, ends) = (self.calendar.begins(), self.calendar.ends());
        let usable = || {
            self.samples.iter().filter(|s| s.sample.entry.is_usable() || s.sample.abi.is_usable())
        };
        for Timed { tai, sample, .. } in usable().filter(|s| (begins..=ends).contains(&s.tai)) {
            let when = seconds(tai - begins);
            ensure!(
                !sample.entry.is("synchronized"),
                "synchronized {when:.3} s after the leap second's begin: {sample:?}"
            );
            // The page expired and its bounds contain the step, because the daemon did not get to
            // run.
            in_time(false, || format!("not withdrawn by {when:.3} s: {sample:?}"))?;
        }
        let before = usable().take_while(|s| s.tai < begins).last();
        let mut later = usable().filter(|s| s.tai > ends);
        let first = later.clone().next();
        // Of each sample `vmclock_abi` was looked at after the entry: where a publication came between them, the next
        // sample has both.
        let after = later.find(|s| s.sample.entry.is_usable());
        let (Some(before), Some(first), Some(after)) = (before, first, after) else {
            bail!("the UTC page is usable on one side of the leap second only");
        };
        let (last, first) = (before.tai, first.tai);
        let (before, after) = (&before.sample, &after.sample);
        ensure!(before.disruption != after.disruption, "the step is no disruption: {after:?}");
        ensure!(after.entry.is("synchronized"), "it comes back as {after:?}");
        for Timed { tai, sample, .. } in &self.samples {
            let withdrawn = (last + 1..first).contains(tai);
            ensure!(
                !withdrawn || (sample.entry.is("unreliable") && sample.abi.is("unreliable")),
                "{:.3} s after the leap second's begin: {sample:?}",
                seconds(tai - begins)
            );
        }
        let (last, first) = (seconds(last - begins), seconds(first - ends));
        // The margin is two publications plus 2 s on either side. Before the leap second, the
        // publication may come up to a second late.
        in_time(last < -MARGIN_S + 1.5, || format!("withdrawn only {last:.3} s after the begin"))?;
        ensure!(first > MARGIN_S - 0.1, "back {first:.3} s after the end");
        Ok((last, first))
    }

    /// The number of publications that a daemon made between the leap second's end and the moment,
    /// `first` s later, when a UTC page is usable again; this page shows them all.
    pub(super) fn publications_until(&self, first: f64) -> anyhow::Result<usize> {
        let until = |from: f64| {
            let within =
                |tai: &&i64| (from..first).contains(&seconds(**tai - self.calendar.ends()));
            self.publications.iter().filter(within).count()
        };
        // The two pages of one publication are written a moment apart.
        let late = until(MARGIN_S + 0.01);
        ensure!(late <= 2, "UTC came back with publication {late} after the margin");
        Ok(until(0.0))
    }

    /// A page whose daemon was restarted `at` s after the start of the leap second shows the
    /// current UTC again, with a disruption. Returns how long that took after the restart, s.
    pub(super) fn check_return(&self, at: f64) -> anyhow::Result<f64> {
        let since = |tai: i64| seconds(tai - self.calendar.begins()) - at;
        let before =
            self.samples.iter().rfind(|s| since(s.tai) < 0.0).context("no samples before")?;
        let back = |s: &&Timed| since(s.tai) > 0.0 && s.sample.entry.is("synchronized");
        let after =
            self.samples.iter().find(back).context(Late).context("not synchronized again")?;
        ensure!(
            before.sample.disruption != after.sample.disruption,
            "the step is no disruption: {:?}",
            after.sample
        );
        Ok(since(after.tai))
    }

    /// A page whose daemon died: a UTC page expired before the leap second, and its bounds contain
    /// the step. Returns the half-width at the end in ms, and how long before the leap second the
    /// page expired, s.
    pub(super) fn check_abandoned(&self, from: f64, to: f64) -> anyhow::Result<(i64, f64)> {
        let (begins, ends) = (self.calendar.begins(), self.calendar.ends());
        let mut expired = None;
        let mut half = 0;
        ensure!(self.between(from, to).count() > 100, "too few readings of the abandoned page");
        for Timed { tai, sample, .. } in &self.samples {
            let when = seconds(tai - begins);
            if !(from..to).contains(&when) {
                continue;
            }
            in_time(sample.entry.is_usable(), || format!("withdrawn {when:.3}: {sample:?}"))?;
            if sample.entry.is("freerunning") {
                expired.get_or_insert(when);
            }
            half = (sample.entry.latest - sample.entry.earliest) / 2;
            if self.scale == Scale::Utc {
                ensure!(
                    *tai < begins || sample.entry.is("freerunning"),
                    "not expired {when:.3} s after the begin: {sample:?}"
                );
                ensure!(
                    *tai <= ends || half > SECOND_NS / 2,
                    "the bounds do not hold the step: {sample:?}"
                );
            }
            let announced = [1, 2].contains(&sample.leap_indicator);
            ensure!(announced, "the leap second is not announced: {sample:?}");
        }
        let expired = expired.context("it never expired")?;
        Ok((half / 1_000_000, -expired))
    }

    /// One line for each change of what the page says, to help investigate a failure.
    pub(super) fn history(&self) -> String {
        let mut text = String::new();
        let mut before = None;
        for Timed { tai, sample, .. } in &self.samples {
            let says = (
                (&sample.entry.status, sample.tai_offset),
                (&sample.abi.status, sample.abi_tai_offset, sample.leap_indicator),
                sample.disruption,
            );
            if before != Some(says) {
                let half = seconds((sample.entry.latest / 2) - (sample.entry.earliest / 2));
                let _ = writeln!(
                    text,
                    "{:9.3} {says:?} +-{half:.6} s",
                    seconds(tai - self.calendar.begins())
                );
                before = Some(says);
            }
        }
        let mut before = None;
        for (tai, ahead) in &self.ptp {
            let says = ahead.map(|(ahead, _)| (ahead * 1000.0).round());
            if before != Some(says) {
                let when = seconds(tai - self.calendar.begins());
                let _ = writeln!(text, "{when:9.3} /dev/ptp0 - TAI: {says:?} ms");
                before = Some(says);
            }
        }
        text
    }
}

/// Maximum error of the driver's clock beyond the time that reading it took, s.
const PTP_S: f64 = 0.001;

/// The daemon's margin at the default publish_interval of 1 s: 2 s and two publications.
const MARGIN_S: f64 = 4.0;

fn seconds(ns: i64) -> f64 {
    ns as f64 / SECOND_NS as f64
}
