//! The monitor's connection is cut at every point of a migration, and made again at every later one:
//! what is believed of the VM in the end is the truth.

use std::collections::VecDeque;
use std::path::PathBuf;

use serde_json::{Value, json};
use timevisor_guests::transit::{Step, Transit};
use timevisor_protocols::qmp::{Action, Command, Dialogue, News as Said};
use timevisor_time::Duration;

use super::{Monitor, News, Wanted};
use crate::vms::qmp::Line;

const GREETING: &str =
    r#"{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}}, "capabilities": []}}"#;

/// One step of a QEMU: its state afterwards, and the event that it sends.
#[derive(Clone, Copy)]
struct Turn {
    state: &'static str,
    migration: &'static str,
    event: Option<&'static str>,
}

const fn turn(state: &'static str, migration: &'static str, event: &'static str) -> Turn {
    let event = if event.is_empty() { None } else { Some(event) };
    Turn { state, migration, event }
}

/// QEMU 10.0 on a source, from its reports.
const LEAVES: [Turn; 6] = [
    turn("running", "setup", "MIGRATION"),
    turn("running", "active", "MIGRATION"),
    turn("finish-migrate", "active", "STOP"),
    turn("finish-migrate", "device", "MIGRATION"),
    turn("finish-migrate", "completed", "MIGRATION"),
    turn("postmigrate", "completed", ""),
];
const FAILS: [Turn; 5] = [
    turn("running", "setup", "MIGRATION"),
    turn("running", "active", "MIGRATION"),
    turn("finish-migrate", "active", "STOP"),
    turn("finish-migrate", "failed", "MIGRATION"),
    turn("running", "failed", "RESUME"),
];
const CANCELLED: [Turn; 4] = [
    turn("running", "setup", "MIGRATION"),
    turn("running", "active", "MIGRATION"),
    turn("running", "cancelling", "MIGRATION"),
    turn("running", "cancelled", "MIGRATION"),
];
/// On a destination that was started with -S.
const ARRIVES: [Turn; 3] = [
    turn("inmigrate", "setup", "MIGRATION"),
    turn("inmigrate", "active", "MIGRATION"),
    turn("paused", "completed", "MIGRATION"),
];

struct Qemu {
    state: &'static str,
    migration: &'static str,
    turns: VecDeque<Turn>,
    begun: bool,
    /// What it was told to do, apart from questions.
    orders: Vec<String>,
    /// It reports migrations. It refuses to begin with that during one.
    reports: bool,
}

impl Qemu {
    fn new(state: &'static str, turns: &[Turn], begun: bool) -> Self {
        let turns = turns.iter().copied().collect();
        Self { state, migration: "none", turns, begun, orders: Vec::new(), reports: false }
    }

    fn answer(&mut self, command: &Value) -> Value {
        let name = command["execute"].as_str().unwrap_or_default();
        let answer = match name {
            "query-status" => json!({"status": self.state, "running": self.state == "running"}),
            "query-migrate" if self.migration == "none" => json!({}),
            "query-migrate" => json!({"status": self.migration, "error-desc": "no route"}),
            "query-cpus-fast" | "query-migrate-capabilities" => json!([]),
            "migrate-set-capabilities" if self.is_under_way() => {
                let error = json!({"class": "GenericError", "desc": "a migration is in progress"});
                return json!({"error": error, "id": command["id"]});
            }
            "migrate-set-capabilities" => {
                self.reports = true;
                json!({})
            }
            _ => {
                self.begun |= name == "migrate";
                self.orders.push(name.to_owned());
                if name == "cont" && self.state == "paused" {
                    self.state = "running";
                }
                json!({})
            }
        };
        json!({"return": answer, "id": command["id"]})
    }

    fn is_under_way(&self) -> bool {
        ["setup", "active", "cancelling", "device"].contains(&self.migration)
    }

