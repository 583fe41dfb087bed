//! Ages over every order of starts, ends, moves and losses: what a guest has read never goes back,
//! and says the truth or nothing.

use proptest::prelude::*;
use timevisor_clock_page::{CounterId, Identity, NotedBirth, Page, PageWriter};
use timevisor_host_clock::age::Moment;
use timevisor_host_clock::{Age, ClockState, SubsetClock};
use timevisor_time::TimescaleId;

use crate::timelines::{known, policy};
use crate::world::{HZ, Scripted, Ticker, limits};

/// What happens, each time a whole number of seconds later. Numbers are hosts.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A timevisord starts, and finds the VM if it is there.
    Start(usize),
    End(usize),
    /// A host knows the time from now on, or does not.
    Learn(usize, bool),
    /// The counter was disturbed, as by a suspend.
    Disturb(usize),
    /// The VM's state goes into a QEMU on this host, maybe the same one.
    Move(usize),
    /// An operator tells what the page said on the host that the VM came from.
    Tell,
    /// Another VM, of the same name.
    Boot(usize),
    Read,
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let host = 0..2usize;
    let event = prop_oneof![
        3 => host.clone().prop_map(Event::Start),
        2 => host.clone().prop_map(Event::End),
        3 => (host.clone(), any::<bool>()).prop_map(|(host, knows)| Event::Learn(host, knows)),
        1 => host.clone().prop_map(Event::Disturb),
        3 => host.clone().prop_map(Event::Move),
        2 => Just(Event::Tell),
        1 => host.prop_map(Event::Boot),
        6 => Just(Event::Read),
    ];
    prop::collection::vec((1..9u64, event), 1..60)
}

#[derive(Default)]
struct Daemon {
    age: Age,
    /// Another number for each VM that it attached to, and each arrival.
    life: u64,
}

struct Host {
    daemon: Option<Daemon>,
    knows: bool,
    page: PageWriter<&'static Page>,
    /// The process whose birth a page file carries.
    process: u64,
}

struct World {
    hosts: [Host; 2],
    /// Its page goes where the VM goes.
    travels: bool,
    second: u64,
    place: usize,
    process: u64,
    /// The VM's state was loaded into this process.
    came: bool,
    /// What the page said on the host that it came from.
    before: NotedBirth,
    /// An entry for the age is on its page.
    is_read: bool,
    /// The age as the page says it without anybody's help.
    lines: Option<timevisor_clock_page::Lines<timevisor_time::Local>>,
    /// When the age was 0, as all readings together say, ns.
    zero: Option<(i128, i128)>,
    last: i128,
    readings: usize,
}

fn unknown(at: u64) -> ClockState {
    let counter = Ticker::default();
    counter.value.set(at);
    SubsetClock::new(vec![0], Scripted::new(), policy(), at).publish(&counter)
}

impl World {
    fn new(travels: bool) -> Self {
        let host = || {
            let identity = Identity {
                counter: CounterId::X86Tsc,
                timescale: TimescaleId::Tai,
                host: [1; 16],
                vm: [2; 16],
                timeline: "tai",
                epoch: 3,
            };
            let page: &'static Page = Box::leak(Box::new(Page::new()));
            let page = PageWriter::take_over(page, identity, Some(37));
            Host { daemon: None, knows: false, page, process: 0 }
        };
        Self {
            hosts: [host(), host()],
            travels,
            second: 10,
            place: 0,
            process: 1,
            came: false,
            before: NotedBirth::Nothing,
            is_read: false,
            lines: None,
            zero: None,
            last: 0,
            readings: 0,
        }
    }

    fn happen(&mut self, after: u64, event: Event) -> Result<(), TestCaseError> {
        self.second += after;
        match event {
            Event::Start(host) if self.hosts[host].daemon.is_none() => {
                self.hosts[host].daemon = Some(Daemon::default());
                if host == self.place {
                    self.attach();
                }
            }
            Event::End(host) => self.hosts[host].daemon = None,
            Event::Learn(host, knows) => self.hosts[host].knows = knows,
            Event::Disturb(host) => {
                if let Some(daemon) = &mut self.hosts[host].daemon {
                    daemon.age.start_over();
                    self.lines = self.lines.filter(|_| host != self.place);
                }
            }
            Event::Move(host) => {
                let source = &self.hosts[self.place];
                let found = source.page.found_birth();
                // Nobody else than its timevisord says what it was there.
                self.before = source.daemon.as_ref().map_or(NotedBirth::Nothing, |_| self.found());
                self.begin(host, true);
                if self.travels {
                    self.hosts[host].page.set_birth(found);
                }
            }
            Event::Tell => {
                let there = &self.hosts[self.place];
                let is_known = matches!(self.before, NotedBirth::At { .. });
                if !self.travels && self.came && is_known && there.daemon.is_some() {
                    there.page.set_birth(self.before);
                }
            }
            Event::Boot(host) => {
                self.begin(host, false);
                (self.zero, self.last) = (None, 0);
                if self.travels {
                    self.hosts[host].page.set_birth(NotedBirth::Nothing);
                }
            }
            Event::Read => self.is_read = true,
            Event::Start(_) => {}
        }
        self.publish();
        self.read()
    }

