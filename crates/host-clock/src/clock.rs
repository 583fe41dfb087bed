//! [`HostClock`]: the estimate, the host's page, and everything between them.

use timevisor_clock_page::{
    ClockStatus, Counter, EntryUpdate, Identity, Lines, NotedBirth, PageWriter, Policy, Slew,
    Update, WritablePage,
};
use timevisor_estimate::{Knowledge, Observation, Quality, RateLimits};
use timevisor_time::{Duration, Tai};

use crate::continuity::{Continuity, error_on_the_way};
use crate::event::{Action, Event, Note};
use crate::host::Host;
use crate::leap::LeapState;
use crate::publication::{ClockState, Publication, page_status};
use crate::recovery::{JournalEntry, Resumable, first_update};
use crate::synchronizer::Synchronizer;

/// Parameters of one host's clock.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How knowledge becomes lines.
    pub policy: Policy,
    /// A clock that learns nothing for this long after its start is `unknown`, no longer
    /// `initializing`.
    pub stale_after: Duration,
    /// The longest time between two publications of a living daemon.
    pub publish_interval: Duration,
    /// The caller is asked to save the estimators' state this often; `None`: never.
    pub save_interval: Option<Duration>,
}

/// What a clock starts with.
#[derive(Debug)]
pub struct Start<E, P> {
    /// The host's page, which an earlier daemon may have written.
    pub page: P,
    /// What the page says of itself.
    pub identity: Identity,
    /// Parameters.
    pub settings: Settings,
    /// The estimate, perhaps with an earlier daemon's state.
    pub estimate: E,
    /// The journal of an earlier daemon, where it still applies. The page is continued only with
    /// it.
    pub journaled: Option<Resumable>,
}

/// The publisher of one host.
pub struct HostClock<E, P> {
    settings: Settings,
    continuity: Continuity<E>,
    writer: PageWriter<P>,
    /// Lines that hold until enough references have answered: an earlier daemon's, or those from
    /// before other references were configured.
    earlier_lines: Option<Lines<Tai>>,
    /// The limits of the counter's rate as last known, by this daemon or an earlier one.
    rate: Option<RateLimits>,
    /// The count of disruptions that readers have been told of.
    seen_disruptions: u64,
    /// False while the counter itself is in doubt.
    counter_trusted: bool,
    knowledge: Knowledge,
    /// One sigma of the estimate as the page has it.
    published_error: Duration,
    started: Duration,
    next_save: Option<Duration>,
}

impl<E: Synchronizer, P: WritablePage> HostClock<E, P> {
    /// Takes over the page. With a journal that still applies, readers see no disruption, and the
    /// rate is known.
    ///
    /// Send [`Event::Publish`] next.
    pub fn start<H: Host>(start: Start<E, P>, host: &H) -> Self {
        let Start { page, identity, settings, mut estimate, journaled } = start;
        let policy = settings.policy;
        let now = host.counter().read_ordered();
        let rate = journaled.and_then(|journaled| journaled.rate());
        if let Some(rate) = &rate {
            estimate.adopt_rate(rate);
        }
        let earlier_lines = journaled.map(|journaled| journaled.lines(&page, host.counter()));
        let writer = match &earlier_lines {
            Some(lines) => {
                // The lines know the time better than CLOCK_REALTIME does.
                let leaps = host.leaps(lines.at(now).estimate);
                let leap = LeapState::new(leaps.as_ref(), lines, now, settings.publish_interval);
                let update = first_update(lines, &policy, leap.tai_offset);
                PageWriter::recover(page, identity, &update, host.counter())
            }
            None => PageWriter::take_over(page, identity, host.tai_offset()),
        };
        // The page's lines are in force until the first publication. From then on a slew that they were in has ended, once
        // and not at each publication anew: its growth and its slope would be taken along.
        let earlier_lines = earlier_lines.map(|lines| went_on(&policy, now, &lines, rate));
        let started = host.monotonic();
        let knowledge = Knowledge {
            at: now,
            quality: Quality::Nothing,
            reason: None,
            clock: None,
            falsetickers: vec![],
        };
        let mut continuity = Continuity::new(estimate, policy);
        if earlier_lines.is_some() {
            continuity.has_begun();
        }
        Self {
            settings,
            continuity,
            writer,
            earlier_lines,
            rate,
            seen_disruptions: 0,
            counter_trusted: true,
            knowledge,
            published_error: Duration::MAX,
            started,
            next_save: settings.save_interval.map(|interval| started + interval),
        }
    }

