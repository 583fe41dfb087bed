//! One simulated world: an event queue on true time, a host that runs the production client,
//! publisher and page, servers that answer with real packets.
//!
//! ```text
//! timer -> ntp::Client -> Link -> Server -> Link -> ntp::Client -> Exchange -> HostClock -> page -> Reader
//!                                                                                        truth checks ^
//! ```
//!
//! The daemon's half sees what a daemon sees: its own counter, monotonic time derived from it, and
//! datagrams. The same seed gives the same run, event by event.
//!
//! What it does not do: judge ([`crate::report`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use timevisor_clock_page::{Counter, Lines, Policy, Reading};
use timevisor_estimate::ensemble::Clock;
use timevisor_estimate::{Exchange, Parameters};
use timevisor_host_clock::{
    Action, Event as ClockEvent, Host, HostClock, Settings, Start, Synchronizer,
};
use timevisor_protocols::ntp::{Client, Outcome};
use timevisor_time::{Duration, Local, Period, RateError};

use crate::calendar::Calendar;
use crate::checks::Checks;
use crate::host::{Noise, Restart};
use crate::link::Link;
use crate::machine::{Machine, SharedPage, reader};
use crate::oscillator::Oscillator;
use crate::random::Random;
use crate::scenario::{Scenario, ntp_config};
use crate::server::Server;
use crate::utc_page::{UtcChecks, UtcPage};

/// The daemon's default `clock.validity`: a page that is not written for this long is free-running.
const VALIDITY: Duration = Duration::from_secs(10);

/// The daemon's default `clock.publish_interval`.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// Makes a daemon's synchronizer: parameters, names, nominal period and its error, as for
/// [`timevisor_estimate::Ensemble::new`].
pub type MakeSynchronizer<'a> =
    &'a dyn Fn(&Parameters, &[String], Period, RateError) -> Box<dyn Synchronizer>;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcomes {
    /// Readers against truth.
    pub checks: Checks,
    /// Readers of a VM's UTC page against true UTC.
    pub utc: UtcChecks,
    /// Exchanges handed to the estimate.
    pub exchanges: u64,
    /// Datagrams that the client refused, kisses included.
    pub refused: u64,
}

enum Event {
    /// The host's timer; only the newest one counts, because older ones were rescheduled.
    Wake { newest: u64 },
    /// A request reaches server `reference`.
    AtServer { reference: usize, bytes: Vec<u8> },
    /// An answer of server `reference` is stamped by the host.
    AtHost { reference: usize, bytes: Vec<u8> },
    /// A true second.
    Second,
    /// The daemon dies.
    Stop(Restart),
    /// The daemon starts.
    Start { warm: bool },
}

struct Scheduled {
    at: Duration,
    /// Events of one instant happen in the order in which they were scheduled.
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct Path {
    forward: Link,
    backward: Link,
    server: Server,
}

/// The state that is lost with the daemon.
struct Daemon {
    /// The client of each reference; requests are stamped with the counter.
    clients: Vec<Client<u64>>,
    clock: HostClock<Box<dyn Synchronizer>, SharedPage>,
    next_publication: Duration,
    last_clock: Option<(u64, Clock)>,
}

/// The world at one instant.
pub struct World<'a> {
    scenario: &'a Scenario,
    make: MakeSynchronizer<'a>,
    now: Duration,
    end: Duration,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    wake_at: Option<Duration>,
    wakes: u64,
    calendar: Calendar,
    oscillator: Oscillator,
    nominal: Period,
    machine: Machine,
    paths: Vec<Path>,
    noise: Noise,
    cookies: Random,
    daemon: Option<Daemon>,
    checks: Checks,
    utc: UtcPage,
    exchanges: u64,
    refused: u64,
}

