//! A request for a reservation: admitted, written down, made; or refused, with nothing changed.

use timevisor_guests::reservation::{
    self, Guarantee, Held, Neighbour, Refused, Wanted, vcpus::Vcpu,
};
use timevisor_linux::affinity;
use timevisor_linux::clock::monotonic;
use timevisor_linux::scheduling::schedstat;
use timevisor_protocols::control::{
    ErrorCode, Promise, Reservations as Answer, ReserveApply, Response,
};
use timevisor_schedule::Reservation;

use super::{Problem, Reservations, Waiting, name_of, now_ns};
use crate::report::error_response;
use crate::vms::Vms;

impl Reservations {
    /// Answers `reserve_apply`.
    pub fn apply(&mut self, apply: &ReserveApply, vms: &Vms) -> Response {
        match self.try_apply(apply, vms) {
            Ok(changes) => {
                let is_meant = |held: &&mut Held| held.vm == apply.vm && held.vcpu == apply.vcpu;
                let held = self.held.iter_mut().find(is_meant);
                // By hand: nothing that is learned changes it any more.
                if held.is_some_and(|held| std::mem::take(&mut held.followed)) {
                    self.note();
                }
                let reservations = self.rows();
                Response::Reservations(Answer { reservations, changes, problems: Vec::new() })
            }
            Err((code, text, step)) => error_response(code, &text, step),
        }
    }

    pub(super) fn try_apply(
        &mut self,
        apply: &ReserveApply,
        vms: &Vms,
    ) -> Result<Vec<String>, Problem> {
        self.failed.retain(|(vm, vcpu, _)| *vm != apply.vm || *vcpu != apply.vcpu);
        if let Some(why) = &self.unreadable {
            let step = "repair or remove that file, and start timevisord again";
            return Err((ErrorCode::Unavailable, why.clone(), step));
        }
        let bad = |text: String| (ErrorCode::BadRequest, text, "see docs/reference/reservations.md");
        let deadline = apply.deadline_ns.unwrap_or(apply.period_ns);
        let reservation = Reservation::new(apply.budget_ns, deadline, apply.period_ns)
            .map_err(|error| bad(error.to_string()))?;
        let soft = soft_limits(apply).map_err(bad)?;
        let process = vms.process(&apply.vm).ok_or_else(|| {
            let text = format!("there is no VM {}", apply.vm);
            (ErrorCode::NotFound, text, "see `timevisor vm list`")
        })?;
        let Vcpu { tid, emulated, .. } = vcpu_thread(vms, apply)?;
        let replaced =
            self.held.iter().position(|held| held.vm == apply.vm && held.vcpu == apply.vcpu);
        let guarantee = self.guarantee(apply, replaced, &reservation)?;
        let wanted = Wanted { pid: process.pid(), tid, emulated, reservation, guarantee };
        if let Some(index) = replaced
            && self.held[index].guarantee == guarantee
            && guarantee != Guarantee::Limit
            && self.held[index].tid == tid
            && self.held[index].is_alive()
        {
            if apply.dry_run {
                let changes = &self.held[index].changes;
                return Ok(reservation::with_reservation(changes, &reservation).1);
            }
            let changed = self.change(index, &wanted.reservation, apply.alone, soft);
            self.follow(index);
            return changed;
        }
        let mut after = "nothing has been changed";
        if !apply.dry_run
            && let Some(index) = replaced
        {
            after = "the reservation that it had was given back";
            // Whatever comes of it: the old one is not what was asked for.
            let left = self.give_back(index);
            if !left.is_empty() {
                return Err((ErrorCode::Internal, left.join("; "), "bring it back by hand"));
            }
        }
        if !apply.dry_run
            && guarantee.is_by_deadline()
            && let Some(left) = self.ledger.leaving_for(tid, now_ns())
        {
            let text = format!(
                "thread {tid} had a reservation until a moment ago, and what it ran beyond it is to be made good first, which takes another {} ms; {after}",
                left.div_ceil(1_000_000)
            );
            return Err((ErrorCode::MakingRoom, text, "ask again in a moment"));
        }
        let failed = |error: &dyn std::error::Error| {
            let cause = error.source().map(|s| format!(": {s}")).unwrap_or_default();
            (ErrorCode::Unsupported, format!("{error}{cause}"), after)
        };
        let (planned, cpusets) =
            reservation::plan(&wanted, &self.apart()).map_err(|error| failed(&error))?;
        let texts = planned.iter().map(|(_, change)| change.to_string()).collect();
        if apply.dry_run {
            return Ok(texts);
        }
        let start_time = process.start_time().map_err(|error| failed(&error))?;
        let ran = schedstat(process.pid(), tid).map_or(0, |stat| stat.ran);
        self.held.push(Held {
            vm: apply.vm.clone(),
            vcpu: apply.vcpu,
            pid: process.pid(),
            start_time,
            tid,
            guarantee,
            budget: reservation.budget(),
            deadline: reservation.deadline(),
            period: reservation.period(),
            soft,
            alone: apply.alone,
            followed: false,
            changes: planned.clone(),
            ran,
            since: now_ns(),
        });
        // First the intent, then the deed.
        let made = self.journal.write(&self.held).map_err(|error| failed(&error)).and_then(|()| {
            reservation::make(&wanted, &planned, cpusets.as_ref(), 0).map_err(|e| failed(&e))
        });
        match made {
            Err(problem) => {
                self.held.pop();
                self.note();
                return Err(problem);
            }
            Ok(None) => {}
            Ok(Some(from)) => {
                self.waiting.push(Waiting { wanted, from });
                self.next_look = monotonic();
            }
        }
        self.follow(self.held.len() - 1);
        tracing::info!("{} vCPU {}: reserved {reservation:?}, {guarantee:?}", apply.vm, apply.vcpu);
        Ok(texts)
    }

