//! One setting of the simulated host, with its old and its new value.

use std::collections::BTreeSet;
use std::fmt;

use super::kernel::{BALANCE, Kernel, Policy};

/// A change. Undoing one that was never applied, or whose thread or folder is gone, changes
/// nothing, as on Linux.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A cgroup is created.
    Folder(String),
    /// A control file is written; without an old value, it disappears with its folder.
    File(String, String, Option<String>),
    /// A cpuset of others stops balancing load.
    Unbalanced(String),
    /// A thread moves to another cgroup.
    Moved {
        /// Which thread.
        tid: u32,
        /// Where it goes.
        to: String,
        /// Where it was.
        from: String,
    },
    /// A thread may use other cores.
    Affinity {
        /// Which thread.
        tid: u32,
        /// From now on.
        allow: BTreeSet<usize>,
        /// Until now.
        before: BTreeSet<usize>,
    },
    /// A thread is scheduled differently.
    Policy {
        /// Which thread.
        tid: u32,
        /// From now on.
        set: Policy,
        /// Until now.
        before: Policy,
    },
}

/// The kernel's refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no such thread or folder.
    Gone,
    /// The thread's core is not a separate root domain, or the thread last ran on another one.
    NotPermitted,
    /// The cgroup has threads.
    Busy,
}

impl Change {
    /// Applies it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn make(&self, kernel: &mut Kernel) -> Result<(), Refused> {
        match self {
            Self::Folder(name) => {
                kernel.folders.insert(name.clone());
            }
            Self::File(name, value, _) => write(kernel, name, value)?,
            Self::Unbalanced(name) => {
                if let Some(value) = kernel.files.get_mut(name) {
                    "0".clone_into(value);
                }
            }
            Self::Moved { tid, to, .. } => moved(kernel, *tid, to)?,
            Self::Affinity { tid, allow, .. } => {
                thread(kernel, *tid)?.allowed.clone_from(allow);
            }
            Self::Policy { tid, set, .. } => set_policy(kernel, *tid, *set)?,
        }
        Ok(())
    }

    /// Undoes it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn undo(&self, kernel: &mut Kernel) -> Result<(), Refused> {
        let undone = match self {
            Self::Folder(name) => remove(kernel, name),
            Self::File(_, _, None) => Ok(()),
            Self::File(name, _, Some(before)) => write(kernel, name, before),
            Self::Unbalanced(name) => {
                if let Some(value) = kernel.files.get_mut(name) {
                    "1".clone_into(value);
                }
                Ok(())
            }
            Self::Moved { tid, from, .. } => moved(kernel, *tid, from),
            Self::Affinity { tid, allow, before } => widen(kernel, *tid, allow, before),
            Self::Policy { tid, before, .. } => set_policy(kernel, *tid, *before),
        };
        match undone {
            Err(Refused::Gone) => Ok(()),
            undone => undone,
        }
    }

    /// The thread that it concerns.
    #[must_use]
    pub fn tid(&self) -> Option<u32> {
        match self {
            Self::Folder(_) | Self::File(..) | Self::Unbalanced(_) => None,
            Self::Moved { tid, .. } | Self::Affinity { tid, .. } | Self::Policy { tid, .. } => {
                Some(*tid)
            }
        }
    }
}

fn thread(kernel: &mut Kernel, tid: u32) -> Result<&mut super::kernel::Thread, Refused> {
    kernel.threads.get_mut(&tid).ok_or(Refused::Gone)
}

/// Files in a cgroup exist as long as the cgroup does.
fn write(kernel: &mut Kernel, name: &str, value: &str) -> Result<(), Refused> {
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    if folder.is_empty() {
        kernel.files.insert(name.to_owned(), value.to_owned());
        return Ok(());
    }
    kernel.folders.contains(folder).then_some(()).ok_or(Refused::Gone)
}

fn remove(kernel: &mut Kernel, name: &str) -> Result<(), Refused> {
    if kernel.threads.values().any(|thread| thread.group == name) {
        return Err(Refused::Busy);
    }
    kernel.folders.remove(name);
    Ok(())
}

/// A thread may use the cores of its cpuset, and keeps them when it leaves. One under SCHED_DEADLINE may
/// move to another root domain of one core.
fn moved(kernel: &mut Kernel, tid: u32, to: &str) -> Result<(), Refused> {
    if to != super::kernel::ROOT && !kernel.folders.contains(to) {
        return Err(Refused::Gone);
    }
    let core = to.strip_prefix("timevisor-cpu").and_then(|core| core.parse().ok());
    let leads_apart = core.is_some_and(|core| kernel.is_isolated(core));
    let thread = thread(kernel, tid)?;
    if matches!(thread.policy, Policy::Deadline(..)) && thread.group != to && !leads_apart {
        return Err(Refused::NotPermitted);
    }
    to.clone_into(&mut thread.group);
    if let (Policy::Deadline(..), Some(core), true) = (thread.policy, core, thread.runnable) {
        thread.last_core = core;
    }
    thread.allowed = core.map_or_else(|| thread.allowed.clone(), |core| BTreeSet::from([core]));
    Ok(())
}

/// Settings that others have changed in the meantime stay.
fn widen(
    kernel: &mut Kernel,
    tid: u32,
    allow: &BTreeSet<usize>,
    before: &BTreeSet<usize>,
) -> Result<(), Refused> {
    let thread = thread(kernel, tid)?;
    if allow == before || thread.allowed == *allow {
        thread.allowed.clone_from(before);
    }
    Ok(())
}

/// SCHED_DEADLINE requires that the thread may use its whole root domain and last ran there. A
/// thread that enters it has a full budget.
fn set_policy(kernel: &mut Kernel, tid: u32, set: Policy) -> Result<(), Refused> {
    let of = kernel.threads.get(&tid).ok_or(Refused::Gone)?;
    if matches!(set, Policy::Deadline(..)) {
        let core = of.group.strip_prefix("timevisor-cpu").and_then(|core| core.parse().ok());
        let permitted = match core {
            Some(core) => kernel.is_isolated(core) && of.last_core == core,
            None => of.allowed == kernel.all_cores(),
        };
        if !permitted {
            return Err(Refused::NotPermitted);
        }
    }
    let thread = thread(kernel, tid)?;
    if thread.policy == Policy::Other {
        thread.frozen = false;
    }
    thread.policy = set;
    Ok(())
}

/// Whether the root cpuset balances load.
#[must_use]
pub fn root_balances(kernel: &Kernel) -> bool {
    kernel.files.get(BALANCE).is_some_and(|value| value == "1")
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
