//! Between the daemon and the helper process that speaks QMP for it: [`Order`]s, and [`Report`]s in
//! return. JSON, one to a packet, each text and list of bounded length.
//!
//! A helper reads what other users' programs send and may have been tricked. [`Report::from_bytes`]
//! therefore refuses whatever an honest one cannot say; whether a connection is that helper's is
//! the daemon's to judge.

use serde::{Deserialize, Serialize};

use super::{CpuThread, MigrationStatus, QemuVersion, QueryStatus, RunState, VmEvent};

/// The longest text in a report, bytes. QEMU's longest reasons have some hundreds.
pub const LONGEST_TEXT: usize = 1000;
/// The most vCPUs in a report. The page has room for far fewer.
pub const MOST_CPUS: usize = 2048;
/// The longest report, bytes: [`MOST_CPUS`] vCPUs with numbers of ten digits, and room to spare.
pub const LONGEST_REPORT: usize = 128 << 10;
/// What the daemon wants from the helper.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Answer with [`Report::Pong`].
    Ping(u64),
    /// Speak QMP through the descriptor that comes along.
    Open {
        /// The number of the connection from now on.
        connection: u64,
        /// See [`super::Session::with_first_id`].
        first_id: u64,
        /// See [`super::Dialogue::new`].
        shared: bool,
    },
    /// Close a connection; [`Report::Closed`] follows.
    Close(u64),
    /// Have QEMU do this.
    Do(u64, Command),
}

/// What QEMU has to do. Before its greeting only [`Command::Await`] is remembered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Tell the VM's state: [`News::Status`].
    AskStatus,
    /// Tell how the latest migration stands: [`News::Migration`].
    AskMigration,
    /// Tell the threads of the vCPUs: [`News::Cpus`].
    AskCpus,
    /// Resume the VM: [`News::Resumed`].
    Resume,
    /// Stop and resume it.
    PauseForAMoment,
    /// Exclude memory shared with us from migration: [`News::Immovable`] or [`News::Movable`].
    IgnoreShared,
    /// Migrate to this address. Events report the outcome.
    Migrate(String),
    /// Wait at this address for the VM, now or when QEMU has told its state: [`News::Awaits`].
    Await(String),
    /// Cancel a migration; the VM stays.
    CancelMigration,
    /// Tell why a migration failed: [`News::NotMigrated`].
    AskWhy,
}

/// What the helper says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Report {
    /// To [`Order::Ping`] with this number.
    Pong(u64),
    /// To [`Order::Close`]: nothing follows of this connection.
    Closed(u64),
    /// Of this connection.
    News(u64, News),
}

/// What one QEMU has said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum News {
    /// It speaks QMP.
    Greeted(QemuVersion),
    /// An event that matters to the VM's clock.
    Event(VmEvent),
    /// The VM's state. After the first one QEMU reports events and takes commands.
    Status(QueryStatus),
    /// How the latest migration stands, after the state is first told and on demand; `why` it failed.
    Migration {
        /// Its status.
        status: MigrationStatus,
        /// QEMU's reason for a failure.
        why: Option<String>,
    },
    /// The threads of the vCPUs.
    Cpus(Vec<CpuThread>),
    /// QEMU has answered [`Command::Resume`].
    Resumed,
    /// It waits for a migration.
    Awaits,
    /// It has begun the migration that was asked for.
    Migrates,
    /// A migration did not start, or failed, for this reason.
    NotMigrated(String),
    /// The VM must not migrate, for this reason.
    Immovable(String),
    /// It may migrate after all.
    Movable,
    /// What is odd about an answer, for the log.
    Remark(String),
    /// The connection cannot be used any more, and is closed: nothing follows.
    Lost(String),
}

