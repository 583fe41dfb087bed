//! [`Reservations`]: requests, the timer, and how a restart treats an older journal.

use std::collections::BTreeSet;

use timevisor_schedule::Reservation;

use crate::book::{Book, CROWDED, Waiting};
use crate::configured::Configured;
use crate::core_choice::{Choice, choose};
use crate::core_isolation::CoreIsolation;
use crate::enforcement::{self, Failed};
use crate::guarantee::{Guarantee, Wanted};
use crate::held::Held;
use crate::host::{Guests, Host, Severity, Unmade};
use crate::moves::Returning;
use crate::request::{Promise, Reason, Refusal, Request};
use crate::soft::SoftBudgets;
use crate::stall_recovery::StallRecovery;

/// A vCPU that moves to its core gets its budget within this time, ns.
const WAITING_INTERVAL: u64 = 5_000_000;
/// The core of a VM that has ended is freed within this time, ns. A broken guarantee is also
/// detected within this time.
const LOOK_INTERVAL: u64 = 1_000_000_000;

/// What to do about a journal that was not understood. The reason says which version can undo it.
const NOT_READ: &str = "then start timevisord again (if the file is removed instead, every setting that it lists stays)";

/// So many cores are tried: what fails on three fails on all, and each attempt changes the host.
const MOST_TRIED: usize = 3;

/// All reservations of a host. `C` is the host's type of changes.
#[derive(Debug)]
pub struct Reservations<C> {
    pub(crate) book: Book<C>,
    /// Why the journal must not be replaced: it contains changes that this daemon cannot undo.
    unreadable: Option<String>,
    pub(crate) isolation: CoreIsolation,
    soft: SoftBudgets,
    recovery: StallRecovery,
    pub(crate) configured: Vec<Configured>,
    pub(crate) returning: Vec<Returning>,
    pub(crate) next_look: u64,
    next_slow_look: u64,
}

impl<C: Clone + PartialEq + std::fmt::Debug + std::fmt::Display> Reservations<C> {
    /// Resumes what an earlier daemon stored. Reservations that are no longer in force are given
    /// back.
    pub fn start<H: Host<Change = C>>(
        journal: Result<Vec<Held<C>>, String>,
        configured: Vec<Request>,
        host: &mut H,
    ) -> Self {
        let (held, unreadable) = match journal {
            Ok(held) => (held, None),
            Err(error) => {
                let text = format!("{error}; nothing is reserved until then; {NOT_READ}");
                host.tell(Severity::Error, &text);
                (Vec::new(), Some(error))
            }
        };
        let mut all = Self {
            book: Book::new(held),
            unreadable,
            isolation: CoreIsolation::default(),
            soft: SoftBudgets::default(),
            recovery: StallRecovery::default(),
            configured: configured.into_iter().map(Configured::new).collect(),
            returning: Vec::new(),
            next_look: 0,
            next_slow_look: 0,
        };
        let astray = all.book.end_moves(host);
        for index in (0..all.book.held.len()).rev() {
            let held = &all.book.held[index];
            let alive = is_there(host, held);
            let is_astray = astray.contains(&held.tid);
            if alive && !is_astray && !held.followed && enforcement::check(host, held).is_ok() {
                continue;
            }
            let name = held.name();
            let why = "its reservation is no longer in force, or nobody follows its guest";
            host.tell(Severity::Warn, &format!("{name}: {why}: given back"));
            for problem in all.book.give_back(index, host) {
                host.tell(Severity::Warn, &format!("{name}: {problem}"));
            }
        }
        let continued: BTreeSet<u32> = all.book.held.iter().map(|held| held.pid).collect();
        for pid in continued {
            all.book.settle_process(pid, host);
        }
        all.note_threads(host);
        for held in &all.book.held {
            host.tell(Severity::Info, &format!("{}: its reservation is held on", held.name()));
            all.soft.follow(held);
        }
        all
    }

    /// Journals of earlier versions do not say when their threads started. From now on they do: threads
    /// that get the ids of these are told from them.
    fn note_threads<H: Host<Change = C>>(&mut self, host: &mut H) {
        let known: usize = self.book.held.iter().map(|held| held.threads.len()).sum();
        self.book.held.iter_mut().for_each(|held| held.note_threads(host));
        if self.book.held.iter().map(|held| held.threads.len()).sum::<usize>() > known {
            self.book.store(host);
        }
    }

