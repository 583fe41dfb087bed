//! Introspection of VMs: sessions that users start over the control socket. crates/introspection
//! makes the decisions; this folder does the input and output.
//!
//! | file | owns |
//! | --- | --- |
//! | `session.rs` | one VM: a thread that finds its kernel, attaches, and keeps the events |
//! | `shared.rs` | the state that this thread shares with the main thread |
//! | `watch.rs` | one attachment: a backend, and the loop that drives it over a link |
//! | `need.rs` | the reservation that the guest's tasks need |
//! | `probe.rs` | finds the kernel that runs in a VM |
//! | `known.rs` | kernels found by earlier attachments |
//! | `link.rs` | the interface of a link |
//! | `socket.rs` | the link to QEMU's plugin or to its gdb stub |
//! | `kvm.rs` | the link to a guest under KVM: its code in memory, and BPF programs on this host |
//! | `in_place.rs` | the traps in guests' code, in a journal for the daemon that starts after a crash |
//! | `target.rs` | where a VM's memory is, and which backend traps its calls |

mod in_place;
mod known;
mod kvm;
mod link;
mod need;
mod probe;
mod session;
mod shared;
mod socket;
mod target;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;
use timevisor_clock_page::{Counter as _, CounterId, Reader, Reading};
use timevisor_introspection::backend::choice::NoBackend;
use timevisor_introspection::tasks::demand::Declared;
use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::{
    ErrorBody, ErrorCode, IntrospectAttach, IntrospectReserve, IntrospectReserved, IntrospectTrace,
    IntrospectVm, Introspections, Response,
};
use timevisor_schedule::synthesis::Sharing;
use timevisor_time::Duration;

use self::in_place::Prefixes;
use self::need::{Need, Rules};
use self::session::Session;
use self::target::{Common, Target};
use crate::clock::HostClock;
use crate::config::IntrospectionConfig;
use crate::report::error_response;
use crate::reservations::Reservations;
use crate::vms::Vms;

/// Maximum time that a session's thread waits for a pause of its VM, or for a reservation.
const INTERVAL: Duration = Duration::from_nanos(20_000_000);
/// 1 / CONFIG_HZ of most distributions' kernels.
const TICK: u64 = 4_000_000;

pub struct Introspection {
    common: Common,
    sessions: BTreeMap<String, Session>,
    /// Threads of ended sessions, whose trap points may still be in place.
    ending: BTreeMap<String, JoinHandle<()>>,
    next: Duration,
}

impl Introspection {
    /// Starts without sessions, and removes the traps that an earlier daemon left in guests.
    pub fn start(directory: &Path, config: &IntrospectionConfig) -> Self {
        let common = Common {
            prefixes: Arc::new(Prefixes::start(directory)),
            known: Arc::default(),
            automatic: config.kvm,
        };
        Self { common, sessions: BTreeMap::new(), ending: BTreeMap::new(), next: Duration::ZERO }
    }

    /// Other defaults are configured: they count for VMs that are attached from now on.
    pub fn configure(&mut self, config: &IntrospectionConfig) {
        self.common.automatic = config.kvm;
    }

    pub fn poll_at(&self) -> Duration {
        if self.sessions.is_empty() { Duration::MAX } else { self.next }
    }

