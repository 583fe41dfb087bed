//! Why the BPF programs cannot run on this host.

use std::error::Error;
use std::io;

type Source = Box<dyn Error + Send + Sync>;

/// What prevents them, with the next step.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The programs were not compiled.
    #[error(
        "this timevisor was built without its BPF programs ({0}); install clang and build it again"
    )]
    NotBuilt(&'static str),
    /// The kernel provides no type information (BTF).
    #[error(
        "the kernel has no /sys/kernel/btf/vmlinux; use one with CONFIG_DEBUG_INFO_BTF, as distributions' are"
    )]
    NoTypes,
    /// The kernel's answer was EPERM.
    #[error(
        "the kernel does not let this process {what}; run as root, or give it CAP_BPF and CAP_PERFMON (and see kernel lockdown)"
    )]
    NotPermitted {
        /// The operation that was attempted.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: Source,
    },
    /// The kernel refused for another reason.
    #[error("the kernel does not {what}; kernels 5.12 and newer with CONFIG_BPF_EVENTS do")]
    Refused {
        /// The operation that was attempted.
        what: &'static str,
        /// aya's or the kernel's answer.
        #[source]
        source: Source,
    },
    /// The kernel has no event for the TSC, or it differs from `rdtsc`.
    #[error(
        "the TSC of core {core} cannot be read in the kernel (perf event msr/tsc); load the kernel with perf events"
    )]
    NoCounter {
        /// The core.
        core: usize,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// More cores than the programs have records for.
    #[error("the machine has core {0}, and the programs keep {max}; build with a larger CORES", max = super::record::CORES)]
    TooManyCores(usize),
    /// All records are in use.
    #[error("{max} threads are registered already; drop one first", max = super::record::TASKS)]
    Full,
    /// The programs do not notice that a registered thread runs.
    #[error(
        "thread {0} is not seen by the kernel's programs; were they detached by somebody (bpftool link)?"
    )]
    NotSeen(u32),
}

impl BpfError {
    /// Classifies the kernel's error: not permitted, or not supported.
    pub(super) fn of(what: &'static str, source: impl Into<Source>) -> Self {
        let source = source.into();
        if is_permission(&*source) {
            Self::NotPermitted { what, source }
        } else {
            Self::Refused { what, source }
        }
    }
}

/// Whether the error chain contains EPERM. (The verifier reports a rejected program with EACCES.)
fn is_permission(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if code == Some(libc::EPERM) {
            return true;
        }
        next = error.source();
    }
    false
}

/// An error and its sources in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        // A verifier log has thousands of lines; the end says what is wrong.
        let said = error.to_string();
        let said = said.trim().lines().last().unwrap_or_default().to_owned();
        if !said.is_empty() && !text.ends_with(&said) {
            text += ": ";
            text += &said;
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_is_told_from_impossibility() {
        let of = |code| BpfError::of("load", io::Error::from_raw_os_error(code));
        assert!(matches!(of(libc::EPERM), BpfError::NotPermitted { .. }));
        assert!(matches!(of(libc::EACCES), BpfError::Refused { .. }));
        let text = chain(&of(libc::EPERM));
        assert!(text.contains("CAP_BPF") && text.ends_with("(os error 1)"), "{text}");
    }
}
