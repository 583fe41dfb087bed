//! The relay between applications and a host that restarts, refuses, goes silent and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use proptest::prelude::*;
use timevisor_protocols::channel::relay::NotTaken;
use timevisor_protocols::channel::{
    Binding, Bound, ClientAction, ClientSession, Direction, Event, Place, Problem, ProblemCode,
    Relay, RelayAction, RelayConfig, Request, Requirement, Response, ServerAction, ServerSession,
    Update,
};
use timevisor_time::Duration;

use crate::common::{
    bind, bind_of, bound, client, client_config, frames, limits, ms, response, server,
};

/// A host: its end of the channel, and what is bound in the session.
struct Host {
    server: ServerSession,
    sessions: u64,
    bindings: BTreeMap<u64, Bound>,
    required: BTreeMap<u64, Option<Requirement>>,
    last: u64,
    /// Refuses binds to this timeline.
    refused: &'static str,
    /// Does not answer requests.
    mute: bool,
    requests: usize,
}

impl Host {
    fn on_bytes(&mut self, now: Duration, bytes: &[u8]) {
        let sessions = &mut self.sessions;
        let mut numbers = || {
            *sessions += 1;
            NonZeroU64::new(*sessions).unwrap()
        };
        for action in self.server.on_bytes(now, bytes, &mut numbers) {
            match action {
                ServerAction::Began { .. } => {}
                ServerAction::Ended { .. } => self.forget(),
                ServerAction::Request { session, id, request } => {
                    self.requests += 1;
                    if !self.mute {
                        let response = self.answer(request);
                        self.server.respond(session, id, &response).unwrap();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        let counters = self.server.counters();
        assert_eq!((counters.rate_limited, counters.malformed), (0, 0));
    }

    fn forget(&mut self) {
        self.bindings.clear();
        self.required.clear();
    }

    fn answer(&mut self, request: Request) -> Response {
        let unknown = Response::Problem(Problem {
            code: ProblemCode::NotFound,
            message: "m".into(),
            next_step: "n".into(),
            achievable: None,
        });
        match request {
            Request::Bind(bind) if bind.timeline == self.refused => unknown,
            Request::Bind(bind) => {
                self.last += 1;
                let mut bound = bound(self.last, &bind.timeline);
                bound.place.entry = 1 + u16::try_from(self.sessions).unwrap();
                self.bindings.insert(self.last, bound.clone());
                self.required.insert(self.last, bind.requirement);
                Response::Bound(bound)
            }
            Request::Update(update) => match self.bindings.get(&update.binding) {
                Some(bound) => {
                    self.required.insert(update.binding, update.requirement);
                    Response::Bound(bound.clone())
                }
                None => unknown,
            },
            Request::Unbind(binding) => match self.bindings.remove(&binding.binding) {
                Some(_) => Response::Unbound(binding),
                None => unknown,
            },
            _ => Response::Timelines(vec![]),
        }
    }
}

/// Everything wired together; time goes by as timers need it.
struct World {
    now: Duration,
    relay: Relay,
    host: Host,
    connected: bool,
    apps: BTreeMap<u64, (ClientSession, Vec<ClientAction>)>,
    actions: Vec<RelayAction>,
}

impl World {
    fn new(requests_per_second: u32) -> Self {
        Self::limited(requests_per_second, 64)
    }

    fn limited(requests_per_second: u32, bindings: u32) -> Self {
        let mut config = RelayConfig::new(client_config(), NonZeroU64::new(5000).unwrap());
        config.limits.requests_per_second = 1000;
        config.limits.bindings = bindings;
        let host = Host {
            server: server(limits(requests_per_second, Some(60_000))),
            sessions: 0,
            bindings: BTreeMap::new(),
            required: BTreeMap::new(),
            last: 100,
            refused: "",
            mute: false,
            requests: 0,
        };
        Self {
            now: ms(0),
            relay: Relay::new(config),
            host,
            connected: false,
            apps: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    fn connect(&mut self) {
        self.connected = true;
        let actions = self.relay.upstream_connected(self.now);
        self.actions.extend(actions);
    }

    fn disconnect(&mut self) {
        self.connected = false;
        let rate = limits(1000, Some(60_000));
        self.host.server = server(rate);
        self.host.forget();
        let actions = self.relay.upstream_lost(self.now);
        self.actions.extend(actions);
    }

    fn join(&mut self, app: u64) {
        self.relay.app_connected(app, &format!("guest uid:{app}")).unwrap();
        let mut client = client();
        client.begin(self.now);
        self.apps.insert(app, (client, Vec::new()));
        self.settle();
    }

    fn leave(&mut self, app: u64) {
        self.apps.remove(&app);
        let actions = self.relay.app_closed(self.now, app);
        self.actions.extend(actions);
    }

    /// One round of bytes in all directions; false if there were none.
    fn round(&mut self) -> bool {
        // Each moves what there is, whatever the others did.
        [self.apps_speak(), self.host_hears(), self.host_speaks(), self.apps_hear()].contains(&true)
    }

    fn apps_speak(&mut self) -> bool {
        let mut moved = false;
        for (app, (client, _)) in &mut self.apps {
            let output = client.output().to_vec();
            client.sent(output.len());
            moved |= !output.is_empty();
            self.actions.extend(self.relay.app_bytes(self.now, *app, &output));
        }
        moved
    }

    fn host_hears(&mut self) -> bool {
        let output = self.relay.upstream_output().to_vec();
        let moves = self.connected && !output.is_empty();
        if moves {
            self.relay.upstream_sent(output.len());
            self.host.on_bytes(self.now, &output);
        }
        moves
    }

    fn host_speaks(&mut self) -> bool {
        let output = self.host.server.output().to_vec();
        let moves = self.connected && !output.is_empty();
        if moves {
            self.host.server.sent(output.len());
            self.actions.extend(self.relay.upstream_bytes(self.now, &output));
        }
        moves
    }

    fn apps_hear(&mut self) -> bool {
        let mut moved = false;
        for (app, (client, seen)) in &mut self.apps {
            let output = self.relay.app_output(*app).to_vec();
            self.relay.app_sent(*app, output.len());
            moved |= !output.is_empty();
            seen.extend(client.on_bytes(self.now, &output));
        }
        moved
    }

    /// The id of the newest request that is on its way to the host.
    fn on_its_way(&self) -> u64 {
        let taken = frames(Direction::ToServer, self.relay.upstream_output());
        taken.last().unwrap().header.id
    }

    /// The host's stream says this.
    fn host_says(&mut self, id: u64, answer: &Response) {
        let session = self.host.server.session().unwrap();
        let bytes = response(session, id, answer);
        self.actions.extend(self.relay.upstream_bytes(self.now, &bytes));
    }

    fn settle(&mut self) {
        while self.round() {}
    }

    /// Lets time go by up to `until`.
    fn run(&mut self, until: Duration) {
        self.settle();
        while let Some(at) = self.relay.poll_at().filter(|at| *at <= until) {
            assert!(
                at >= self.now || self.relay.poll_at() != Some(self.now),
                "a timer that is never done"
            );
            self.now = self.now.max(at);
            let actions = self.relay.on_timer(self.now);
            self.actions.extend(actions);
            assert!(
                self.relay.poll_at().is_none_or(|at| at > self.now),
                "a timer that is never done"
            );
            self.settle();
        }
        self.now = until;
    }

    fn ask(&mut self, app: u64, request: &Request) -> u64 {
        let now = self.now;
        self.apps.get_mut(&app).unwrap().0.request(now, request).unwrap()
    }

    /// Asks and takes the answer.
    fn call(&mut self, app: u64, request: &Request) -> Response {
        let id = self.ask(app, request);
        self.settle();
        self.response(app, id).unwrap()
    }

    fn response(&mut self, app: u64, id: u64) -> Option<Response> {
        let seen = &mut self.apps.get_mut(&app).unwrap().1;
        let at = seen
            .iter()
            .position(|a| matches!(a, ClientAction::Response { id: i, .. } if *i == id))?;
        match seen.remove(at) {
            ClientAction::Response { response, .. } => Some(response),
            _ => None,
        }
    }

    fn bind(&mut self, app: u64, timeline: &str) -> u64 {
        match self.call(app, &bind(timeline)) {
            Response::Bound(bound) => bound.binding,
            other => panic!("{other:?}"),
        }
    }

    fn problem(&mut self, app: u64, request: &Request) -> ProblemCode {
        match self.call(app, request) {
            Response::Problem(problem) => problem.code,
            other => panic!("{other:?}"),
        }
    }

    /// Events and losses since the last look.
    fn news(&mut self, app: u64) -> Vec<ClientAction> {
        let seen = &mut self.apps.get_mut(&app).unwrap().1;
        std::mem::take(seen).into_iter().filter(|a| !matches!(a, ClientAction::Began(_))).collect()
    }

    /// The host's bindings are the relay's, and those belong to applications that are there.
    fn check_books(&self) {
        let at_relay: BTreeSet<u64> =
            self.relay.bindings().filter_map(|(_, _, host)| host).collect();
        assert_eq!(at_relay.len(), self.relay.bindings().count());
        let at_host: BTreeSet<u64> = self.host.bindings.keys().copied().collect();
        assert_eq!(at_relay, at_host);
        let apps: BTreeSet<u64> = self.relay.apps().collect();
        assert!(self.relay.bindings().all(|(app, _, _)| apps.contains(&app)));
    }
}

fn unbind(binding: u64) -> Request {
    Request::Unbind(Binding { binding })
}

fn update(binding: u64, ns: u64) -> Request {
    let requirement = Some(Requirement::within_ns(ns));
    Request::Update(Update { binding, requirement, best_effort: false })
}

/// Two applications, one binding each.
fn two() -> (World, u64, u64) {
    let mut world = World::new(1000);
    world.connect();
    world.join(1);
    world.join(2);
    let first = world.bind(1, "tai");
    let second = world.bind(2, "utc");
    assert_eq!(world.host.bindings.len(), 2);
    (world, first, second)
}

#[test]
fn requests_go_through_and_answers_come_back() {
    let (mut world, first, second) = two();
    assert_ne!(first, second);
    let Response::Bound(bound) = world.call(1, &update(first, 500)) else { panic!() };
    assert_eq!((bound.binding, &*bound.timeline), (first, "tai"));
    assert_eq!(world.host.required[&101], Some(Requirement::within_ns(500)));
    assert_eq!(world.call(1, &Request::Timelines), Response::Timelines(vec![]));
    assert_eq!(world.call(1, &unbind(first)), Response::Unbound(Binding { binding: first }));
    assert_eq!(world.problem(1, &unbind(first)), ProblemCode::NotFound);
    assert_eq!(world.host.bindings.keys().collect::<Vec<_>>(), [&102]);
    world.check_books();
}

#[test]
fn nobody_touches_anothers_binding() {
    let (mut world, first, second) = two();
    let requests = world.host.requests;
    // The other's number, and what the host calls it.
    for binding in [second, 102, 101, 0, u64::MAX] {
        assert_eq!(world.problem(1, &unbind(binding)), ProblemCode::NotFound);
        assert_eq!(world.problem(1, &update(binding, 1)), ProblemCode::NotFound);
    }
    assert_eq!(world.problem(2, &unbind(first)), ProblemCode::NotFound);
    assert_eq!(world.host.requests, requests, "the host was not asked");
    world.check_books();
}

#[test]
fn events_go_to_whom_they_concern() {
    let (mut world, first, second) = two();
    let place = Place { page: 0, entry: 9, generation: 3 };
    for (at_host, seen_by, binding) in [(101, 1, first), (102, 2, second)] {
        let session = world.host.server.session().unwrap();
        for event in [
            Event::Moved { binding: at_host, place },
            Event::Disrupted { binding: at_host },
            Event::Disrupted { binding: 1 },
        ] {
            world.host.server.send_event(session, &event).unwrap();
        }
        world.settle();
        let expected = [Event::Moved { binding, place }, Event::Disrupted { binding }]
            .map(ClientAction::Event);
        assert_eq!(world.news(seen_by), expected);
        assert_eq!(world.news(3 - seen_by), []);
    }
}

#[test]
fn what_an_application_had_is_unbound_when_it_goes() {
    let (mut world, _, second) = two();
    world.bind(1, "a");
    // Bound by the host when the application is gone already.
    world.ask(1, &bind("b"));
    world.apps_speak();
    world.host_hears();
    world.leave(1);
    assert_eq!(world.host.bindings.len(), 4);
    world.settle();
    assert_eq!(world.relay.bindings().map(|(_, local, _)| local).collect::<Vec<_>>(), [second]);
    world.check_books();
    // A hello ends a session as closing does.
    let now = world.now;
    world.apps.get_mut(&2).unwrap().0.begin(now);
    world.settle();
    assert_eq!(world.host.bindings.len(), 0);
    world.check_books();
}

#[test]
fn a_host_that_lost_the_session_gets_everything_again() {
    let (mut world, first, second) = two();
    world.call(1, &update(first, 500));
    world.now += ms(2000);
    world.disconnect();
    world.settle();
    assert_eq!((world.news(1), world.news(2)), (vec![], vec![]), "not at once");
    assert_eq!(world.problem(1, &update(first, 600)), ProblemCode::Unavailable);
    assert_eq!(world.problem(1, &bind("tai")), ProblemCode::Unavailable);
    world.now += ms(2000);
    world.connect();
    world.settle();
    let place = Place { page: 0, entry: 3, generation: 1 };
    for (app, binding) in [(1, first), (2, second)] {
        assert_eq!(world.news(app), [ClientAction::Event(Event::Moved { binding, place })]);
    }
    world.check_books();
    let required: Vec<_> = world.host.required.values().flatten().map(|r| r.below_ns).collect();
    assert_eq!(required, [500, 1_000_000], "the requirement in force, not the first one");
    assert!(matches!(world.call(1, &update(first, 700)), Response::Bound(b) if b.binding == first));
    world.run(ms(60_000));
    assert_eq!(world.news(1), [], "the grace has ended with the session");
}

#[test]
fn what_is_not_bound_again_ends_that_application_only() {
    let (mut world, _, second) = two();
    let third = world.bind(1, "more");
    world.host.refused = "tai";
    world.disconnect();
    world.now += ms(2000);
    world.connect();
    world.settle();
    let news = world.news(1);
    assert!(news.iter().any(|n| matches!(n, ClientAction::Lost { .. })), "{news:?}");
    assert!(
        matches!(world.news(2)[..], [ClientAction::Event(Event::Moved { binding, .. })] if binding == second)
    );
    world.check_books();
    assert_eq!(world.host.bindings.len(), 1);
    // The application begins again by itself.
    let now = world.now + ms(2000);
    world.run(now);
    world.apps.get_mut(&1).unwrap().0.on_timer(now);
    world.settle();
    assert_eq!(world.problem(1, &unbind(third)), ProblemCode::NotFound);
    world.bind(1, "other");
    world.check_books();
}

#[test]
fn a_host_that_stays_away_ends_the_sessions_that_wait_for_it() {
    let (mut world, first, _) = two();
    world.join(3);
    world.disconnect();
    world.run(ms(9999));
    assert_eq!(world.news(1), []);
    assert_eq!(world.call(1, &unbind(first)), Response::Unbound(Binding { binding: first }));
    world.run(ms(10_000));
    assert!(matches!(world.news(2)[..], [ClientAction::Lost { .. }]));
    assert_eq!(world.news(3), [], "it has nothing to lose");
    assert_eq!(world.news(1), [], "nor has this one any more");
    assert_eq!(world.relay.bindings().count(), 0);
    assert_eq!(world.relay.poll_at(), None);
}

/// Whether it was carried out is not known, so the session is given up: nothing is left over at the
/// host.
#[test]
fn no_answer_in_time_costs_the_hosts_session() {
    let (mut world, _, _) = two();
    world.host.mute = true;
    let id = world.ask(1, &bind("late"));
    world.settle();
    world.host.mute = false;
    world.run(ms(4999));
    assert_eq!(world.response(1, id), None);
    world.run(ms(7000));
    assert!(
        matches!(world.response(1, id), Some(Response::Problem(p)) if p.code == ProblemCode::Unavailable)
    );
    assert!(world.actions.iter().any(|a| matches!(a, RelayAction::HostLost { .. })));
    assert_eq!(world.host.bindings.len(), 2);
    world.check_books();
}

#[test]
fn limits_of_applications_and_bindings() {
    let mut world = World::new(1000);
    world.connect();
    for app in 0..16 {
        world.relay.app_connected(app, "guest uid:1").unwrap();
    }
    assert_eq!(world.relay.app_connected(16, "guest uid:1"), Err(NotTaken::Tenant(16)));
    assert_eq!(world.relay.app_connected(1, "guest uid:2"), Err(NotTaken::Number));
    for app in 16..64 {
        world.relay.app_connected(app, &format!("guest uid:{app}")).unwrap();
    }
    assert_eq!(world.relay.app_connected(64, "guest uid:9"), Err(NotTaken::Applications(64)));
    world.leave(0);
    world.join(64);
    assert_eq!(world.relay.apps().count(), 64);

    // All at once: those on their way count, too.
    let mut world = World::limited(1000, 3);
    world.connect();
    world.join(1);
    let ids: Vec<u64> = (0..5).map(|_| world.ask(1, &bind("tai"))).collect();
    world.settle();
    let bound = |r: &Response| matches!(r, Response::Bound(_));
    let answers: Vec<bool> = ids.iter().map(|id| bound(&world.response(1, *id).unwrap())).collect();
    assert_eq!(answers, [true, true, true, false, false]);
    let binding = world.relay.bindings().next().unwrap().1;
    world.call(1, &unbind(binding));
    world.bind(1, "tai");
    assert_eq!(world.problem(1, &bind("tai")), ProblemCode::Quota);
    world.check_books();
}

/// One that floods has to wait; another is served as if it were alone.
#[test]
fn applications_take_turns() {
    let mut world = World::new(8);
    world.connect();
    world.settle();
    world.join(1);
    world.join(2);
    let flood: Vec<u64> = (0..60).map(|_| world.ask(1, &Request::Timelines)).collect();
    world.settle();
    let one = world.ask(2, &Request::Timelines);
    let until = world.now + ms(500);
    world.run(until);
    assert!(world.response(2, one).is_some());
    let done =
        |world: &mut World| flood.iter().filter(|id| world.response(1, **id).is_some()).count();
    let first = done(&mut world);
    assert!((8..=12).contains(&first), "{first}");
    world.run(until + ms(10_000));
    assert_eq!(first + done(&mut world), 60);
}

#[test]
fn a_host_with_one_number_for_two_bindings_is_not_believed() {
    let (mut world, _, _) = two();
    let id = world.ask(1, &bind("tai"));
    world.apps_speak();
    world.host_says(world.on_its_way(), &Response::Bound(bound(102, "tai")));
    world.settle();
    assert!(matches!(world.response(1, id), Some(Response::Problem(_))));
    assert!(world.actions.iter().any(|a| matches!(a, RelayAction::HostLost { .. })));
    let until = world.now + ms(2000);
    world.run(until);
    assert_eq!(world.relay.bindings().count(), 2);
    world.check_books();
}

/// The host may use a number again: an end that is on its way is not sent twice.
#[test]
fn a_binding_is_ended_once() {
    let (mut world, first, _) = two();
    let asked = world.host.requests;
    let [one, two] = [0, 1].map(|_| world.ask(1, &unbind(first)));
    world.settle();
    assert_eq!(world.host.requests, asked + 1);
    assert_eq!(world.response(1, one), Some(Response::Unbound(Binding { binding: first })));
    let Some(Response::Problem(problem)) = world.response(1, two) else { panic!() };
    assert_eq!(problem.code, ProblemCode::NotFound);

    world.host.last = 100;
    let again = world.bind(1, "tai");
    assert!(world.host.bindings.contains_key(&101) && again != first, "a number used again");
    let asked = world.host.requests;
    world.ask(1, &unbind(again));
    world.apps_speak();
    world.leave(1);
    world.settle();
    assert_eq!(world.host.requests, asked + 1);
    world.check_books();
}

#[test]
fn an_end_that_the_host_did_not_take_is_repeated() {
    let (mut world, first, _) = two();
    world.ask(1, &unbind(first));
    world.apps_speak();
    let id = world.on_its_way();
    let sent = world.relay.upstream_output().len();
    world.relay.upstream_sent(sent);
    world.leave(1);
    let Response::Problem(mut problem) = world.host.answer(unbind(0)) else { panic!() };
    problem.code = ProblemCode::RateLimited;
    world.host_says(id, &Response::Problem(problem));
    world.settle();
    assert_eq!(world.host.bindings.len(), 1);
    world.check_books();
}

#[test]
fn an_end_needs_no_host() {
    let (mut world, first, second) = two();
    let id = world.ask(1, &unbind(first));
    world.apps_speak();
    world.now += ms(2000);
    world.disconnect();
    world.settle();
    assert_eq!(world.response(1, id), Some(Response::Unbound(Binding { binding: first })));
    world.connect();
    world.settle();
    assert_eq!(world.relay.bindings().map(|(_, local, _)| local).collect::<Vec<_>>(), [second]);
    world.check_books();
}

/// What an ended session had in the queue is not carried out for the next one.
#[test]
fn a_queue_ends_with_its_session() {
    let mut world = World::new(1);
    world.connect();
    world.settle();
    world.join(1);
    for _ in 0..5 {
        world.ask(1, &bind("tai"));
    }
    world.settle();
    let asked = world.host.requests;
    let now = world.now;
    world.apps.get_mut(&1).unwrap().0.begin(now);
    world.run(ms(30_000));
    assert_eq!(world.relay.bindings().count(), 0);
    assert!(world.host.requests <= asked + 1, "an end of what was bound, no more");
    world.check_books();
}

#[derive(Clone, Debug)]
enum Step {
    Join(u64),
    Leave(u64),
    Hello(u64),
    Bind(u64, &'static str),
    Unbind(u64, usize),
    Update(u64, usize),
    Disconnect,
    Connect,
    HostRestart,
    AppsSpeak,
    HostHears,
    HostSpeaks,
    AppsHear,
    Round,
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let app = 1u64..5;
    let name = prop::sample::select(vec!["tai", "utc", "odd"]);
    prop::collection::vec(
        prop_oneof![
            3 => app.clone().prop_map(Step::Join),
            2 => app.clone().prop_map(Step::Leave),
            1 => app.clone().prop_map(Step::Hello),
            8 => (app.clone(), name).prop_map(|(app, name)| Step::Bind(app, name)),
            4 => (app.clone(), 0usize..8).prop_map(|(app, which)| Step::Unbind(app, which)),
            2 => (app, 0usize..8).prop_map(|(app, which)| Step::Update(app, which)),
            1 => Just(Step::Disconnect),
            1 => Just(Step::Connect),
            1 => Just(Step::HostRestart),
            3 => Just(Step::AppsSpeak),
            3 => Just(Step::HostHears),
            3 => Just(Step::HostSpeaks),
            2 => Just(Step::AppsHear),
            3 => Just(Step::Round),
            4 => (0i64..3000).prop_map(Step::Wait),
        ],
        1..120,
    )
}

proptest! {
    /// At any time nobody gets anything of another's; and when all is quiet, the host has exactly
    /// what is wanted.
    #[test]
    fn the_hosts_bindings_are_the_live_ones(steps in steps(), rate in prop::sample::select(vec![3u32, 1000])) {
        let mut world = World::new(rate);
        world.connect();
        let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Join(app) if !world.apps.contains_key(&app) => world.join(app),
                Step::Leave(app) => world.leave(app),
                Step::Hello(app) => {
                    let now = world.now;
                    if let Some((client, _)) = world.apps.get_mut(&app) {
                        client.begin(now);
                    }
                }
                Step::Bind(app, name) => {
                    let now = world.now;
                    if let Some((client, _)) = world.apps.get_mut(&app) {
                        let _not_open = client.request(now, &Request::Bind(bind_of(name)));
                    }
                }
                Step::Unbind(app, which) | Step::Update(app, which) => {
                    let now = world.now;
                    let all: Vec<u64> = world.relay.bindings().map(|(_, local, _)| local).collect();
                    if let (Some((client, _)), Some(local)) = (world.apps.get_mut(&app), all.get(which)) {
                        let request = if matches!(step, Step::Unbind(..)) { unbind(*local) } else { update(*local, 5) };
                        let _not_open = client.request(now, &request);
                    }
                }
                Step::Disconnect => world.disconnect(),
                Step::Connect if !world.connected => world.connect(),
                Step::HostRestart => {
                    // As a migration does it: the stream goes on, the session is unknown.
                    world.host.server.end_session("restart");
                    world.host.forget();
                }
                Step::AppsSpeak => { world.apps_speak(); }
                Step::HostHears => { world.host_hears(); }
                Step::HostSpeaks => { world.host_speaks(); }
                Step::AppsHear => { world.apps_hear(); }
                Step::Round => { world.round(); }
                Step::Wait(step) => {
                    let until = world.now + ms(step);
                    world.run(until);
                }
                Step::Join(_) | Step::Connect => {}
            }
            for (app, local, _) in world.relay.bindings() {
                prop_assert_eq!(*owners.entry(local).or_insert(app), app, "a number changed hands");
            }
            for (app, (_, seen)) in &world.apps {
                for action in seen {
                    let named = match action {
                        ClientAction::Response { response: Response::Bound(bound), .. } => bound.binding,
                        ClientAction::Event(Event::Moved { binding, .. }) => *binding,
                        _ => continue,
                    };
                    prop_assert_eq!(owners.get(&named).unwrap_or(app), app, "told of another's");
                }
            }
            let closed = world.actions.iter().any(|a| matches!(a, RelayAction::CloseApp { .. }));
            prop_assert!(!closed);
        }
        if !world.connected {
            world.connect();
        }
        let until = world.now + ms(200_000);
        world.run(until);
        world.check_books();
        let live: Vec<u64> = world.apps.keys().copied().collect();
        for app in live {
            world.leave(app);
        }
        let until = world.now + ms(200_000);
        world.run(until);
        world.check_books();
        prop_assert_eq!(world.host.bindings.len(), 0);
    }
}