    /// Why the journal of an earlier daemon is left alone, if it is: what it lists can neither be changed
    /// nor undone by this one.
    pub(crate) fn unreadable(&self) -> Option<Refusal> {
        let why = self.unreadable.as_ref()?;
        Some(Refusal::new(Reason::Unavailable, why.clone(), NOT_READ))
    }

    /// When [`Self::on_timer`] is due, in ns of [`Host::now`]; `u64::MAX` if there is nothing to
    /// do.
    #[must_use]
    pub fn poll_at(&self) -> u64 {
        if self.book.held.is_empty() {
            let is_idle = self.configured.is_empty() && self.returning.is_empty();
            return if is_idle { u64::MAX } else { self.next_look };
        }
        self.next_look.min(self.book.audit.poll_at())
    }

    /// Audits reservations, makes outstanding changes, adapts soft budgets, renews stalled budgets,
    /// releases the reservations of VMs that have ended, and makes configured reservations for VMs
    /// that have started.
    pub fn on_timer<H: Host<Change = C>>(&mut self, host: &mut H, guests: &impl Guests) {
        self.audit(host);
        let now = host.now();
        if now < self.next_look {
            return;
        }
        self.end_of_threads(host);
        let slow = now >= self.next_slow_look;
        if slow {
            self.isolation.restore(&mut self.book, host);
        }
        self.make_the_rest(slow, host);
        self.soft.look(&mut self.book, &mut self.isolation, host);
        if slow {
            self.next_slow_look = now + LOOK_INTERVAL;
            self.make_configured(host, guests);
            self.recovery.look(&mut self.book, host);
        }
        let waits = !self.book.waiting.is_empty();
        let interval = if waits { WAITING_INTERVAL } else { LOOK_INTERVAL };
        self.next_look = (now + interval).min(self.soft.next());
        self.make_returning(host, guests);
    }

    /// Gives back the reservations of VMs that have ended, and of vCPUs that were unplugged.
    fn end_of_threads<H: Host<Change = C>>(&mut self, host: &mut H) {
        while let Some(index) = self.book.held.iter().position(|held| !is_there(host, held)) {
            let held = &self.book.held[index];
            let name = held.name();
            let text = if host.is_alive(held.pid, held.start_time, held.tid) {
                // Plugged again, it gets what is configured.
                for of in self.configured.iter_mut().filter(|of| of.is_for(&held.vm, held.vcpu)) {
                    of.made_for = None;
                }
                format!(
                    "{name} was unplugged (its thread has ended): its reservation is given back"
                )
            } else {
                format!("{name} has ended: its reservation is given back")
            };
            host.tell(Severity::Info, &text);
            for problem in self.book.give_back(index, host) {
                host.tell(Severity::Warn, &format!("{name}: {problem}"));
            }
        }
    }

    fn audit<H: Host<Change = C>>(&mut self, host: &mut H) {
        let Book { held, waiting, audit, .. } = &mut self.book;
        let in_force = held.iter().filter(|held| !waiting.iter().any(|w| w.tid == held.tid));
        audit.look(in_force, host);
    }

    fn make_the_rest<H: Host<Change = C>>(&mut self, wake: bool, host: &mut H) {
        let tids: Vec<u32> = self.book.waiting.iter().map(|waiting| waiting.tid).collect();
        for tid in tids {
            // A reservation that was given up may have passed changes to those that still wait, so
            // their positions are looked up each time.
            let waiting = self.book.waiting.iter().position(|waiting| waiting.tid == tid);
            let index = self.book.held.iter().position(|held| held.tid == tid);
            let (Some(waiting), Some(index)) = (waiting, index) else { continue };
            let from = self.book.waiting[waiting].from;
            match enforcement::make(host, &self.book.held[index], from, wake) {
                Ok(None) => {
                    self.book.waiting.remove(waiting);
                    if let Some(text) = self.in_force(index) {
                        host.tell(Severity::Info, &text);
                    }
                }
                Ok(Some(from)) => self.book.waiting[waiting].from = from,
                // A VM has started in the meantime, and its cpusets joined the core to others; the
                // next attempt is soon.
                Err(_) if self.isolation.restore(&mut self.book, host) => {}
                Err(failed) => self.book.give_up(index, &failed.why, host),
            }
        }
    }

