//! `timevisor cluster bootstrap`: asks one server until UTC is known well enough, and keeps that in a
//! file, from which a host without a network runs. Needs no rights, and no daemon.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration as StdDuration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use humantime_serde::re::humantime::format_rfc3339_nanos;
use serde::Serialize;
use timevisor_cluster::client::Client;
use timevisor_cluster::node::{Event, Node, Settings};
use timevisor_cluster::wire::{Refused, Said};
use timevisor_cluster::{horizon, settle};
use timevisor_estimate::RateLimits;
use timevisor_linux::clock::monotonic;
use timevisor_linux::counter::{
    Calibration, Choice, CounterHistory, HostCounter, calibrate, select,
};
use timevisor_linux::lock_file::{self, LockError};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::state_file::{self, Readers};
use timevisor_linux::udp::Sockets;
use timevisor_linux::udp::stamped::StampedClient;
use timevisor_protocols::ntp::ERA_PIVOT;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::visits::{MOST_BYTES, Visit, Visits};
use timevisor_time::{Duration, Instant as Time, Interval, RateError, Tai, Utc};

use super::key::sealer;
use super::random;
use crate::bound::sides;
use crate::spans::span;

/// How long anybody is asked.
const PATIENCE: StdDuration = StdDuration::from_secs(10);
/// From the first answer to the last: they are intervals of UTC, which must not be mixed across a leap
/// second, and a visit within 2 s of one is refused by timevisord.
const LONGEST_BURST: StdDuration = StdDuration::from_secs(1);
/// A long wait says that it is one, on stderr.
const PROGRESS: StdDuration = StdDuration::from_secs(5);
const NTP_PORT: u16 = 123;
/// How long another one that saves to the same file is waited for.
const TURN: StdDuration = StdDuration::from_secs(5);
/// The bound whose horizon is printed.
const WITHIN: Duration = Duration::from_millis(1);

