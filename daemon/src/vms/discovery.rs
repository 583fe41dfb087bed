//! Finding QEMU processes without reading all of /proc all the time.

use std::collections::HashMap;

use timevisor_guests::qemu::{Qemu, QemuError};
use timevisor_linux::process::Process;
use timevisor_time::Duration;

/// A process may become QEMU after it was forked, and QEMU makes its page after it was started: new processes are looked
/// at again for this long.
const SETTLING: Duration = Duration::from_secs(5);

/// The processes seen so far, and when first.
#[derive(Default)]
pub struct Discovery {
    first_seen: HashMap<u32, Duration>,
}

impl Discovery {
    /// QEMU processes that are new, or still so young that they may have changed.
    pub fn look(&mut self, now: Duration) -> Vec<Qemu> {
        let Ok(processes) = Process::all() else { return Vec::new() };
        let mut seen = HashMap::with_capacity(processes.len());
        let mut found = Vec::new();
        for process in processes {
            let first = *self.first_seen.get(&process.pid()).unwrap_or(&now);
            seen.insert(process.pid(), first);
            if now - first > SETTLING {
                continue;
            }
            match Qemu::open(process) {
                Ok(qemu) => found.push(qemu),
                Err(QemuError::NotQemu(_) | QemuError::Starting(_)) => {}
                Err(error) => tracing::debug!("process {}: {error}", process.pid()),
            }
        }
        self.first_seen = seen;
        found
    }
}