    /// Another budget for a thread that has its core already: it is never without a reservation. What has changed, in words.
    pub(super) fn change(
        &mut self,
        index: usize,
        reservation: &Reservation,
        alone: bool,
        soft: Option<(u64, u64)>,
    ) -> Result<Vec<String>, Problem> {
        // A VM that came a moment ago may have joined its core to all others, and the kernel would refuse.
        self.keep_apart();
        let before = self.held[index].clone();
        let (changes, text) = reservation::with_reservation(&before.changes, reservation);
        self.held[index] = Held {
            budget: reservation.budget(),
            deadline: reservation.deadline(),
            period: reservation.period(),
            soft,
            alone,
            changes,
            ..before.clone()
        };
        let failed = |error: &dyn std::error::Error| {
            (ErrorCode::Unsupported, error.to_string(), "the reservation is as it was")
        };
        let changed =
            self.journal.write(&self.held).map_err(|error| failed(&error)).and_then(|()| {
                reservation::make_again(reservation, &self.held[index].changes)
                    .map_err(|e| failed(&e))
            });
        if let Err(problem) = changed {
            self.held[index] = before;
            self.note();
            return Err(problem);
        }
        self.audit.begin_anew(before.tid);
        if let (Some(core), Some(old)) = (before.core(), before.reservation()) {
            // This period's budget and deadline are still the old ones.
            let same_mode =
                (old.deadline(), old.period()) == (reservation.deadline(), reservation.period());
            let still_used = match old.budget().checked_sub(reservation.budget()) {
                Some(less) if same_mode => Reservation::shared(less, old.period()).ok(),
                None if same_mode => None,
                _ => Some(old),
            };
            if let Some(still_used) = still_used {
                self.ledger.free(core, still_used, now_ns());
            }
        }
        Ok(text)
    }

