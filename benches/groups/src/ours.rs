//! Members of groups over a bus of the benchmark's own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use timevisor::group::{Accept, BusAddress, Group, Inbox, JoinOptions, Message, Order};
use timevisor::{ChannelAddress, Client, Options, Requirement};

use crate::part::{hear, memory_mib, say};

const LONG: Duration = Duration::from_secs(60);

/// Where the daemon and the bus are.
pub struct Place {
    pub run: PathBuf,
    pub bus: PathBuf,
}

impl Place {
    pub fn of(run: &str, bus: &str) -> Self {
        Self { run: run.into(), bus: bus.into() }
    }

    pub fn words(&self, part: &str) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        vec!["ours".to_owned(), part.to_owned(), path(&self.run), path(&self.bus)]
    }

    fn client(&self) -> Result<Client> {
        let channel = ChannelAddress::Unix(self.run.join("timelines"));
        Ok(Options::new().page(self.run.join("clock")).channel(channel).connect()?)
    }

    fn options(&self) -> JoinOptions {
        let bus = Some(BusAddress::from(self.bus.clone()));
        JoinOptions { bus, ..JoinOptions::default() }
    }

    fn join(&self, group: &str, member: &str) -> Result<Group> {
        let requirement = Some(Requirement::within(Duration::from_secs(1)));
        let options = JoinOptions { requirement, ..self.options() };
        let group = self.client()?.join_with(group, member, &options)?;
        group.accept(Accept::All);
        Ok(group)
    }
}

pub struct Bus(Child);

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn bus(socket: &Path) -> Result<Bus> {
    let program = std::env::current_exe()?.with_file_name("timevisor-bus");
    let bus = Command::new(&program).arg("--socket").arg(socket).env("RUST_LOG", "warn").spawn();
    let bus = Bus(bus.with_context(|| format!("cannot start {}", program.display()))?);
    let end = Instant::now() + LONG;
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        ensure!(Instant::now() < end, "the bus does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(socket.with_extension("pid"), bus.0.id().to_string())?;
    Ok(bus)
}

pub fn memory_of_bus(place: &Place) -> Result<u64> {
    memory_mib(std::fs::read_to_string(place.bus.with_extension("pid"))?.parse()?)
}

/// Milliseconds from before joining until a message of another member has come. That one publishes all the time.
pub fn first_messages(place: &Place) -> Result<Vec<f64>> {
    let speaker = place.join("first", "speaker")?;
    let stops = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stops.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = speaker.publish("words", b"hello");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let times = (0..100).map(|number| {
            let began = Instant::now();
            let member = place.join("first", &format!("m{number}"))?;
            let words = member.subscribe("words", Order::Arrival, 0)?;
            words.next_within(LONG).context("no message")?;
            Ok(began.elapsed().as_secs_f64() * 1e3)
        });
        let times = times.collect();
        stops.store(true, std::sync::atomic::Ordering::Relaxed);
        times
    })
}

/// Milliseconds until a proposal among three members is decided, for the proposer.
pub fn proposals(place: &Place) -> Result<Vec<f64>> {
    let members = ["a", "b", "c"].map(|name| place.join("three", name));
    let members = members.into_iter().collect::<Result<Vec<_>>>()?;
    members.iter().try_for_each(|member| member.wait_for(3, LONG))?;
    let tai = place.client()?.timeline("tai")?;
    let mut times = Vec::new();
    for number in 0..300 {
        let at_ns = tai.now()?.latest_ns() + 200_000_000;
        let began = Instant::now();
        let pending = members[number % 3].propose(at_ns, b"grip")?;
        ensure!(pending.decided(LONG)?, "a proposal was refused");
        times.push(began.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(times)
}

/// Publishes what it hears.
pub fn echo(place: &Place) -> Result<()> {
    let group = place.join("trip", "echo")?;
    let pings = group.subscribe("ping", Order::Arrival, 0)?;
    say("ready")?;
    while let Some(message) = pings.next_within(LONG) {
        group.publish("pong", &message.payload)?;
    }
    Ok(())
}

/// Publishes, and waits for the echo.
pub struct Pinger {
    group: Group,
    pongs: Inbox<Message>,
}

impl Pinger {
    pub fn new(place: &Place) -> Result<Self> {
        let group = place.join("trip", "pinger")?;
        let pongs = group.subscribe("pong", Order::Arrival, 0)?;
        group.wait_for_names(&["echo"], LONG)?;
        Ok(Self { group, pongs })
    }

    pub fn trip(&self) -> Result<()> {
        self.group.publish("ping", &[7; 64])?;
        let message = self.pongs.next_within(LONG).context("no echo")?;
        ensure!(message.stamp.is_some(), "no stamp");
        Ok(())
    }
}

/// Joins so many members when told to, and waits until each of them knows all.
pub fn crowd(place: &Place, prefix: &str, each: usize, all: usize) -> Result<()> {
    let client = place.client()?;
    let options = place.options();
    say("ready")?;
    hear()?;
    let join = |number| client.join_with("crowd", &format!("{prefix}{number}"), &options);
    let members = (0..each).map(join).collect::<Result<Vec<_>, _>>()?;
    say("joined")?;
    members.iter().try_for_each(|member| member.wait_for(all, LONG))?;
    say("agreed")?;
    hear()?;
    Ok(())
}
