//! Applications and a host around the relay, in any interleaving, with a host that keeps books, and
//! with anything in its place: no binding changes hands, nobody is told of another's, every timer
//! ends, and with an honest host what is bound there in the end is what applications hold.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, log_scaled, some_bytes};
use timevisor_protocols::channel::{
    Achieved, Bind, Binding, Bound, ClientAction, ClientConfig, ClientSession, Epoch, Event, Frame,
    Kind, Limits, Place, Problem, ProblemCode, Relay, RelayConfig, Request, Response, ServerAction,
    ServerConfig, ServerSession, Update,
};
use timevisor_time::Duration;

const APPS: u64 = 4;

fuzz_target!(|data: &[u8]| decode(data, run));

fn run(u: &mut Unstructured) -> Result<()> {
    let honest = u.arbitrary()?;
    // Of a request a second or two, what a stalled stream bunches up (keep-alives, then a hello)
    // may be too many; it is then refused, and asked again later.
    let rate = u.int_in_range(4..=200)?;
    let mut config = RelayConfig::new(client_config(), NonZeroU64::MIN);
    config.limits.bindings = 6;
    config.limits.requests_per_second = 1000;
    let mut world = World {
        now: Duration::ZERO,
        relay: Relay::new(config),
        host: Host {
            server: host_end(rate),
            rate,
            numbered: 0,
            bindings: BTreeSet::new(),
            last: 100,
        },
        honest,
        connected: false,
        apps: BTreeMap::new(),
        owners: BTreeMap::new(),
    };
    while !u.is_empty() {
        world.step(u)?;
        world.check();
    }
    if honest {
        world.end();
    }
    Ok(())
}

fn client_config() -> ClientConfig {
    ClientConfig { client: "fuzz".into(), first_id: 0, timeout: Duration::from_secs(5) }
}

fn host_end(requests_per_second: u32) -> ServerSession {
    let limits = Limits { bindings: 9, timelines: 9, requests_per_second, lease_ms: Some(60_000) };
    ServerSession::new(ServerConfig { tenant: "vm:fuzz".into(), page: None, limits })
}

struct Host {
    server: ServerSession,
    rate: u32,
    numbered: u64,
    bindings: BTreeSet<u64>,
    last: u64,
}

impl Host {
    fn on_bytes(&mut self, now: Duration, bytes: &[u8], refuse: bool) {
        let numbered = &mut self.numbered;
        let mut new_session = || {
            *numbered += 1;
            NonZeroU64::new(*numbered).expect("counted from 1")
        };
        for action in self.server.on_bytes(now, bytes, &mut new_session) {
            match action {
                ServerAction::Began { .. } => {}
                ServerAction::Ended { .. } => self.bindings.clear(),
                ServerAction::Request { session, id, request } => {
                    let response = self.answer(request, refuse);
                    let _over = self.server.respond(session, id, &response);
                }
                ServerAction::Expired { .. } | ServerAction::Close(_) => panic!("{action:?}"),
            }
        }
        assert_eq!(self.server.counters().rate_limited, 0, "the relay keeps the host's rate");
    }

    fn answer(&mut self, request: Request, refuse: bool) -> Response {
        match request {
            Request::Bind(_) if refuse => problem(ProblemCode::Quota),
            Request::Bind(bind) => {
                self.last += 1;
                self.bindings.insert(self.last);
                Response::Bound(bound(self.last, bind.timeline))
            }
            Request::Update(update) if self.bindings.contains(&update.binding) => {
                Response::Bound(bound(update.binding, "tai".into()))
            }
            Request::Unbind(binding) if self.bindings.remove(&binding.binding) => {
                Response::Unbound(binding)
            }
            Request::Update(_) | Request::Unbind(_) => problem(ProblemCode::NotFound),
            _ => Response::Timelines(vec![]),
        }
    }
}

fn problem(code: ProblemCode) -> Response {
    let (message, next_step) = (String::new(), String::new());
    Response::Problem(Problem { code, message, next_step, achievable: None })
}

fn bound(binding: u64, timeline: String) -> Bound {
    let place = Place { page: 0, entry: 1, generation: 1 };
    let achieved = Achieved::default();
    Bound { binding, timeline, epoch: Epoch::Local, place, achieved, met: true }
}

struct World {
    now: Duration,
    relay: Relay,
    host: Host,
    honest: bool,
    connected: bool,
    apps: BTreeMap<u64, ClientSession>,
    /// Of every binding ever made.
    owners: BTreeMap<u64, u64>,
}

