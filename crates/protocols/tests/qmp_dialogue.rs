//! A dialogue with QEMU: what is asked when, what the answers mean, and when it ends.
#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use proptest::prelude::*;
use serde_json::{Value, json};
use timevisor_protocols::qmp::dialogue::BURST_NEWS;
use timevisor_protocols::qmp::orders::LONGEST_TEXT;
use timevisor_protocols::qmp::{
    Action, Command, CpuThread, Dialogue, MigrationStatus, News, QemuVersion, QueryStatus,
    RunState, VmEvent,
};
use timevisor_time::Duration;

const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}, \"package\": \
     \"Debian\"}, \"capabilities\": [\"oob\"]}}\r\n";

fn at(seconds: i64) -> Duration {
    Duration::from_secs(seconds)
}

/// QEMU's side: it says lines, and sees commands.
struct Qemu {
    dialogue: Dialogue,
    commands: Vec<Value>,
}

impl Qemu {
    /// Connected, and not greeted yet.
    fn new(shared: bool) -> Self {
        Self { dialogue: Dialogue::new(0, shared, at(0)), commands: Vec::new() }
    }

    /// It has told the state of a VM that waits for `cont`.
    fn ready(shared: bool) -> Self {
        let mut qemu = Self::new(shared);
        qemu.greets();
        for command in qemu.taken() {
            let answer = match command["execute"].as_str().unwrap() {
                "query-status" => json!({"status": "prelaunch", "running": false}),
                "query-cpus-fast" | "query-migrate-capabilities" => json!([]),
                _ => json!({}),
            };
            qemu.says(&json!({"return": answer, "id": command["id"]}));
        }
        qemu
    }

    fn greets(&mut self) -> Vec<News> {
        self.sends(GREETING.as_bytes());
        assert_eq!(self.taken(), [json!({"execute": "qmp_capabilities", "id": 0})]);
        self.says(&json!({"return": {}, "id": 0}))
    }

    fn sends(&mut self, bytes: &[u8]) -> Vec<News> {
        let actions = self.dialogue.on_bytes(bytes, at(1));
        self.sorted(actions)
    }

    fn says(&mut self, line: &Value) -> Vec<News> {
        self.sends(format!("{line}\r\n").as_bytes())
    }

    fn event(&mut self, name: &str, data: &Value) -> Vec<News> {
        let when = json!({"seconds": 1, "microseconds": 2});
        self.says(&json!({"timestamp": when, "event": name, "data": data}))
    }

    fn is_told(&mut self, command: Command) -> Vec<News> {
        let actions = self.dialogue.on_command(command);
        self.sorted(actions)
    }

    fn sorted(&mut self, actions: Vec<Action>) -> Vec<News> {
        let mut told = Vec::new();
        for action in actions {
            match action {
                Action::Send(bytes) => self.commands.push(serde_json::from_slice(&bytes).unwrap()),
                Action::Tell(news) => told.push(news),
            }
        }
        told
    }

    fn taken(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.commands)
    }

    /// The names of the commands, and the id of the last one.
    fn names(&mut self) -> (Vec<String>, Value) {
        let taken = self.taken();
        let id = taken.last().map_or(Value::Null, |last| last["id"].clone());
        (taken.iter().map(|c| c["execute"].as_str().unwrap().to_owned()).collect(), id)
    }

    fn answers(&mut self, id: &Value, result: &Result<Value, &str>) -> Vec<News> {
        self.says(&match result {
            Ok(value) => json!({"return": value, "id": id}),
            Err(text) => json!({"error": {"class": "GenericError", "desc": text}, "id": id}),
        })
    }
}

#[test]
fn it_begins_with_events_the_state_and_the_vcpus() {
    let mut qemu = Qemu::new(false);
    // Before the greeting QEMU knows no command.
    assert_eq!((qemu.is_told(Command::AskStatus), qemu.taken()), (vec![], vec![]));
    let version = QemuVersion { major: 7, minor: 2, micro: 22 };
    assert_eq!(qemu.greets(), [News::Greeted(version)]);
    let asked = qemu.taken();
    let names: Vec<_> = asked.iter().map(|c| c["execute"].clone()).collect();
    let expected = ["migrate-set-capabilities", "query-status", "query-migrate", "query-cpus-fast"];
    assert_eq!(names, expected);
    assert_eq!(asked[0]["arguments"]["capabilities"][0]["capability"], "events");
    assert_eq!(qemu.answers(&asked[0]["id"], &Ok(json!({}))), []);
    let status = QueryStatus { running: true, state: RunState::Running };
    let answer = json!({"status": "running", "running": true});
    assert_eq!(qemu.answers(&asked[1]["id"], &Ok(answer)), [News::Status(status)]);
    let answer = json!([{"cpu-index": 0, "thread-id": 77}]);
    let cpus = vec![CpuThread { cpu_index: 0, thread_id: 77 }];
    assert_eq!(qemu.answers(&asked[3]["id"], &Ok(answer)), [News::Cpus(cpus)]);
}

