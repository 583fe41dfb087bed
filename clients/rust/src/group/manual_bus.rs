//! [`Bus`]: a bus in memory for tests, which loses, delays and cuts as it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use timevisor_coordination::hub::{Connection, Hub, Out, Settings, Trust};
use timevisor_linux::event_fd::EventFd;
use timevisor_linux::poll::{self, PollFd};
use timevisor_protocols::bus::{Frames, FromBus, ToBus, frame};

use super::span;
use crate::unpoisoned;

/// How long its thread sleeps at most.
const NAP: Duration = Duration::from_secs(1);

/// A bus in this process, for tests of programs that use groups: no timevisor-bus runs, and no socket is in the file
/// system. What it carries may be lost, late or cut off. Give it as [`crate::group::JoinOptions::bus`], with the timeline of a
/// [`Clock`](crate::manual::Clock) or a real one. Clones are the same bus; it ends with the last one and its members.
///
/// It runs the hub of timevisor-bus, without keys. Leases and faults count this machine's real time.
///
/// ```
/// use std::time::Duration;
/// use timevisor::group::{Group, JoinOptions};
/// use timevisor::manual::{Bus, Clock};
/// let (clock, bus) = (Clock::new(1_000_000_000), Bus::new()?);
/// let options = JoinOptions { bus: Some(bus.clone().into()), ..JoinOptions::default() };
/// let a = Group::join(&clock.timeline(), "cell7", "a", &options)?;
/// let b = Group::join(&clock.timeline(), "cell7", "b", &options)?;
/// a.wait_for(2, Duration::from_secs(10))?;
/// bus.cut("b");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Bus(Arc<Inner>);

struct Inner {
    commands: Mutex<Sender<Command>>,
    wake: Arc<EventFd>,
}

enum Command {
    Connect(UnixStream),
    Fault(Fault),
    EndConnections,
}

enum Fault {
    Lose { per_mille: u32, seed: u64 },
    Delay(Duration),
    Cut(String),
    Heal,
}

impl Bus {
    /// Starts one.
    ///
    /// # Errors
    /// When a thread or a descriptor cannot be had.
    pub fn new() -> io::Result<Self> {
        let (commands, received) = channel();
        let wake = Arc::new(EventFd::new()?);
        let wakes = Arc::clone(&wake);
        let run = move || {
            let mut carrier = Carrier::new(received, wakes);
            while carrier.turn() {}
        };
        std::thread::Builder::new().name("manual-bus".to_owned()).spawn(run)?;
        Ok(Self(Arc::new(Inner { commands: Mutex::new(commands), wake })))
    }

    /// From now on it loses so many of a thousand messages, each for each receiver; which ones, `seed` decides.
    pub fn lose(&self, per_mille: u32, seed: u64) {
        self.tell(Command::Fault(Fault::Lose { per_mille, seed }));
    }

    /// From now on messages come so much later.
    pub fn delay(&self, by: Duration) {
        self.tell(Command::Fault(Fault::Delay(by)));
    }

    /// From now on nothing comes from this member or to it. After its lease the others hear that it has gone.
    pub fn cut(&self, member: &str) {
        self.tell(Command::Fault(Fault::Cut(member.to_owned())));
    }

    /// Nobody is cut off any more, nothing is lost and nothing is late.
    pub fn heal(&self) {
        self.tell(Command::Fault(Fault::Heal));
    }

    /// Ends all connections, as a bus does that restarts: members connect and join again by themselves. What it kept is
    /// forgotten.
    pub fn restart(&self) {
        self.tell(Command::EndConnections);
    }

    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        self.tell(Command::Connect(ours));
        Ok(theirs)
    }

    fn tell(&self, command: Command) {
        // The thread ends when nobody can tell it anything.
        let _ = unpoisoned(self.0.commands.lock()).send(command);
        let _ = self.0.wake.set();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.wake.set();
    }
}

impl PartialEq for Bus {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Bus {}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").finish_non_exhaustive()
    }
}

/// One program's end.
struct Program {
    stream: UnixStream,
    frames: Frames,
    out: VecDeque<u8>,
    /// Its members by handle.
    names: BTreeMap<u32, String>,
    /// When the last frame for it is due: frames keep their order.
    last_due: Instant,
    /// It ends after what is on its way.
    closes: bool,
    is_over: bool,
}

