//! Reservations of processor time: the state machine of crates/reservation, wired to Linux, the VMs
//! and the control socket.
//!
//! | file | owns |
//! | --- | --- |
//! | `host.rs` | Linux as the state machine's host, including the journal |
//! | `cores.rs` | this host's cores |
//! | `watch.rs` | what others do to reserved cores |
//! | `plan.rs` | the changes that implement a reservation |
//! | `explain.rs` | what the kernel's refusals mean |
//! | `guests.rs` | the daemon's VMs as the state machine's guests |
//! | `late.rs` | late jobs that introspection has seen, and their causes |
//! | `control.rs` | conversion of the control protocol's types |
//! | `moves.rs` | reservations of VMs that come from another host, or have gone to one |

mod control;
mod cores;
mod explain;
mod guests;
mod host;
mod late;
mod moves;
mod plan;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use timevisor_audit::watch::Reservation as Audited;
use timevisor_introspection::tasks::late::Late;
use timevisor_linux::cpuset::expect_move;
use timevisor_linux::scheduling::Change;
use timevisor_protocols::control::{
    ErrorBody, HostCores, Reservations as Answer, ReserveApply, ReserveCores, ReserveMissed,
    ReserveMove, ReserveRelease, Response,
};
use timevisor_reservation::{self as reservation, Followed, Guarantee, Request};
use timevisor_schedule::Reservation;
use timevisor_time::Duration;

use self::host::{LinuxHost, with_causes};
use self::late::LateJobs;
use crate::vms::Vms;

/// A VM's process and its start time when it left, and what it had.
type Left = (Option<(u32, u64)>, Vec<Request>);

pub struct Reservations {
    host: LinuxHost,
    machine: reservation::Reservations<Change>,
    late: LateJobs,
    /// What VMs had that have left.
    left: BTreeMap<String, Left>,
    /// VMs of which a user has released a reservation that followed the guest, until introspection has taken it in.
    released: BTreeSet<String>,
}

impl Reservations {
    /// Resumes what an earlier daemon held, and undoes the rest.
    pub fn start(directory: &Path, configured: &[ReserveApply]) -> Self {
        let mut host = LinuxHost::new(directory);
        let journal = host.read().map_err(with_causes);
        let configured = configured.iter().map(control::request).collect();
        let machine = reservation::Reservations::start(journal, configured, &mut host);
        Self {
            host,
            machine,
            late: LateJobs::default(),
            left: BTreeMap::new(),
            released: BTreeSet::new(),
        }
    }

    pub fn poll_at(&self) -> Duration {
        i64::try_from(self.machine.poll_at()).map_or(Duration::MAX, Duration::from_nanos)
    }

    pub fn on_timer(&mut self, vms: &Vms) {
        self.machine.on_timer(&mut self.host, vms);
    }

    /// Other reservations are configured from now on; see
    /// [`reservation::Reservations::configure`].
    pub fn configure(&mut self, configured: &[ReserveApply]) {
        let requests = configured.iter().map(control::request).collect();
        for problem in self.machine.configure(requests, &mut self.host) {
            tracing::warn!("reservation: {problem}");
        }
    }

    /// Answers `reserve_apply`.
    pub fn apply(&mut self, apply: &ReserveApply, vms: &Vms) -> Response {
        if !apply.dry_run {
            expect_move();
        }
        match self.machine.apply(&control::request(apply), &mut self.host, vms) {
            Ok(changes) => self.answer(changes, Vec::new()),
            Err(refusal) => Response::Error(control::error(refusal)),
        }
    }

    /// Answers `reserve_move`.
    pub fn relocate(&mut self, asked: &ReserveMove, vms: &Vms) -> Response {
        if !asked.dry_run {
            expect_move();
        }
        let (vcpu, core) = ((asked.vm.as_str(), asked.vcpu), asked.core as usize);
        match self.machine.relocate(vcpu, core, asked.dry_run, &mut self.host, vms) {
            Ok(changes) => self.answer(changes, Vec::new()),
            Err(refusal) => Response::Error(control::error(refusal)),
        }
    }