    /// Goes on, if something has made it begin; returns whether it did, and its event.
    fn go_on(&mut self) -> (bool, Option<Value>) {
        let begun = self.begun;
        let Some(turn) = begun.then(|| self.turns.pop_front()).flatten() else {
            return (false, None);
        };
        (self.state, self.migration) = (turn.state, turn.migration);
        let data = if turn.event == Some("MIGRATION") {
            json!({"status": turn.migration})
        } else {
            json!({})
        };
        let when = json!({"seconds": 1, "microseconds": 2});
        let is_told = |event: &&str| *event != "MIGRATION" || self.reports;
        (
            true,
            turn.event
                .filter(is_told)
                .map(|event| json!({"timestamp": when, "event": event, "data": data})),
        )
    }
}

/// The daemon and the helper, as far as one VM's migration goes.
struct Host {
    qemu: Qemu,
    connection: Option<(Dialogue, Monitor)>,
    transit: Transit,
    wanted: Wanted,
    arrived: usize,
    left: usize,
    /// How many more lines of QEMU arrive, and how many turns it takes without us.
    cut: Option<(usize, usize)>,
    connections: u64,
}

impl Host {
    fn connect(&mut self) {
        self.connections += 1;
        let first = self.connections * 1000;
        let dialogue = Dialogue::new(first, false, Duration::ZERO);
        let line = Line::dead(self.connections);
        let monitor = Monitor::new(PathBuf::from("qmp"), line, self.wanted.clone(), Duration::ZERO);
        self.connection = Some((dialogue, monitor));
        self.hear(&serde_json::from_str(GREETING).unwrap_or_default());
    }

    /// QEMU says a line, which may be what is lost.
    fn hear(&mut self, line: &Value) {
        if let Some((left, away)) = &mut self.cut {
            if *left == 0 {
                let away = *away;
                self.cut = None;
                return self.lose(away);
            }
            *left -= 1;
        }
        let Some((dialogue, _)) = &mut self.connection else { return };
        let actions = dialogue.on_bytes(format!("{line}\r\n").as_bytes(), Duration::ZERO);
        self.act(actions);
    }

    fn lose(&mut self, away: usize) {
        self.tell(Said::Lost("cut".to_owned()));
        if let Some((_, monitor)) = self.connection.take() {
            self.wanted = monitor.into_wanted().1;
        }
        for _ in 0..away {
            self.qemu.go_on();
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Tell(said) => self.tell(said),
                Action::Send(bytes) => {
                    // What QEMU does not receive it does not do.
                    if self.connection.is_some() {
                        let command = serde_json::from_slice(&bytes).unwrap_or_default();
                        let answer = self.qemu.answer(&command);
                        self.hear(&answer);
                    }
                }
            }
        }
    }

    fn order(&mut self, command: Command) {
        let Some((dialogue, _)) = &mut self.connection else { return };
        let actions = dialogue.on_command(command);
        self.act(actions);
    }

    /// As `Vms::take` and `Vms::follow`.
    fn tell(&mut self, said: Said) {
        let Some((_, monitor)) = &mut self.connection else { return };
        for news in monitor.take(said) {
            let mut may_run = false;
            let step = match news {
                News::Status(status) => {
                    let step = self.transit.on_status(&status);
                    may_run = self.transit == Transit::Here && !status.running;
                    let runs = self.transit == Transit::Here && status.running;
                    if let Some((_, monitor)) = self.connection.as_mut().filter(|_| runs) {
                        monitor.runs_already();
                    }
                    step
                }
                News::Event(event) => self.transit.on_event(&event),
                News::Migration(status, why) => self.transit.on_asked(&status, why.as_deref()),
                News::NotMigrated(why) => {
                    self.transit.fail(why);
                    Step::Nothing
                }
                News::Lost(_) => Step::Nothing,
            };
            self.arrived += usize::from(step == Step::Arrive);
            self.left += usize::from(step == Step::Leave);
            match step {
                Step::AskStatus => self.order(Command::AskStatus),
                Step::AskWhy => {
                    if let Some((_, monitor)) = &mut self.connection {
                        monitor.ask_why();
                    }
                    self.order(Command::AskWhy);
                }
                Step::Arrive | Step::Leave | Step::Nothing => {}
            }
            if may_run || step == Step::Arrive {
                self.resume_if_asked();
            }
        }
    }

    fn resume_if_asked(&mut self) {
        let Some((_, monitor)) = &mut self.connection else { return };
        let before = monitor.resuming;
        monitor.resume_if_asked();
        if monitor.resuming && !before {
            self.order(Command::Resume);
        }
    }

    /// Until nothing more happens.
    fn run(&mut self) {
        loop {
            if self.connection.is_none() {
                self.connect();
            }
            let (went_on, event) = self.qemu.go_on();
            if let Some(event) = event {
                self.hear(&event);
            }
            if !went_on && self.connection.is_some() {
                // What the daemon does every second, twice.
                for _ in 0..2 {
                    if matches!(self.transit, Transit::Leaving(_)) {
                        self.order(Command::AskMigration);
                    }
                }
                return;
            }
        }
    }
}

