//! What is left to the process that introspects VMs.
//!
//! It stays root's: it writes other processes' memory, stops them meanwhile, loads programs for the
//! kernel's tracing, connects to QEMU's sockets, sets a parameter of KVM, and keeps a journal. Not the
//! clock, the network, scheduling, devices, modules, other users.

use std::io;

use crate::confine::{ConfineError, keep_of_all, limit};

/// Of linux/capability.h: which capabilities stay, and what for.
const KEPT: [usize; 7] = [
    1,  // CAP_DAC_OVERRIDE: sockets of other users
    2,  // CAP_DAC_READ_SEARCH: debugfs, images
    5,  // CAP_KILL: a QEMU stands still while its guest's code changes
    19, // CAP_SYS_PTRACE: its memory
    24, // CAP_SYS_RESOURCE: memory for maps, on kernels that count it as locked
    38, // CAP_PERFMON: tracing
    39, // CAP_BPF: programs
];

/// Of linux/capability.h. Kernels of Debian and Ubuntu know a level of kernel.perf_event_paranoid at
/// which perf_event_open takes this one and not CAP_PERFMON.
const CAP_SYS_ADMIN: usize = 21;
const DISTRIBUTIONS_LEVEL: i32 = 3;

fn kept() -> Vec<usize> {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let level = level.ok().and_then(|text| text.trim().parse::<i32>().ok()).unwrap_or(0);
    let more = (level >= DISTRIBUTIONS_LEVEL).then_some(CAP_SYS_ADMIN);
    KEPT.into_iter().chain(more).collect()
}

/// Confines this process and its threads to come. `address_space` is its limit in bytes.
///
/// # Errors
/// The step that failed. Those before it have taken effect.
pub fn confine_introspector(address_space: u64) -> Result<(), ConfineError> {
    limit(libc::RLIMIT_AS, address_space, "memory")?;
    // SAFETY: prctl with integers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        let source = io::Error::last_os_error();
        return Err(ConfineError::Kernel { what: "new privileges", source });
    }
    let mut words = [0; 2];
    for capability in kept() {
        words[capability / 32] |= 1 << (capability % 32);
    }
    keep_of_all(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const CHILD: &str = "TIMEVISOR_INTROSPECTOR_CHILD";

    /// Run by the test below: what is given up is given up by the whole process.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let field = |name: &str| {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.rsplit('\t').next().unwrap_or_default().to_owned()
        };
        let capabilities = |name| u64::from_str_radix(&field(name), 16).unwrap();
        let before = capabilities("CapPrm:");
        confine_introspector(4 << 30).unwrap();
        let wanted = kept().iter().fold(0, |set: u64, capability| set | 1 << capability);
        assert_eq!(capabilities("CapEff:"), before & wanted);
        assert_eq!(capabilities("CapPrm:"), before & wanted);
        assert_eq!(field("NoNewPrivs:"), "1");
        assert!(Vec::<u8>::new().try_reserve(8 << 30).is_err());
    }

    #[test]
    fn it_keeps_what_it_needs() {
        let tests = std::env::current_exe().unwrap();
        let output = Command::new(tests)
            .args(["--exact", "introspector::tests::child", "--test-threads=1"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