    fn make_configured<H: Host<Change = C>>(&mut self, host: &mut H, guests: &impl Guests) {
        for index in 0..self.configured.len() {
            let configured = &mut self.configured[index];
            let process = guests.process(&configured.request.vm);
            if process.is_none() {
                configured.refused = None;
            }
            if !configured.is_due(process) {
                continue;
            }
            let request = configured.request.clone();
            let refused = self.try_apply(&request, host, guests).err().map(|e| e.to_string());
            let configured = &mut self.configured[index];
            match &refused {
                None => configured.made_for = process,
                Some(why) if refused != configured.refused => {
                    let Request { vm, vcpu, .. } = &request;
                    host.tell(Severity::Warn, &format!("VM {vm} vCPU {vcpu}: {why}"));
                }
                Some(_) => {}
            }
            configured.refused = refused;
        }
    }

    /// Other reservations are configured from now on. Those that are configured no more are given
    /// back; new and changed ones are made at the next look. Returns what could not be undone.
    pub fn configure<H: Host<Change = C>>(
        &mut self,
        requests: Vec<Request>,
        host: &mut H,
    ) -> Vec<String> {
        let before = std::mem::take(&mut self.configured);
        let mut problems = Vec::new();
        for old in &before {
            let Request { vm, vcpu, .. } = &old.request;
            let stays = requests.iter().any(|new| (&new.vm, new.vcpu) == (vm, *vcpu));
            if !stays
                && old.made_for.is_some()
                && let Some(index) = self.book.find(vm, *vcpu)
            {
                problems.extend(self.book.give_back(index, host));
            }
        }
        let made_before = |request: &Request| {
            before.iter().find(|old| old.request == *request).and_then(|old| old.made_for)
        };
        let configured = requests.into_iter().map(|request| {
            let made_for = made_before(&request);
            Configured { made_for, ..Configured::new(request) }
        });
        self.configured = configured.collect();
        self.next_look = 0;
        self.next_slow_look = 0;
        problems
    }

    /// Makes a reservation, or changes the vCPU's existing one. The result describes what has
    /// changed.
    ///
    /// # Errors
    /// Why the request failed. Nothing has changed then, unless the next step says that the former
    /// reservation was given back.
    pub fn apply<H: Host<Change = C>>(
        &mut self,
        request: &Request,
        host: &mut H,
        guests: &impl Guests,
    ) -> Result<Vec<String>, Refusal> {
        let changes = self.try_apply(request, host, guests)?;
        if !request.dry_run {
            self.forget_returning(Some(&request.vm), Some(request.vcpu));
        }
        // Once a reservation is made by hand, it no longer follows introspection.
        let held = self.book.held.iter_mut().find(|held| held.is_for(&request.vm, request.vcpu));
        if held.is_some_and(|held| std::mem::take(&mut held.followed)) {
            self.book.store(host);
        }
        Ok(changes)
    }

    /// [`Self::apply`], for requests made by hand and for others.
    pub(crate) fn try_apply<H: Host<Change = C>>(
        &mut self,
        request: &Request,
        host: &mut H,
        guests: &impl Guests,
    ) -> Result<Vec<String>, Refusal> {
        self.book.failures.retain(|failure| {
            (failure.vm.as_str(), failure.vcpu) != (request.vm.as_str(), request.vcpu)
        });
        if let Some(refusal) = self.unreadable() {
            return Err(refusal);
        }
        let reservation = request.reservation()?;
        let soft = request.soft_limits()?;
        let target = guests.vcpu(&request.vm, request.vcpu)?;
        let replaced = self.book.find(&request.vm, request.vcpu);
        let guarantees = self.guarantees(request, (target.tid, replaced), &reservation, host)?;
        let guarantee = guarantees[0];
        let wanted = Wanted { target, reservation, guarantee };
        if let Some(index) = replaced
            && self.is_changeable(index, &wanted, host)
        {
            if request.dry_run {
                let changes = &self.book.held[index].changes;
                return Ok(enforcement::with_reservation(host, changes, &reservation).1);
            }
            // A VM that has just started may have joined the core to others; the kernel would then
            // refuse.
            self.isolation.restore(&mut self.book, host);
            let changed = self.book.change(index, &reservation, (request.alone, soft), host);
            self.follow(index);
            if let Some(text) = self.in_force(index).filter(|_| changed.is_ok()) {
                host.tell(Severity::Info, &text);
            }
            return changed;
        }
        let mut after = "nothing has been changed";
        if !request.dry_run
            && let Some(index) = replaced
        {
            // The old reservation no longer matches the request, whatever happens to the new one.
            after = "the former reservation was given back";
            let left = self.book.give_back(index, host);
            if !left.is_empty() {
                let step = "bring it back by hand";
                return Err(Refusal::new(Reason::Internal, left.join("; "), step));
            }
        }
        if !request.dry_run {
            self.check_leaving(&wanted, after, host)?;
        }
        let mut refused: Vec<String> = Vec::new();
        for guarantee in guarantees {
            let wanted = Wanted { target, reservation, guarantee };
            match self.make_new(request, &wanted, soft, host) {
                Ok(words) => {
                    if !refused.is_empty() && !request.dry_run {
                        let (vm, vcpu) = (&request.vm, request.vcpu);
                        let why = refused.join("; ");
                        let text = format!("VM {vm} vCPU {vcpu}: not on a better core: {why}");
                        host.tell(Severity::Warn, &text);
                    }
                    return Ok(words);
                }
                Err(Failed { why, is_clean, is_of_core }) => {
                    let on = guarantee.core().filter(|_| is_of_core);
                    let why = on.map_or_else(|| why.clone(), |core| format!("core {core}: {why}"));
                    refused.push(why);
                    if !(is_clean && is_of_core) {
                        break;
                    }
                }
            }
        }
        Err(Refusal::new(Reason::Unsupported, refused.join("; "), after))
    }