    /// Handles one event. Perform the actions in their order.
    pub fn handle<H: Host>(&mut self, event: Event<E>, host: &mut H) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Exchange { reference, exchange } => {
                let observation = self.continuity.estimate.observe(reference, &exchange);
                actions.extend(note_of(reference, observation).map(Action::Note));
            }
            Event::Forget { reference } => self.continuity.estimate.forget(reference),
            Event::Witnesses(witnesses) => self.continuity.estimate.set_witnesses(&witnesses),
            Event::References { slots, stale_after } => {
                let now = host.counter().read_ordered();
                let holding = self.holding();
                let holding = holding.map(|it| went_on(&self.policy(), now, &it, self.rate));
                self.earlier_lines = holding.or(self.earlier_lines);
                self.settings.stale_after = stale_after;
                self.continuity.estimate.rearrange(&slots, stale_after);
            }
            Event::StartOver { estimate } => {
                host.journal(None);
                actions.push(Action::ClearEstimates);
                self.earlier_lines = None;
                self.continuity.start_over(estimate);
                self.writer.withdraw(self.allowed(ClockStatus::Unknown), host.tai_offset());
            }
            Event::CounterTrusted(trusted) => self.counter_trusted = trusted,
            Event::Publish => self.publish(host, false, &mut actions),
            Event::PublishLast => self.publish(host, true, &mut actions),
        }
        actions
    }

    fn publish<H: Host>(&mut self, host: &mut H, last: bool, actions: &mut Vec<Action>) {
        let mut publication = self.assess(host);
        if last {
            publication.clock.status = status_without_daemon(publication.clock.status);
        }
        match publication.clock.lines {
            Some(target) => self.write(&target, &mut publication, host, actions),
            None => self.withdraw_once(&publication),
        }
        if self.save_is_due(last, host) {
            actions.push(Action::SaveEstimates);
        }
        actions.push(Action::Published(Box::new(publication)));
    }

    /// What is known now. The lines are the target; [`Self::write`] decides what comes into force.
    fn assess<H: Host>(&mut self, host: &H) -> Publication {
        let now = host.counter().read_ordered();
        let (knowledge, known) = self.continuity.target(now);
        let clock = knowledge.clock;
        self.knowledge = knowledge;
        let (target, status) = match known {
            Some(lines) => (Some(lines), page_status(self.knowledge.quality)),
            None => self.without_references(now, host),
        };
        let status = self.allowed(status);
        let leap = match &target {
            Some(lines) => {
                let leaps = host.leaps(lines.at(now).estimate);
                LeapState::new(leaps.as_ref(), lines, now, self.settings.publish_interval)
            }
            None => LeapState::without_time(host.tai_offset()),
        };
        Publication {
            clock: ClockState {
                lines: target,
                status,
                estimated_error: clock.map_or(Duration::MAX, |clock| clock.estimated_error),
                as_of: clock.map_or(now, |clock| clock.as_of),
                disruptions: self.continuity.disruptions(),
                origin: 0,
            },
            leap,
            at: now,
            slew_horizon: self.policy().slew().horizon,
        }
    }

    /// The lines in force, where they can be relied on.
    fn holding(&self) -> Option<Lines<Tai>> {
        let reliable =
            matches!(self.writer.status(), ClockStatus::Synchronized | ClockStatus::FreeRunning);
        self.in_force().filter(|_| reliable)
    }

    /// The status that may be shown for `status`: a counter in doubt puts everything in doubt.
    fn allowed(&self, status: ClockStatus) -> ClockStatus {
        if self.counter_trusted { status } else { ClockStatus::Unreliable }
    }

    /// Until enough references have answered, the lines from before are all there is.
    fn without_references<H: Host>(&self, now: u64, host: &H) -> (Option<Lines<Tai>>, ClockStatus) {
        let waited = host.monotonic() - self.started > self.settings.stale_after;
        match &self.earlier_lines {
            Some(lines) => {
                let lines = went_on(&self.policy(), now, lines, self.rate);
                (Some(lines), ClockStatus::FreeRunning)
            }
            None if waited => (None, ClockStatus::Unknown),
            None => (None, ClockStatus::Initializing),
        }
    }

    fn write<H: Host>(
        &mut self,
        target: &Lines<Tai>,
        publication: &mut Publication,
        host: &mut H,
        actions: &mut Vec<Action>,
    ) {
        let now = host.counter().read_ordered();
        if self.continuity.contradicts(self.in_force().as_ref(), target, now) {
            actions.push(Action::Note(Note::Stepped));
            // The references have shown it to be wrong.
            self.earlier_lines = None;
        }
        publication.clock.disruptions = self.continuity.disruptions();
        if publication.clock.disruptions != self.seen_disruptions {
            self.seen_disruptions = publication.clock.disruptions;
            self.writer.disrupt();
        }
        let next = self.policy().next(self.in_force().as_ref(), target, now);
        let error = publication.clock.estimated_error;
        self.published_error = error_on_the_way(error, &next, target, now);
        publication.clock.estimated_error = self.published_error;
        self.journal(publication.clock.status, &next, host);
        // The page gets exactly what was journaled, so that a daemon that resumes from the journal
        // nests in the page.
        let update = Update {
            target: next.shifted(Duration::ZERO),
            status: publication.clock.status,
            estimated_error: publication.clock.estimated_error,
            as_of: publication.clock.as_of,
            tai_offset: publication.leap.tai_offset,
            slew: self.policy().slew(),
        };
        self.writer.announce(publication.leap.indicator);
        // Other pages follow what the host's page says, not the target: all readers see one clock.
        let in_force = self.writer.publish(&update, host.counter());
        publication.clock.lines = Some(in_force.shifted(Duration::ZERO));
    }

    /// Journals the lines, unless an assumption behind them failed: a restart must not take those
    /// for facts.
    fn journal<H: Host>(&mut self, status: ClockStatus, lines: &Lines<Tai>, host: &mut H) {
        if status == ClockStatus::Unreliable {
            return host.journal(None);
        }
        self.rate = self.knowledge.clock.as_ref().map(|clock| clock.limits).or(self.rate);
        host.journal(Some(&JournalEntry { lines: *lines, rate: self.rate }));
    }

    /// A page that already says so is left alone: each withdrawal counts as a disruption.
    fn withdraw_once(&mut self, publication: &Publication) {
        let status = publication.clock.status;
        let said = self.writer.in_force().is_none() && self.writer.status() == status;
        if !said {
            self.writer.withdraw(status, publication.leap.tai_offset);
        }
    }

    fn save_is_due<H: Host>(&mut self, last: bool, host: &H) -> bool {
        let (Some(due), Some(interval)) = (self.next_save, self.settings.save_interval) else {
            return false;
        };
        let now = host.monotonic();
        let save = last || now >= due;
        if save {
            self.next_save = Some(now + interval);
        }
        save
    }

    fn in_force(&self) -> Option<Lines<Tai>> {
        self.writer.in_force().map(|lines| lines.shifted(Duration::ZERO))
    }

    /// How knowledge becomes lines.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.settings.policy
    }

    /// In this long the lines in force must be renewed, or readers take the page for abandoned.
    #[must_use]
    pub fn until_renewal(&self, counter: &impl Counter) -> Duration {
        self.policy().until_renewal(self.writer.in_force(), counter.read_ordered())
    }

    /// What the last publication was based on.
    #[must_use]
    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// The estimate.
    #[must_use]
    pub fn estimate(&self) -> &E {
        &self.continuity.estimate
    }

    /// Lines of an earlier daemon, or from before other references were configured, that hold until
    /// enough references have answered.
    #[must_use]
    pub fn earlier_lines(&self) -> Option<&Lines<Tai>> {
        self.earlier_lines.as_ref()
    }

    /// True while nothing but such lines is known: see [`Self::earlier_lines`].
    #[must_use]
    pub fn has_only_earlier_lines(&self) -> bool {
        self.earlier_lines.is_some() && self.knowledge.clock.is_none()
    }

    /// False while the counter itself is in doubt: see [`Event::CounterTrusted`].
    #[must_use]
    pub fn is_counter_trusted(&self) -> bool {
        self.counter_trusted
    }

    /// The writer of the host's page.
    #[must_use]
    pub fn writer(&self) -> &PageWriter<P> {
        &self.writer
    }

    /// Makes these the further entries of the host's page, and states what is required of the
    /// host's own clock (ns; 0: nothing).
    pub fn write_entries(
        &mut self,
        required_ns: u64,
        entries: &[EntryUpdate],
        counter: &impl Counter,
    ) {
        self.writer.require(0, required_ns);
        self.writer.write_entries(entries, counter);
    }

    /// The update for a further page of the host that repeats this one; `None` while nothing is in
    /// force.
    #[must_use]
    pub fn copy(&self) -> Option<Update> {
        let target = *self.writer.in_force()?;
        let clock = self.knowledge.clock.as_ref();
        Some(Update {
            target,
            status: self.writer.status(),
            estimated_error: self.published_error,
            as_of: clock.map_or(target.base, |clock| clock.as_of),
            tai_offset: self.writer.tai_offset(),
            slew: Slew { jump: Duration::ZERO, ..self.policy().slew() },
        })
    }

    /// When the host's elapsed clock read 0, as the page says; a boot clears it.
    #[must_use]
    pub fn birth(&self) -> NotedBirth {
        self.writer.found_birth()
    }

    /// Notes on the page when that was.
    pub fn set_birth(&self, birth: NotedBirth) {
        self.writer.set_birth(birth);
    }
}

/// After the last publication nobody learns anything more: bounds hold and grow.
fn status_without_daemon(status: ClockStatus) -> ClockStatus {
    match status {
        ClockStatus::Synchronized | ClockStatus::Initializing => ClockStatus::FreeRunning,
        other => other,
    }
}

fn note_of(reference: usize, observation: Observation) -> Option<Note> {
    match observation {
        Observation::Used => None,
        Observation::Doubt(by) => Some(Note::Doubt { reference, by }),
        Observation::Discarded(reason) => Some(Note::Discarded { reference, reason }),
        Observation::Contradiction(gap) => Some(Note::Contradiction { reference, gap }),
    }
}

/// Earlier lines as they go on from `now`, without anything new.
fn went_on(policy: &Policy, now: u64, lines: &Lines<Tai>, rate: Option<RateLimits>) -> Lines<Tai> {
    let rate = rate.map(|limits| (limits.shortest, limits.longest));
    policy.free_running(now, lines, rate)
}
