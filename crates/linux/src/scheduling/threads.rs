//! The threads of a process in /proc, and the processor time each has received.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// A thread of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Its id as the process itself knows it: another one in a PID namespace of its own.
    pub inner_tid: u32,
    /// Its name, cut to 15 bytes by the kernel.
    pub name: String,
}

/// /proc/PID/task/TID/schedstat, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Schedstat {
    /// How long it has run.
    pub ran: u64,
    /// How long it was runnable while another thread ran.
    pub waited: u64,
}

fn folder(pid: u32, tid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/task/{tid}"))
}

/// The threads of a process, by id.
///
/// # Errors
/// When it has ended.
pub fn threads(pid: u32) -> io::Result<Vec<Thread>> {
    let nested = inner_id(&std::fs::read_to_string(format!("/proc/{pid}/status"))?) != Some(pid);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Threads that have ended in the meantime are skipped.
        if let Ok(name) = std::fs::read(folder(pid, tid).join("comm")) {
            let name = String::from_utf8_lossy(&name).trim_end().to_owned();
            let status = || std::fs::read_to_string(folder(pid, tid).join("status")).ok();
            let inner = if nested { status().and_then(|text| inner_id(&text)) } else { None };
            found.push(Thread { tid, inner_tid: inner.unwrap_or(tid), name });
        }
    }
    found.sort_by_key(|thread| thread.tid);
    Ok(found)
}

/// The innermost of the ids that /proc/PID/status lists (NSpid): that of the process's own namespace.
fn inner_id(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().next_back()?.parse().ok()
}

/// What a thread has received so far.
///
/// # Errors
/// When it has ended, or the kernel does not keep these counts (CONFIG_SCHED_INFO).
pub fn schedstat(pid: u32, tid: u32) -> io::Result<Schedstat> {
    parsed(&std::fs::read_to_string(folder(pid, tid).join("schedstat"))?)
}

fn parsed(text: &str) -> io::Result<Schedstat> {
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(ran)), Some(Ok(waited))) => Ok(Schedstat { ran, waited }),
        _ => Err(io::Error::other(format!("odd schedstat: {text:?}"))),
    }
}

/// The schedstat of one thread, kept open: a read costs a tenth of [`schedstat`]'s, and another thread
/// with the same id is never taken for this one (the kernel answers ESRCH for ever once it has ended).
#[derive(Debug)]
pub struct SchedstatFile(File);

impl SchedstatFile {
    /// Opens it.
    ///
    /// # Errors
    /// When the thread has ended, or is not of this process.
    pub fn open(pid: u32, tid: u32) -> io::Result<Self> {
        File::open(folder(pid, tid).join("schedstat")).map(Self)
    }

    /// What the thread has received so far.
    ///
    /// # Errors
    /// When it has ended, or the kernel does not keep these counts (CONFIG_SCHED_INFO).
    pub fn read(&self) -> io::Result<Schedstat> {
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0)?;
        parsed(&String::from_utf8_lossy(&text[..length]))
    }
}