/// The history of this QEMU: `earlier` is how its last migration ended.
fn with_history(mut host: Host, earlier: &'static str) -> Host {
    host.qemu.migration = earlier;
    host
}

fn host(state: &'static str, turns: &[Turn], begun: bool, wanted: Wanted) -> Host {
    Host {
        qemu: Qemu::new(state, turns, begun),
        connection: None,
        transit: Transit::Here,
        wanted,
        arrived: 0,
        left: 0,
        cut: None,
        connections: 0,
    }
}

/// Every point of a cut, and how far QEMU goes until the connection is there again.
fn cuts(turns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..30).flat_map(move |line| (0..=turns).map(move |away| (line, away)))
}

#[test]
fn a_source_knows_in_the_end_where_its_vm_is() {
    let histories = ["none", "failed", "cancelled", "completed"];
    for turns in [&LEAVES[..], &FAILS, &CANCELLED] {
        for (ours, earlier) in [true, false].into_iter().flat_map(|o| histories.map(|e| (o, e))) {
            for cut in cuts(turns.len()) {
                let fresh = host("running", turns, !ours, Wanted::default());
                let mut host = with_history(fresh, earlier);
                host.connect();
                host.cut = Some(cut);
                if ours {
                    if let Some((_, monitor)) = &mut host.connection {
                        monitor.migrate("tcp:b:1");
                    }
                    host.transit.leave();
                    host.order(Command::Migrate("tcp:b:1".to_owned()));
                }
                host.run();
                let is_true = match host.qemu.state {
                    "postmigrate" => host.transit == Transit::Left && host.left == 1,
                    _ => !host.transit.is_under_way() && host.transit != Transit::Left,
                };
                let (state, transit) = (host.qemu.state, &host.transit);
                assert!(is_true, "ours {ours}, cut {cut:?}: {transit:?} of one that is {state}");
                assert!(host.qemu.orders.iter().all(|order| order != "cont"));
            }
        }
    }
}

/// Somebody else's migration is under way when we first connect: QEMU reports nothing of it but the stop.
#[test]
fn a_migration_that_nobody_reports_ends_nevertheless() {
    for turns in [&LEAVES[..], &FAILS, &CANCELLED] {
        for begun in 1..turns.len() {
            let mut host = host("running", turns, true, Wanted::default());
            for _ in 0..begun {
                host.qemu.go_on();
            }
            host.run();
            let is_true = match host.qemu.state {
                "postmigrate" => host.transit == Transit::Left,
                _ => !host.transit.is_under_way() && host.transit != Transit::Left,
            };
            assert!(
                is_true,
                "after {begun} turns: {:?} of one that is {}",
                host.transit, host.qemu.state
            );
            assert!(
                host.qemu.reports || host.qemu.state == "postmigrate",
                "the next one is reported"
            );
        }
    }
}

#[test]
fn a_vm_arrives_once_and_runs_if_it_shall() {
    for resume in [true, false] {
        for cut in cuts(ARRIVES.len()) {
            let mut host = host("inmigrate", &ARRIVES, true, Wanted { resume, awaited: None });
            host.connect();
            host.cut = Some(cut);
            host.run();
            let conts = host.qemu.orders.iter().filter(|order| *order == "cont").count();
            let text = format!("resume {resume}, cut {cut:?}: {conts} times");
            assert!(host.transit == Transit::Here && host.arrived == 1, "{text}");
            assert_eq!(conts, usize::from(resume), "{text}");
        }
    }
}
