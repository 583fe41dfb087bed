//! Introspection of VMs: sessions that users start over the control socket. crates/introspection
//! makes the decisions; this folder does the input and output, in two processes.
//!
//! | file | owns |
//! | --- | --- |
//! | **the daemon** | |
//! | `session.rs` | one VM, as the introspector reports it |
//! | `process.rs` | starts the introspector, and again when it has ended |
//! | `message.rs` | what the two say to each other |
//! | `need.rs` | the reservation that the guest's tasks need |
//! | **the introspector** | |
//! | `introspector.rs` | its life: a thread for each VM that finds its kernel, attaches, and keeps the events |
//! | `shared.rs` | the state that such a thread shares with the main thread |
//! | `watch.rs` | one attachment: a backend, and the loop that drives it over a link |
//! | `probe.rs` | finds the kernel that runs in a VM |
//! | `searching.rs` | how often a guest's memory may be searched |
//! | `known.rs` | kernels found by earlier attachments |
//! | `link.rs` | the interface of a link |
//! | `socket.rs` | the link to QEMU's plugin or to its gdb stub |
//! | `kvm.rs` | the link to a guest under KVM: its code in memory, and BPF programs on this host |
//! | `in_place.rs` | the traps in guests' code, in a journal for the introspector that starts after a crash |
//! | `stamps.rs` | when an event happened, by CLOCK_MONOTONIC |
//! | `target.rs` | where a VM's memory is, and which backend traps its calls |

mod in_place;
mod introspector;
mod known;
mod kvm;
mod link;
mod message;
mod need;
mod probe;
mod process;
mod searching;
mod session;
mod shared;
mod socket;
mod stamps;
mod target;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use serde_json::Value;
use timevisor_clock_page::{Counter as _, CounterId, Reader, Reading};
use timevisor_introspection::backend::choice::NoBackend;
use timevisor_introspection::backend::kvm::patch_journal;
use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::{
    ErrorBody, ErrorCode, IntrospectAttach, IntrospectPlugins, IntrospectReserved, IntrospectRow,
    IntrospectState, IntrospectTrace, IntrospectVm, Introspections, Response,
};
use timevisor_schedule::synthesis::Sharing;
use timevisor_time::Duration;

pub use self::introspector::be_introspector;
use self::message::{News, Order, Report, bounded};
use self::need::Need;
use self::process::{Heard, Introspector};
use self::session::Session;
use self::target::Target;
use crate::clock::HostClock;
use crate::config::{IntrospectionConfig, KvmChoice};
use crate::report::error_response;
use crate::reservations::Reservations;
use crate::vms::Vms;

/// Why a VM must not migrate.
const STUCK: &str = "trap points of an earlier session cannot be removed from its code";
/// Why nothing is reserved for tasks that need it.
const RELEASED: &str = "a user has released it; it is made again when the tasks' needs change, or after another attach";
const GONE: &str = "it has gone; timevisord tries to make it again";
/// How often sessions are looked after without a report.
const INTERVAL: Duration = Duration::from_nanos(20_000_000);

pub struct Introspection {
    introspector: Introspector,
    /// How guests under KVM are trapped when the user names no backend.
    automatic: KvmChoice,
    /// The directory with files that describe guest systems.
    plugins: PathBuf,
    sessions: BTreeMap<String, Session>,
    /// The processes whose trap points cannot be removed, and why.
    stuck: BTreeMap<u32, String>,
    /// The VMs without a session that must not migrate because of that.
    held: BTreeSet<String>,
    /// The number of the next session.
    number: u64,
    next: Duration,
}

impl Introspection {
    /// Starts without sessions. Traps that an earlier daemon left in guests are removed by an
    /// introspector that is started for it.
    pub fn start(directory: &Path, config: &IntrospectionConfig) -> Self {
        let mut introspector = Introspector::new(directory.to_owned());
        let journal = patch_journal::file(directory);
        if journal.exists()
            && let Err(error) = introspector.start()
        {
            tracing::error!("no introspector to remove trap points of an earlier daemon: {error}");
        }
        // Until the introspector says what is left of them.
        let left = journal.read().unwrap_or_default().vms.into_iter();
        let stuck = left.map(|of| (of.pid, "they are being removed".to_owned())).collect();
        Self {
            introspector,
            automatic: config.kvm,
            plugins: config.plugins.clone(),
            sessions: BTreeMap::new(),
            stuck,
            held: BTreeSet::new(),
            number: 0,
            next: Duration::ZERO,
        }
    }

    /// Other defaults are configured: they count for VMs that are attached from now on.
    pub fn configure(&mut self, config: &IntrospectionConfig) {
        self.automatic = config.kvm;
        self.plugins.clone_from(&config.plugins);
    }

    pub fn poll_at(&self) -> Duration {
        let is_idle = self.sessions.is_empty() && self.stuck.is_empty();
        if is_idle { Duration::MAX } else { self.next }
    }