#[derive(Args)]
pub struct Options {
    /// Ask this host: a name or an address, and a port if that is not 123
    #[arg(long, value_name = "HOST")]
    seed: String,
    /// The cluster's name; without it, the host's own UTC is asked for
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// The cluster's key, if it has one
    #[arg(long, value_name = "FILE", requires = "cluster")]
    key: Option<PathBuf>,
    /// End when UTC is known to this on either side, such as 5us; exit code 1 if it is not
    #[arg(long, value_name = "SPAN", value_parser = span)]
    within: Option<StdDuration>,
    /// Add what was learned to this file, for a reference of type "visits"
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Answers, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    exchanges: u32,
    /// How far this machine's counter may be from its nominal rate:
    /// oscillator.unmeasured_rate_ppm of the configuration
    #[arg(long, value_name = "PPM", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=500))]
    rate: u32,
    /// The counter that timevisord uses here: `counter` of its configuration
    #[arg(long, value_enum, default_value_t = Counter::Auto)]
    counter: Counter,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Counter {
    /// The processor's if it can be trusted, otherwise CLOCK_MONOTONIC_RAW
    Auto,
    Tsc,
    Cntvct,
    MonotonicRaw,
}

impl From<Counter> for Choice {
    fn from(counter: Counter) -> Self {
        match counter {
            Counter::Auto => Self::Auto,
            Counter::Tsc => Self::Tsc,
            Counter::Cntvct => Self::Cntvct,
            Counter::MonotonicRaw => Self::MonotonicRaw,
        }
    }
}

/// What was learned.
#[derive(Serialize)]
struct Learned {
    #[serde(flatten)]
    visit: Visit,
    half_width_ns: i64,
    questions: u64,
    /// Seconds until UTC is known to 1 ms only, without another visit.
    within_1ms_s: Option<f64>,
    /// Visits in the file.
    saved: Option<usize>,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let (counter, _) = select(options.counter.into())?;
    let calibration = calibrate(&counter)?;
    let history = CounterHistory::of(&counter).context("cannot read the boot id")?;
    let rate = RateError::from_ppm(options.rate).plus(calibration.error);
    let rate = RateLimits::around(calibration.period, rate);
    let seeds = resolve(&options.seed)?;
    let mut asking = Asking::new(options, seeds, &counter, calibration, rate)?;
    let (ticks, interval) = asking.run()?;
    let visit = Visit {
        server: asking.answered.map(|at| at.to_string()).unwrap_or_default(),
        cluster: options.cluster.clone().unwrap_or_default(),
        boot_id: history.boot_id.clone(),
        counter: history.counter.clone(),
        suspended_ns: history.suspended_ns,
        ticks,
        earliest_utc_ns: interval.earliest().floor_nanos(),
        latest_utc_ns: interval.latest().ceil_nanos(),
        guess_utc_ns: asking.guess(ticks).map(timevisor::Instant::floor_nanos),
    };
    let horizon = horizon::ticks(&interval, &rate, WITHIN);
    let learned = Learned {
        half_width_ns: (interval.width().half() + Duration::EPSILON).ceil_nanos(),
        questions: asking.client.questions(),
        within_1ms_s: horizon.map(|ticks| calibration.period.span(ticks).as_secs_f64()),
        saved: options.save.as_deref().map(|file| save(file, &visit, &history)).transpose()?,
        visit,
    };
    if options.json {
        println!("{}", serde_json::to_string(&learned)?);
    } else {
        print!("{}", text(&learned, options));
    }
    let narrow = options.within.is_none_or(|within| {
        u64::try_from(learned.half_width_ns).is_ok_and(|ns| u128::from(ns) <= within.as_nanos())
    });
    Ok(if narrow { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(learned: &Learned, options: &Options) -> String {
    let Learned { visit, questions, .. } = learned;
    let half = Duration::from_nanos(learned.half_width_ns);
    let middle = visit.earliest_utc_ns.midpoint(visit.latest_utc_ns);
    let middle = StdDuration::from_nanos(u64::try_from(middle).unwrap_or(0));
    let mut out = format!("asked     {}, {questions} questions\n", visit.server);
    out += &format!("utc       {}\n", format_rfc3339_nanos(SystemTime::UNIX_EPOCH + middle));
    out += &format!("bound     {}\n", sides(half, half));
    match learned.within_1ms_s {
        Some(seconds) => {
            out += &format!(
                "horizon   within 1ms for {seconds:.0} s without another visit, at {} ppm\n",
                options.rate
            );
        }
        None => out += "horizon   the bound is wider than 1ms already\n",
    }
    if let Some((count, file)) = learned.saved.zip(options.save.as_ref()) {
        out += &format!("saved     {}: {count} visits\n", file.display());
    }
    out
}

/// Adds the visit to the file; returns how many it holds then.
fn save(file: &Path, visit: &Visit, history: &CounterHistory) -> Result<usize> {
    // Held until the file is written: of two that save at once, neither loses what the other learned.
    let _turn = turn(file)?;
    let mut visits = match state_file::read(file, MOST_BYTES) {
        Ok(bytes) => Visits::parse(&bytes).map_err(|why| {
            anyhow!(
                "{}: {why}; nothing was changed: name another file, or remove it",
                file.display()
            )
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Visits::default(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    visits.add(visit.clone(), |old| {
        let then = CounterHistory {
            boot_id: old.boot_id.clone(),
            counter: old.counter.clone(),
            suspended_ns: old.suspended_ns,
        };
        then.same_as(history).is_ok()
    });
    state_file::write_durably(file, visits.text().as_bytes(), Readers::All)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(visits.iter().count())
}

/// The lock beside the file.
fn turn(file: &Path) -> Result<File> {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    let (lock, began) = (PathBuf::from(name), Instant::now());
    loop {
        match lock_file::take(&lock) {
            Err(LockError::Held { .. }) if began.elapsed() < TURN => {
                std::thread::sleep(StdDuration::from_millis(10));
            }
            taken => return Ok(taken?),
        }
    }
}

/// The addresses of `host`, `host:port`, `address` or `[address]:port`.
fn resolve(seed: &str) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = seed.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    if let Ok(ip) = seed.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, NTP_PORT)]);
    }
    let (host, port) = match seed.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse().with_context(|| format!("{port:?} of {seed} is no port"))?;
            (host, port)
        }
        None => (seed, NTP_PORT),
    };
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> = found.with_context(|| format!("cannot look up {host}"))?.collect();
    ensure!(!found.is_empty(), "{host} has no address");
    Ok(found)
}

struct Asking<'a> {
    client: Client,
    socket: Option<StampedClient>,
    answered: Option<SocketAddr>,
    first_answer: Option<Instant>,
    /// When, and our counter then.
    last_answer: Option<(Instant, u64)>,
    shortest: Option<Shortest>,
    counter: &'a HostCounter,
    calibration: Calibration,
}

/// The exchange with the shortest round trip: the least of it can have been spent in one direction only.
struct Shortest {
    round_trip: Duration,
    /// In the middle of the exchange: our counter, and the server's guess of the time.
    counter: u64,
    guess: Time<Utc>,
}

