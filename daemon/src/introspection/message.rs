//! What the daemon and its introspector say to each other: JSON, one message a packet.
//!
//! The introspector reads guests' memory, which is why it is another process. What it reports is
//! bounded here, and believed only as what it is: what a guest's tasks seem to be.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use timevisor_guests::qemu::Qemu;
use timevisor_introspection::tasks::late::Late;
use timevisor_linux::helper::LONGEST;
use timevisor_protocols::control::{IntrospectAttach, IntrospectSenseless};
use timevisor_schedule::Reservation;

use super::need::Need;
use crate::config::KvmChoice;

/// The longest text of a problem or a name, bytes.
const TEXT: usize = 2000;
/// The longest name of a function or a read, bytes; those of files are shorter.
const NAME: usize = 200;
/// The most processes of one message, and the longest text of each, bytes.
const MOST_STUCK: usize = 1000;
const STUCK_TEXT: usize = 100;
/// Tasks or events of one message: well below [`LONGEST`], however long each is.
pub const PART_BYTES: usize = LONGEST / 2;

/// What the introspector is to do.
#[derive(Serialize, Deserialize)]
pub enum Order {
    /// The first order: where its journal is.
    Begin { directory: PathBuf },
    /// Find this VM's kernel and report its tasks. Each session has a number of its own.
    Attach {
        number: u64,
        qemu: Box<Qemu>,
        asked: Box<IntrospectAttach>,
        automatic: KvmChoice,
        /// The directory with files that describe guest systems.
        plugins: PathBuf,
    },
    /// The VM was reset.
    Reset { number: u64 },
    /// Remove the trap points and forget the session.
    Detach { number: u64 },
}

/// What a session reports.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// The session's number.
    pub number: u64,
    pub news: News,
}

#[derive(Serialize, Deserialize)]
pub enum News {
    /// How far it has come.
    State(State),
    /// A part of the guest's tasks; the first one replaces those of before.
    Tasks { first: bool, tasks: Vec<Value> },
    /// What the tasks need has changed; and the counter value when the guest asked for it.
    Need { need: NeedSaid, asked: Option<u64> },
    /// Pause the VM for a moment.
    Pause,
    /// The session was told to end and has: its trap points are out, unless its process is stuck.
    Ended,
    /// The processes whose trap points cannot be removed, and why; of no session.
    Stuck(Vec<(u32, String)>),
    /// Jobs that were late; times by CLOCK_MONOTONIC.
    Late(Vec<Late>),
    /// Events, and how many were forgotten before them.
    Events { forgotten: u64, events: Vec<Value> },
}

/// How far a session has come.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// Trap points in place.
    pub attached: Option<usize>,
    pub problem: Option<String>,
    pub guest: Option<String>,
    pub dropped: u64,
    pub senseless: u64,
    pub senseless_last: Option<IntrospectSenseless>,
    pub uncounted: bool,
}

/// A [`Need`] on its way.
#[derive(Serialize, Deserialize)]
pub enum NeedSaid {
    Nothing,
    Reservation { budget: u64, deadline: u64, period: u64 },
    TooMuch(String),
}

impl Order {
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Report {
    /// As one packet.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A list of [`News::Stuck`] with texts of a bounded length.
pub fn bounded(stuck: Vec<(u32, String)>) -> Vec<(u32, String)> {
    stuck.into_iter().take(MOST_STUCK).map(|(pid, why)| (pid, cut_to(why, STUCK_TEXT))).collect()
}

impl State {
    /// With texts of a bounded length.
    pub fn bounded(self) -> Self {
        let cut = |text: Option<String>| text.map(cut);
        let last = self.senseless_last.map(|IntrospectSenseless { point, read }| {
            let [point, read] = [point, read].map(|text| cut_to(text, NAME));
            IntrospectSenseless { point, read }
        });
        let (problem, guest) = (cut(self.problem), cut(self.guest));
        Self { problem, guest, senseless_last: last, ..self }
    }
}

impl From<Need> for NeedSaid {
    fn from(need: Need) -> Self {
        match need {
            Need::Nothing => Self::Nothing,
            Need::Reservation(of) => Self::Reservation {
                budget: of.budget(),
                deadline: of.deadline(),
                period: of.period(),
            },
            Need::TooMuch(why) => Self::TooMuch(cut(why)),
        }
    }
}

impl From<NeedSaid> for Need {
    fn from(said: NeedSaid) -> Self {
        match said {
            NeedSaid::Nothing => Self::Nothing,
            NeedSaid::Reservation { budget, deadline, period } => {
                match Reservation::new(budget, deadline, period) {
                    Ok(reservation) => Self::Reservation(reservation),
                    Err(error) => Self::TooMuch(error.to_string()),
                }
            }
            NeedSaid::TooMuch(why) => Self::TooMuch(why),
        }
    }
}

fn cut(text: String) -> String {
    cut_to(text, TEXT)
}

fn cut_to(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Values in parts, each of which fits in a message; at least one part, which may be empty.
/// A value that alone does not fit is left out.
pub fn parts(values: impl IntoIterator<Item = Value>) -> Vec<Vec<Value>> {
    let (mut parts, mut bytes) = (vec![Vec::new()], 0);
    for value in values {
        let length = value.to_string().len() + 1;
        if length > PART_BYTES {
            continue;
        }
        if bytes + length > PART_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        if let Some(part) = parts.last_mut() {
            part.push(value);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_arrives_as_it_was() {
        let reservation = Reservation::new(1_000_000, 5_000_000, 10_000_000).unwrap();
        for need in [Need::Nothing, Need::Reservation(reservation), Need::TooMuch("why".into())] {
            let news = News::Need { need: need.clone().into(), asked: Some(7) };
            let bytes = Report { number: 3, news }.to_bytes();
            let Ok(Report { number: 3, news: News::Need { need: found, asked: Some(7) } }) =
                serde_json::from_slice(&bytes)
            else {
                panic!("{}", String::from_utf8_lossy(&bytes))
            };
            assert_eq!(Need::from(found), need);
        }
        let nonsense = NeedSaid::Reservation { budget: 9, deadline: 5, period: 1 };
        assert!(matches!(Need::from(nonsense), Need::TooMuch(_)));
    }

    #[test]
    fn whatever_a_guest_has_fits_in_messages() {
        let long = Value::from("x".repeat(1000));
        let huge = Value::from("x".repeat(LONGEST));
        let found = parts(std::iter::repeat_n(long.clone(), 500).chain([huge]));
        assert_eq!(found.iter().map(Vec::len).sum::<usize>(), 500);
        for tasks in found {
            let report = Report { number: u64::MAX, news: News::Tasks { first: true, tasks } };
            assert!(report.to_bytes().len() < LONGEST);
        }
        assert_eq!(parts([]), vec![Vec::<Value>::new()]);
        let last = IntrospectSenseless { point: "p".repeat(3000), read: "r".to_owned() };
        let state = State {
            problem: Some("ä".repeat(3000)),
            senseless_last: Some(last),
            ..State::default()
        };
        let state = state.bounded();
        assert!(state.problem.is_some_and(|text| text.len() <= TEXT + 3));
        assert!(state.senseless_last.is_some_and(|last| last.point.len() <= NAME + 3));
    }
}