#[test]
fn how_a_migration_stands_is_told_and_its_end_is_not_missed() {
    let told = |answer: Value| {
        let mut qemu = Qemu::new(false);
        qemu.greets();
        let asked = qemu.taken();
        let told = qemu.answers(&asked[2]["id"], &Ok(answer));
        let [News::Migration { status, why }] = &told[..] else { panic!("{told:?}") };
        (status.clone(), why.clone(), qemu.names().0 == ["query-status"])
    };
    for (status, is_asked_again) in
        [("active", true), ("setup", true), ("completed", false), ("postcopy-active", false)]
    {
        assert_eq!(told(json!({"status": status})), (status.into(), None, is_asked_again));
    }
    let failed = json!({"status": "failed", "error-desc": "broken pipe"});
    assert_eq!(told(failed), (MigrationStatus::Failed, Some("broken pipe".to_owned()), false));
    assert_eq!(told(json!({})), (MigrationStatus::None, None, false), "none since QEMU's start");
}

#[test]
fn migrations_that_qemu_did_not_report_are_asked_for_again() {
    let mut qemu = Qemu::new(false);
    qemu.greets();
    let asked = qemu.taken();
    let told = qemu.answers(&asked[0]["id"], &Err("There's a migration process in progress"));
    assert!(matches!(&told[..], [News::Remark(_)]));
    qemu.event("RESUME", &json!({}));
    let again = qemu.taken();
    assert_eq!(again[0]["arguments"]["capabilities"][0]["capability"], "events");
    qemu.answers(&again[0]["id"], &Ok(json!({})));
    qemu.event("RESUME", &json!({}));
    assert_eq!(qemu.taken(), Vec::<Value>::new());
}

/// During a migration QEMU refuses to set capabilities, also those that it has.
#[test]
fn a_vm_that_excludes_shared_memory_already_is_movable() {
    let mut qemu = Qemu::new(true);
    qemu.greets();
    let asked = qemu.taken();
    let refusal = Err("There's a migration process in progress");
    assert_eq!(qemu.answers(&asked[1]["id"], &refusal), []);
    let set = json!([{"capability": "x-ignore-shared", "state": true}]);
    assert_eq!(qemu.answers(&asked[2]["id"], &Ok(set)), []);
}

#[test]
fn events_are_told_unless_they_mean_nothing_to_a_clock() {
    let mut qemu = Qemu::ready(false);
    assert_eq!(qemu.event("STOP", &json!({})), [News::Event(VmEvent::Stop)]);
    let active = News::Event(VmEvent::Migration(MigrationStatus::Active));
    assert_eq!(qemu.event("MIGRATION", &json!({"status": "active"})), [active]);
    assert_eq!(qemu.event("DEVICE_DELETED", &json!({"path": "/machine"})), []);
    assert_eq!(qemu.event("VSERPORT_CHANGE", &json!({"id": "a", "open": true})), []);
}

#[test]
fn cont_is_answered_even_when_it_is_refused() {
    let mut qemu = Qemu::ready(false);
    for result in [Ok(json!({})), Err("no")] {
        assert_eq!(qemu.is_told(Command::Resume), []);
        let (names, id) = qemu.names();
        assert_eq!(names, ["cont"]);
        let told = qemu.answers(&id, &result);
        assert_eq!(told[0], News::Resumed);
        assert_eq!(matches!(&told[1..], [News::Remark(_)]), result.is_err());
    }
    qemu.is_told(Command::PauseForAMoment);
    let (names, id) = qemu.names();
    assert_eq!(
        (names.join(" ").as_str(), qemu.answers(&id, &Ok(json!({})))),
        ("stop cont", vec![])
    );
}

#[test]
fn a_migration_is_told_to_begin_or_why_it_does_not() {
    let mut qemu = Qemu::ready(false);
    qemu.is_told(Command::Migrate("tcp:b:1".to_owned()));
    let sent = qemu.taken();
    assert_eq!(sent[0]["arguments"], json!({"uri": "tcp:b:1"}));
    assert_eq!(qemu.answers(&sent[0]["id"], &Ok(json!({}))), [News::Migrates]);
    qemu.is_told(Command::Migrate("tcp:b:1".to_owned()));
    let (_, id) = qemu.names();
    let told = qemu.answers(&id, &Err("in progress"));
    assert!(matches!(&told[..], [News::NotMigrated(why)] if why.contains("in progress")));
    qemu.is_told(Command::AskWhy);
    let (names, id) = qemu.names();
    assert_eq!(names, ["query-migrate"]);
    let told = qemu.answers(&id, &Ok(json!({"status": "failed", "error-desc": "broken pipe"})));
    assert_eq!(told, [News::NotMigrated("broken pipe".to_owned())]);
    qemu.is_told(Command::CancelMigration);
    assert_eq!(qemu.names().0, ["migrate_cancel"]);
}

