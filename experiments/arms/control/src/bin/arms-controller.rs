//! One arm's controller: 500 times a second it samples the commands at `now()` and sends a set-point to the plant.

use std::net::UdpSocket;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::json;
use timevisor_arms::clock::{Interrupted, Source};
use timevisor_arms::controller::{Clock, Controller};
use timevisor_arms::message::Doing;
use timevisor_arms::talk::{Heard, Membership, Said, serve};
use timevisor_arms::wire::{Arm, State};

const CYCLE: Duration = Duration::from_millis(2);
/// A cycle this late is not made up for.
const LATE: Duration = Duration::from_millis(20);
/// How often it says what it does, in cycles.
const SAY: u64 = 50;

/// Samples the planner's commands at now() and moves one arm
#[derive(Debug, Parser)]
struct Arguments {
    /// a or b
    arm: Arm,
    /// Where the plant listens
    #[arg(long, default_value = "127.0.0.1:47110")]
    plant: String,
    /// To compare: sample what this NTP server said last, without bounds
    #[arg(long, value_name = "SERVER")]
    naive: Option<String>,
    #[command(flatten)]
    membership: Membership,
}

/// The real-time loop's side.
struct Loop {
    arm: Arm,
    clock: Source,
    plant: UdpSocket,
    controller: Controller,
    heard: Receiver<Heard>,
    said: Sender<Said>,
    begun: Instant,
    sequence: u64,
    late: [u64; 3],
    latest: Duration,
    /// Cycles in which the clock could not be read.
    unread: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (arm, name) = (arguments.arm, format!("arm-{}", arguments.arm.name()));
    let plant = UdpSocket::bind("0.0.0.0:0")?;
    plant.connect(&arguments.plant).with_context(|| format!("no plant at {}", arguments.plant))?;
    plant.set_nonblocking(true)?;
    let (group, timeline) = arguments.membership.join(&name)?;
    let clock = match &arguments.naive {
        Some(server) => Source::naive(server)?,
        None => Source::Timeline(timeline),
    };
    let naive = arguments.naive.is_some();
    let (heard_here, heard) = channel();
    let (said, said_there) = channel();
    let talk = std::thread::Builder::new()
        .name("talk".to_owned())
        .spawn(move || serve(&group, arm, naive, &heard_here, &said_there))?;
    println!("{}", json!({"arm": arm.name(), "event": "joined"}));
    let begun = Instant::now();
    let controller = Controller::new(arm);
    let mut it = Loop {
        arm,
        clock,
        plant,
        controller,
        heard,
        said,
        begun,
        sequence: 0,
        late: [0; 3],
        latest: Duration::ZERO,
        unread: 0,
    };
    let mut due = begun;
    for cycle in 0_u64.. {
        due += CYCLE;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let late = due.elapsed();
        it.count(late);
        if late > LATE {
            due += late;
        }
        it.cycle(cycle);
        if talk.is_finished() {
            break;
        }
    }
    talk.join().map_err(|_| anyhow::anyhow!("the group's thread failed"))?
}

impl Loop {
    fn count(&mut self, late: Duration) {
        self.latest = self.latest.max(late);
        for (count, ms) in self.late.iter_mut().zip([2, 5, 10]) {
            *count += u64::from(late > Duration::from_millis(ms));
        }
    }

    fn cycle(&mut self, cycle: u64) {
        let begun = self.begun;
        let elapsed = || i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let elapsed_ns = elapsed();
        let mut buffer = [0; 256];
        while let Ok(count) = self.plant.recv(&mut buffer) {
            if let Some(state) = State::decode(&buffer[..count], self.arm) {
                self.controller.state(state, elapsed_ns);
            }
        }
        self.hear(elapsed_ns);
        let clock = self.clock.read();
        // A page whose writer is kept from running may have taken long.
        let elapsed_ns = elapsed();
        match clock {
            Ok(clock) => self.send(clock.as_ref(), elapsed_ns),
            Err(Interrupted) => {
                self.unread += 1;
                self.controller.leave_out(elapsed_ns);
            }
        }
        let has_news = self.controller.take_news();
        if has_news || cycle.is_multiple_of(SAY) {
            let _ = self.said.send(Said::Status(self.controller.status()));
        }
        if has_news || cycle.is_multiple_of(SAY * 20) {
            self.print();
        }
    }

    fn send(&mut self, clock: Option<&Clock>, elapsed_ns: i64) {
        if let Some(point) = self.controller.step(clock, elapsed_ns) {
            self.sequence += 1;
            let stamp_ns = clock.map_or(elapsed_ns, |clock| clock.now_ns);
            // A plant that is not there yet is tried again in the next cycle.
            let _ = self.plant.send(&point.encode(self.arm, self.sequence, stamp_ns));
        }
    }

    fn hear(&mut self, elapsed_ns: i64) {
        while let Ok(heard) = self.heard.try_recv() {
            match heard {
                Heard::Commands(commands) => self.controller.commands(commands),
                Heard::Other(status) => self.controller.other(status, elapsed_ns),
                Heard::Wrong(why) => self.controller.must_hold(&why, elapsed_ns),
                Heard::Asked(id, start) => {
                    let answer = self.controller.may_start(&start);
                    let _ = self.said.send(Said::Answer(id, answer));
                }
                Heard::Start(start) => {
                    if let Ok(Some(clock)) = self.clock.read() {
                        self.controller.start(start, &clock);
                    }
                }
            }
        }
    }

    fn print(&self) {
        let status = self.controller.status();
        let moves = status.doing == Doing::Moves;
        let line = json!({
            "arm": self.arm.name(), "event": "status", "moves": moves, "doing": status.doing, "run": status.run,
            "plan_ns": status.plan_ns, "met": status.met, "why": status.why, "holds": self.controller.holds,
            "cycles_late_over_ms": {"2": self.late[0], "5": self.late[1], "10": self.late[2]},
            "cycles_unread": self.unread,
            "latest_us": u64::try_from(self.latest.as_micros()).unwrap_or(u64::MAX),
        });
        let _ = self.said.send(Said::Print(line));
    }
}