    /// Pauses VMs at their sessions' request, reserves what their tasks need, and drops the
    /// sessions of VMs that have ended.
    pub fn on_timer(
        &mut self,
        now: Duration,
        vms: &mut Vms,
        reservations: &mut Reservations,
        clock: &HostClock,
    ) {
        self.next = now + INTERVAL;
        self.sessions.retain(|vm, session| {
            let stays = session.is_alive();
            if !stays {
                tracing::info!("VM {vm} has ended, and its introspection with it");
            }
            stays
        });
        for (vm, session) in &mut self.sessions {
            session.set_resets(vms.resets(vm));
            vms.hold(vm, session.holds());
            if session.take_pause() {
                vms.pause_for_a_moment(vm);
            }
            let asked = follow(vm, session, now, vms, reservations);
            session.reserved.after_ns =
                asked.map_or(session.reserved.after_ns, |at| since(at, clock));
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
        let rules = asked.reserve.as_ref().map(rules);
        if let Some(session) = self.sessions.get(&asked.vm) {
            let same = session.rules == rules
                && session.image == asked.image
                && session.every_system_call == asked.every_system_call;
            if !same || !session.is_by(asked.backend) {
                let text = format!("VM {} is introspected already, in another way", asked.vm);
                let step = "`timevisor introspect detach VM` first";
                return error_response(ErrorCode::AlreadyExists, &text, step);
            }
        } else {
            let target = match Target::new(qemu, asked.backend, &self.common) {
                Ok(target) => target,
                Err(NoBackend { problem, next_step }) => {
                    return error_response(ErrorCode::Unsupported, &problem, next_step);
                }
            };
            let (image, every_system_call) = (asked.image.clone(), asked.every_system_call);
            let target = Target { image, every_system_call, ..target };
            let former = self.ending.remove(&asked.vm);
            let session = match Session::start(target, rules, vms.resets(&asked.vm), former) {
                Ok(session) => session,
                Err(error) => {
                    let text = format!("no thread for it: {error}");
                    return error_response(ErrorCode::Internal, &text, "try again");
                }
            };
            tracing::info!("VM {}: introspection has begun", asked.vm);
            self.sessions.insert(asked.vm.clone(), session);
        }
        self.list()
    }

    /// Answers `introspect_detach`: the session's thread removes the trap points.
    pub fn detach(
        &mut self,
        asked: &IntrospectVm,
        vms: &mut Vms,
        reservations: &mut Reservations,
    ) -> Response {
        let Some(session) = self.sessions.remove(&asked.vm) else {
            return not_introspected(&asked.vm);
        };
        if session.rules.is_some()
            && let Err(error) = reservations.follow_guest(&asked.vm, None, vms)
        {
            tracing::warn!("VM {}: its reservation stays: {}", asked.vm, error.message);
        }
        vms.hold(&asked.vm, None);
        if let Some(thread) = session.end() {
            self.ending.insert(asked.vm.clone(), thread);
        }
        tracing::info!("VM {}: introspection has ended", asked.vm);
        self.list()
    }

    /// Answers `introspect_list`.
    pub fn list(&self) -> Response {
        let vms = self.sessions.iter().map(|(vm, session)| session.row(vm)).collect();
        Response::Introspections(Introspections { vms })
    }

    /// Answers `introspect_trace`: events, each with its time.
    pub fn trace(&self, asked: &IntrospectTrace, clock: &HostClock) -> Response {
        let Some(session) = self.sessions.get(&asked.vm) else {
            return not_introspected(&asked.vm);
        };
        let mut answer = session.events(asked.from);
        // Events are time-stamped with the TSC.
        let readable = clock.counter.id() == CounterId::X86Tsc;
        let reader = Reader::open(clock.writer().page(), &clock.counter, 0).ok();
        let reader = reader.filter(|_| readable);
        for event in &mut answer.events {
            let stamp = event["counter"].as_u64();
            let error = event["counter_error"].as_u64().unwrap_or(0);
            let time = |at: u64| {
                let time = reader.as_ref().and_then(|reader| reader.convert(at).ok());
                time.filter(Reading::has_estimate)
            };
            let ns = |at: Option<u64>, of: fn(&Reading) -> i64| {
                Value::from(at.and_then(time).as_ref().map(of))
            };
            let first = stamp.map(|at| at.saturating_sub(error));
            let last = stamp.map(|at| at.saturating_add(error));
            event["earliest_ns"] = ns(first, |reading| reading.earliest.floor_nanos());
            event["estimate_ns"] = ns(stamp, |reading| reading.estimate.floor_nanos());
            event["latest_ns"] = ns(last, |reading| reading.latest.ceil_nanos());
        }
        Response::IntrospectEvents(answer)
    }
}

/// Waits until no trap is left in any guest.
impl Drop for Introspection {
    fn drop(&mut self) {
        let ending = std::mem::take(&mut self.ending).into_values();
        let all = std::mem::take(&mut self.sessions).into_values().filter_map(Session::end);
        for thread in ending.chain(all.collect::<Vec<_>>()) {
            // A thread that panicked has already removed its traps while unwinding.
            let _ = thread.join();
        }
    }
}

fn rules(asked: &IntrospectReserve) -> Rules {
    let sharing = if asked.alone { Sharing::Alone } else { Sharing::Shared };
    let declared = asked.tasks.iter().map(|task| Declared {
        comm: task.name.clone(),
        priority: task.priority,
        cost: task.cost_ns,
        period: task.period_ns,
    });
    Rules { declared: declared.collect(), period: asked.period_ns, sharing, tick: TICK }
}

/// How long ago the counter had this value; `None` if event time stamps use a different counter.
fn since(asked: u64, clock: &HostClock) -> Option<u64> {
    let readable = clock.counter.id() == CounterId::X86Tsc;
    let ticks = readable.then(|| clock.counter.read_ordered().checked_sub(asked))??;
    u64::try_from(clock.calibration.period.span(ticks).floor_nanos()).ok()
}

/// Reserves what the tasks of a guest need, if that has changed or a refused need is due again. A
/// refusal leaves the previous reservation in place. Returns the host's counter at the guest's
/// request, if that request has been met now.
fn follow(
    vm: &str,
    session: &mut Session,
    now: Duration,
    vms: &Vms,
    reservations: &mut Reservations,
) -> Option<u64> {
    let alone = session.rules.as_ref()?.sharing == Sharing::Alone;
    let (need, asked) = session.follow.next(session.take_need(), now)?;
    let wanted = match &need {
        Need::Nothing => None,
        Need::Reservation(wanted) => Some(wanted),
        Need::TooMuch(why) => {
            if session.told.take(monotonic()) {
                tracing::warn!("VM {vm}: not reserved: {why}");
            }
            session.reserved.refused = Some(why.clone());
            return None;
        }
    };
    match reservations.follow_guest(vm, wanted.map(|wanted| (wanted, alone)), vms) {
        Ok(()) => {
            let (budget_ns, period_ns) = wanted.map_or((0, 0), |of| (of.budget(), of.period()));
            session.reserved =
                IntrospectReserved { budget_ns, period_ns, after_ns: None, refused: None };
            asked
        }
        Err(ErrorBody { code, message: text, .. }) => {
            if session.reserved.refused.as_ref() != Some(&text) && session.told.take(monotonic()) {
                tracing::warn!("VM {vm}: not reserved: {text}");
            }
            session.reserved.refused = Some(text);
            session.follow.on_refusal(need, code == ErrorCode::MakingRoom, now);
            None
        }
    }
}

fn not_introspected(vm: &str) -> Response {
    let text = format!("VM {vm} is not introspected");
    error_response(ErrorCode::NotFound, &text, "`timevisor introspect attach VM` does it")
}