    /// Answers `reserve_release`.
    pub fn release(&mut self, release: &ReserveRelease) -> Response {
        self.released.extend(self.machine.followed_vms(release.vm.as_deref(), release.vcpu));
        match self.machine.release(release.vm.as_deref(), release.vcpu, &mut self.host) {
            Ok(problems) => self.answer(Vec::new(), problems),
            Err(refusal) => Response::Error(control::error(refusal)),
        }
    }

    /// Answers `reserve_list`.
    pub fn list(&self) -> Response {
        self.answer(Vec::new(), self.machine.problems())
    }

    /// Answers `reserve_missed`.
    pub fn missed(&self, asked: &ReserveMissed) -> Response {
        let vcpu = (asked.vm.as_str(), asked.vcpu);
        match self.machine.missed(vcpu, asked.released_ns, asked.until_ns) {
            Ok(missed) => Response::MissedJob(control::missed(missed)),
            Err(refusal) => Response::Error(control::error(refusal)),
        }
    }

    /// The reservations that are held, as the audit log records them: by VM and vCPU. `user` says who
    /// runs a VM.
    pub fn audited(
        &self,
        user: impl Fn(&str) -> Option<u32>,
    ) -> impl Iterator<Item = ((String, u32), Audited)> {
        self.machine.held().iter().map(move |held| {
            let promise = match held.guarantee {
                Guarantee::Core(core) => format!("core {core}"),
                Guarantee::Global => "global".to_owned(),
                Guarantee::Fifo => "fifo".to_owned(),
                Guarantee::Limit => "limit".to_owned(),
            };
            let audited = Audited {
                uid: user(&held.vm),
                promise,
                budget_ns: held.budget,
                period_ns: held.period,
                deadline_ns: held.deadline,
            };
            ((held.vm.clone(), held.vcpu), audited)
        })
    }

    /// Finds out why a job was late that introspection has seen, and counts it. Returns it in words.
    pub fn late_job(&mut self, vm: &str, late: &Late) -> String {
        let vcpu = u32::from(late.vcpu);
        let [from, to] = [late.released, late.ended].map(|ns| u64::try_from(ns).unwrap_or(0));
        let missed = self.machine.missed((vm, vcpu), from, to).ok();
        self.late.count(vm, late, missed.map(control::missed))
    }

    /// Answers `reserve_cores`.
    pub fn cores(&mut self, asked: &ReserveCores, vms: &Vms) -> Response {
        let question = reservation::Question {
            vcpu: asked.vm.as_deref().map(|vm| (vm, asked.vcpu)),
            budget: asked.budget_ns,
            period: asked.period_ns,
            alone: asked.alone,
        };
        match self.machine.candidates(&question, &self.host, vms) {
            Ok(found) => {
                let cores = found.into_iter().map(control::core).collect();
                Response::HostCores(HostCores { cores })
            }
            Err(refusal) => Response::Error(control::error(refusal)),
        }
    }

    /// A VM has ended.
    pub fn forget_guest(&mut self, vm: &str) {
        self.late.forget(vm);
        self.released.remove(vm);
    }

    /// Sets a VM's reservations to what introspection learned that its tasks need (and whether each
    /// must be alone on its core); with `None`, releases them.
    pub fn follow_guest(
        &mut self,
        vm: &str,
        wanted: Option<(&Reservation, bool)>,
        on: Followed,
        vms: &Vms,
    ) -> Result<(), ErrorBody> {
        self.machine.follow_guest(vm, wanted, on, &mut self.host, vms).map_err(control::error)
    }

    /// Whether all vCPUs on which a VM's tasks may run have a reservation, and whether a user has released one
    /// that followed them since the last call.
    pub fn serves(&mut self, vm: &str, on: Followed) -> (bool, bool) {
        (self.machine.serves(vm, on), self.released.remove(vm))
    }

    fn answer(&self, changes: Vec<String>, problems: Vec<String>) -> Response {
        let rows = self.machine.rows(&self.host).into_iter().map(control::row);
        let reservations = rows.map(|row| self.late.with(row)).collect();
        Response::Reservations(Answer { reservations, changes, problems })
    }
}
