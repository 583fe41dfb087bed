//! The clocks behind timelines: the host's own, and one for every timeline that is configured with references of its own.
//!
//! The latter are the host's clock in small: the same ensemble, policy and rules of continuation, without a page, a
//! journal or saved estimates; after a restart they begin anew.

use timevisor_clock_page::{ClockStatus, Counter, Lines};
use timevisor_estimate::{Ensemble, Exchange};
use timevisor_guests::vm::Publication;
use timevisor_time::{Duration, Tai};

use crate::clock::{HostClock, known, page_status};
use crate::config::Config;

/// What one clock says, as a function of the host's counter.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// In force; `None` while nothing is known.
    pub lines: Option<Lines<Tai>>,
    pub status: ClockStatus,
    pub estimated_error: Duration,
    /// Counter value of the newest reference fact.
    pub as_of: u64,
    /// Grows whenever what was published before is void.
    pub disruptions: u64,
}

impl State {
    /// Of the host's own clock.
    pub fn of_host(publication: &Publication) -> Self {
        Self {
            lines: publication.target,
            status: publication.status,
            estimated_error: publication.estimated_error,
            as_of: publication.as_of,
            disruptions: publication.disruptions,
        }
    }
}

/// A clock that follows some of the references.
pub struct Subset {
    /// Which, by their place among all.
    references: Vec<usize>,
    names: Vec<String>,
    ensemble: Ensemble,
    own_disruptions: u64,
    state: State,
}

impl Subset {
    pub fn new(config: &Config, references: Vec<usize>, clock: &HostClock) -> Self {
        let names: Vec<String> =
            references.iter().map(|index| config.references[*index].name()).collect();
        let ensemble = ensemble(config, &names, clock);
        let state = State {
            lines: None,
            status: ClockStatus::Initializing,
            estimated_error: Duration::MAX,
            as_of: clock.counter.read_ordered(),
            disruptions: 0,
        };
        Self { references, names, ensemble, own_disruptions: 0, state }
    }

    /// Whether it follows reference `index`.
    pub fn follows(&self, index: usize) -> bool {
        self.references.contains(&index)
    }

    /// Takes an exchange with reference `index` in, if it is one of its own.
    pub fn observe(&mut self, index: usize, exchange: &Exchange) {
        if let Some(own) = self.references.iter().position(|r| *r == index) {
            self.ensemble.observe(own, exchange);
        }
    }

    /// Reference `index` became another server.
    pub fn forget(&mut self, index: usize) {
        if let Some(own) = self.references.iter().position(|r| *r == index) {
            self.ensemble.forget(own);
        }
    }

    /// Everything known is void on this counter.
    pub fn start_anew(&mut self, config: &Config, clock: &HostClock) {
        self.own_disruptions += self.ensemble.disruptions() + 1;
        self.ensemble = ensemble(config, &self.names, clock);
        self.state.lines = None;
    }

    /// What it says from now on.
    pub fn publish(&mut self, clock: &HostClock) -> State {
        let now = clock.counter.read_ordered();
        let policy = clock.policy();
        let knowledge = self.ensemble.at(now);
        self.state.status = page_status(knowledge.quality);
        let Some(view) = &knowledge.clock else {
            self.state.lines = None;
            return self.state;
        };
        let target = policy.lines(now, &known(view));
        if self.state.lines.is_some_and(|old| policy.must_step(&old, &target, now)) {
            self.own_disruptions += 1;
        }
        let disruptions = self.own_disruptions + self.ensemble.disruptions();
        if disruptions != self.state.disruptions {
            self.state.disruptions = disruptions;
            self.state.lines = None;
        }
        self.state.lines = Some(policy.next(self.state.lines.as_ref(), &target, now));
        self.state.estimated_error = view.estimated_error;
        self.state.as_of = view.as_of;
        self.state
    }
}

fn ensemble(config: &Config, names: &[String], clock: &HostClock) -> Ensemble {
    let calibration = &clock.calibration;
    Ensemble::new(&config.parameters(), names, calibration.period, calibration.error)
}
