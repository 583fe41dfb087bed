//! Linux as the host of the reservation state machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use timevisor_linux::clock::monotonic;
use timevisor_linux::cpuset::{self, CpusetError, Cpusets};
use timevisor_linux::crash_file::{CrashFile, CrashFileError};
use timevisor_linux::scheduling::accounting_lag;
use timevisor_linux::scheduling::{
    self, Attributes, Change, Policy, SchedstatFile, processor_of, schedstat,
};
use timevisor_reservation::held::JOURNAL;
use timevisor_reservation::{
    Because, Core, Guarantee, Held, Host, Level, Moved, Restore, Severity, Step, Unmade, Usage,
    Wanted,
};
use timevisor_schedule::Reservation;

use super::cores::cores;
use super::explain::{cause_of, explain_refusal, why_not_core};
use super::plan::{attributes, off_core, plan};
use super::watch::Watch;
use crate::announce::Budget;

/// This machine, with the journal in the run directory.
#[derive(Debug)]
pub struct LinuxHost {
    journal: CrashFile<Vec<Held<Change>>>,
    /// Guests cause lines, too: a reservation that follows their tasks changes with them.
    /// What is well, and what is not: neither silences the other.
    told: [Budget; 2],
    watch: RefCell<Watch>,
    /// The schedstat of each thread that has a reservation, by process and thread.
    open: RefCell<BTreeMap<(u32, u32), Open>>,
    /// The kernel's does not change while it runs.
    accounting_lag: u64,
}

/// A thread whose schedstat is open, and when it started. As long as that can be read, it is this thread.
#[derive(Debug)]
struct Open {
    file: SchedstatFile,
    started: u64,
}

impl LinuxHost {
    pub fn new(directory: &Path) -> Self {
        Self {
            journal: CrashFile::new(directory, JOURNAL),
            told: [Budget::hourly(200), Budget::hourly(200)],
            watch: RefCell::default(),
            open: RefCell::default(),
            accounting_lag: accounting_lag(),
        }
    }

    /// What a thread has received, by its open file if there is one.
    fn received(&self, pid: u32, tid: u32) -> io::Result<scheduling::Schedstat> {
        match self.open.borrow().get(&(pid, tid)) {
            Some(open) => open.file.read(),
            None => schedstat(pid, tid),
        }
    }

    /// Keeps files open of these threads, and no others.
    fn keep_open(&self, held: &[Held<Change>]) {
        let mut open = self.open.borrow_mut();
        let mut before = std::mem::take(&mut *open);
        for held in held {
            let Some(started) = held.threads.get(&held.tid).copied() else { continue };
            let key = (held.pid, held.tid);
            if let Some(kept) = before.remove(&key).filter(|kept| kept.started == started) {
                open.insert(key, kept);
            } else if let Ok(file) = SchedstatFile::open(held.pid, held.tid)
                && scheduling::is_thread(held.pid, held.tid, Some(started))
                && file.read().is_ok()
            {
                open.insert(key, Open { file, started });
            }
        }
    }

    /// The reservations that an earlier daemon held.
    pub fn read(&self) -> Result<Vec<Held<Change>>, CrashFileError> {
        let held = self.journal.read()?;
        self.watch.borrow_mut().hold(&held);
        self.keep_open(&held);
        Ok(held)
    }
}

impl Restore for LinuxHost {
    type Change = Change;

    fn is_alive(&self, pid: u32, start_time: u64, tid: u32) -> bool {
        // A thread of the process that is open is there, and so is its process.
        match self.open.borrow().get(&(pid, tid)) {
            Some(open) if open.file.read().is_ok() => true,
            _ => scheduling::is_alive(pid, start_time, tid),
        }
    }

    fn is_thread(&self, pid: u32, tid: u32, started: Option<u64>) -> bool {
        match (self.open.borrow().get(&(pid, tid)), started) {
            (Some(open), Some(then)) if open.started == then => open.file.read().is_ok(),
            _ => scheduling::is_thread(pid, tid, started),
        }
    }

