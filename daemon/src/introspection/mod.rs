//! What VMs' real-time tasks do: sessions of crates/guests' introspection, asked for over the control socket.
//!
//! | file | owns |
//! | --- | --- |
//! | `session.rs` | one VM: a thread that finds its kernel, attaches, and keeps what comes |
//! | `watch.rs` | one connection to QEMU's plugin |
//! | `target.rs` | where a VM's memory and plugin are |

mod session;
mod target;
mod watch;

use std::collections::BTreeMap;

use serde_json::Value;
use timevisor_clock_page::{Counter as _, CounterId, Reader, Reading};
use timevisor_guests::introspection::demand::{Need, Rules};
use timevisor_protocols::control::{
    ErrorCode, IntrospectAttach, IntrospectReserve, IntrospectReserved, IntrospectTrace,
    IntrospectVm, Introspections, Response,
};
use timevisor_schedule::synthesis::Sharing;
use timevisor_time::Duration;

use self::session::Session;
use self::target::Target;
use crate::clock::HostClock;
use crate::report::error_response;
use crate::reservations::Reservations;
use crate::vms::Vms;

/// A VM that has to be paused for a moment waits for it at most so long, and what a guest's tasks need.
const INTERVAL: Duration = Duration::from_nanos(20_000_000);
/// What was refused is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);
/// 1 / CONFIG_HZ of most distributions' kernels.
const TICK: u64 = 4_000_000;

#[derive(Default)]
pub struct Introspection {
    sessions: BTreeMap<String, Session>,
    next: Duration,
}

impl Introspection {
    pub fn poll_at(&self) -> Duration {
        if self.sessions.is_empty() { Duration::MAX } else { self.next }
    }

    /// Pauses VMs that have to be, reserves what their tasks need, and forgets those that have ended.
    pub fn on_timer(&mut self, now: Duration, vms: &mut Vms, reservations: &mut Reservations) {
        self.next = now + INTERVAL;
        self.sessions.retain(|vm, session| {
            let stays = session.is_alive();
            if !stays {
                tracing::info!("VM {vm} has ended, and its introspection");
            }
            stays
        });
        for (vm, session) in &mut self.sessions {
            if session.take_pause() {
                vms.pause_for_a_moment(vm);
            }
            follow(vm, session, now, vms, reservations);
        }
    }

    /// Answers `introspect_attach`.
    pub fn attach(&mut self, asked: &IntrospectAttach, vms: &Vms) -> Response {
        let Some(qemu) = vms.qemu(&asked.vm) else {
            let text = format!("there is no VM {}", asked.vm);
            return error_response(ErrorCode::NotFound, &text, "see `timevisor vm list`");
        };
        if asked.image.as_ref().is_some_and(|path| !path.is_absolute()) {
            let text = "the image's path is not absolute";
            return error_response(ErrorCode::BadRequest, text, "give the path from / on");
        }
        let rules = asked.reserve.map(rules);
        if let Some(session) = self.sessions.get(&asked.vm) {
            if session.rules != rules || session.image != asked.image {
                let text = format!("VM {} is introspected already, in another way", asked.vm);
                let step = "`timevisor introspect detach VM` first";
                return error_response(ErrorCode::AlreadyExists, &text, step);
            }
        } else {
            let target = match Target::of(qemu) {
                Ok(target) => target,
                Err((text, next_step)) => {
                    return error_response(ErrorCode::Unsupported, &text, next_step);
                }
            };
            let session = match Session::start(target, asked.image.clone(), rules) {
                Ok(session) => session,
                Err(error) => {
                    let text = format!("no thread for it: {error}");
                    return error_response(ErrorCode::Internal, &text, "try again");
                }
            };
            tracing::info!("VM {}: is introspected", asked.vm);
            self.sessions.insert(asked.vm.clone(), session);
        }
        self.list()
    }

