//! The client against the protocol crate's server session on a Unix socket, with a policy that each
//! test states. The daemon's tests cover what a real host grants.

#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Moment};

use timevisor::{
    Achieved, BindError, BindOptions, ChannelAddress, Client, Epoch, Lease, Options, Problem,
    ProblemCode, Requirement, WaitError, WaitOptions, When,
};
use timevisor_clock_page::{
    ClockStatus, CounterId, EntryIdentity, Identity, Line, Lines, PageWriter, Slew, Update,
};
use timevisor_linux::clock::monotonic;
use timevisor_linux::counter::MonotonicRaw;
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::{self, PageSize};
use timevisor_linux::poll::{self, PollFd};
use timevisor_protocols::channel::{
    Binding, Bound, Event, HostPage, Limits, Place, Request, Response, ServerAction, ServerConfig,
    ServerSession,
};
use timevisor_time::{Duration as Span, Instant, Period, TimescaleId};

/// What a test tells its server.
enum Order {
    Event(Event),
    EndSession,
    HangUp,
    Stop,
}

type Policy = Box<dyn FnMut(&Request) -> Option<Response> + Send>;

const EPOCH: u64 = 0xe90c_0000_0000_0001;

struct Server {
    folder: tempfile::TempDir,
    writer: PageWriter<WritePage>,
    orders: Sender<Order>,
    seen: Receiver<Request>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(
        lease_ms: Option<u64>,
        policy: impl FnMut(&Request) -> Option<Response> + Send + 'static,
    ) -> Self {
        Self::naming(EPOCH, lease_ms, policy)
    }