    fn thread_started(&self, pid: u32, tid: u32) -> Option<u64> {
        scheduling::started(pid, tid).ok()
    }

    fn thread(&self, change: &Change) -> Option<u32> {
        change.tid()
    }

    fn undo(&mut self, change: &Change) -> Result<(), String> {
        change.undo().map_err(|error| error.to_string())
    }

    fn widen(&mut self, pid: u32, undone: &[Step<Change>]) {
        for (_, change) in undone.iter().rev() {
            if let Change::Affinity { tid, allow, before } = change
                && *tid == pid
            {
                scheduling::widen_new_threads(pid, allow, before);
            }
        }
    }
}

impl Host for LinuxHost {
    type Group = PathBuf;

    fn now(&self) -> u64 {
        monotonic().floor_nanos().unsigned_abs()
    }

    fn write(&mut self, held: &[Held<Change>]) -> Result<(), String> {
        self.journal.write(&held.to_vec()).map_err(with_causes)?;
        self.watch.get_mut().hold(held);
        self.keep_open(held);
        Ok(())
    }

    fn cores(&self, tid: Option<u32>) -> Vec<Core> {
        cores(tid)
    }

    fn plan(
        &self,
        wanted: &Wanted,
        isolated: &BTreeSet<usize>,
    ) -> Result<Vec<Step<Change>>, Unmade> {
        let level = |level| match level {
            cpuset::Level::Thread => Level::Thread,
            cpuset::Level::Processor => Level::Processor,
            cpuset::Level::Host => Level::Host,
        };
        if let Some(why) = wanted.guarantee.core().and_then(why_not_core) {
            return Err(Unmade::of_core(why));
        }
        let (pid, tid) = (wanted.target.pid, wanted.target.tid);
        let planned = plan(wanted, isolated).map_err(|error| {
            if scheduling::is_thread(pid, tid, None) {
                return Unmade::of_core(with_causes(error));
            }
            let why =
                format!("thread {tid} has ended; is the VM running, and is the vCPU plugged?");
            Unmade { cause: Because::Anything, why }
        })?;
        Ok(planned.into_iter().map(|(of, change)| (level(of), change)).collect())
    }

    fn strays(&self, held: &Held<Change>) -> Result<Vec<Change>, String> {
        let Some(core) = held.core() else { return Ok(Vec::new()) };
        off_core(held.pid, held.tid, core).map_err(with_causes)
    }

    fn make(&mut self, held: &Held<Change>, change: &Change) -> Result<(), Unmade> {
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let made = match change.make() {
            // One on an isolated core was on any of them when it slept.
            Err(error)
                if denied(&error)
                    && widened(held, change).is_none()
                    && sleeps_elsewhere(held, change) =>
            {
                let why = explain_refusal(change, &error, held);
                return Err(Unmade { cause: Because::Asleep, why });
            }
            // The vCPU may have moved to its core between the kernel's answer and this check; or it is on an
            // isolated core, and must be allowed on all of them for a moment.
            Err(error) if denied(&error) => match widened(held, change) {
                Some((wide, narrow)) => wide.make().and_then(|()| change.make()).and(narrow.make()),
                None => change.make(),
            },
            made => made,
        };
        made.map_err(|error| Unmade {
            cause: cause_of(&error),
            why: explain_refusal(change, &error, held),
        })?;
        // The kernel reports whether a partition was created only after it was written; the thread
        // is moved there afterwards.
        if held.core().is_some() && matches!(change, Change::Moved { .. }) {
            verify_partition(held).map_err(|error| Unmade::of_core(with_causes(error)))?;
        }
        Ok(())
    }

    fn wake(&mut self, held: &Held<Change>) -> bool {
        scheduling::wake(held.pid, held.tid, held.threads.get(&held.tid).copied())
    }

    fn is_on_core(&self, held: &Held<Change>) -> bool {
        let last = processor_of(held.pid, held.tid).ok();
        held.core().is_none_or(|core| last == Some(core))
    }

