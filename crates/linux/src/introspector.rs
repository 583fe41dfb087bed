//! What is left to the process that introspects VMs.
//!
//! It stays root's: it writes other processes' memory, stops them meanwhile, loads programs for the
//! kernel's tracing, connects to QEMU's sockets, sets a parameter of KVM, and keeps a journal. Not the
//! clock, the network, scheduling, devices, modules, other users.

use std::io;

use crate::confine::{ConfineError, keep_of_all};

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

/// Confines this process and its threads to come. `address_space` is its limit in bytes.
///
/// # Errors
/// The step that failed. Those before it have taken effect.
pub fn confine_introspector(address_space: u64) -> Result<(), ConfineError> {
    let kernel =
        |what: &'static str| ConfineError::Kernel { what, source: io::Error::last_os_error() };
    let memory = libc::rlimit { rlim_cur: address_space, rlim_max: address_space };
    // SAFETY: a complete structure for the call to read.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const memory) } != 0 {
        return Err(kernel("memory"));
    }
    // SAFETY: prctl with integers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(kernel("new privileges"));
    }
    let mut kept = [0; 2];
    for capability in KEPT {
        kept[capability / 32] |= 1 << (capability % 32);
    }
    keep_of_all(kept)
}