    /// Becomes readable when the introspector has something to report.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.introspector.fd()
    }

    /// Takes what the introspector has reported; then as [`Self::on_timer`].
    pub fn on_ready(
        &mut self,
        now: Duration,
        vms: &mut Vms,
        reservations: &mut Reservations,
        clock: &HostClock,
    ) {
        match self.introspector.receive(now) {
            Heard::Reports(reports) => {
                for report in reports {
                    self.hear(report, vms);
                }
            }
            Heard::Lost => {
                let text = "the introspector has ended; it is started again";
                tracing::error!("{text}");
                self.sessions.values_mut().for_each(|session| session.lost(text));
            }
        }
        self.on_timer(now, vms, reservations, clock);
    }

    fn hear(&mut self, report: Report, vms: &mut Vms) {
        match report.news {
            News::Stuck(stuck) => self.stuck = bounded(stuck).into_iter().collect(),
            News::Ended => {
                let is_it = |s: &Session| s.ending && s.number == report.number;
                let ended: Vec<_> = self.sessions.extract_if(.., |_, s| is_it(s)).collect();
                for (vm, _) in ended {
                    vms.hold(&vm, None);
                    tracing::info!("VM {vm}: introspection has ended");
                }
            }
            news => {
                // Others are of a session whose VM has ended.
                let of = self.sessions.values_mut().find(|s| s.number == report.number);
                if let Some(session) = of {
                    session.hear(news);
                }
            }
        }
    }

    /// A VM whose trap points could not be removed must not migrate: its code would go along.
    fn hold_stuck(&mut self, vms: &mut Vms) {
        let stuck = |vm: &str| {
            let pid = vms.process(vm).map(|process| process.pid());
            pid.is_some_and(|pid| self.stuck.contains_key(&pid)) && !self.sessions.contains_key(vm)
        };
        let held: BTreeSet<_> = vms.names().filter(|vm| stuck(vm)).map(str::to_owned).collect();
        for vm in self.held.difference(&held).filter(|vm| !self.sessions.contains_key(*vm)) {
            vms.hold(vm, None);
        }
        for vm in &held {
            vms.hold(vm, Some(STUCK));
        }
        self.held = held;
    }

    /// Pauses VMs at their sessions' request, reserves what their tasks need, drops the sessions of
    /// VMs that have ended, and starts an introspector that has ended.
    pub fn on_timer(
        &mut self,
        now: Duration,
        vms: &mut Vms,
        reservations: &mut Reservations,
        clock: &HostClock,
    ) {
        self.next = now + INTERVAL;
        self.hold_stuck(vms);
        let introspector = &mut self.introspector;
        introspector.flush();
        self.sessions.retain(|vm, session| {
            let stays = session.is_alive();
            if !stays {
                tracing::info!("VM {vm} has ended, and its introspection with it");
                reservations.forget_guest(vm);
                introspector.tell(&Order::Detach { number: session.number });
            }
            stays
        });
        let has_work = !(self.sessions.is_empty() && self.stuck.is_empty());
        let down = has_work && !self.introspector.is_running();
        if down && now >= self.introspector.not_before() {
            self.begin_again();
        }
        for (vm, session) in &mut self.sessions {
            vms.hold(vm, session.holds());
            if session.ending {
                continue;
            }
            if session.set_resets(vms.resets(vm)) {
                self.introspector.tell(&Order::Reset { number: session.number });
            }
            if session.take_pause() {
                vms.pause_for_a_moment(vm);
            }
            session.explain_late(vm, now, reservations);
            let asked = follow(vm, session, now, vms, reservations);
            session.reserved.after_ns =
                asked.map_or(session.reserved.after_ns, |at| since(at, clock));
        }
    }

    /// Starts another introspector, which attaches to everything again.
    fn begin_again(&mut self) {
        if let Err(error) = self.introspector.start() {
            tracing::error!("no introspector: {error}");
            return;
        }
        for session in self.sessions.values() {
            let order = if session.ending {
                Order::Detach { number: session.number }
            } else {
                attach_order(session, self.automatic, &self.plugins)
            };
            self.introspector.tell(&order);
        }
    }

    /// Answers `introspect_attach`.
    pub fn attach(&mut self, asked: &IntrospectAttach, vms: &mut Vms) -> Response {
        let Some(qemu) = vms.qemu(&asked.vm) else {
            let text = format!("there is no VM {}", asked.vm);
            return error_response(ErrorCode::NotFound, &text, "see `timevisor vm list`");
        };
        if asked.image.as_ref().is_some_and(|path| !path.is_absolute()) {
            let text = "the image's path is not absolute";
            return error_response(ErrorCode::BadRequest, text, "give the path from / on");
        }
        let stuck = self.stuck.get(&qemu.process.pid());
        if let Some(session) = self.sessions.get(&asked.vm) {
            if session.ending {
                let text = format!("VM {} is being detached", asked.vm);
                return error_response(
                    ErrorCode::AlreadyExists,
                    &text,
                    "attach it again after that",
                );
            }
            if !session.is_as(asked) {
                let text = format!("VM {} is introspected already, in another way", asked.vm);
                let step = "`timevisor introspect detach VM` first";
                return error_response(ErrorCode::AlreadyExists, &text, step);
            }
        } else if let Some(why) = stuck {
            let text = format!("VM {}: {STUCK}: {why}", asked.vm);
            let step = "timevisord tries again; see `timevisor introspect list`";
            return error_response(ErrorCode::Unavailable, &text, step);
        } else {
            let target = match Target::new(qemu, asked.backend, self.automatic) {
                Ok(target) => target,
                Err(NoBackend { problem, next_step }) => {
                    return error_response(ErrorCode::Unsupported, &problem, next_step);
                }
            };
            if target.choice.holds().is_some() && vms.migrates(&asked.vm) {
                let text = format!("VM {} is on its way to another host", asked.vm);
                let step = "attach it there, or here once the migration is over";
                return error_response(ErrorCode::Unavailable, &text, step);
            }
            if let Err(error) = self.introspector.start() {
                let text = format!("no process for it: {error}");
                return error_response(ErrorCode::Internal, &text, "try again");
            }
            self.number += 1;
            let resets = vms.resets(&asked.vm);
            let session =
                Session::new(self.number, qemu.clone(), asked.clone(), target.choice, resets);
            // Before anything is in its code.
            vms.hold(&asked.vm, session.holds());
            self.introspector.tell(&attach_order(&session, self.automatic, &self.plugins));
            tracing::info!("VM {}: introspection has begun", asked.vm);
            self.sessions.insert(asked.vm.clone(), session);
        }
        self.list()
    }

    /// Answers `introspect_detach`: the introspector removes the trap points. Until they are out the VM
    /// is listed as `detaching`, and must not migrate.
    pub fn detach(
        &mut self,
        asked: &IntrospectVm,
        vms: &mut Vms,
        reservations: &mut Reservations,
    ) -> Response {
        let Some(session) = self.sessions.get_mut(&asked.vm) else {
            return if self.held.contains(&asked.vm) {
                self.list()
            } else {
                not_introspected(&asked.vm)
            };
        };
        if std::mem::replace(&mut session.ending, true) {
            return self.list();
        }
        if session.sharing().is_some()
            && let Err(error) = reservations.follow_guest(&asked.vm, None, session.followed(), vms)
        {
            tracing::warn!("VM {}: its reservation stays: {}", asked.vm, error.message);
        }
        self.introspector.tell(&Order::Detach { number: session.number });
        self.list()
    }

    /// Answers `introspect_list`.
    pub fn list(&self) -> Response {
        let vms = self.sessions.iter().map(|(vm, session)| {
            let stuck = self.stuck.get(&session.qemu.process.pid()).filter(|_| session.ending);
            let row = session.row(vm);
            IntrospectRow { problem: stuck.cloned().or(row.problem), ..row }
        });
        let held = self.held.iter().map(|vm| IntrospectRow {
            vm: vm.clone(),
            backend: "kvm".to_owned(),
            reason: STUCK.to_owned(),
            state: IntrospectState::Detaching,
            problem: Some("timevisord tries again, and its log says why".to_owned()),
            ..IntrospectRow::default()
        });
        let mut vms: Vec<_> = vms.chain(held).collect();
        vms.sort_by(|a, b| a.vm.cmp(&b.vm));
        Response::Introspections(Introspections { vms })
    }

    /// Answers `introspect_plugins`.
    pub fn plugins(&self) -> Response {
        Response::IntrospectPlugins(IntrospectPlugins { directory: self.plugins.clone() })
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

fn attach_order(session: &Session, automatic: KvmChoice, plugins: &Path) -> Order {
    Order::Attach {
        number: session.number,
        qemu: Box::new(session.qemu.clone()),
        asked: Box::new(session.asked.clone()),
        automatic,
        plugins: plugins.to_owned(),
    }
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
    let alone = session.sharing()? == Sharing::Alone;
    let on = session.followed();
    let (is_there, is_released) = reservations.serves(vm, on);
    if session.follow.on_look(is_there, is_released, now) {
        let why = if is_released { RELEASED } else { GONE };
        session.reserved =
            IntrospectReserved { refused: Some(why.to_owned()), ..IntrospectReserved::default() };
    }
    let new = session.take_need();
    let (need, asked) = session.follow.next(new, now)?;
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
    match reservations.follow_guest(vm, wanted.map(|wanted| (wanted, alone)), on, vms) {
        Ok(()) => {
            let (budget_ns, period_ns) = wanted.map_or((0, 0), |of| (of.budget(), of.period()));
            session.reserved =
                IntrospectReserved { budget_ns, period_ns, after_ns: None, refused: None };
            if wanted.is_some() {
                session.follow.on_success(need);
            }
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