impl<'a> Asking<'a> {
    fn new(
        options: &Options,
        seeds: Vec<SocketAddr>,
        counter: &'a HostCounter,
        calibration: Calibration,
        rate: RateLimits,
    ) -> Result<Self> {
        let name = match options.cluster.as_deref() {
            None => Name::HOST,
            Some(name) => Name::new(name)
                .with_context(|| format!("{name} is no cluster's name: it has 1 to 16 bytes"))?,
        };
        let within = options.within.and_then(|within| i64::try_from(within.as_nanos()).ok());
        let wanted = within.map(|ns| Duration::from_nanos(ns.saturating_mul(2)));
        let settings = Settings {
            burst: settle::Limits { wanted, most: options.exchanges },
            spacing: Duration::ZERO,
            children: 0,
            lease: Duration::from_secs(1),
            peers: 0,
            poll: Duration::from_secs(1),
            liars: 0,
            trusted: None,
            succession: None,
            rate,
            nominal: calibration.period,
        };
        // Nobody is sent to us: port 0.
        let own = SocketAddr::from(([0, 0, 0, 0], 0));
        let seed = getrandom::u64();
        let seed = seed.map_err(|e| anyhow!("the kernel returns no random numbers: {e}"))?;
        let node = Node::new(own, settings, seeds, seed, monotonic());
        let sealer = sealer(options.key.as_deref(), name)?;
        let client = Client::new(node, name, 0).with_sealer(sealer);
        let (first_answer, last_answer) = (None, None);
        let (socket, answered, shortest) = (None, None, None);
        Ok(Self {
            client,
            socket,
            answered,
            first_answer,
            last_answer,
            shortest,
            counter,
            calibration,
        })
    }

    /// The best guess of UTC at this later value of the counter.
    fn guess(&self, ticks: u64) -> Option<Time<Utc>> {
        let shortest = self.shortest.as_ref()?;
        Some(shortest.guess + self.calibration.period.span(ticks.checked_sub(shortest.counter)?))
    }

    fn measure(&mut self, [arrived, left]: [Time<Utc>; 2], (ta, tf): (u64, u64)) {
        let ticks = tf.saturating_sub(ta);
        let round_trip = self.calibration.period.span(ticks) - (left - arrived);
        if self.shortest.as_ref().is_none_or(|best| round_trip < best.round_trip) {
            let guess = arrived + (left - arrived).half();
            self.shortest = Some(Shortest { round_trip, counter: ta + ticks / 2, guess });
        }
    }

    /// Asks until there are bounds: the counter, and the interval of UTC at that.
    fn run(&mut self) -> Result<(u64, Interval<Utc>)> {
        let began = Instant::now();
        let mut told = false;
        while began.elapsed() < PATIENCE {
            // A server that falls silent in the middle has said enough.
            if self.ask()? {
                return self.conclude();
            }
            let pause = (self.client.poll_at() - monotonic()).max(Duration::ZERO);
            let pause = StdDuration::from_nanos(u64::try_from(pause.ceil_nanos()).unwrap_or(0));
            let mut fds: Vec<PollFd<'_>> =
                self.socket.iter().map(|socket| PollFd::readable(socket.as_fd())).collect();
            wait(&mut fds, Some(pause.min(StdDuration::from_millis(100))))?;
            if self.receive()? {
                return self.conclude();
            }
            if began.elapsed() >= PROGRESS && !told {
                eprintln!("no bounds after {} s: {}", PROGRESS.as_secs(), self.trouble());
                told = true;
            }
        }
        bail!("no bounds after {} s: {}", PATIENCE.as_secs(), self.trouble())
    }

    /// The counter at the last answer, and the interval of UTC then.
    fn conclude(&self) -> Result<(u64, Interval<Utc>)> {
        let (last, ticks) = self.last_answer.context("no answer")?;
        let took = self.first_answer.map_or(StdDuration::ZERO, |first| last - first);
        ensure!(
            took <= LONGEST_BURST,
            "the answers took {:.1} s, and {} s are allowed; run it again, or with fewer --exchanges",
            took.as_secs_f64(),
            LONGEST_BURST.as_secs()
        );
        let (interval, _) = self.client.node().at(ticks).context("no bounds")?;
        let utc = |time: Time<Tai>| time.relabel::<Utc>();
        let interval = Interval::new(utc(interval.earliest()), utc(interval.latest()));
        Ok((ticks, interval.context("an interval without a time in it")?))
    }

    /// Sends the question that is due. True once there are bounds.
    fn ask(&mut self) -> Result<bool> {
        let question = self.client.on_timer(monotonic(), &random()?);
        if self.client.take_events().contains(&Event::Vouches) {
            return Ok(true);
        }
        let Some((server, question)) = question else { return Ok(false) };
        if self.socket.as_ref().is_none_or(|socket| socket.peer() != server) {
            self.socket = Some(StampedClient::open(server, Sockets::Stamped)?);
        }
        let socket = self.socket.as_mut().context("no socket")?;
        self.client.sent(socket.send(self.counter, &question)?);
        Ok(false)
    }