    fn check(&self, held: &Held<Change>, change: &Change) -> Result<(), String> {
        match change {
            Change::Attributes { tid, set, .. } => check_policy(*tid, set),
            Change::File { path, write, .. } if held.core().is_some() => {
                // The last list is the core alone.
                if lists(held).next_back() == Some(change) {
                    let has = std::fs::read_to_string(path).unwrap_or_default();
                    if has.trim() != write {
                        return Err(format!(
                            "{} is {} and not {write}",
                            path.display(),
                            has.trim()
                        ));
                    }
                }
                Cpusets::check(change).map_err(with_causes)
            }
            // Nothing else shows whether a limit is in force.
            Change::Moved { tid, to, .. } if held.guarantee == Guarantee::Limit => {
                let listed = std::fs::read_to_string(to).unwrap_or_default();
                if listed.lines().any(|line| line.trim().parse() == Ok(*tid)) {
                    return Ok(());
                }
                Err(format!("thread {tid} is not in {}", to.display()))
            }
            _ => Ok(()),
        }
    }

    fn sets_policy(&self, change: &Change) -> bool {
        matches!(change, Change::Attributes { .. })
    }

    fn sets_the_same(&self, one: &Change, other: &Change) -> bool {
        match (one, other) {
            (
                Change::Affinity { tid, allow, .. },
                Change::Affinity { tid: same, allow: equal, .. },
            ) => (tid, allow) == (same, equal),
            _ => false,
        }
    }

    fn with_reservation(&self, change: &Change, reservation: &Reservation) -> Option<Change> {
        match change {
            Change::Attributes { tid, set, before } if set.policy == Policy::DEADLINE => {
                let set = attributes(reservation);
                Some(Change::Attributes { tid: *tid, set, before: *before })
            }
            _ => None,
        }
    }

    fn rebase(&self, pid: u32, gone: &Change, later: &Change) -> Option<Change> {
        rebase(pid, gone, later)
    }

    fn moved(&self, change: &Change) -> Option<Moved<PathBuf>> {
        let Change::Moved { tid, to, from } = change else { return None };
        Some(Moved { tid: *tid, to: to.clone(), from: from.clone() })
    }

    fn moving(&self, Moved { tid, to, from }: Moved<PathBuf>) -> Change {
        Change::Moved { tid, to, from }
    }

    fn usage(&self, pid: u32, tid: u32) -> Option<Usage> {
        let stat = self.received(pid, tid).ok()?;
        Some(Usage { ran: stat.ran, waited: stat.waited })
    }

    fn is_runnable(&self, pid: u32, tid: u32) -> Option<bool> {
        scheduling::is_runnable(pid, tid).ok()
    }

    fn accounting_lag(&self) -> u64 {
        self.accounting_lag
    }

    fn separating(&self, isolated: &[usize]) -> Result<Vec<Change>, String> {
        for told in self.watch.borrow_mut().look(self.now())? {
            tracing::warn!("{told}");
        }
        Cpusets::find().and_then(|cpusets| cpusets.keep_apart(isolated)).map_err(with_causes)
    }

    fn settle(&mut self, isolated: &[usize]) -> Result<(), String> {
        Cpusets::find().and_then(|cpusets| cpusets.settle(isolated)).map_err(with_causes)
    }

    fn is_moot(&self, change: &Change) -> bool {
        change.is_moot()
    }

    fn tell(&mut self, severity: Severity, text: &str) {
        let [well, not_well] = &mut self.told;
        let told = match severity {
            Severity::Error => true,
            Severity::Warn => not_well.take(monotonic()),
            Severity::Info => well.take(monotonic()),
        };
        match severity {
            _ if !told => tracing::debug!("again: {text}"),
            Severity::Info => tracing::info!("{text}"),
            Severity::Warn => tracing::warn!("{text}"),
            Severity::Error => tracing::error!("{text}"),
        }
    }
}