/// What the thread has.
struct Carrier {
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    hub: Hub,
    begun: Instant,
    count: u64,
    programs: BTreeMap<Connection, Program>,
    lost_per_mille: u32,
    random: u64,
    delay: Duration,
    cut: BTreeSet<String>,
    /// What is late, by when it is due, and a number.
    late: BTreeMap<(Instant, u64), (Connection, FromBus)>,
    /// Nobody can connect any more.
    is_over: bool,
}

impl Carrier {
    fn new(commands: Receiver<Command>, wake: Arc<EventFd>) -> Self {
        Self {
            commands,
            wake,
            hub: Hub::new(Settings::default(), BTreeMap::new(), 1),
            begun: Instant::now(),
            count: 0,
            programs: BTreeMap::new(),
            lost_per_mille: 0,
            random: 0,
            delay: Duration::ZERO,
            cut: BTreeSet::new(),
            late: BTreeMap::new(),
            is_over: false,
        }
    }

    /// Everything that is due, then a sleep. False when nobody can use it any more.
    fn turn(&mut self) -> bool {
        let _ = self.wake.clear();
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.is_over = true;
                    break;
                }
            }
        }
        let numbers: Vec<_> = self.programs.keys().copied().collect();
        numbers.iter().for_each(|number| self.hear(*number));
        let mut out = Vec::new();
        self.hub.on_timer(span(self.begun.elapsed()), &mut out);
        self.act(out);
        while let Some(first) = self.late.first_entry()
            && first.key().0 <= Instant::now()
        {
            let (to, frame) = first.remove();
            self.write(to, &frame.encode());
        }
        self.programs.values_mut().for_each(Program::flush);
        self.forget();
        if self.is_over && self.programs.is_empty() {
            return false;
        }
        self.sleep();
        true
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Connect(stream) => {
                self.count += 1;
                let (frames, out, names) = (Frames::default(), VecDeque::new(), BTreeMap::new());
                let (last_due, closes, is_over) = (Instant::now(), false, false);
                let program = Program { stream, frames, out, names, last_due, closes, is_over };
                self.programs.insert(self.count, program);
                self.hub.connected(self.count, Trust::Local(0));
            }
            Command::Fault(Fault::Lose { per_mille, seed }) => {
                (self.lost_per_mille, self.random) = (per_mille, seed);
            }
            Command::Fault(Fault::Delay(by)) => self.delay = by,
            Command::Fault(Fault::Cut(member)) => drop(self.cut.insert(member)),
            Command::Fault(Fault::Heal) => {
                (self.lost_per_mille, self.delay) = (0, Duration::ZERO);
                self.cut.clear();
            }
            Command::EndConnections => {
                self.programs.clear();
                self.late.clear();
                self.hub = Hub::new(Settings::default(), BTreeMap::new(), self.count + 1);
            }
        }
    }

    /// What a program has sent.
    fn hear(&mut self, number: Connection) {
        let Some(program) = self.programs.get_mut(&number) else { return };
        let mut contents = Vec::new();
        let mut buffer = [0; 1 << 14];
        loop {
            match program.stream.read(&mut buffer) {
                Ok(0) => program.is_over = true,
                Ok(count) => {
                    program.frames.push(&buffer[..count]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => program.is_over = true,
            }
            break;
        }
        loop {
            match program.frames.take() {
                Ok(Some(content)) => contents.push(content.to_vec()),
                Ok(None) => break,
                Err(_) => {
                    program.is_over = true;
                    break;
                }
            }
        }
        for content in contents {
            if self.is_cut(number, &content) {
                continue;
            }
            let mut out = Vec::new();
            let (now, random) = (span(self.begun.elapsed()), self.number());
            self.hub.frame(
                number,
                &content,
                [random.to_le_bytes(); 2].concat().try_into().unwrap_or_default(),
                now,
                &mut out,
            );
            self.act(out);
        }
    }

    /// Whether a member sends this that is cut off; learns who has which handle.
    fn is_cut(&mut self, number: Connection, content: &[u8]) -> bool {
        let Some(program) = self.programs.get_mut(&number) else { return true };
        let handle = match ToBus::decode(content) {
            Ok(ToBus::Join { handle, who, .. }) => {
                program.names.insert(handle, who.name);
                handle
            }
            Ok(
                ToBus::Alive { handle, .. }
                | ToBus::Leave { handle }
                | ToBus::Prove { handle, .. }
                | ToBus::Subscribe { handle, .. }
                | ToBus::Unsubscribe { handle, .. }
                | ToBus::Send { handle, .. },
            ) => handle,
            Ok(ToBus::Hello { .. }) | Err(_) => return false,
        };
        program.names.get(&handle).is_some_and(|name| self.cut.contains(name))
    }

    fn act(&mut self, out: Vec<Out>) {
        for action in out {
            match action {
                Out::Frame(to, content) => self.carry(to, &content),
                Out::Close(to) => {
                    if let Some(program) = self.programs.get_mut(&to) {
                        program.closes = true;
                    }
                }
                Out::Peers(..) => {}
            }
        }
    }

    fn carry(&mut self, to: Connection, content: &[u8]) {
        match FromBus::decode(content) {
            Ok(FromBus::Deliver { handles, is_old, message }) => {
                let handles: Vec<_> = handles
                    .into_iter()
                    .filter(|it| self.reaches(to, *it) && !self.loses())
                    .collect();
                self.send(to, self.delay, FromBus::Deliver { handles, is_old, message });
            }
            Ok(FromBus::Members { handles, present, gone }) => {
                let handles = handles.into_iter().filter(|it| self.reaches(to, *it)).collect();
                self.send(to, Duration::ZERO, FromBus::Members { handles, present, gone });
            }
            Ok(frame) => self.send(to, Duration::ZERO, frame),
            Err(_) => {}
        }
    }

    /// Puts a frame on its way, behind those that are on theirs.
    fn send(&mut self, to: Connection, delay: Duration, frame: FromBus) {
        let Some(program) = self.programs.get_mut(&to) else { return };
        program.last_due = program.last_due.max(Instant::now() + delay);
        self.count += 1;
        self.late.insert((program.last_due, self.count), (to, frame));
    }

    fn reaches(&self, to: Connection, handle: u32) -> bool {
        let name = self.programs.get(&to).and_then(|program| program.names.get(&handle));
        name.is_none_or(|name| !self.cut.contains(name))
    }

    fn loses(&mut self) -> bool {
        self.lost_per_mille > 0 && self.number() % 1_000 < u64::from(self.lost_per_mille)
    }

    /// The next one of a sequence that the seed begins (splitmix64).
    fn number(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn write(&mut self, to: Connection, content: &[u8]) {
        if let Some(program) = self.programs.get_mut(&to) {
            program.out.extend(frame(content));
        }
    }

    /// Ends what has ended.
    fn forget(&mut self) {
        let on_the_way: BTreeSet<_> = self.late.values().map(|(to, _)| *to).collect();
        for (number, program) in &mut self.programs {
            let is_done = program.out.is_empty() && !on_the_way.contains(number);
            program.is_over |= program.closes && is_done;
        }
        let over: Vec<_> =
            self.programs.iter().filter(|(_, it)| it.is_over).map(|(number, _)| *number).collect();
        for number in over {
            self.programs.remove(&number);
            let mut out = Vec::new();
            self.hub.disconnected(number, span(self.begun.elapsed()), &mut out);
            self.act(out);
        }
    }

    fn sleep(&self) {
        let next = self.hub.next().map(|next| next - span(self.begun.elapsed()));
        let next =
            next.map(|left| Duration::from_nanos(u64::try_from(left.ceil_nanos()).unwrap_or(0)));
        let late = self
            .late
            .first_key_value()
            .map(|((due, _), _)| due.saturating_duration_since(Instant::now()));
        let left = next.into_iter().chain(late).min().unwrap_or(NAP).min(NAP);
        let mut fds = vec![PollFd::readable(self.wake.as_fd())];
        for program in self.programs.values() {
            let fd = program.stream.as_fd();
            fds.push(if program.out.is_empty() {
                PollFd::readable(fd)
            } else {
                PollFd::readable_or_writable(fd)
            });
        }
        let _ = poll::wait(&mut fds, Some(left));
    }
}

impl Program {
    fn flush(&mut self) {
        while !self.out.is_empty() {
            let (front, _) = self.out.as_slices();
            match self.stream.write(front) {
                Ok(0) => return self.is_over = true,
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.is_over = true,
            }
        }
    }
}

#[cfg(test)]
#[path = "manual_bus_tests.rs"]
mod tests;
