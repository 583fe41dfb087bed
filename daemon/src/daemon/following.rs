//! References: changes of their own state, what the clock needs of them, and the log's words about them.

use timevisor_time::Duration;

use super::{Daemon, restless};
use crate::config::span;
use crate::references::{Need, Reference};
use crate::report;

/// How often the references' states are compared with what was logged.
const LOG_REFERENCES: Duration = Duration::from_secs(1);

impl Daemon {
    /// Tells the clocks which references are one witness, when that has changed.
    pub(super) fn heed_witnesses(&mut self) {
        let witnesses = Reference::witnesses(&self.references);
        if witnesses != self.witnesses {
            self.clock.set_witnesses(&witnesses);
            self.timelines.set_witnesses(&witnesses);
            self.witnesses = witnesses;
        }
    }

    /// Collects changes of the references' own state. Returns true when there is something to
    /// publish.
    pub(super) fn heed_references(&mut self, now: Duration) -> bool {
        for (index, reference) in self.references.iter_mut().enumerate() {
            if reference.take_replacement() {
                self.clock.forget(index);
                self.timelines.forget(index);
            }
        }
        let mut disrupted = false;
        for reference in &mut self.references {
            disrupted |= reference.take_disruption();
        }
        if disrupted {
            self.clock.start_over("the host disrupted this guest's time");
            self.restart(now);
        }
        disrupted
    }

    /// Starts over after the counter was disturbed.
    pub(super) fn restart(&mut self, now: Duration) {
        self.timelines.start_over(&self.clock);
        self.witnesses.clear();
        self.references.iter_mut().for_each(|r| r.restart(now));
        if let Some(discipline) = &mut self.discipline {
            discipline.restart(&self.clock);
        }
    }

    /// Tells each reference what the clock needs, which decides how often servers are polled.
    pub(super) fn tell_references(&mut self, now: Duration) {
        let knowledge = self.clock.knowledge();
        let configured = self.config.clock.required_bound.map(span);
        let rate = knowledge.clock.as_ref().map(|known| known.slopes.half_width().ppb() * 1e-9);
        let wander = self.config.oscillator.wander.per_second();
        let all = self.config.references.iter().zip(&mut self.references);
        for (index, (config, reference)) in all.enumerate() {
            let name = config.name();
            let required = configured.into_iter().chain(self.timelines.required(index)).min();
            let falseticker = knowledge.falsetickers.iter().any(|f| f.name == name);
            let stale_after = Some(self.config.stale_after());
            reference.require(now, &Need { required, rate, wander, falseticker, stale_after });
        }
    }

    /// Logs each change of a reference's state once.
    pub(super) fn log_references(&mut self, now: Duration) {
        if now < self.tell_references_at {
            return;
        }
        self.tell_references_at = now + LOG_REFERENCES;
        for (index, log) in self.told_references.iter_mut().enumerate() {
            let report = report::reference(&self.clock, index, &self.references[index]);
            // Which reference weighs most is not its own state.
            let word = if report.status == "selected" { "reachable" } else { &report.status };
            let Some(said) = log.observe(now, word, "probing") else { continue };
            let restless = restless(said);
            let (name, detail) = (&report.name, &report.detail);
            if matches!(word, "reachable" | "probing") {
                tracing::info!("reference {name} is {word}: {detail}{restless}");
            } else {
                tracing::warn!("reference {name} is {word}: {detail}{restless}");
            }
        }
    }
}
