//! Reservations of processor time: requests and restarts, wired to crates/guests.
//!
//! | file | owns |
//! | --- | --- |
//! | `apply.rs` | a request for one |
//! | `apart.rs` | what others do beside a core that is set apart |
//! | `configured.rs` | those of the configuration, made when their VM is there |
//! | `soft.rs` | budgets that follow what is used |
//! | `followed.rs` | those that follow what introspection learns |
//! | `rows.rs` | what is held, for those who ask |
//! | `stalled.rs` | threads that the kernel has forgotten to let run |
//! | `audit.rs` | what each got |

mod apart;
mod apply;
mod audit;
mod configured;
mod followed;
mod rows;
mod soft;
mod stalled;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use timevisor_guests::reservation::{self, EnforceError, Held, Journal, Ledger, Stall, Wanted};
use timevisor_linux::clock::monotonic;
use timevisor_linux::cpuset::{Cpusets, Level};
use timevisor_protocols::control::{
    ErrorCode, Reservations as Answer, ReserveApply, ReserveMissed, ReserveRelease, Response,
};
use timevisor_time::Duration;

use self::audit::Audit;
use self::configured::Configured;
use self::soft::Soft;
use crate::report::error_response;
use crate::vms::Vms;

/// A vCPU that has come to its core is given its budget within this.
const WAITING_INTERVAL: Duration = Duration::from_nanos(5_000_000);
/// VMs that have ended give their cores back within this; so long may a promise be broken unnoticed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