    /// Plans and makes a reservation. If nothing is left of an attempt that failed, the next core may do.
    fn make_new<H: Host<Change = C>>(
        &mut self,
        request: &Request,
        wanted: &Wanted,
        soft: Option<(u64, u64)>,
        host: &mut H,
    ) -> Result<Vec<String>, Failed> {
        let Wanted { target, reservation, guarantee } = *wanted;
        if let Some(core) = guarantee.core()
            && self.book.crowds_out(target.tid, target.pid, core, host)
        {
            return Err(Unmade::of_core(CROWDED.to_owned()).into());
        }
        // Read before the plan: what it says of another thread must not be taken for this one's.
        let started = host.thread_started(target.pid, target.tid);
        let changes = host.plan(wanted, &self.book.isolated())?;
        let words = changes.iter().map(|(_, change)| change.to_string()).collect();
        if request.dry_run {
            return Ok(words);
        }
        let mut held = Held {
            vm: request.vm.clone(),
            vcpu: request.vcpu,
            pid: target.pid,
            start_time: target.start_time,
            tid: target.tid,
            guarantee,
            budget: reservation.budget(),
            deadline: reservation.deadline(),
            period: reservation.period(),
            soft,
            alone: request.alone,
            followed: false,
            changes,
            threads: started.map(|started| (target.tid, started)).into_iter().collect(),
            leftover: Vec::new(),
            ran: host.usage(target.pid, target.tid).map_or(0, |usage| usage.ran),
            since: host.now(),
        };
        held.note_threads(host);
        self.make(held, host)?;
        // One that waits for its vCPU is said to be in force when it is.
        if let Some(text) = self.in_force(self.book.held.len() - 1) {
            host.tell(Severity::Info, &text);
        }
        Ok(words)
    }

    /// What is logged of a reservation that is in force.
    fn in_force(&self, index: usize) -> Option<String> {
        let held = &self.book.held[index];
        let of = held.reservation().filter(|_| !self.book.waits(held.tid))?;
        Some(format!("{}: reserved {}", held.name(), said(&of, held.guarantee)))
    }

    /// Whether a request changes only the budget.
    fn is_changeable<H: Host<Change = C>>(&self, index: usize, wanted: &Wanted, host: &H) -> bool {
        let held = &self.book.held[index];
        held.guarantee == wanted.guarantee
            && wanted.guarantee != Guarantee::Limit
            && held.tid == wanted.target.tid
            && is_there(host, held)
    }

    /// Refuses a thread that has just left SCHED_DEADLINE, see [`crate::ledger::Ledger::leave`].
    fn check_leaving<H: Host<Change = C>>(
        &mut self,
        wanted: &Wanted,
        after: &str,
        host: &H,
    ) -> Result<(), Refusal> {
        let tid = wanted.target.tid;
        let left = self.book.ledger.leaving_for(tid, host.now());
        let Some(left) = left.filter(|_| wanted.guarantee.is_by_deadline()) else { return Ok(()) };
        let text = format!(
            "thread {tid} had a reservation until a moment ago and must pay back what it ran beyond its budget first, which takes another {} ms; {after}",
            left.div_ceil(1_000_000)
        );
        Err(Refusal::new(Reason::MakingRoom, text, "ask again in a moment"))
    }