    /// Which core, and whether it can keep the reservation.
    fn guarantee(
        &mut self,
        apply: &ReserveApply,
        replaced: Option<usize>,
        reservation: &Reservation,
    ) -> Result<Guarantee, Problem> {
        match apply.promise {
            Promise::Global => return Ok(Guarantee::Global),
            Promise::Fifo => return Ok(Guarantee::Fifo),
            Promise::Limit => return Ok(Guarantee::Limit),
            Promise::Core => {}
        }
        let online = affinity::online().unwrap_or_default();
        let wished = apply.core.map(|core| usize::try_from(core).unwrap_or(usize::MAX));
        let own = replaced.and_then(|index| self.held[index].core());
        let candidates: Vec<usize> = match wished.or(own) {
            Some(core) => vec![core],
            // Not the first one: that is where the kernel's own work gathers.
            None => online.iter().copied().skip(1).rev().collect(),
        };
        let mut refused = "this host has one core, and the rest of it needs that".to_owned();
        for core in &candidates {
            match self.admits(*core, reservation, apply.alone, replaced) {
                Ok(()) => return Ok(Guarantee::Core(*core)),
                Err(error) => refused = error.to_string(),
            }
        }
        // Soft ones never stand in the way of others, and what was given back is free soon.
        for core in candidates.into_iter().filter(|_| apply.at_most_ns.is_none()) {
            if self.has_room_without_softness(core, reservation, apply.alone, replaced) {
                if !apply.dry_run {
                    self.make_room(core, replaced);
                }
                let text = format!("core {core} has room as soon as what others give up is free");
                return Err((ErrorCode::MakingRoom, text, "ask again in a moment"));
            }
        }
        Err((ErrorCode::Unavailable, refused, "see `timevisor reserve list`"))
    }

    /// Whether a core can keep a reservation beside what it has now; `replaced`: other than this one.
    pub(super) fn admits(
        &mut self,
        core: usize,
        reservation: &Reservation,
        alone: bool,
        replaced: Option<usize>,
    ) -> Result<(), Refused> {
        let neighbours = self.neighbours(core, replaced, Held::reservation);
        self.ledger.admit(core, reservation, alone, &neighbours, now_ns())
    }

    pub(super) fn neighbours(
        &self,
        core: usize,
        replaced: Option<usize>,
        of: fn(&Held) -> Option<Reservation>,
    ) -> Vec<Neighbour> {
        let on_core = self
            .held
            .iter()
            .enumerate()
            .filter(|(index, held)| Some(*index) != replaced && held.core() == Some(core));
        on_core
            .filter_map(|(_, held)| {
                Some(Neighbour { name: name_of(held), reservation: of(held)?, alone: held.alone })
            })
            .collect()
    }
}

/// The least and the greatest budget of a soft one.
fn soft_limits(apply: &ReserveApply) -> Result<Option<(u64, u64)>, String> {
    let Some(most) = apply.at_most_ns else { return Ok(None) };
    let deadline = apply.deadline_ns.unwrap_or(apply.period_ns);
    if matches!(apply.promise, Promise::Fifo | Promise::Limit) {
        return Err("without SCHED_DEADLINE there is no budget that could follow anything; take --promise core or global".to_owned());
    }
    if most < apply.budget_ns {
        return Err("the greatest budget of a soft reservation is less than the least".to_owned());
    }
    Reservation::new(most, deadline, apply.period_ns).map_err(|error| error.to_string())?;
    Ok(Some((apply.budget_ns, most)))
}

fn vcpu_thread(vms: &Vms, apply: &ReserveApply) -> Result<Vcpu, Problem> {
    let vcpus = vms.vcpus(&apply.vm).map_err(|error| {
        (ErrorCode::NotFound, format!("VM {}: {error}", apply.vm), "is it running?")
    })?;
    if vcpus.is_empty() {
        let text = format!(
            "which thread runs which vCPU of VM {} is not known: they have no names, and no QMP socket tells",
            apply.vm
        );
        let step = "start QEMU with -name NAME,debug-threads=on, or see `timevisor vm add --qmp`";
        return Err((ErrorCode::Unsupported, text, step));
    }
    let found = vcpus.iter().find(|vcpu| vcpu.index.unwrap_or(apply.vcpu) == apply.vcpu);
    found.copied().ok_or_else(|| {
        let text = format!("VM {} has no vCPU {}; it has {}", apply.vm, apply.vcpu, vcpus.len());
        (ErrorCode::NotFound, text, "count from 0")
    })
}
