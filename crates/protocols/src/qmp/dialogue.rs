//! The dialogue with one QEMU: what it is asked and told, and what its answers mean for a VM's
//! clock. Pure: bytes, commands and now in, actions out.
//!
//! | when | what |
//! | --- | --- |
//! | after the greeting | MIGRATION events are switched on, shared memory is excluded from migration, state, migration and vCPUs are asked for |
//! | the state is told | the capabilities are set, because QEMU answers in order; a migration is awaited now |
//! | a migration was under way, or is over | it is told, because its events may have been missed; during one QEMU refuses to set capabilities, and what counts is which are set |
//! | QEMU sends too much | the dialogue is over, and so it is after a fault |
//!
//! What it does not do: reconnect, or complain of a QEMU that says nothing.

use serde_json::{Value, json};
use timevisor_time::Duration;

use super::allowance::Allowance;
use super::orders::{Command, News};
use super::{MigrationStatus, QmpError, QmpItem, QueryStatus, Session, VmEvent, cpu_threads};

/// How many bytes a QEMU may send at once, and each second after that. A busy one sends some
/// kilobytes.
const BURST_BYTES: f64 = 1024.0 * 1024.0;
const BYTES_A_SECOND: f64 = 128.0 * 1024.0;
/// How many news it may cause at once, and each second after that: a VM that is stopped and resumed
/// a hundred times a second causes 200.
pub const BURST_NEWS: f64 = 2000.0;
/// See [`BURST_NEWS`].
pub const NEWS_A_SECOND: f64 = 500.0;

/// What the caller has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Write these bytes to QEMU, now.
    Send(Vec<u8>),
    /// Tell the daemon. After [`News::Lost`] there is no further action: close the connection.
    Tell(News),
}

/// Commands without an answer whose answers mean something.
#[derive(Clone, Debug, Default)]
struct Awaited {
    status: Option<u64>,
    cpus: Option<u64>,
    resume: Option<u64>,
    events: Option<u64>,
    sharing: Option<u64>,
    capabilities: Option<u64>,
    under_way: Option<u64>,
    migrate: Option<u64>,
    incoming: Option<u64>,
    why: Option<u64>,
}

/// Our end of a dialogue.
#[derive(Clone, Debug)]
pub struct Dialogue {
    session: Session,
    awaited: Awaited,
    /// The page is in memory that QEMU shares with us, not in QEMU's private memory.
    shared: bool,
    /// Why QEMU did not exclude shared memory from migration when it was last told to.
    refusal: Option<String>,
    immovable: Option<String>,
    /// QEMU refused to report migrations, as it does during one.
    deaf: bool,
    /// Where a migration is awaited as soon as QEMU has told its state.
    incoming: Option<String>,
    /// QEMU has told its state.
    ready: bool,
    over: bool,
    bytes: Allowance,
    news: Allowance,
}

impl Dialogue {
    /// Begins with QEMU's greeting. `first_id`: see [`Session::with_first_id`]. `shared`: the page
    /// is in memory that QEMU shares with us; a migration would overwrite the destination's page,
    /// or crash QEMU there if that page is mapped read-only.
    #[must_use]
    pub fn new(first_id: u64, shared: bool, now: Duration) -> Self {
        Self {
            session: Session::with_first_id(first_id),
            awaited: Awaited::default(),
            shared,
            refusal: None,
            immovable: None,
            deaf: false,
            incoming: None,
            ready: false,
            over: false,
            bytes: Allowance::new(BURST_BYTES, BYTES_A_SECOND, now),
            news: Allowance::new(BURST_NEWS, NEWS_A_SECOND, now),
        }
    }

    /// Takes in what QEMU has sent.
    pub fn on_bytes(&mut self, bytes: &[u8], now: Duration) -> Vec<Action> {
        if self.over {
            return Vec::new();
        }
        if !self.bytes.take(bytes.len(), now) {
            return self.lose("QEMU sends more on its QMP socket than any monitor does");
        }
        let mut actions = Vec::new();
        for item in self.session.on_bytes(bytes) {
            self.take(item, &mut actions);
        }
        self.limit(actions, now)
    }