/// Implements [`Host::rebase`].
fn rebase(pid: u32, gone: &Change, later: &Change) -> Option<Change> {
    match (gone, later) {
        (
            Change::Affinity { tid, allow, before },
            Change::Affinity { tid: same, allow: later, before: then },
        ) if (tid == same || *tid == pid) && allow == then => {
            // A no-op change restores whatever its thread may have inherited from a cpuset.
            let allow = if later == then { before } else { later };
            Some(Change::Affinity { tid: *same, allow: allow.clone(), before: before.clone() })
        }
        (
            Change::Attributes { tid, set, before },
            Change::Attributes { tid: same, set: later, before: then },
        ) if tid == same && set.is_same(then) => {
            Some(Change::Attributes { tid: *tid, set: *later, before: *before })
        }
        _ => None,
    }
}

/// The changes by which the cpuset of an isolated core was made wide and narrow, if `change` gives a thread a
/// deadline there.
fn widened<'a>(held: &'a Held<Change>, change: &Change) -> Option<(&'a Change, &'a Change)> {
    let by_deadline =
        matches!(change, Change::Attributes { set, .. } if set.policy == Policy::DEADLINE);
    let mut lists = lists(held);
    let (wide, narrow) = (lists.next()?, lists.next_back()?);
    by_deadline.then_some((wide, narrow))
}

/// The changes of a reservation's own lists of processors with cgroup v2, in order.
///
/// What was handed over by a reservation of another cgroup on the same core is not its own.
fn lists(held: &Held<Change>) -> impl DoubleEndedIterator<Item = &Change> {
    let changes = || held.changes.iter().map(|(_, change)| change);
    let folder = changes().rev().find_map(|change| match change {
        Change::Moved { tid, to, .. } if *tid == held.tid => to.parent(),
        _ => None,
    });
    changes().filter(move |change| match change {
        Change::File { path, .. } => cpuset::is_own_list(path) && path.parent() == folder,
        _ => false,
    })
}