impl<'a> World<'a> {
    /// The world of a (checked) scenario before anything has happened.
    #[must_use]
    pub fn new(scenario: &'a Scenario, make: MakeSynchronizer<'a>) -> Self {
        let seed = scenario.seed;
        let host = &scenario.host;
        let calendar = Calendar::new(scenario.leap_at_s, scenario.leap_deleted)
            .unwrap_or_else(|error| unreachable!("a checked scenario's leap table: {error}"));
        let paths = scenario.references.iter().enumerate().map(|(index, model)| Path {
            forward: Link::new(model.forward().clone(), seed, &format!("forward {index}")),
            backward: Link::new(model.backward().clone(), seed, &format!("backward {index}")),
            server: Server::new(model.server.clone(), seed, &format!("{index}")),
        });
        let end = Duration::from_secs_f64(scenario.duration_s);
        let seconds = usize::try_from(end.to_bits() >> 64).unwrap_or(0) + 1;
        let nominal = Period::from_hz(host.counter_hz)
            .unwrap_or_else(|| unreachable!("a checked scenario's counter is 2 MHz or faster"));
        let mut world = Self {
            scenario,
            make,
            now: Duration::ZERO,
            end,
            queue: BinaryHeap::new(),
            scheduled: 0,
            wake_at: None,
            wakes: 0,
            oscillator: Oscillator::new(&scenario.oscillator, host.counter_hz, seconds, seed),
            nominal,
            machine: Machine::new(nominal, host.counter_start, calendar.clone()),
            paths: paths.collect(),
            noise: Noise::new(host, seed),
            cookies: Random::stream(seed, "cookies"),
            daemon: None,
            checks: Checks::new(
                calendar.tai(Duration::ZERO),
                scenario.warmup_s,
                scenario.fault_at_s,
            ),
            utc: UtcPage::default(),
            calendar,
            exchanges: 0,
            refused: 0,
        };
        world.schedule(Duration::ZERO, Event::Start { warm: false });
        world.schedule(Duration::from_secs(1), Event::Second);
        for restart in &host.restarts {
            world.schedule(Duration::from_secs_f64(restart.at_s), Event::Stop(*restart));
        }
        world
    }

