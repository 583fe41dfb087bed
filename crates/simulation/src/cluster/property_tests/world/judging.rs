//! What is asked of every host: that its bounds hold the truth, now and later, that nothing goes back,
//! that it has bounds in the end.

use timevisor_cluster::mesh::Standing;
use timevisor_estimate::RateLimits;
use timevisor_time::{Instant, Interval, Tai};

use super::{Leading, World, utc};
use crate::cluster::nominal;
use crate::cluster::property_tests::{log_range, span};

impl World {
    /// The time of the timeline that a host follows.
    pub(super) fn truth(&self, index: usize, at: u64) -> Option<Instant<Tai>> {
        if !self.plan.own_timeline() {
            return Some(utc(at));
        }
        let Leading { ticker, lead, .. } =
            self.leads.get(&self.hosts[index].client.node().origin()?)?;
        Some(lead.time + nominal().span(ticker.at(at).wrapping_sub(lead.counter)))
    }

    /// Whether what a host vouches for holds the truth: now, and later if it hears nothing more.
    pub(super) fn judge(&mut self, index: usize) {
        let is_liar = self.plan.is_liar(index);
        let lied_to = self.plan.lies_about_time();
        let is_root = self.plan.roots.iter().any(|(root, ..)| *root == index);
        if self.hosts[index].dead || is_root || (is_liar && lied_to) {
            return;
        }
        let later = self.now + log_range(&mut self.dice, 100, 200_000_000_000);
        for at in [self.now, later] {
            let host = &self.hosts[index];
            let counter = host.ticker.at(at);
            let Some((interval, standing)) = host.client.node().at(counter) else { return };
            // Hearsay holds as long as nobody lies.
            if standing == Standing::Told && lied_to {
                return;
            }
            self.judged.bounds += 1;
            let truth = self.truth(index, at);
            if truth.is_none_or(|truth| !interval.contains(truth)) {
                self.judged.outside += 1;
                let truth = truth.unwrap_or(Instant::from_bits(0));
                let (below, above) = (truth - interval.earliest(), interval.latest() - truth);
                let text = format!("the truth is outside: {below} above and {above} below an end");
                self.wrong(index, &text);
                return;
            }
            if at == self.now {
                self.judge_against_before(index, counter, interval);
            }
        }
    }

    /// Whether a host has bounds in the end that it vouches for.
    pub(super) fn look_for_bounds(&mut self, index: usize) {
        let is_root = self.plan.roots.iter().any(|(root, ..)| *root == index);
        if is_root || !self.plan.is_calm() {
            return;
        }
        let host = &self.hosts[index];
        let (counter, node) = (host.ticker.at(self.now), host.client.node());
        let vouches = node.at(counter).is_some_and(|(_, standing)| standing == Standing::Vouched);
        self.judged.in_the_end += 1;
        if !vouches || !node.vouches() {
            self.wrong(index, "has no bounds in the end");
        }
    }

    /// Bounds of one origin never become wider but by age; estimates never go back, also where the
    /// origin changes to that of a host that continues it.
    fn judge_against_before(&mut self, index: usize, counter: u64, interval: Interval<Tai>) {
        let host = &mut self.hosts[index];
        let origin = host.client.node().origin();
        let Some((before, at, earlier)) = host.said.replace((origin, counter, interval)) else {
            return;
        };
        let middle = |interval: &Interval<Tai>| interval.earliest() + interval.width().half();
        let rate = RateLimits::around(nominal(), self.plan.both());
        let aged = timevisor_cluster::facts::aged(earlier, at, counter, &rate);
        if before == origin {
            // A host that may be a liar's victim drops what a liar has said.
            let nested =
                aged.earliest() <= interval.earliest() && interval.latest() <= aged.latest();
            if self.plan.liars == 0 && !nested {
                self.wrong(index, "its bounds became wider, more than by age");
            }
            return;
        }
        self.judged.crossings += 1;
        let boot = host.boot;
        let Some((leading, before)) = origin.and_then(|to| self.leads.get(&to)).zip(before) else {
            return;
        };
        // The successor begins where it does for the sake of those whom it has heard.
        let provided = leading.before == Some(before) && leading.heard.contains(&(boot, before));
        let back = middle(&earlier) - interval.latest();
        self.judged.provided += u64::from(provided);
        if back.is_negative() {
            return;
        }
        self.judged.backward += 1;
        if provided {
            self.wrong(index, &format!("its estimate went back by {back}"));
        }
    }

    pub(super) fn wrong(&mut self, index: usize, text: &str) {
        let at = span(self.now);
        self.judged.wrong.push(format!("at {at}, host {index} {text}"));
    }
}
