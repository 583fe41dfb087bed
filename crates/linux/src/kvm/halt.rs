//! Halt polling: before the thread of a vCPU that halts goes to sleep, KVM spins for a while
//! (Documentation/virt/kvm/halt-polling.rst), which consumes the thread's reservation.

use std::path::Path;

use crate::scheduling::Change;

const PARAMETER: &str = "/sys/module/kvm/parameters/halt_poll_ns";

/// The change that turns it off for all VMs of this host; `None` if it is already off, or there is
/// no KVM. Before Linux 6.2, a VM keeps the setting from when it was created.
#[must_use]
pub fn no_halt_polling() -> Option<Change> {
    off(Path::new(PARAMETER))
}

fn off(path: &Path) -> Option<Change> {
    let before = std::fs::read_to_string(path).ok()?;
    let (write, before) = ("0".to_owned(), before.trim().to_owned());
    (before != write).then(|| Change::File { path: path.to_owned(), write, undo: Some(before) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("halt_poll_ns");
        assert_eq!(off(&path), None);
        std::fs::write(&path, "200000\n").unwrap();
        let change = off(&path).unwrap();
        change.make().unwrap();
        assert_eq!(off(&path), None);
        change.undo().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "200000");
    }
}
