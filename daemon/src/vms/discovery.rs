//! Finds QEMU processes without a full read of /proc every time.

use std::collections::HashMap;

use timevisor_guests::qemu::{Qemu, QemuError};
use timevisor_linux::process::{Process, ProcessError};
use timevisor_time::Duration;

use crate::announce::PerUser;

/// How long a new process is re-examined: it may still call exec and become QEMU, and QEMU creates
/// its page some time after its start.
const SETTLING: Duration = Duration::from_secs(5);
/// How long a QEMU that cannot be served is re-examined: it starts slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Seen {
    first: Duration,
    /// Why it cannot be served. Reported only after [`SETTLING`], because QEMU may still be
    /// starting.
    problem: Option<String>,
    said: bool,
    /// It is not examined again.
    settled: bool,
}

/// The processes seen so far, identified by pid and start time.
#[derive(Default)]
pub struct Discovery {
    seen: HashMap<Process, Seen>,
    told: PerUser,
}

impl Discovery {
    /// QEMU processes that are new, or young enough to have changed.
    pub fn look(&mut self, now: Duration) -> Vec<Qemu> {
        let Ok(processes) = Process::all() else { return Vec::new() };
        let mut seen = HashMap::with_capacity(processes.len());
        let mut found = Vec::new();
        for process in processes {
            let mut entry = self.seen.remove(&process).unwrap_or(Seen {
                first: now,
                problem: None,
                said: false,
                settled: false,
            });
            let problem = entry.problem.take();
            let age = now - entry.first;
            if let Some(problem) = &problem
                && (age > SETTLING || entry.settled)
                && !entry.said
            {
                // Anybody can start processes that look like a QEMU.
                let user = process.users().map_or(u32::MAX, |users| users.real);
                if self.told.take(user, now) {
                    tracing::warn!("{problem}");
                } else {
                    tracing::debug!("again: {problem}");
                }
                entry.said = true;
            }
            let soon = age <= SETTLING || (problem.is_some() && age <= PATIENCE);
            if soon && !entry.settled {
                match Qemu::open(process) {
                    Ok(qemu) => found.push(qemu),
                    Err(QemuError::NotQemu(_) | QemuError::Process(ProcessError::Gone(_))) => {}
                    Err(error) => {
                        entry.problem = Some(format!("{:#}", anyhow::Error::new(error)));
                    }
                }
            }
            seen.insert(process, entry);
        }
        self.seen = seen;
        found
    }

    /// Records that a process cannot be served.
    pub fn failed(&mut self, process: &Process, problem: String) {
        if let Some(entry) = self.seen.get_mut(process) {
            entry.problem = Some(problem);
        }
    }

    /// As [`Self::failed`], and the process is not examined again: that costs too much.
    pub fn gave_up(&mut self, process: &Process, problem: String) {
        self.failed(process, problem);
        if let Some(entry) = self.seen.get_mut(process) {
            entry.settled = true;
        }
    }
}
