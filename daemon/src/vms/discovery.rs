//! Finding QEMU processes without reading all of /proc all the time.

use std::collections::HashMap;

use timevisor_guests::qemu::{Qemu, QemuError};
use timevisor_linux::process::{Process, ProcessError};
use timevisor_time::Duration;

/// A process may become QEMU after it was forked, and QEMU makes its page after it was started: new processes are looked
/// at again for this long.
const SETTLING: Duration = Duration::from_secs(5);
/// And those that could not be served for so long: on a busy machine QEMU takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

struct Seen {
    first: Duration,
    /// Why it cannot be served: said when it has settled, for until then it may be because QEMU is still starting.
    problem: Option<String>,
    said: bool,
}

/// The processes seen so far, known by pid and start.
#[derive(Default)]
pub struct Discovery {
    seen: HashMap<Process, Seen>,
}

impl Discovery {
    /// QEMU processes that are new, or still so young that they may have changed.
    pub fn look(&mut self, now: Duration) -> Vec<Qemu> {
        let Ok(processes) = Process::all() else { return Vec::new() };
        let mut seen = HashMap::with_capacity(processes.len());
        let mut found = Vec::new();
        for process in processes {
            let mut entry = self.seen.remove(&process).unwrap_or(Seen {
                first: now,
                problem: None,
                said: false,
            });
            let problem = entry.problem.take();
            let age = now - entry.first;
            if let Some(problem) = &problem
                && age > SETTLING
                && !entry.said
            {
                tracing::warn!("{problem}");
                entry.said = true;
            }
            if age <= SETTLING || (problem.is_some() && age <= PATIENCE) {
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

    /// A process that was found cannot be served.
    pub fn failed(&mut self, process: &Process, problem: String) {
        if let Some(entry) = self.seen.get_mut(process) {
            entry.problem = Some(problem);
        }
    }
}