    /// Takes what has arrived. True once there are bounds.
    fn receive(&mut self) -> Result<bool> {
        let calibration = (self.calibration.period, self.calibration.error);
        let mut buffer = [0; 2048];
        while let Some(socket) = &mut self.socket {
            let peer = socket.peer();
            let received = match socket.recv(self.counter, calibration, &mut buffer) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                // Another address of the name may answer.
                Err(_) => {
                    self.socket = None;
                    break;
                }
            };
            let (Some(query), Some((ta, tf))) = (self.client.waits_for(peer), received.around)
            else {
                continue;
            };
            self.client.sent(ta);
            let said = query.read(&buffer[..received.len], ERA_PIVOT);
            if said.is_ok() {
                self.answered = Some(peer);
                let now = Instant::now();
                self.first_answer.get_or_insert(now);
                self.last_answer = Some((now, received.counter));
            }
            if let Ok(Said { guesses: Some(guesses), .. }) = said {
                self.measure(guesses, (ta, tf));
            }
            // Intervals of UTC throughout: the daemon converts them, which knows TAI - UTC.
            let as_tai = |utc: Time<Utc>| Some(utc.relabel::<Tai>());
            let events = self.client.heard(peer, said, tf, as_tai, monotonic());
            if events.contains(&Event::Vouches) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Why nobody was of use.
    fn trouble(&self) -> String {
        let text = |why: Refused| match why {
            Refused::Rate { .. } => {
                "this is a cluster's own timeline, which is no UTC: ask for the \
                                     cluster's name, or for none"
                    .to_owned()
            }
            why => why.to_string(),
        };
        let refusals: Vec<String> = self
            .client
            .refusals()
            .map(|(server, why)| format!("{server}: {}", text(why)))
            .collect();
        if refusals.is_empty() { "no answer".to_owned() } else { refusals.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_name_or_an_address_with_or_without_a_port() {
        let one = |text: &str| resolve(text).unwrap()[0].to_string();
        assert_eq!(one("192.0.2.1"), "192.0.2.1:123");
        assert_eq!(one("192.0.2.1:1123"), "192.0.2.1:1123");
        assert_eq!(one("2001:db8::1"), "[2001:db8::1]:123");
        assert_eq!(one("[2001:db8::1]:4123"), "[2001:db8::1]:4123");
        assert!(resolve("localhost:4123").unwrap().iter().all(|at| at.port() == 4123));
        assert!(format!("{:#}", resolve("host:ntp").unwrap_err()).contains("is no port"));
    }

    fn visit(history: &CounterHistory, ticks: u64) -> Visit {
        Visit {
            server: "192.0.2.1:123".to_owned(),
            cluster: String::new(),
            boot_id: history.boot_id.clone(),
            counter: history.counter.clone(),
            suspended_ns: history.suspended_ns,
            ticks,
            earliest_utc_ns: 0,
            latest_utc_ns: 10,
            guess_utc_ns: None,
        }
    }

    #[test]
    fn a_file_keeps_what_it_has_and_loses_nothing_that_it_does_not_understand() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("visits.json");
        let (counter, _) = select(Choice::Auto).unwrap();
        let history = CounterHistory::of(&counter).unwrap();
        let visit = |ticks| visit(&history, ticks);
        assert_eq!(save(&file, &visit(1), &history).unwrap(), 1);
        assert_eq!(save(&file, &visit(2), &history).unwrap(), 2);
        let other = CounterHistory { boot_id: "0".repeat(32), ..history.clone() };
        assert_eq!(save(&file, &visit(3), &other).unwrap(), 1, "of another boot");
        std::fs::write(&file, "{}").unwrap();
        let refused = format!("{:#}", save(&file, &visit(4), &history).unwrap_err());
        assert!(refused.contains("nothing was changed"), "{refused}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{}");
    }

    #[test]
    fn of_two_that_save_at_once_none_loses_its_visit() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("visits.json");
        let (counter, _) = select(Choice::Auto).unwrap();
        let history = CounterHistory::of(&counter).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (file, history) = (&file, &history);
                scope.spawn(move || {
                    for one in 0..5 {
                        save(file, &visit(history, thread * 5 + one), history).unwrap();
                    }
                });
            }
        });
        let visits = Visits::parse(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(visits.iter().count(), 20);
    }
}
