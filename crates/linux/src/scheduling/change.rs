//! [`Change`]: a change of one kernel setting, with what is needed to restore the old value.
//!
//! A change is plain data: it can be shown (a dry run), recorded in advance (so that it can be
//! undone after a crash), applied, and undone. Undoing a change that was never applied, or whose
//! thread is gone, does no harm.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Attributes;
use crate::affinity;

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A cgroup is created.
    Folder {
        /// Its folder.
        path: PathBuf,
    },
    /// A control file is written.
    File {
        /// The file.
        path: PathBuf,
        /// What is written.
        write: String,
        /// What is written to undo it; `None` if it disappears with its folder.
        undo: Option<String>,
    },
    /// Another owner's cpuset (cgroup v1) stops balancing load over its processors; it may
    /// disappear or change in the meantime.
    Unbalanced {
        /// Its folder.
        path: PathBuf,
    },
    /// A processor is added to the list in a control file; others may be added and removed in the
    /// meantime.
    Granted {
        /// Which file.
        path: PathBuf,
        /// Which processor.
        processor: usize,
    },
    /// A thread moves to another cgroup.
    Moved {
        /// Which thread.
        tid: u32,
        /// The thread id file of the new cgroup.
        to: PathBuf,
        /// The thread id file of the old cgroup.
        from: PathBuf,
    },
    /// A thread's affinity changes.
    Affinity {
        /// Which thread.
        tid: u32,
        /// From now on.
        allow: Vec<usize>,
        /// Until now.
        before: Vec<usize>,
    },
    /// A thread is scheduled differently.
    Attributes {
        /// Which thread.
        tid: u32,
        /// From now on.
        set: Attributes,
        /// Until now.
        before: Attributes,
    },
}

impl Change {
    /// Applies it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make(&self) -> io::Result<()> {
        match self {
            Self::Folder { path } => match std::fs::create_dir(path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                made => made,
            },
            Self::File { path, write, .. } => std::fs::write(path, write),
            Self::Unbalanced { path } => match std::fs::write(balance(path), "0") {
                // A cpuset that no longer exists balances nothing.
                Err(error) if is_gone(&error) => Ok(()),
                made => made,
            },
            Self::Granted { path, processor } => grant(path, *processor, true),
            Self::Moved { tid, to, .. } => std::fs::write(to, tid.to_string()),
            Self::Affinity { tid, allow, .. } => allow_only(*tid, allow),
            Self::Attributes { tid, set, .. } => set.set(*tid),
        }
    }

    /// Undoes it. What is gone needs no undoing, and what others have set in the meantime stays: a
    /// cpuset that balances again, a thread whose affinity was changed.
    ///
    /// # Errors
    /// The kernel's, except when the thread or the cgroup is gone.
    pub fn undo(&self) -> io::Result<()> {
        let undone = match self {
            Self::Folder { path } => remove(path),
            Self::File { undo: None, .. } => Ok(()),
            Self::File { path, undo: Some(undo), .. } => std::fs::write(path, undo),
            Self::Unbalanced { path } => balance_again(&balance(path)),
            Self::Granted { path, processor } => grant(path, *processor, false),
            Self::Moved { tid, from, .. } => std::fs::write(from, tid.to_string()),
            Self::Affinity { tid, allow, before } => widen(*tid, allow, before),
            Self::Attributes { tid, before, .. } => before.set(*tid),
        };
        match undone {
            Err(error) if is_gone(&error) => Ok(()),
            undone => undone,
        }
    }

    /// Whether it concerned another owner's cpuset that no longer exists, so nothing is left to
    /// undo.
    #[must_use]
    pub fn is_moot(&self) -> bool {
        matches!(self, Self::Unbalanced { path } if !path.exists())
    }

    /// The thread that it concerns, if any.
    #[must_use]
    pub fn tid(&self) -> Option<u32> {
        match self {
            Self::Folder { .. }
            | Self::File { .. }
            | Self::Unbalanced { .. }
            | Self::Granted { .. } => None,
            Self::Moved { tid, .. } | Self::Affinity { tid, .. } | Self::Attributes { tid, .. } => {
                Some(*tid)
            }
        }
    }
}

/// Sets a thread's affinity. A thread that already has exactly these processors is not touched: it
/// keeps the affinity that it set itself, which outlasts changes of its cpuset.
fn allow_only(tid: u32, processors: &[usize]) -> io::Result<()> {
    if affinity::allowed_of(tid)? == processors {
        return Ok(());
    }
    affinity::allow(tid, processors)
}

/// Undoes [`allow_only`], unless the affinity has been changed in the meantime.
fn widen(tid: u32, allow: &[usize], before: &[usize]) -> io::Result<()> {
    if allow != before && affinity::allowed_of(tid)? != allow {
        return Ok(());
    }
    match allow_only(tid, before) {
        // Its cpuset no longer contains any of them (`virsh vcpupin` writes there first).
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done,
    }
}

fn balance(cpuset: &Path) -> PathBuf {
    cpuset.join("cpuset.sched_load_balance")
}

fn balance_again(path: &Path) -> io::Result<()> {
    if std::fs::read_to_string(path)?.trim() == "0" {
        return std::fs::write(path, "1");
    }
    Ok(())
}