/// An error and its causes on one line.
pub fn with_causes(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

/// Whether the vCPU's policy cannot be changed because the vCPU last ran on another core: the
/// kernel checks the root domain of that core (`__sched_setscheduler`).
fn sleeps_elsewhere(held: &Held<Change>, change: &Change) -> bool {
    let Some(core) = held.core() else { return false };
    matches!(change, Change::Attributes { tid, .. } if *tid == held.tid)
        && processor_of(held.pid, held.tid).is_ok_and(|last| last != core)
}

fn verify_partition(held: &Held<Change>) -> Result<(), CpusetError> {
    let changes: Vec<_> =
        held.changes.iter().map(|(_, change)| (cpuset::Level::Thread, change.clone())).collect();
    Cpusets::find()?.verify(&changes)
}

fn check_policy(tid: u32, set: &Attributes) -> Result<(), String> {
    let found = Attributes::of(tid)
        .map_err(|error| format!("cannot read the policy of thread {tid}: {error}"))?;
    if found.is_same(set) {
        return Ok(());
    }
    Err(format!(
        "thread {tid} is scheduled as {found} and not as {set}; is another program setting it?"
    ))
}

#[cfg(test)]
mod tests {
    use timevisor_reservation::Reservations;

    use super::*;

    #[test]
    fn two_reservations_of_one_vm_change_its_main_thread_in_turn() {
        let affinity = |tid, allow: &[usize], before: &[usize]| Change::Affinity {
            tid,
            allow: allow.to_vec(),
            before: before.to_vec(),
        };
        let first = affinity(7, &[0, 1, 2], &[0, 1, 2, 3]);
        let second = affinity(7, &[0, 1], &[0, 1, 2]);
        assert_eq!(rebase(7, &first, &second), Some(affinity(7, &[0, 1], &[0, 1, 2, 3])));
        assert_eq!(rebase(7, &second, &first), None);
        let started_meanwhile = affinity(8, &[0, 1], &[0, 1, 2]);
        let restored = affinity(8, &[0, 1], &[0, 1, 2, 3]);
        assert_eq!(rebase(7, &first, &started_meanwhile), Some(restored));
        assert_eq!(rebase(6, &first, &started_meanwhile), None, "not the main thread");
        let unchanged = affinity(7, &[0, 1, 2], &[0, 1, 2]);
        assert_eq!(
            rebase(7, &first, &unchanged),
            Some(affinity(7, &[0, 1, 2, 3], &[0, 1, 2, 3])),
            "restored whatever the cpuset allowed"
        );
        let (other, fifo) = (Attributes::other(), Attributes::fifo(1));
        let policy = |set, before| Change::Attributes { tid: 7, set, before };
        assert_eq!(rebase(7, &policy(fifo, other), &policy(fifo, fifo)), Some(policy(fifo, other)));
    }

    #[test]
    fn the_journal_is_read_as_it_was_written_by_earlier_versions() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"[{"vm":"web","vcpu":0,"pid":7,"start_time":9,"tid":8,"guarantee":{"core":1},
            "budget":28000000,"deadline":50000000,"period":50000000,"alone":true,
            "changes":[["host",{"folder":{"path":"/x"}}],["processor",{"granted":{"path":"/y","processor":1}}],
                       ["thread",{"affinity":{"tid":8,"allow":[1],"before":[0,1]}}]],
            "ran":1,"since":2}]"#;
        std::fs::write(folder.path().join(JOURNAL), text).unwrap();
        let mut host = LinuxHost::new(folder.path());
        let held = host.read().unwrap();
        assert!(held[0].threads.is_empty() && held[0].leftover.is_empty());
        let levels: Vec<Level> = held[0].changes.iter().map(|(level, _)| *level).collect();
        assert_eq!(levels, [Level::Host, Level::Processor, Level::Thread]);
        assert_eq!((held[0].core(), held[0].soft, held[0].followed), (Some(1), None, false));
        host.write(&held).unwrap();
        assert_eq!(host.read().unwrap(), held);
        crate::mutation::each(text.as_bytes(), 2000, |bytes| {
            std::fs::write(folder.path().join(JOURNAL), bytes).unwrap();
            // What cannot be read must not be overwritten: settings would never be given back.
            let _ = host.read();
            assert_eq!(std::fs::read(folder.path().join(JOURNAL)).unwrap(), bytes);
        });
        std::fs::write(folder.path().join(JOURNAL), r#"[{"vm":3}]"#).unwrap();
        assert!(host.read().unwrap_err().to_string().contains("not understood"));
    }

    /// It has a field that this version does not know, or a change: each may be something to undo.
    #[test]
    fn the_journal_of_a_later_version_is_refused_and_kept() {
        let now = r#"[{"vm":"web","vcpu":0,"pid":7,"start_time":9,"tid":8,"guarantee":{"core":1},
            "budget":28000000,"deadline":50000000,"period":50000000,"alone":true,"changes":[],"ran":1,"since":2}]"#;
        let later = [
            now.replace(r#""ran":1"#, r#""irqs":[9],"ran":1"#),
            now.replace(r#""changes":[]"#, r#""changes":[["host",{"frequency":{"core":1}}]]"#),
            now.replace(r#"{"core":1},"#, r#"{"cluster":1},"#),
        ];
        for text in later {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(JOURNAL);
            std::fs::write(&path, &text).unwrap();
            let mut host = LinuxHost::new(folder.path());
            let journal = host.read().map_err(with_causes);
            let why = journal.clone().unwrap_err();
            assert!(why.contains("another version wrote it") && why.contains("unknown"), "{why}");
            let mut all = Reservations::start(journal, Vec::new(), &mut host);
            // Nobody can look at it, and nobody takes it for nothing.
            let said = all.problems();
            assert!(
                said[0].contains("`timevisor reserve release --all` of that version"),
                "{said:?}"
            );
            let refused = all.release(None, None, &mut host).unwrap_err();
            assert!(refused.to_string().contains("every setting that it lists stays"), "{refused}");
            assert!(all.configure(Vec::new(), &mut host).is_empty());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
