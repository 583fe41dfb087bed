//! One VM that is introspected, as the daemon knows it from the introspector's reports: the rows and
//! events that users see, and what its tasks need.

use serde_json::Value;
use timevisor_guests::qemu::Qemu;
use timevisor_introspection::backend::choice::Choice;
use timevisor_introspection::tasks::follow::{Attempt, Follow};
use timevisor_introspection::tasks::history::History;
use timevisor_introspection::tasks::late::Late;
use timevisor_protocols::control::{
    IntrospectAttach, IntrospectEvents, IntrospectReserved, IntrospectRow, IntrospectState,
};
use timevisor_reservation::Followed;
use timevisor_schedule::synthesis::Sharing;
use timevisor_time::Duration;

use super::message::{News, State};
use super::need::Need;
use super::shared::MOST_LATE;
use crate::announce::Budget;
use crate::reservations::Reservations;

/// Log lines an hour that a guest may cause.
const LINES: usize = 20;
/// A vCPU is looked at every 160 ms or more often; so long after a job that has surely been done, ns.
const SAMPLED_WITHIN: i64 = 200_000_000;
/// As many tasks as the introspector knows of a guest.
const MOST_TASKS: usize = 2 * timevisor_introspection::tasks::table::MOST;

pub struct Session {
    /// Its number at the introspector.
    pub number: u64,
    pub qemu: Qemu,
    pub asked: IntrospectAttach,
    choice: Choice,
    state: State,
    tasks: Vec<Value>,
    history: History<Value>,
    need: Option<Attempt<Need>>,
    pause: bool,
    /// The reservation that was made, or why it was refused.
    pub reserved: IntrospectReserved,
    /// Number of resets of the VM so far.
    resets: u64,
    pub follow: Follow<Need>,
    /// It was told to end; its trap points may still be in place.
    pub ending: bool,
    /// How many lines the guest's tasks may still cause.
    pub told: Budget,
    /// Late jobs whose cause is not known yet.
    late: Vec<Late>,
}

impl Session {
    pub fn new(
        number: u64,
        qemu: Qemu,
        asked: IntrospectAttach,
        choice: Choice,
        resets: u64,
    ) -> Self {
        Self {
            number,
            qemu,
            asked,
            choice,
            state: State::default(),
            tasks: Vec::new(),
            history: History::default(),
            need: None,
            pause: false,
            reserved: IntrospectReserved::default(),
            resets,
            follow: Follow::default(),
            ending: false,
            told: Budget::hourly(LINES),
            late: Vec::new(),
        }
    }

    /// Takes in a report.
    pub fn hear(&mut self, news: News) {
        match news {
            News::State(state) => self.state = state.bounded(),
            News::Tasks { first, tasks } => {
                if first {
                    self.tasks.clear();
                }
                let room = MOST_TASKS.saturating_sub(self.tasks.len());
                self.tasks.extend(tasks.into_iter().take(room));
            }
            News::Late(late) => {
                let room = MOST_LATE.saturating_sub(self.late.len());
                self.late.extend(late.into_iter().take(room));
            }
            News::Need { need, asked } => self.need = Some((need.into(), asked)),
            News::Pause => self.pause = true,
            // Of the introspection, and not of a session.
            News::Ended | News::Stuck(_) => {}
            News::Events { forgotten, events } => {
                self.history.skip(forgotten);
                events.into_iter().for_each(|event| self.history.push(event));
            }
        }
    }

    /// The introspector has ended, and with it every trap point; another one attaches again.
    pub fn lost(&mut self, why: &str) {
        self.state = State { problem: Some(why.to_owned()), ..State::default() };
        self.tasks.clear();
        self.pause = false;
    }

    pub fn is_alive(&self) -> bool {
        self.qemu.process.is_running_patiently()
    }

    /// Whether a short pause of the VM is wanted. Each request is returned once.
    pub fn take_pause(&mut self) -> bool {
        std::mem::take(&mut self.pause)
    }

    /// What its tasks need, if that has changed. Each change is returned once.
    pub fn take_need(&mut self) -> Option<Attempt<Need>> {
        self.need.take()
    }

    /// Whether `asked` is for what this session does; without a backend, any matches.
    pub fn is_as(&self, asked: &IntrospectAttach) -> bool {
        let backend = asked.backend.is_none_or(|backend| backend == self.choice.backend());
        let same = IntrospectAttach { backend: self.asked.backend, ..asked.clone() };
        backend && same == self.asked
    }

    /// Whether a reservation follows the tasks, and whether that may share its core.
    pub fn sharing(&self) -> Option<Sharing> {
        let reserve = self.asked.reserve.as_ref()?;
        Some(if reserve.alone { Sharing::Alone } else { Sharing::Shared })
    }

    /// On which vCPUs the user says that the tasks run.
    pub fn followed(&self) -> Followed {
        let reserve = self.asked.reserve.as_ref();
        match reserve.map(|reserve| (reserve.vcpu, reserve.vcpus)) {
            Some((_, Some(vcpus))) if vcpus > 1 => Followed::AnyOf(vcpus.into()),
            Some((Some(vcpu), _)) => Followed::One(vcpu),
            _ => Followed::Only,
        }
    }

    /// Why the VM must not migrate, if so.
    pub fn holds(&self) -> Option<&'static str> {
        self.choice.holds()
    }

    /// Updates the number of the VM's resets; true if there was one.
    pub fn set_resets(&mut self, resets: u64) -> bool {
        std::mem::replace(&mut self.resets, resets) != resets
    }

    pub fn row(&self, vm: &str) -> IntrospectRow {
        let (backend, reason) = self.choice.name();
        IntrospectRow {
            vm: vm.to_owned(),
            backend: backend.to_owned(),
            reason: reason.to_owned(),
            state: match self.state.attached {
                _ if self.ending => IntrospectState::Detaching,
                Some(_) => IntrospectState::Attached,
                None => IntrospectState::Waiting,
            },
            problem: self.state.problem.clone(),
            guest: self.state.guest.clone(),
            points: self.state.attached.unwrap_or(0),
            events: self.history.count(),
            dropped: self.state.dropped,
            losses_not_counted: self.state.uncounted,
            senseless: self.state.senseless,
            senseless_last: self.state.senseless_last.clone(),
            reserved: self.asked.reserve.as_ref().map(|_| self.reserved.clone()),
            tasks: self.tasks.clone(),
        }
    }

    /// Asks the host's samples why jobs were late, once there are samples from after them.
    pub fn explain_late(&mut self, vm: &str, now: Duration, reservations: &mut Reservations) {
        let known = now.floor_nanos().saturating_sub(SAMPLED_WITHIN);
        let due: Vec<Late> = self.late.extract_if(.., |late| late.ended < known).collect();
        for late in due {
            let text = reservations.late_job(vm, &late);
            if self.told.take(now) {
                tracing::warn!("VM {vm}: {text}");
            }
        }
    }

    /// The events from number `from` on.
    pub fn events(&self, from: Option<u64>) -> IntrospectEvents {
        let part = self.history.part(from);
        let events = part.events.into_iter().cloned().collect();
        IntrospectEvents { events, next: part.next, forgotten: part.forgotten }
    }
}