    /// Answers `introspect_detach`: the plugin takes the points away when its connection ends.
    pub fn detach(
        &mut self,
        asked: &IntrospectVm,
        vms: &Vms,
        reservations: &mut Reservations,
    ) -> Response {
        let Some(session) = self.sessions.remove(&asked.vm) else {
            return not_introspected(&asked.vm);
        };
        if session.rules.is_some()
            && let Err((_, text, _)) = reservations.follow_guest(&asked.vm, None, false, vms)
        {
            tracing::warn!("VM {}: its reservation stays: {text}", asked.vm);
        }
        tracing::info!("VM {}: is not introspected any more", asked.vm);
        self.list()
    }

    /// Answers `introspect_list`.
    pub fn list(&self) -> Response {
        let vms = self.sessions.iter().map(|(vm, session)| session.row(vm)).collect();
        Response::Introspections(Introspections { vms })
    }

    /// Answers `introspect_trace`; each event with its time.
    pub fn trace(&self, asked: &IntrospectTrace, clock: &HostClock) -> Response {
        let Some(session) = self.sessions.get(&asked.vm) else {
            return not_introspected(&asked.vm);
        };
        let mut answer = session.events(asked.from);
        // The plugin reads the TSC.
        let readable = clock.counter.id() == CounterId::X86Tsc;
        let reader = Reader::open(clock.writer().page(), &clock.counter, 0).ok();
        let reader = reader.filter(|_| readable);
        for event in &mut answer.events {
            let stamp = event["counter"].as_u64();
            let time = reader.as_ref().zip(stamp).and_then(|(reader, at)| reader.convert(at).ok());
            let time = time.filter(Reading::has_estimate);
            let ns = |of: fn(&Reading) -> i64| Value::from(time.as_ref().map(of));
            event["earliest_ns"] = ns(|reading| reading.earliest.floor_nanos());
            event["estimate_ns"] = ns(|reading| reading.estimate.floor_nanos());
            event["latest_ns"] = ns(|reading| reading.latest.ceil_nanos());
        }
        Response::IntrospectEvents(answer)
    }
}

fn rules(asked: IntrospectReserve) -> Rules {
    let sharing = if asked.alone { Sharing::Alone } else { Sharing::Shared };
    Rules { period: asked.period_ns, sharing, tick: TICK }
}

/// Reserves what the tasks of a guest need now, if that has changed, or was refused a while ago. What is refused leaves what there was.
fn follow(
    vm: &str,
    session: &mut Session,
    now: Duration,
    vms: &Vms,
    reservations: &mut Reservations,
) {
    let Some(rules) = session.rules else { return };
    let new = session.take_need();
    let again = || session.refused.take_if(|(_, at)| now >= *at).map(|(need, _)| need);
    let Some(need) = new.or_else(again) else { return };
    session.refused = None;
    let alone = rules.sharing == Sharing::Alone;
    let wanted = match &need {
        Need::Nothing => None,
        Need::Reservation(wanted) => Some(wanted),
        Need::TooMuch(why) => {
            tracing::warn!("VM {vm}: not reserved: {why}");
            session.reserved.refused = Some(why.clone());
            return;
        }
    };
    match reservations.follow_guest(vm, wanted, alone, vms) {
        Ok(()) => {
            let (budget_ns, period_ns) = wanted.map_or((0, 0), |of| (of.budget(), of.period()));
            session.reserved = IntrospectReserved { budget_ns, period_ns, refused: None };
        }
        Err((code, text, _)) => {
            if session.reserved.refused.as_ref() != Some(&text) {
                tracing::warn!("VM {vm}: not reserved: {text}");
            }
            session.reserved.refused = Some(text);
            // Others are giving up what is needed, or have to do so by themselves.
            let soon = code == ErrorCode::MakingRoom;
            session.refused = Some((need, now + if soon { INTERVAL } else { AGAIN }));
        }
    }
}

fn not_introspected(vm: &str) -> Response {
    let text = format!("VM {vm} is not introspected");
    error_response(ErrorCode::NotFound, &text, "`timevisor introspect attach VM` does it")
}