/// A packet that no honest peer sends.
#[derive(Debug, thiserror::Error)]
pub enum NotUnderstood {
    /// It is not one of the messages.
    #[error("not a message of timevisord's helper")]
    Shape(#[from] serde_json::Error),
    /// Something in it is longer than allowed.
    #[error("a message of timevisord's helper is too long")]
    TooLong,
}

impl Order {
    /// As one packet.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From one packet.
    ///
    /// # Errors
    /// [`NotUnderstood`] when it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotUnderstood> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

impl Report {
    /// As one packet, at most [`LONGEST_REPORT`] bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From one packet.
    ///
    /// # Errors
    /// [`NotUnderstood`] when it is not one, or is longer than an honest one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotUnderstood> {
        if bytes.len() > LONGEST_REPORT {
            return Err(NotUnderstood::TooLong);
        }
        let report = serde_json::from_slice(bytes)?;
        match &report {
            Self::News(_, news) if !news.is_bounded() => Err(NotUnderstood::TooLong),
            _ => Ok(report),
        }
    }
}

impl News {
    /// The same with texts and lists cut to their limits, and without control characters, which
    /// would reach the log.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        if let Some(text) = self.text_mut() {
            *text = shortened(text);
        }
        if let Self::Cpus(cpus) = &mut self {
            cpus.truncate(MOST_CPUS);
        }
        self
    }

    fn is_bounded(&self) -> bool {
        self.text()
            .is_none_or(|text| text.len() <= LONGEST_TEXT && !text.chars().any(char::is_control))
            && !matches!(self, Self::Cpus(cpus) if cpus.len() > MOST_CPUS)
            && !matches!(self, Self::Migration { status: MigrationStatus::Other(_), why: Some(_) })
    }

    fn text_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::NotMigrated(text)
            | Self::Immovable(text)
            | Self::Remark(text)
            | Self::Lost(text)
            | Self::Migration { why: Some(text), .. }
            | Self::Migration { status: MigrationStatus::Other(text), why: None }
            | Self::Status(QueryStatus { state: RunState::Other(text), .. })
            | Self::Event(
                VmEvent::Migration(MigrationStatus::Other(text))
                | VmEvent::Other(text)
                | VmEvent::PortChange { id: text, .. }
                | VmEvent::Shutdown { reason: Some(text), .. },
            ) => Some(text),
            _ => None,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::NotMigrated(text)
            | Self::Immovable(text)
            | Self::Remark(text)
            | Self::Lost(text)
            | Self::Migration { why: Some(text), .. }
            | Self::Migration { status: MigrationStatus::Other(text), why: None }
            | Self::Status(QueryStatus { state: RunState::Other(text), .. })
            | Self::Event(
                VmEvent::Migration(MigrationStatus::Other(text))
                | VmEvent::Other(text)
                | VmEvent::PortChange { id: text, .. }
                | VmEvent::Shutdown { reason: Some(text), .. },
            ) => Some(text),
            _ => None,
        }
    }
}

fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(LONGEST_TEXT);
    text[..end].chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(report: &Report) -> Result<Report, NotUnderstood> {
        Report::from_bytes(&report.to_bytes())
    }

    #[test]
    fn what_is_said_is_heard() {
        let commands = [
            Command::AskStatus,
            Command::PauseForAMoment,
            Command::Migrate("tcp:a:1".to_owned()),
            Command::Await("tcp:0:1".to_owned()),
        ];
        let orders = commands.into_iter().map(|command| Order::Do(7, command));
        let open = Order::Open { connection: 7, first_id: u64::MAX, shared: true };
        for order in orders.chain([open, Order::Ping(1), Order::Close(7)]) {
            assert_eq!(Order::from_bytes(&order.to_bytes()).unwrap(), order);
        }
        let status = QueryStatus { running: true, state: RunState::Other("dreams".to_owned()) };
        let version = QemuVersion { major: 10, minor: 0, micro: 2 };
        let leaves = VmEvent::Migration(MigrationStatus::Active);
        let ends = VmEvent::Shutdown { guest: true, reason: None };
        for news in [
            News::Greeted(version),
            News::Event(VmEvent::Stop),
            News::Event(leaves),
            News::Event(ends),
            News::Status(status),
            News::Cpus(vec![CpuThread { cpu_index: 0, thread_id: 7 }]),
            News::Awaits,
            News::Migration { status: MigrationStatus::Failed, why: Some("no route".to_owned()) },
            News::Migration { status: MigrationStatus::None, why: None },
            News::Lost("gone".to_owned()),
        ] {
            let report = Report::News(7, news);
            assert_eq!(heard(&report).unwrap(), report);
        }
        for report in [Report::Pong(3), Report::Closed(7)] {
            assert_eq!(heard(&report).unwrap(), report);
        }
        assert!(matches!(Report::from_bytes(b"{\"Pong\":-1}"), Err(NotUnderstood::Shape(_))));
    }

    #[test]
    fn the_longest_report_is_within_its_limit() {
        let all = vec![CpuThread { cpu_index: u32::MAX, thread_id: u32::MAX }; MOST_CPUS + 1];
        let report = Report::News(u64::MAX, News::Cpus(all.clone()).bounded());
        assert!(report.to_bytes().len() <= LONGEST_REPORT, "{}", report.to_bytes().len());
        assert_eq!(heard(&report).unwrap(), report);
        assert!(heard(&Report::News(1, News::Cpus(all))).is_err());
    }

    #[test]
    fn a_long_text_is_cut_and_refused_uncut() {
        let long = "\u{1b}ä".repeat(LONGEST_TEXT);
        let cases: [fn(String) -> News; 4] = [
            News::Remark,
            News::Lost,
            |text| News::Event(VmEvent::Shutdown { guest: false, reason: Some(text) }),
            |text| News::Status(QueryStatus { running: false, state: RunState::Other(text) }),
        ];
        for case in cases {
            let report = Report::News(1, case(long.clone()));
            assert!(matches!(heard(&report), Err(NotUnderstood::TooLong)));
            let cut = Report::News(1, case(long.clone()).bounded());
            assert_eq!(heard(&cut).unwrap(), cut);
        }
    }
}