#[test]
fn a_migration_is_awaited_once_the_state_is_known() {
    let mut qemu = Qemu::new(false);
    assert_eq!(qemu.is_told(Command::Await("tcp:0:1".to_owned())), []);
    qemu.greets();
    let asked = qemu.taken();
    assert!(asked.iter().all(|command| command["execute"] != "migrate-incoming"));
    let told = qemu.answers(&asked[1]["id"], &Ok(json!({"status": "inmigrate", "running": false})));
    assert!(matches!(&told[..], [News::Status(_)]));
    let sent = qemu.taken();
    assert_eq!(sent[0]["execute"], "migrate-incoming");
    assert_eq!(sent[0]["arguments"], json!({"uri": "tcp:0:1"}));
    assert_eq!(qemu.answers(&sent[0]["id"], &Ok(json!({}))), [News::Awaits]);
}

#[test]
fn a_vm_whose_shared_memory_would_travel_is_immovable_until_qemu_agrees() {
    let mut qemu = Qemu::new(true);
    qemu.greets();
    let asked = qemu.taken();
    assert_eq!(asked[1]["arguments"]["capabilities"][0]["capability"], "x-ignore-shared");
    assert_eq!(qemu.answers(&asked[1]["id"], &Err("postcopy-ram is on")), []);
    let off = json!([{"capability": "x-ignore-shared", "state": false}]);
    let told = qemu.answers(&asked[2]["id"], &Ok(off));
    assert!(matches!(&told[..], [News::Immovable(why)] if why.contains("postcopy-ram")));
    qemu.answers(&asked[3]["id"], &Ok(json!({"status": "inmigrate", "running": false})));
    let told = qemu.is_told(Command::Await("tcp:0:1".to_owned()));
    assert!(matches!(&told[..], [News::NotMigrated(why)] if why.contains("not awaited")));
    assert_eq!(qemu.taken(), Vec::<Value>::new());
    qemu.is_told(Command::IgnoreShared);
    let asked = qemu.taken();
    assert_eq!(qemu.answers(&asked[0]["id"], &Ok(json!({}))), []);
    let on = json!([{"capability": "x-ignore-shared", "state": true}]);
    assert_eq!(qemu.answers(&asked[1]["id"], &Ok(on)), [News::Movable]);
    qemu.is_told(Command::Await("tcp:0:1".to_owned()));
    assert_eq!(qemu.names().0, ["migrate-incoming"]);
}

#[test]
fn it_ends_once_and_nothing_follows() {
    let mut qemu = Qemu::ready(false);
    let told = qemu.sends(b"nonsense\r\nmore\r\n");
    assert!(matches!(&told[..], [News::Lost(why)] if why.starts_with("QMP: ")), "{told:?}");
    assert!(qemu.dialogue.is_over());
    assert_eq!((qemu.event("STOP", &json!({})), qemu.is_told(Command::Resume)), (vec![], vec![]));
    assert_eq!((qemu.dialogue.lose("again"), qemu.taken()), (vec![], vec![]));
}

#[test]
fn a_flood_ends_it_whether_of_bytes_or_of_events() {
    let mut qemu = Qemu::ready(false);
    let told: Vec<_> = (0..20).flat_map(|_| qemu.sends(&[b' '; 64 << 10])).collect();
    assert!(matches!(&told[..], [News::Lost(why)] if why.contains("more")), "{told:?}");

    let mut qemu = Qemu::ready(false);
    let line = "{\"timestamp\":{\"seconds\":1,\"microseconds\":2},\"event\":\"STOP\"}\n";
    let told: Vec<_> = (0..100).flat_map(|_| qemu.sends(line.repeat(50).as_bytes())).collect();
    #[expect(clippy::cast_precision_loss, reason = "some thousand")]
    let count = told.len() as f64;
    assert!((BURST_NEWS - 10.0..=BURST_NEWS + 1.0).contains(&count), "{count}");
    assert!(matches!(told.last(), Some(News::Lost(why)) if why.contains("events")));
}

#[test]
fn what_qemu_says_reaches_the_log_short_and_printable() {
    let mut qemu = Qemu::ready(false);
    qemu.is_told(Command::AskStatus);
    let (_, id) = qemu.names();
    let long = format!("\u{1b}[31m{}", "x".repeat(10_000));
    let told = qemu.answers(&id, &Err(&long));
    let [News::Remark(text)] = &told[..] else { panic!("{told:?}") };
    assert!(text.len() <= LONGEST_TEXT && !text.chars().any(char::is_control));
}

proptest! {
    #[test]
    fn whatever_is_sent_every_report_can_be_heard(bytes: Vec<u8>, cut in 0usize..64) {
        let mut qemu = Qemu::ready(true);
        let cut = cut.min(bytes.len());
        let mut told = qemu.sends(&bytes[..cut]);
        told.extend(qemu.sends(&bytes[cut..]));
        let lost = told.iter().filter(|news| matches!(news, News::Lost(_))).count();
        prop_assert_eq!(lost == 1, qemu.dialogue.is_over());
        for news in told {
            let report = timevisor_protocols::qmp::Report::News(1, news);
            prop_assert_eq!(timevisor_protocols::qmp::Report::from_bytes(&report.to_bytes()).unwrap(), report);
        }
    }
}