type Problem = (ErrorCode, String, &'static str);

pub struct Reservations {
    journal: Journal,
    held: Vec<Held>,
    /// The journal holds what nobody can undo: it must not be replaced.
    unreadable: Option<String>,
    ledger: Ledger,
    next_look: Duration,
    waiting: Vec<Waiting>,
    audit: Audit,
    /// By thread.
    stalls: BTreeMap<u32, Stall>,
    next_configured: Duration,
    /// Why reservations were not made after all, until the next request for the same vCPU.
    failed: Vec<(String, u32, String)>,
    configured: Vec<Configured>,
    soft: Vec<Soft>,
    /// Why a core that is set apart may share its root domain with others.
    joined: Option<String>,
}

/// A vCPU that has not run since it was given its core: the rest of its changes is still to be made.
struct Waiting {
    wanted: Wanted,
    from: usize,
}

impl Reservations {
    /// Goes on with what an earlier daemon held, and brings back the rest.
    pub fn start(directory: &Path, configured: Vec<ReserveApply>) -> Self {
        let journal = Journal::in_directory(directory);
        let (held, unreadable) = match journal.read() {
            Ok(held) => (held, None),
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                tracing::error!("{text}; nothing is reserved until that is repaired");
                (Vec::new(), Some(text))
            }
        };
        let mut all = Self {
            journal,
            held,
            unreadable,
            ledger: Ledger::default(),
            next_look: Duration::ZERO,
            waiting: Vec::new(),
            audit: Audit::default(),
            stalls: BTreeMap::new(),
            next_configured: Duration::ZERO,
            failed: Vec::new(),
            configured: configured.into_iter().map(Configured::new).collect(),
            soft: Vec::new(),
            joined: None,
        };
        let broken: Vec<usize> = (0..all.held.len())
            .filter(|n| {
                let held = &all.held[*n];
                held.followed || !held.is_alive() || reservation::check(&held.changes).is_err()
            })
            .collect();
        for index in broken.into_iter().rev() {
            let name = name_of(&all.held[index]);
            tracing::warn!(
                "{name}: its reservation is not in force any more, or nobody follows its guest: given back"
            );
            for problem in all.give_back(index) {
                tracing::warn!("{name}: {problem}");
            }
        }
        for index in 0..all.held.len() {
            tracing::info!("{}: its reservation is held on", name_of(&all.held[index]));
            all.follow(index);
        }
        all
    }

    pub fn poll_at(&self) -> Duration {
        let idle = self.held.is_empty() && self.configured.is_empty();
        let next = if self.held.is_empty() {
            self.next_look
        } else {
            self.next_look.min(self.audit.poll_at())
        };
        if idle { Duration::MAX } else { next }
    }

    /// Gives back what VMs that have ended had, and makes what is configured for those that have come.
    pub fn on_timer(&mut self, now: Duration, vms: &Vms) {
        let waiting = &self.waiting;
        let waits = |held: &&Held| !waiting.iter().any(|w| w.wanted.tid == held.tid);
        self.audit.look(self.held.iter().filter(waits), now);
        if now < self.next_look {
            return;
        }
        let look_at_others = now >= self.next_configured;
        if look_at_others {
            self.keep_apart();
        }
        self.make_the_rest();
        self.follow_soft();
        if look_at_others {
            self.next_configured = now + LOOK_INTERVAL;
            self.make_configured(vms);
            self.look_for_stalls();
        }
        let interval = if self.waiting.is_empty() { LOOK_INTERVAL } else { WAITING_INTERVAL };
        self.next_look = (now + interval).min(self.next_soft());
        while let Some(index) = self.held.iter().position(|held| !held.is_alive()) {
            let name = name_of(&self.held[index]);
            tracing::info!("{name} has ended: its reservation is given back");
            for problem in self.give_back(index) {
                tracing::warn!("{name}: {problem}");
            }
        }
    }

    fn make_the_rest(&mut self) {
        for Waiting { wanted, from } in std::mem::take(&mut self.waiting) {
            let Some(index) = self.held.iter().position(|held| held.tid == wanted.tid) else {
                continue;
            };
            match reservation::make(&wanted, &self.held[index].changes, None, from) {
                Ok(None) => tracing::info!("{}: has its budget", name_of(&self.held[index])),
                Ok(Some(from)) => self.waiting.push(Waiting { wanted, from }),
                // A VM has come meanwhile, whose cpusets joined its core to all others.
                Err(_) if self.keep_apart() => self.waiting.push(Waiting { wanted, from }),
                Err(error) => {
                    tracing::warn!("{}: not reserved: {error}", name_of(&self.held[index]));
                    self.give_up(index, &error);
                }
            }
        }
    }

    /// It cannot be kept; `reserve list` says why.
    fn give_up(&mut self, index: usize, error: &EnforceError) {
        let (vm, vcpu) = (self.held[index].vm.clone(), self.held[index].vcpu);
        let mut told = vec![error.to_string()];
        // Others may have come to the core meanwhile: what they need stays.
        told.extend(self.give_back(index));
        self.failed.push((vm, vcpu, told.join("; ")));
    }

    /// Answers `reserve_release`.
    pub fn release(&mut self, release: &ReserveRelease) -> Response {
        let is_meant = |held: &Held| {
            release.vm.as_ref().is_none_or(|vm| *vm == held.vm)
                && release.vcpu.is_none_or(|vcpu| vcpu == held.vcpu)
        };
        let mut problems = Vec::new();
        let mut any = false;
        while let Some(index) = self.held.iter().position(is_meant) {
            any = true;
            problems.extend(self.give_back(index));
        }
        if let Some(vm) = release.vm.as_ref().filter(|_| !any) {
            let text = format!("VM {vm} has no reservation");
            return error_response(ErrorCode::NotFound, &text, "see `timevisor reserve list`");
        }
        let reservations = self.rows();
        Response::Reservations(Answer { reservations, changes: Vec::new(), problems })
    }

    /// Answers `reserve_missed`.
    pub fn missed(&self, asked: &ReserveMissed) -> Response {
        let is_meant = |held: &&Held| held.vm == asked.vm && held.vcpu == asked.vcpu;
        let Some(held) = self.held.iter().find(is_meant) else {
            let text = format!("VM {} has no reservation for vCPU {}", asked.vm, asked.vcpu);
            return error_response(ErrorCode::NotFound, &text, "see `timevisor reserve list`");
        };
        self.audit.missed(held, asked.released_ns, asked.until_ns).map_or_else(
            || {
                error_response(
                    ErrorCode::NotFound,
                    "that time is not remembered",
                    "ask within a minute, for a time in which the reservation was in force and stayed the same",
                )
            },
            Response::MissedJob,
        )
    }

    /// Undoes what was changed for one reservation, other than what others need. What could not be undone.
    fn give_back(&mut self, index: usize) -> Vec<String> {
        let mut gone = self.held.remove(index);
        let changes = std::mem::take(&mut gone.changes);
        let same_core =
            self.held.iter().position(|h| h.core().is_some() && h.core() == gone.core());
        let any = self.held.iter().position(Held::needs_host);
        let mut undone = Vec::new();
        let (mut of_processor, mut of_host) = (Vec::new(), Vec::new());
        for (level, change) in changes {
            match level {
                Level::Processor if same_core.is_some() => of_processor.push((level, change)),
                Level::Host if any.is_some() => of_host.push((level, change)),
                _ => undone.push((level, change)),
            }
        }
        // Others need these still. In front: they were made before what the heir changed.
        for (heir, changes) in [(same_core, of_processor), (any, of_host)] {
            if let Some(heir) = heir {
                self.held[heir].changes.splice(0..0, changes);
            }
        }
        // The thread's first, then the processor's, then the host's; each from the last to the first.
        undone.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
        let mut problems = reservation::release(gone.pid, &undone, gone.is_alive());
        let apart: Vec<usize> = self.apart().into_iter().collect();
        if gone.core().is_some()
            && let Err(error) = Cpusets::find().and_then(|cpusets| cpusets.settle(&apart))
        {
            problems.push(error.to_string());
        }
        if let Some(reservation) = gone.reservation() {
            if let Some(core) = gone.core() {
                self.ledger.free(core, reservation, now_ns());
            }
            if gone.guarantee.is_by_deadline() {
                self.ledger.leave(gone.tid, &reservation, now_ns());
            }
        }
        self.note();
        problems
    }

    fn apart(&self) -> BTreeSet<usize> {
        self.held.iter().filter_map(Held::core).collect()
    }

    fn note(&self) {
        if let Err(error) = self.journal.write(&self.held) {
            tracing::error!("{:#}", anyhow::Error::new(error));
        }
    }
}

fn name_of(held: &Held) -> String {
    format!("VM {} vCPU {}", held.vm, held.vcpu)
}

fn now_ns() -> u64 {
    monotonic().floor_nanos().unsigned_abs()
}