    /// Stores a reservation, and makes its changes. On an error, everything is rolled back.
    fn make<H: Host<Change = C>>(&mut self, held: Held<C>, host: &mut H) -> Result<(), Failed> {
        let tid = held.tid;
        self.book.held.push(held);
        let index = self.book.held.len() - 1;
        // A change is written to the journal before it is made.
        let made = match host.write(&self.book.held) {
            Ok(()) => enforcement::make(host, &self.book.held[index], 0, true),
            Err(why) => Err(Failed { why, is_clean: false, is_of_core: false }),
        };
        match made {
            Err(failed) => {
                self.book.held.pop();
                self.book.store(host);
                return Err(failed);
            }
            Ok(None) => {}
            Ok(Some(from)) => {
                self.book.waiting.push(Waiting { tid, from });
                self.next_look = host.now();
            }
        }
        self.follow(index);
        Ok(())
    }

    fn follow(&mut self, index: usize) {
        self.soft.follow(&self.book.held[index]);
        self.next_look = self.next_look.min(self.soft.next());
    }

    /// What the host can guarantee, and on which cores: at least one, the best first.
    fn guarantees<H: Host<Change = C>>(
        &mut self,
        request: &Request,
        (tid, replaced): (u32, Option<usize>),
        reservation: &Reservation,
        host: &mut H,
    ) -> Result<Vec<Guarantee>, Refusal> {
        match request.promise {
            Promise::Global => return Ok(vec![Guarantee::Global]),
            Promise::Fifo => return Ok(vec![Guarantee::Fifo]),
            Promise::Limit => return Ok(vec![Guarantee::Limit]),
            Promise::Core => {}
        }
        match choose(&mut self.book, request, reservation, (tid, replaced), host) {
            Choice::Cores(cores) => {
                Ok(cores.into_iter().take(MOST_TRIED).map(Guarantee::Core).collect())
            }
            Choice::MakeRoom(core) => {
                if !request.dry_run {
                    let Self { soft, book, isolation, .. } = self;
                    soft.make_room(core, replaced, book, isolation, host);
                }
                let text = format!("core {core} has room as soon as what others give up is free");
                Err(Refusal::new(Reason::MakingRoom, text, "ask again in a moment"))
            }
            Choice::Refused(why) => {
                Err(Refusal::new(Reason::Unavailable, why, "see `timevisor reserve list`"))
            }
        }
    }

    /// Releases the reservations of a VM, or of one of its vCPUs, or all. The result says what
    /// could not be restored.
    ///
    /// # Errors
    /// [`Reason::NotFound`] for a VM without a reservation, [`Reason::Unavailable`] where the journal is not
    /// understood.
    pub fn release<H: Host<Change = C>>(
        &mut self,
        vm: Option<&str>,
        vcpu: Option<u32>,
        host: &mut H,
    ) -> Result<Vec<String>, Refusal> {
        let is_meant = |held: &Held<C>| {
            vm.is_none_or(|vm| *vm == held.vm) && vcpu.is_none_or(|vcpu| vcpu == held.vcpu)
        };
        if let Some(refusal) = self.unreadable() {
            return Err(refusal);
        }
        let is_returning = self.forget_returning(vm, vcpu);
        if let Some(vm) = vm.filter(|_| !is_returning && !self.book.held.iter().any(is_meant)) {
            let text = format!("VM {vm} has no reservation");
            return Err(Refusal::new(Reason::NotFound, text, "see `timevisor reserve list`"));
        }
        let mut problems = Vec::new();
        while let Some(index) = self.book.held.iter().position(is_meant) {
            problems.extend(self.book.give_back(index, host));
        }
        Ok(problems)
    }

    /// All reservations that are held.
    #[must_use]
    pub fn held(&self) -> &[Held<C>] {
        &self.book.held
    }
}

/// Whether the process and the vCPU's thread are still those for which it was made.
fn is_there<H: Host>(host: &H, held: &Held<H::Change>) -> bool {
    host.is_alive(held.pid, held.start_time, held.tid)
        && host.is_thread(held.pid, held.tid, held.threads.get(&held.tid).copied())
}

/// A reservation in an operator's words.
fn said(of: &Reservation, guarantee: Guarantee) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let (budget, period) = (ms(of.budget()), ms(of.period()));
    match guarantee {
        Guarantee::Core(core) => format!("{budget} ms of {period} ms on core {core}"),
        Guarantee::Global => format!("{budget} ms of {period} ms on all cores"),
        Guarantee::Fifo => "precedence (SCHED_FIFO), without a budget".to_owned(),
        Guarantee::Limit => format!("at most {budget} ms of {period} ms"),
    }
}