    /// Does what the daemon wants.
    pub fn on_command(&mut self, command: Command) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.over {
            return actions;
        }
        if let Command::Await(uri) = command {
            self.incoming = Some(uri);
            if self.ready {
                self.await_migration(&mut actions);
            }
        } else if self.session.is_ready() {
            self.execute(command, &mut actions);
        }
        actions
    }

    /// The connection has failed.
    pub fn lose(&mut self, reason: &str) -> Vec<Action> {
        if std::mem::replace(&mut self.over, true) {
            return Vec::new();
        }
        vec![Action::Tell(News::Lost(reason.to_owned()).bounded())]
    }

    /// Nothing follows.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Ends after the first loss, and before more news than a QEMU has reason for.
    fn limit(&mut self, actions: Vec<Action>, now: Duration) -> Vec<Action> {
        let mut allowed = Vec::new();
        for action in actions {
            match &action {
                Action::Tell(News::Lost(_)) => {
                    self.over = true;
                    allowed.push(action);
                    break;
                }
                Action::Tell(_) if !self.news.take(1, now) => {
                    allowed.extend(self.lose("QEMU reports more events than any VM has"));
                    break;
                }
                _ => allowed.push(action),
            }
        }
        allowed
    }

    fn take(&mut self, item: QmpItem, actions: &mut Vec<Action>) {
        match item {
            QmpItem::Send(bytes) => actions.push(Action::Send(bytes)),
            QmpItem::Ready { version } => {
                tell(actions, News::Greeted(version));
                // QEMU sends MIGRATION events only on request.
                self.ask_for_events(actions);
                if self.shared {
                    self.execute(Command::IgnoreShared, actions);
                }
                // QEMU answers in order: once the state is known, the capabilities are set.
                self.execute(Command::AskStatus, actions);
                self.execute(Command::AskMigration, actions);
                self.execute(Command::AskCpus, actions);
            }
            QmpItem::Event(event) => match VmEvent::from(&event) {
                // Nobody wants to know these, and guests can cause any number of them.
                VmEvent::Other(_) | VmEvent::PortChange { .. } => {}
                event => {
                    // The vCPUs go on: a migration is over, if there was one.
                    if self.deaf && event == VmEvent::Resume {
                        self.ask_for_events(actions);
                    }
                    tell(actions, News::Event(event));
                }
            },
            QmpItem::Reply { id, result } => self.reply(id, result, actions),
            QmpItem::Fault(fault) => tell(actions, News::Lost(format!("QMP: {fault}"))),
        }
    }

    fn reply(&mut self, id: u64, result: Result<Value, QmpError>, actions: &mut Vec<Action>) {
        let mut is = |asked: fn(&mut Awaited) -> &mut Option<u64>| {
            asked(&mut self.awaited).take_if(|asked| *asked == id).is_some()
        };
        if is(|a| &mut a.status) {
            self.told_status(&result, actions);
        } else if is(|a| &mut a.cpus) {
            match result.as_ref().map(cpu_threads) {
                Ok(Ok(cpus)) => tell(actions, News::Cpus(cpus)),
                Ok(Err(error)) => tell(actions, News::Remark(error.to_string())),
                Err(error) => refused(error, actions),
            }
        } else if is(|a| &mut a.why) {
            match &result {
                Ok(value) => {
                    let why = value["error-desc"].as_str().unwrap_or("QEMU does not say why");
                    tell(actions, News::NotMigrated(why.to_owned()));
                }
                Err(error) => refused(error, actions),
            }
        } else if is(|a| &mut a.events) {
            self.deaf = result.is_err();
            if let Err(error) = result {
                refused(&error, actions);
            }
        } else if is(|a| &mut a.sharing) {
            self.refusal = result.err().map(|error| error.to_string());
        } else if is(|a| &mut a.capabilities) {
            self.told_capabilities(&result, actions);
        } else if is(|a| &mut a.under_way) {
            self.told_migration(&result, actions);
        } else if is(|a| &mut a.migrate) {
            let failed = |error: QmpError| News::NotMigrated(error.to_string());
            tell(actions, result.map_or_else(failed, |_| News::Migrates));
        } else if is(|a| &mut a.incoming) {
            let failed = |error: QmpError| News::NotMigrated(error.to_string());
            tell(actions, result.map_or_else(failed, |_| News::Awaits));
        } else {
            // A refusal is an answer, too: it is not tried again.
            if is(|a| &mut a.resume) {
                tell(actions, News::Resumed);
            }
            if let Err(error) = result {
                refused(&error, actions);
            }
        }
    }

    /// Whether shared memory is excluded from migration. During a migration QEMU refuses to be told
    /// so, also where it was told before.
    fn told_capabilities(&mut self, result: &Result<Value, QmpError>, actions: &mut Vec<Action>) {
        let is_set = result.as_ref().ok().and_then(Value::as_array).is_some_and(|all| {
            all.iter().any(|c| c["capability"] == "x-ignore-shared" && c["state"] == true)
        });
        let Some(refusal) = self.refusal.take().filter(|_| !is_set) else {
            if self.immovable.take().is_some() {
                tell(actions, News::Movable);
            }
            return;
        };
        let why = format!(
            "QEMU refuses x-ignore-shared ({refusal}), and would copy over the other host's page"
        );
        tell(actions, News::Immovable(why.clone()));
        self.immovable = Some(why);
    }

    /// How a migration stands that began, or has ended, before we were connected. (On a destination
    /// the VM is known to be incoming by now, and its migration's state says nothing.)
    fn told_migration(&mut self, result: &Result<Value, QmpError>, actions: &mut Vec<Action>) {
        let Ok(info) = result else { return };
        // Without a status there was none.
        let status = MigrationStatus::from(info["status"].as_str().unwrap_or("none"));
        let leaves = status.is_of_a_source();
        if self.deaf && !status.is_under_way() {
            // It is over, so QEMU may be told now to report the next one.
            self.ask_for_events(actions);
        }
        let why = info["error-desc"].as_str().filter(|_| status == MigrationStatus::Failed);
        tell(actions, News::Migration { status, why: why.map(str::to_owned) });
        if leaves {
            // It may have ended while its state was on its way to us.
            self.execute(Command::AskStatus, actions);
        }
    }

    fn told_status(&mut self, result: &Result<Value, QmpError>, actions: &mut Vec<Action>) {
        let status = match result.as_ref().map(QueryStatus::from_reply) {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return tell(actions, News::Lost(error.to_string())),
            Err(error) => return refused(error, actions),
        };
        self.ready = true;
        tell(actions, News::Status(status));
        self.await_migration(actions);
    }

    fn await_migration(&mut self, actions: &mut Vec<Action>) {
        let Some(uri) = self.incoming.take() else { return };
        if let Some(why) = &self.immovable {
            return tell(actions, News::NotMigrated(format!("it is not awaited: {why}")));
        }
        let arguments = json!({"uri": uri});
        self.awaited.incoming = Some(self.send("migrate-incoming", Some(arguments), actions));
    }

    fn execute(&mut self, command: Command, actions: &mut Vec<Action>) {
        match command {
            Command::AskStatus => {
                self.awaited.status = Some(self.send("query-status", None, actions));
            }
            Command::AskMigration => {
                self.awaited.under_way = Some(self.send("query-migrate", None, actions));
            }
            Command::AskCpus => {
                self.awaited.cpus = Some(self.send("query-cpus-fast", None, actions));
            }
            Command::Resume => self.awaited.resume = Some(self.send("cont", None, actions)),
            Command::PauseForAMoment => {
                self.send("stop", None, actions);
                self.send("cont", None, actions);
            }
            Command::IgnoreShared => {
                self.awaited.sharing = Some(self.set_capability("x-ignore-shared", actions));
                self.awaited.capabilities =
                    Some(self.send("query-migrate-capabilities", None, actions));
            }
            Command::Migrate(uri) => {
                // What is being answered is of an earlier migration.
                self.awaited.under_way = None;
                let arguments = json!({"uri": uri});
                self.awaited.migrate = Some(self.send("migrate", Some(arguments), actions));
            }
            Command::CancelMigration => {
                self.send("migrate_cancel", None, actions);
            }
            Command::AskWhy => {
                self.awaited.why = Some(self.send("query-migrate", None, actions));
            }
            Command::Await(uri) => self.incoming = Some(uri),
        }
    }

    fn ask_for_events(&mut self, actions: &mut Vec<Action>) {
        self.awaited.events = Some(self.set_capability("events", actions));
    }

    fn set_capability(&mut self, name: &str, actions: &mut Vec<Action>) -> u64 {
        let arguments = json!({"capabilities": [{"capability": name, "state": true}]});
        self.send("migrate-set-capabilities", Some(arguments), actions)
    }

    fn send(&mut self, name: &str, arguments: Option<Value>, actions: &mut Vec<Action>) -> u64 {
        let (id, bytes) = self.session.command(name, arguments);
        actions.push(Action::Send(bytes));
        id
    }
}

fn tell(actions: &mut Vec<Action>, news: News) {
    actions.push(Action::Tell(news.bounded()));
}

fn refused(error: &QmpError, actions: &mut Vec<Action>) {
    tell(actions, News::Remark(format!("QEMU refused a command: {error}")));
}