    /// A server that names another page, whose epoch is this.
    fn naming(
        epoch: u64,
        lease_ms: Option<u64>,
        policy: impl FnMut(&Request) -> Option<Response> + Send + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let page = page_file::create(&folder.path().join("clock"), PageSize::Page).unwrap();
        let identity = Identity {
            counter: CounterId::MonotonicRaw,
            timescale: TimescaleId::Tai,
            host: [3; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: EPOCH,
        };
        let mut writer = PageWriter::take_over(WritePage::new(page).unwrap(), identity, Some(37));
        writer.publish(&update(1_000), &MonotonicRaw);
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (orders, taken) = mpsc::channel();
        let (see, seen) = mpsc::channel();
        let config = ServerConfig {
            tenant: "uid:4711".to_owned(),
            page: Some(HostPage { path: "/elsewhere/clock".to_owned(), epoch }),
            limits: Limits { bindings: 8, timelines: 2, requests_per_second: 1_000, lease_ms },
        };
        let policy: Policy = Box::new(policy);
        let thread = std::thread::spawn(move || serve(&listener, &config, policy, &taken, &see));
        Self { folder, writer, orders, seen, thread: Some(thread) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> Options {
        Options::new().page(self.path("clock")).channel(ChannelAddress::Unix(self.path("socket")))
    }

    fn client(&self) -> Client {
        self.options().connect().unwrap()
    }

    fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    fn next(&self) -> Request {
        self.seen.recv_timeout(Duration::from_secs(20)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let told = self.orders.send(Order::Stop).is_ok();
        let ended = self.thread.take().unwrap().join().is_ok();
        assert!(std::thread::panicking() || told && ended, "the server had something against it");
    }
}

fn serve(
    listener: &UnixListener,
    config: &ServerConfig,
    mut policy: Policy,
    orders: &Receiver<Order>,
    seen: &Sender<Request>,
) {
    let mut last = 0;
    let mut new_session = move || {
        last += 1;
        NonZeroU64::new(last).unwrap()
    };
    let mut connection = None;
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            connection = Some((stream, ServerSession::new(config.clone())));
        }
        let order = orders.try_recv().ok();
        match order {
            Some(Order::Stop) => return,
            Some(Order::HangUp) => connection = None,
            _ => {}
        }
        let mut fds = vec![PollFd::readable(listener.as_fd())];
        if let Some((stream, session)) = &mut connection {
            match &order {
                Some(Order::Event(event)) => {
                    session.send_event(session.session().unwrap(), event).unwrap();
                }
                Some(Order::EndSession) => drop(session.end_session("the test says so")),
                _ => {}
            }
            let mut buffer = [0; 4096];
            let actions = match stream.read(&mut buffer) {
                Ok(0) => {
                    connection = None;
                    continue;
                }
                Ok(count) => session.on_bytes(monotonic(), &buffer[..count], &mut new_session),
                // A client that leaves without having read the last answer.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    connection = None;
                    continue;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    session.on_timer(monotonic()).into_iter().collect()
                }
            };
            for action in actions {
                assert!(!matches!(action, ServerAction::Expired { .. } | ServerAction::Close(_)));
                if let ServerAction::Request { session: number, id, request } = action {
                    if let Some(response) = policy(&request) {
                        session.respond(number, id, &response).unwrap();
                    }
                    // The test may have ended.
                    let _ = seen.send(request);
                }
            }
            // The client may be gone; the next read says so.
            let wrote = stream.write(session.output()).unwrap_or(0);
            session.sent(wrote);
        }
        if let Some((stream, _)) = &connection {
            fds.push(PollFd::readable(stream.as_fd()));
        }
        poll::wait(&mut fds, Some(Duration::from_millis(2))).unwrap();
    }
}

/// An hour's worth of a clock that is right to so many ns.
fn update(half_width_ns: i64) -> Update {
    let period = Period::from_hz(1_000_000_000).unwrap();
    let base = timevisor_linux::clock::monotonic_raw_nanos();
    let now = Instant::from_unix_nanos(i128::from(base));
    let line = |time| Line { time, period };
    // Lines are rounded outward when they are published.
    let width = Span::from_nanos(half_width_ns) - Span::from_bits(4);
    Update {
        target: Lines {
            base,
            expiry: base + 3_600_000_000_000,
            earliest: line(now - width),
            estimate: line(now),
            latest: line(now + width),
            holdover: 0,
        },
        status: ClockStatus::Synchronized,
        estimated_error: Span::from_nanos(100),
        as_of: base,
        tai_offset: Some(37),
        slew: Slew { horizon: 1 << 32, jump: Span::from_millis(1) },
    }
}

fn bound(binding: u64, timeline: &str, entry: u16, generation: u16) -> Response {
    Response::Bound(Bound {
        binding,
        timeline: timeline.to_owned(),
        epoch: Epoch::Tai,
        place: Place { page: 0, entry, generation },
        achieved: Achieved { below_ns: Some(1_000), above_ns: Some(1_000), ..Achieved::default() },
        met: true,
    })
}

/// Grants everything, in entry 0, with growing numbers; refuses requirements below 1 us.
fn generous() -> impl FnMut(&Request) -> Option<Response> + Send {
    let mut last = 100;
    move |request| {
        let (requirement, best_effort) = match request {
            Request::Bind(bind) => (bind.requirement, bind.best_effort),
            Request::Update(update) => (update.requirement, update.best_effort),
            Request::Unbind(binding) => return Some(Response::Unbound(*binding)),
            _ => return Some(Response::Timelines(Vec::new())),
        };
        if requirement.is_some_and(|r| r.below_ns < 1_000) && !best_effort {
            let achievable =
                Achieved { below_ns: Some(1_000), above_ns: Some(1_000), ..Achieved::default() };
            return Some(Response::Problem(Problem {
                code: ProblemCode::CannotBeMet,
                message: "not on this host".to_owned(),
                next_step: "relax it".to_owned(),
                achievable: Some(achievable),
            }));
        }
        last += 1;
        let number = if let Request::Update(update) = request { update.binding } else { last };
        Some(bound(number, "tai", 0, 0))
    }
}

fn within(ns: u64) -> Requirement {
    Requirement::within(Duration::from_nanos(ns))
}

fn eventually(what: impl Fn() -> bool) {
    let start = Moment::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_requirement_is_bound_changed_and_withdrawn() {
    let server = Server::new(None, generous());
    let client = server.client();
    let tai = client.bind("tai", &within(5_000)).unwrap();
    assert!(
        matches!(server.next(), Request::Bind(b) if b.requirement == Some(within(5_000).to_channel()))
    );
    let reading = tai.now().unwrap();
    assert!(reading.met() && reading.half_width_ns() == Some(1_000));
    assert_eq!((tai.lease(), tai.achieved().below_ns), (Lease::Held, Some(1_000)));
    let channel = client.channel().unwrap();
    assert_eq!(channel.tenant, "uid:4711");
    assert_eq!(channel.address, ChannelAddress::Unix(server.path("socket")));

    let Err(BindError::CannotBeMet { achievable, problem }) = tai.update(&within(999)) else {
        panic!("nobody can meet that");
    };
    assert_eq!((achievable.below_ns, problem.code), (Some(1_000), ProblemCode::CannotBeMet));
    assert!(tai.now().unwrap().met(), "the old requirement stays in force");
    tai.update_with(Some(within(999)), true).unwrap();
    assert!(!tai.now().unwrap().met(), "best effort is not good enough, and says so");
    tai.update(&within(1_000)).unwrap();
    assert!(tai.now().unwrap().met());
    let only_read = tai.timeline().clone();
    tai.unbind().unwrap();
    let seen: VecDeque<Request> = server.seen.try_iter().collect();
    assert_eq!(seen.back(), Some(&Request::Unbind(Binding { binding: 101 })));
    assert!(only_read.now().is_ok());
}

#[test]
fn dropping_a_binding_withdraws_it() {
    let server = Server::new(None, generous());
    let client = server.client();
    let (one, two) =
        (client.bind("tai", &within(5_000)).unwrap(), client.bind("tai", &within(6_000)).unwrap());
    drop((server.next(), server.next()));
    drop(two);
    assert_eq!(server.next(), Request::Unbind(Binding { binding: 102 }));
    // The channel lives as long as the last handle, and tells the server even then.
    drop(client);
    drop(one);
    assert_eq!(server.next(), Request::Unbind(Binding { binding: 101 }));
}

#[test]
fn what_was_bound_is_bound_again_in_a_new_session() {
    let server = Server::new(None, generous());
    let client = server.client();
    let tai = client.bind("tai", &within(5_000)).unwrap();
    drop(server.next());
    for order in [Order::EndSession, Order::HangUp] {
        server.order(order);
        let Request::Bind(again) = server.next() else { panic!("it binds again") };
        assert_eq!(again.requirement, Some(within(5_000).to_channel()));
        eventually(|| tai.lease() == Lease::Held);
        assert!(tai.now().unwrap().met());
    }
    tai.update(&within(7_000)).unwrap();
    assert!(matches!(server.next(), Request::Update(u) if u.binding == 103));
    assert_eq!(client.timelines().unwrap(), []);
}

#[test]
fn a_handle_follows_its_timeline() {
    let mut server = Server::new(None, |request: &Request| match request {
        Request::Bind(_) => Some(bound(1, "group", 2, 1)),
        _ => None,
    });
    let entry = |id, generation| EntryIdentity::new(id, "group", TimescaleId::Tai, generation);
    server.writer.open_entry(2, entry(5, 1));
    server.writer.publish_entry(2, &update(2_000), &MonotonicRaw);
    server.writer.open_entry(7, entry(5, 4));
    server.writer.publish_entry(7, &update(3_000), &MonotonicRaw);
    let group = server.client().bind("group", &within(5_000)).unwrap();
    let clone = group.timeline().clone();
    assert_eq!(clone.now().unwrap().half_width_ns(), Some(2_000));
    std::thread::scope(|scope| {
        // Somebody who waits learns that it is another clock now.
        let options = WaitOptions::default().timeout(Duration::from_secs(20));
        let clone = &clone;
        let waiting = scope.spawn(move || clone.wait(When::Until(i64::MAX), &options));
        std::thread::sleep(Duration::from_millis(20));
        let place = Place { page: 0, entry: 7, generation: 4 };
        server.order(Order::Event(Event::Moved { binding: 1, place }));
        assert!(matches!(waiting.join().unwrap(), Err(WaitError::Disrupted { .. })));
    });
    assert_eq!(clone.now().unwrap().half_width_ns(), Some(3_000));
}

#[test]
fn leases_are_kept_alive_while_the_program_does_something_else() {
    // The server's loop fails the test if the session expires.
    let server = Server::new(Some(1_000), generous());
    let tai = server.client().bind("tai", &within(5_000)).unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(tai.lease(), Lease::Held);
    drop(tai);
}

#[test]
fn refusals_say_why() {
    let server = Server::new(None, generous());
    let client = server.client();
    assert!(matches!(client.bind("tai", &within(10)), Err(BindError::CannotBeMet { .. })));
    assert!(matches!(client.bind("no such name", &within(10)), Err(BindError::Name(_))));
    assert!(matches!(client.bind("tai", &within(0)), Err(BindError::Invalid(_))));
    let anyway = BindOptions { requirement: Some(within(10)), best_effort: true, create: None };
    let tai = client.bind_with("tai", &anyway).unwrap();
    assert!(!tai.now().unwrap().met());
    let missing = server.path("missing");
    let nobody = server.options().channel(ChannelAddress::Unix(missing.clone())).connect().unwrap();
    for _ in 0..2 {
        let Err(BindError::NoChannel { tried }) = nobody.bind("tai", &within(5_000)) else {
            panic!("nobody is there");
        };
        assert_eq!(Path::new(&tried[0].place), missing);
    }
    assert!(nobody.timeline("tai").unwrap().now().is_ok(), "reading needs no channel");
}

/// All other tests' servers call the client's page by another name, as a container sees it: its
/// epoch tells that it is the same. Another epoch is another page.
#[test]
fn the_page_that_the_server_names_is_known_by_its_epoch() {
    let server = Server::naming(EPOCH + 1, None, generous());
    let refused = server.client().bind("tai", &within(1_000_000)).unwrap_err();
    assert!(refused.to_string().contains("/elsewhere/clock"), "{refused}");
    let server = Server::new(None, generous());
    server.client().bind("tai", &within(1_000_000)).unwrap();
}

#[test]
fn a_silent_server_is_given_up() {
    let server = Server::new(None, |_: &Request| None);
    let client = server.options().timeout(Duration::from_millis(200)).connect().unwrap();
    assert!(matches!(client.bind("tai", &within(5_000)), Err(BindError::TimedOut(_))));
}

/// The program that the documentation begins with, as cargo builds it beside the tests.
#[test]
fn the_first_program_runs() {
    let server = Server::new(None, generous());
    let tests = std::env::current_exe().unwrap();
    let first = tests.ancestors().nth(2).unwrap().join("examples/first");
    let run = std::process::Command::new(first)
        .args([server.path("clock"), server.path("socket")])
        .output()
        .unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{text} {}", String::from_utf8_lossy(&run.stderr));
    let said = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].trim().trim_end_matches(" ns").to_owned()
    };
    let ns = |name: &str| said(name).parse::<i64>().unwrap();
    assert_eq!((said("status"), said("met")), ("synchronized".to_owned(), "true".to_owned()));
    assert_eq!(said("page"), server.path("clock").display().to_string());
    assert!(ns("earliest") < ns("estimate") && ns("estimate") < ns("latest"), "{text}");
    assert!(ns("lateness") > 0, "{text}");
}