/// How far [`Schedstat::ran`] of a running thread may lag behind, ns: the kernel updates it at each
/// tick. A tick is at most 10 ms (CONFIG_HZ=100). On processors without one (nohz_full) another
/// processor updates it, once a second; the kernel warns when that takes 3 s (kernel/sched/core.c,
/// sched_tick_remote).
#[must_use]
pub fn accounting_lag() -> u64 {
    let tickless = std::fs::read_to_string("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
    if tickless.contains(|c: char| c.is_ascii_digit()) { 3_000_000_000 } else { 10_000_000 }
}

/// The processor that a thread runs on, or ran on last (field 39 of its stat).
///
/// # Errors
/// When it has ended.
pub fn processor_of(pid: u32, tid: u32) -> io::Result<usize> {
    let field = field_of_stat(pid, tid, 39)?;
    field.parse().map_err(|_| io::Error::other(format!("odd processor: {field:?}")))
}

/// When a thread started, in clock ticks after boot (field 22 of its stat): distinguishes it from a
/// later one with its id.
///
/// # Errors
/// When it has ended, or is not of this process.
pub fn started(pid: u32, tid: u32) -> io::Result<u64> {
    let field = field_of_stat(pid, tid, 22)?;
    field.parse().map_err(|_| io::Error::other(format!("odd start time: {field:?}")))
}

/// Whether a thread sleeps and can be woken by a signal (field 3 of its stat is S).
///
/// # Errors
/// When it has ended.
pub fn is_asleep(pid: u32, tid: u32) -> io::Result<bool> {
    field_of_stat(pid, tid, 3).map(|state| state == "S")
}

/// Whether a thread is running or runnable (field 3 of its stat is R).
///
/// # Errors
/// When it has ended.
pub fn is_runnable(pid: u32, tid: u32) -> io::Result<bool> {
    field_of_stat(pid, tid, 3).map(|state| state == "R")
}

/// A field of proc_pid_stat(5) after the name, numbered from 1 as in the manual page.
fn field_of_stat(pid: u32, tid: u32, number: usize) -> io::Result<String> {
    let text = std::fs::read_to_string(folder(pid, tid).join("stat"))?;
    // The name in parentheses may contain anything, so count from its end.
    let (_, rest) = text.rsplit_once(')').unwrap_or_default();
    let field = rest.split_whitespace().nth(number - 3).map(str::to_owned);
    field.ok_or_else(|| io::Error::other(format!("odd stat: {text:?}")))
}

/// The cgroup of a thread in the hierarchy of this controller; "" is cgroup v2's. One that sets its
/// processor apart ([`crate::cpuset`]) does not count: it is below the thread's own.
///
/// # Errors
/// When it has ended, or there is no such hierarchy.
pub fn cgroup_of(pid: u32, tid: u32, controller: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(folder(pid, tid).join("cgroup"))?;
    let found = find(&text, controller).ok_or_else(|| {
        io::Error::other(format!("no cgroup hierarchy {controller:?} has thread {tid}"))
    })?;
    Ok(without_ours(&found).to_owned())
}

/// The path of a cgroup without one of ours for a processor at its end.
fn without_ours(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((home, last)) if is_of_processor(last) => {
            if home.is_empty() {
                "/"
            } else {
                home
            }
        }
        _ => path,
    }
}

fn is_of_processor(name: &str) -> bool {
    let number = name.strip_prefix(crate::cpuset::OURS).and_then(|rest| rest.strip_prefix("cpu"));
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

/// `5:cpu,cpuacct:/path` and `0::/path` (proc_pid_cgroup(5)).
fn find(text: &str, controller: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        names.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_this_thread_which_has_run() {
        let pid = std::process::id();
        let all = threads(pid).unwrap();
        assert!(all.iter().any(|thread| thread.tid == pid), "{all:?}");
        let before = schedstat(pid, pid).unwrap();
        assert!(before.ran > 0);
        let kept = SchedstatFile::open(pid, pid).unwrap();
        let (first, second) = (kept.read().unwrap(), kept.read().unwrap());
        assert!(
            before.ran <= first.ran && first.ran <= second.ran,
            "{before:?} {first:?} {second:?}"
        );
        assert!(threads(0).is_err());
        assert!(started(pid, pid).unwrap() > 0 && started(pid, 0).is_err());
        let processor = processor_of(pid, pid).unwrap();
        assert!(crate::affinity::online().unwrap().contains(&processor));
    }

    #[test]
    fn who_runs_is_runnable_and_who_waits_is_not() {
        let own = || {
            let link = std::fs::read_link("/proc/thread-self").unwrap();
            link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()
        };
        let pid = std::process::id();
        let (end, until) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(own()).unwrap();
            until.recv().unwrap_err();
        });
        let other_tid = told.recv().unwrap();
        assert!(is_runnable(pid, own()).unwrap());
        while is_runnable(pid, other_tid).unwrap() {
            std::thread::yield_now();
        }
        let kept = SchedstatFile::open(pid, other_tid).unwrap();
        assert!(kept.read().is_ok());
        drop(end);
        other.join().unwrap();
        // The thread ends soon after it is joined.
        while kept.read().is_ok() {
            std::thread::yield_now();
        }
        assert!(is_runnable(pid, 0).is_err());
    }

    #[test]
    fn cgroups_by_controller() {
        let text = "9:name=systemd:/a\n3:cpuset:/machine/web\n5:cpu,cpuacct:/b:c\n0::/u\n";
        let of = |controller: &str| find(text, controller);
        assert_eq!(of("cpuset").as_deref(), Some("/machine/web"));
        assert_eq!(of("cpuacct").as_deref(), Some("/b:c"));
        assert_eq!(of("").as_deref(), Some("/u"));
        assert_eq!(of("pids"), None);
        assert_eq!(without_ours("/machine/web/timevisor-cpu3"), "/machine/web");
        assert_eq!(without_ours("/timevisor-cpu12"), "/");
        for theirs in
            ["/", "/machine/web", "/timevisor-rest", "/timevisor-cpu", "/timevisor-cpus/x"]
        {
            assert_eq!(without_ours(theirs), theirs);
        }
    }
}