    /// Runs to the end.
    #[must_use]
    pub fn run(mut self) -> Outcomes {
        while let Some(Reverse(next)) = self.queue.pop() {
            if next.at > self.end {
                break;
            }
            self.now = next.at;
            self.machine.counter.set(self.counter_value());
            self.handle(next.event);
        }
        Outcomes {
            checks: self.checks,
            utc: self.utc.checks,
            exchanges: self.exchanges,
            refused: self.refused,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake { newest } if newest != self.wakes => return,
            Event::Wake { .. } => {
                self.wake_at = None;
                self.on_timer();
            }
            Event::AtServer { reference, bytes } => self.at_server(reference, &bytes),
            Event::AtHost { reference, bytes } => self.at_host(reference, &bytes),
            Event::Second => {
                self.check_second();
                self.schedule(self.now + Duration::from_secs(1), Event::Second);
            }
            Event::Stop(restart) => {
                self.daemon = None;
                self.utc.abandon();
                self.wake_at = None;
                let again = self.now + Duration::from_secs_f64(restart.down_s);
                self.schedule(again, Event::Start { warm: restart.warm });
            }
            Event::Start { warm } => self.start_daemon(warm),
        }
        self.schedule_wake();
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at, order: self.scheduled, event }));
    }

    fn counter_value(&self) -> u64 {
        self.scenario.host.counter_start.wrapping_add(self.oscillator.ticks(self.now))
    }

    /// The host's monotonic time: its counter at the nominal rate.
    fn monotonic(&self) -> Duration {
        self.machine.monotonic()
    }

    fn start_daemon(&mut self, warm: bool) {
        let parameters = self.scenario.estimate.parameters();
        let names = self.scenario.reference_names();
        let error = rate_error(self.scenario.host.calibration_error_ppm);
        // A cold start is one that has lost the journal.
        self.machine.journal = self.machine.journal.filter(|_| warm);
        let counter = self.machine.counter.read_ordered();
        let start = Start {
            page: self.machine.page.clone(),
            identity: self.machine.identity(),
            settings: Settings {
                policy: Policy { nominal: self.nominal, validity: VALIDITY },
                stale_after: parameters.stale_after,
                publish_interval: PUBLISH_INTERVAL,
                save_interval: None,
            },
            estimate: (self.make)(&parameters, &names, self.nominal, error),
            journaled: self.machine.journal.and_then(|entry| entry.resume_at(counter).ok()),
        };
        let clock = HostClock::start(start, &self.machine);
        let now = self.monotonic();
        let client = |index| {
            Client::new(ntp_config(self.scenario, index), now)
                .unwrap_or_else(|error| unreachable!("a checked scenario's association: {error}"))
        };
        self.daemon = Some(Daemon {
            clients: (0..names.len()).map(client).collect(),
            clock,
            next_publication: now,
            last_clock: None,
        });
        self.publish();
    }

    /// Sends requests that are due, and publishes when due.
    fn on_timer(&mut self) {
        let now = self.monotonic();
        let counter = self.counter_value();
        let Some(daemon) = &mut self.daemon else { return };
        let mut requests = Vec::new();
        for (index, client) in daemon.clients.iter_mut().enumerate() {
            if now < client.poll_at() {
                continue;
            }
            if let Some(request) = client.on_timer(now, self.cookies.bits()) {
                client.sent(counter);
                requests.push((index, request.bytes.to_vec()));
            }
        }
        let publish = now >= daemon.next_publication;
        for (reference, bytes) in requests {
            let departs = self.now + self.noise.stamp();
            let arrivals = self.paths[reference].forward.carry(departs);
            for at in arrivals {
                self.schedule(at, Event::AtServer { reference, bytes: bytes.clone() });
            }
        }
        if publish {
            self.publish();
        }
    }

    fn at_server(&mut self, reference: usize, bytes: &[u8]) {
        let path = &mut self.paths[reference];
        let Some(answer) = path.server.answer(bytes, self.now, &self.calendar) else { return };
        let arrivals = path.backward.carry(answer.departs);
        for at in arrivals {
            let stamped = at + self.noise.stamp();
            self.schedule(stamped, Event::AtHost { reference, bytes: answer.bytes.clone() });
        }
    }

    fn at_host(&mut self, reference: usize, bytes: &[u8]) {
        let (now, tf) = (self.monotonic(), self.counter_value());
        // The host's approximate UTC only chooses the era.
        let approximate = self.calendar.utc(self.now) + Duration::from_secs(1000);
        let Some(daemon) = &mut self.daemon else { return };
        let stamps = |ta| (ta, tf);
        let exchange = match daemon.clients[reference].on_datagram(now, bytes, approximate, stamps)
        {
            Outcome::Exchange(exchange) => exchange,
            Outcome::Kept { .. } => return,
            Outcome::Rejected(_) | Outcome::KissOfDeath(_) => {
                self.refused += 1;
                return;
            }
        };
        let response = exchange.response;
        let (Some(tb), Some(te)) =
            (self.calendar.to_tai(response.tb), self.calendar.to_tai(response.te))
        else {
            return;
        };
        let (ta, tf, error) = (exchange.ta, exchange.tf, response.error_budget());
        let exchange = Exchange { ta, tb, te, tf, error };
        daemon.clock.handle(ClockEvent::Exchange { reference, exchange }, &mut self.machine);
        self.exchanges += 1;
        self.publish();
    }

    fn publish(&mut self) {
        let (monotonic, counter) = (self.monotonic(), self.counter_value());
        let Some(daemon) = &mut self.daemon else { return };
        let seen = look(&self.machine);
        let actions = daemon.clock.handle(ClockEvent::Publish, &mut self.machine);
        self.utc.look(self.now, &self.calendar, &self.machine.counter);
        if let Some(Action::Published(publication)) = actions.last() {
            let host = daemon.clock.writer().identity();
            self.utc.publish(host, publication, &self.machine.counter);
        }
        self.utc.look(self.now, &self.calendar, &self.machine.counter);
        let until_renewal = daemon.clock.until_renewal(&self.machine.counter);
        daemon.next_publication = monotonic + PUBLISH_INTERVAL.min(until_renewal);
        if let (Some(before), Some(after)) = (seen, look(&self.machine)) {
            self.checks.publication(self.now, &before, &after);
        }
        let knowledge = daemon.clock.knowledge();
        let outvoted = knowledge.falsetickers.iter().map(|f| f.name.as_str());
        self.checks.outvoted(self.now, outvoted);
        if let Some(clock) = knowledge.clock {
            if let Some((at, last)) = daemon.last_clock {
                let expected = last.estimate + last.period.span(counter.wrapping_sub(at));
                self.checks.correction(self.now, clock.estimate - expected);
            }
            daemon.last_clock = Some((counter, clock));
        }
    }

    fn check_second(&mut self) {
        self.utc.look(self.now, &self.calendar, &self.machine.counter);
        let Ok(reader) = reader(&self.machine.page, &self.machine.counter) else { return };
        if let Ok(reading) = reader.read() {
            self.checks.second(self.now, &reading);
        }
    }

    /// Schedules the next timer, including its lateness; only the earliest pending one matters.
    fn schedule_wake(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let polls = daemon.clients.iter().map(Client::poll_at);
        let due = polls.chain([daemon.next_publication]).min().unwrap_or(daemon.next_publication);
        let at = self.oscillator.time(self.nominal.ticks_in(due) + 1).max(self.now);
        if self.wake_at.is_none_or(|pending| at < pending) {
            self.wake_at = Some(at);
            self.wakes += 1;
            let late = at + self.noise.lateness();
            self.schedule(late, Event::Wake { newest: self.wakes });
        }
    }
}

/// The page as a reader sees it; `None` before a daemon ever took it over.
fn look(machine: &Machine) -> Option<(Reading, Lines<Local>)> {
    let reader = reader(&machine.page, &machine.counter).ok()?;
    Some((reader.read().ok()?, reader.lines().ok()?))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a checked, non-negative number of ppb"
)]
fn rate_error(ppm: f64) -> RateError {
    RateError::from_ppb((ppm * 1000.0).ceil() as u32)
}