    /// A QEMU begins on a host, and a daemon that runs there attaches to it.
    fn begin(&mut self, host: usize, came: bool) {
        (self.place, self.came) = (host, came);
        self.process += 1;
        (self.lines, self.is_read) = (None, false);
        self.attach();
    }

    /// As the daemon does: a page file may carry the birth of the VM that used it before.
    fn attach(&mut self) {
        (self.lines, self.is_read) = (None, false);
        let host = &mut self.hosts[self.place];
        let Some(daemon) = &mut host.daemon else { return };
        daemon.life += 1;
        if !self.travels && host.process != self.process {
            host.page.set_birth(NotedBirth::Nothing);
            host.process = self.process;
        }
    }

    fn found(&self) -> NotedBirth {
        let found = self.hosts[self.place].page.found_birth();
        if self.came && !self.travels { found.of_one_that_came() } else { found }
    }

    fn publish(&mut self) {
        let (found, now) = (self.found(), self.second * HZ);
        let host = &mut self.hosts[self.place];
        let Some(daemon) = &mut host.daemon else { return };
        let clock = if host.knows { known(now) } else { unknown(now) };
        let moment = Moment::new(&clock, limits(100), now, now + 1000 * HZ);
        let note = |birth: Option<NotedBirth>| {
            birth.is_some_and(|b| {
                host.page.set_birth(b);
                true
            })
        };
        note(daemon.age.update(&moment, daemon.life, found));
        let found = host.page.found_birth();
        let found = if self.came && !self.travels { found.of_one_that_came() } else { found };
        if self.is_read {
            note(daemon.age.before_reading(found));
            self.lines = daemon.age.lines(&moment).0;
        }
    }

    fn read(&mut self) -> Result<(), TestCaseError> {
        let Some(lines) = self.lines.filter(|_| self.is_read) else { return Ok(()) };
        let ns = |span: timevisor_time::Instant<_>| i128::from(span.floor_nanos());
        let now = i128::from(self.second) * 1_000_000_000;
        let at = lines.at(self.second * HZ);
        let (earliest, estimate, latest) = (ns(at.earliest), ns(at.estimate), ns(at.latest) + 1);
        prop_assert!(estimate >= self.last, "{estimate} after {}", self.last);
        let (first, last) = self.zero.unwrap_or((i128::MIN, i128::MAX));
        let zero = (first.max(now - latest), last.min(now - earliest));
        prop_assert!(zero.0 <= zero.1, "the age began in {first} to {last}, and now {zero:?}");
        (self.zero, self.last) = (Some(zero), estimate);
        self.readings += 1;
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_age_that_was_read_never_goes_back(travels: bool, events in events()) {
        let mut world = World::new(travels);
        for (after, event) in events {
            world.happen(after, event)?;
        }
    }
}

/// The orders above do have something to read.
#[test]
fn an_age_goes_on_where_it_can() {
    use Event::{Boot, Disturb, End, Learn, Move, Read, Start, Tell};
    let known = [Learn(0, true), Learn(1, true), Start(0)];
    let readings = |travels, events: &[Event]| {
        let mut world = World::new(travels);
        for event in known.iter().chain(events) {
            world.happen(2, *event).unwrap();
        }
        (world.readings, world.last / 1_000_000_000)
    };
    // A daemon that starts after the VM has arrived.
    assert_eq!(readings(true, &[Read, Move(1), Start(1), Read]), (2, 8));
    assert_eq!(readings(false, &[Read, Move(1), Start(1), Read]), (1, 2), "its page does not come");
    assert_eq!(readings(false, &[Read, Move(1), Start(1), Read, Tell]), (2, 10), "unless told");
    // A daemon that starts again, and another VM with the file.
    assert_eq!(readings(false, &[Read, End(0), Start(0), Read]), (3, 8));
    assert_eq!(readings(false, &[Read, Boot(0), Read]), (2, 2));
    assert_eq!(readings(true, &[Read, Disturb(0), Read]), (3, 6));
    // Nobody knows the time: the next daemon cannot go on, and must not begin again.
    let unknown = [Learn(0, false), Boot(0), Read, End(0), Start(0), Read];
    assert_eq!(readings(true, &unknown), (2, 4));
    let unread = [Learn(0, false), Boot(0), End(0), Start(0), Read];
    assert_eq!(readings(true, &unread), (1, 2));
}