impl World {
    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        let app = u64::from(u.arbitrary::<u8>()?) % APPS;
        match u.int_in_range(0..=13)? {
            0 => {
                self.now += Duration::from_millis(log_scaled(u)?);
                self.timer();
            }
            1 => {
                self.now = self.now.max(self.relay.poll_at().unwrap_or(self.now));
                self.timer();
            }
            2 if !self.apps.contains_key(&app) => self.join(app),
            2 | 3 => self.leave(app),
            4 => {
                if let Some(client) = self.apps.get_mut(&app) {
                    client.begin(self.now);
                }
            }
            5 | 6 => {
                let request = self.request(u)?;
                if let Some(client) = self.apps.get_mut(&app) {
                    let _refused = client.request(self.now, &request);
                }
            }
            7 if self.connected => {
                self.connected = false;
                self.host.server = host_end(self.host.rate);
                self.host.bindings.clear();
                let _log = self.relay.upstream_lost(self.now);
            }
            7 => self.connect(),
            8 => {
                let _session = self.host.server.end_session("fuzz");
                self.host.bindings.clear();
            }
            9 => {
                let bytes = some_bytes(u)?;
                let _log = self.relay.app_bytes(self.now, app, bytes);
            }
            10 if !self.honest => {
                let bytes = some_bytes(u)?;
                let _log = self.relay.upstream_bytes(self.now, bytes);
            }
            11 if !self.honest => {
                let bytes = self.dishonest(u)?;
                let _log = self.relay.upstream_bytes(self.now, &bytes);
            }
            _ => {
                let refuse = u.ratio(1, 8)?;
                self.round(refuse);
            }
        }
        Ok(())
    }

    fn request(&mut self, u: &mut Unstructured) -> Result<Request> {
        let all: Vec<u64> = self.owners.keys().copied().collect();
        let which = usize::from(u.arbitrary::<u8>()?);
        let binding = all.iter().rev().nth(which % 8).copied().unwrap_or(101);
        Ok(match u.int_in_range(0..=5)? {
            0..=2 => Request::Bind(Bind {
                timeline: "tai".into(),
                create: None,
                requirement: None,
                best_effort: false,
            }),
            3 => Request::Update(Update { binding, requirement: None, best_effort: false }),
            4 => Request::Unbind(Binding { binding }),
            _ => Request::Timelines,
        })
    }

    /// An answer or event of the session, of a host that makes up numbers.
    fn dishonest(&mut self, u: &mut Unstructured) -> Result<Vec<u8>> {
        let session = self.host.numbered;
        let binding = 100 + u64::from(u.arbitrary::<u8>()? % 8);
        let id = u64::from(u.arbitrary::<u8>()?);
        let frame = match u.int_in_range(0..=4)? {
            0 => Frame::of(Kind::Event, session, 0, &Event::Disrupted { binding }),
            1 => Frame::of(Kind::Response, session, id, &problem(ProblemCode::RateLimited)),
            2 => Frame::of(Kind::Response, session, id, &Response::Unbound(Binding { binding })),
            _ => {
                Frame::of(Kind::Response, session, id, &Response::Bound(bound(binding, "x".into())))
            }
        };
        Ok(frame.expect("short").encode())
    }

    fn connect(&mut self) {
        self.connected = true;
        let _log = self.relay.upstream_connected(self.now);
    }

    fn join(&mut self, app: u64) {
        if self.relay.app_connected(app, "guest uid:1").is_ok() {
            let mut client = ClientSession::new(client_config());
            client.begin(self.now);
            self.apps.insert(app, client);
        }
    }

    fn leave(&mut self, app: u64) {
        self.apps.remove(&app);
        let _log = self.relay.app_closed(self.now, app);
        assert!(self.relay.bindings().all(|(owner, _, _)| owner != app));
        // Its number may be used again, but not its bindings.
        self.owners.values_mut().filter(|owner| **owner == app).for_each(|owner| *owner = u64::MAX);
    }

    fn timer(&mut self) {
        let _log = self.relay.on_timer(self.now);
        assert!(self.relay.poll_at().is_none_or(|at| at > self.now), "a timer that is never done");
    }

    /// Bytes in all directions; false if there were none.
    fn round(&mut self, refuse: bool) -> bool {
        let mut moved = false;
        for (app, client) in &mut self.apps {
            let output = client.output().to_vec();
            client.sent(output.len());
            moved |= !output.is_empty();
            let _log = self.relay.app_bytes(self.now, *app, &output);
        }
        self.check();
        let output = self.relay.upstream_output().to_vec();
        if self.connected && !output.is_empty() {
            self.relay.upstream_sent(output.len());
            self.host.on_bytes(self.now, &output, refuse);
            moved = true;
        }
        let output = self.host.server.output().to_vec();
        if self.connected && !output.is_empty() {
            self.host.server.sent(output.len());
            let _log = self.relay.upstream_bytes(self.now, &output);
            moved = true;
        }
        self.check();
        for (app, client) in &mut self.apps {
            let output = self.relay.app_output(*app).to_vec();
            self.relay.app_sent(*app, output.len());
            moved |= !output.is_empty();
            for action in client.on_bytes(self.now, &output) {
                let named = match action {
                    ClientAction::Response { response: Response::Bound(bound), .. } => {
                        bound.binding
                    }
                    ClientAction::Event(
                        Event::Moved { binding, .. }
                        | Event::Disrupted { binding }
                        | Event::Quality { binding, .. },
                    ) => binding,
                    _ => continue,
                };
                assert_eq!(
                    self.owners.get(&named).copied().unwrap_or(*app),
                    *app,
                    "told of another's"
                );
            }
        }
        moved
    }

    fn check(&mut self) {
        let mut at_host = BTreeSet::new();
        let mut of_app = BTreeMap::<u64, usize>::new();
        for (app, local, host) in self.relay.bindings() {
            assert!(self.apps.contains_key(&app));
            assert_eq!(*self.owners.entry(local).or_insert(app), app, "a binding changed hands");
            assert!(host.is_none_or(|host| at_host.insert(host)), "one number for two bindings");
            let count = of_app.entry(app).or_default();
            *count += 1;
            assert!(*count <= 6);
        }
    }

    /// All is quiet: the books agree, with the applications and after they have gone.
    fn end(&mut self) {
        if !self.connected {
            self.connect();
        }
        self.quiet();
        let held: BTreeSet<u64> = self.relay.bindings().filter_map(|(_, _, host)| host).collect();
        assert_eq!(held.len(), self.relay.bindings().count());
        assert_eq!(held, self.host.bindings);
        for app in 0..APPS {
            self.leave(app);
        }
        self.quiet();
        assert!(self.host.bindings.is_empty());
    }

    fn quiet(&mut self) {
        let until = self.now + Duration::from_secs(200);
        loop {
            while self.round(false) {}
            match self.relay.poll_at() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => break,
            }
            self.timer();
        }
    }
}