fn grant(path: &Path, processor: usize, has: bool) -> io::Result<()> {
    let listed = std::fs::read_to_string(path)?;
    let mut all = affinity::list(listed.trim()).unwrap_or_default();
    all.retain(|other| *other != processor);
    if has {
        all.push(processor);
        all.sort_unstable();
    }
    // An empty line is an empty list.
    std::fs::write(path, format!("{}\n", affinity::text(&all)))
}

/// Removes a cgroup. With cgroup v2, threads that began in it go to the one above first: KVM starts one of its own
/// when a vCPU first runs (`kvm_mmu_post_init_vm`), which is where the vCPU is then.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            let born = std::fs::read_to_string(path.join("cgroup.threads")).unwrap_or_default();
            let above = path.parent().map(|above| above.join("cgroup.threads"));
            let Some(above) = above.filter(|above| !born.is_empty() && above.exists()) else {
                return Err(error);
            };
            for tid in born.lines() {
                // One that has ended meanwhile is in nobody's way.
                let _ = std::fs::write(&above, tid);
            }
            std::fs::remove_dir(path)
        }
        removed => removed,
    }
}

fn is_gone(error: &io::Error) -> bool {
    // ENODEV: the cgroup was removed while its file was open.
    error.kind() == ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV))
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder { path } => write!(f, "mkdir {}", path.display()),
            Self::File { path, write, .. } => write!(f, "{} <- {}", path.display(), write.trim()),
            Self::Unbalanced { path } => write!(f, "{} <- 0", balance(path).display()),
            Self::Granted { path, processor } => write!(f, "{} <- + {processor}", path.display()),
            Self::Moved { tid, to, .. } => write!(f, "{} <- {tid}", to.display()),
            Self::Affinity { tid, allow, .. } => {
                write!(f, "thread {tid}: processors {}", affinity::text(allow))
            }
            Self::Attributes { tid, set, .. } => write!(f, "thread {tid}: {set}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_undone_and_what_is_gone_needs_no_undoing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("group");
        let file = folder.path().join("balance");
        std::fs::write(&file, "1").unwrap();
        let list = folder.path().join("list");
        std::fs::write(&list, "2\n").unwrap();
        let made = [
            Change::Granted { path: list.clone(), processor: 1 },
            Change::Folder { path: path.clone() },
            Change::File { path: file.clone(), write: "0".into(), undo: Some("1".into()) },
        ];
        made.iter().for_each(|change| change.make().unwrap());
        assert!(path.is_dir());
        assert_eq!(std::fs::read_to_string(&list).unwrap(), "1-2\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "0");
        made.iter().rev().for_each(|change| change.undo().unwrap());
        assert!(!path.exists());
        assert_eq!(std::fs::read_to_string(&list).unwrap(), "2\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "1");
        made[1].undo().unwrap();
        let gone = Change::Affinity { tid: 4_194_000, allow: vec![0], before: vec![0] };
        gone.undo().unwrap();
        assert!(gone.make().is_err());
    }

    #[test]
    fn what_others_have_set_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cpuset = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(balance(&path), "1").unwrap();
            Change::Unbalanced { path }
        };
        let (kept, gone) = (cpuset("kept"), cpuset("gone"));
        let read = || std::fs::read_to_string(balance(&folder.path().join("kept"))).unwrap();
        for change in [&kept, &gone] {
            change.make().unwrap();
        }
        assert_eq!(read(), "0");
        std::fs::remove_dir_all(folder.path().join("gone")).unwrap();
        for change in [&kept, &gone] {
            change.undo().unwrap();
        }
        assert_eq!(read(), "1");
        gone.make().unwrap();
        assert!(gone.is_moot() && !kept.is_moot());
        // The kernel appends a newline; any other value was not set by us.
        for (found, left) in [("0\n", "1"), ("1\n", "1\n"), ("2", "2")] {
            std::fs::write(balance(&folder.path().join("kept")), found).unwrap();
            kept.undo().unwrap();
            assert_eq!(read(), left);
        }
    }

    #[test]
    fn a_thread_that_was_given_other_processors_keeps_them() {
        let online = affinity::online().unwrap();
        if online.len() < 2 {
            return;
        }
        let (first, second) = (online[..1].to_vec(), online[1..2].to_vec());
        let kept = |now: Vec<usize>| {
            let change = Change::Affinity { tid: 0, allow: first.clone(), before: online.clone() };
            let thread = move || {
                change.make().unwrap();
                affinity::allow(0, &now).unwrap();
                change.undo().unwrap();
                affinity::allowed().unwrap()
            };
            std::thread::spawn(thread).join().unwrap()
        };
        assert_eq!(kept(second.clone()), second);
        assert_eq!(kept(first.clone()), online);
    }

    #[test]
    fn a_change_survives_on_disk() {
        let change = Change::Attributes {
            tid: 7,
            set: Attributes::deadline(28_000_000, 50_000_000, 50_000_000),
            before: Attributes::other(),
        };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), change);
        assert_eq!(change.to_string(), "thread 7: SCHED_DEADLINE 28ms of 50ms within 50ms");
    }
}
