//! Gives up what a process or a thread does not need, for good, before it touches foreign bytes.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | a process: a helper that reads what other users control |
//! | `threads.rs` | a thread: it parses what anybody sends |
//! | `filters.rs` | the system calls that each of them may make |
//!
//! What a helper gives up:
//!
//! | what | a helper that examines ([`confine`]) | one that speaks through sockets ([`confine_to_descriptors`]) |
//! | --- | --- | --- |
//! | root's files and processes | another user and group, no supplementary groups | the same |
//! | capabilities | CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: other processes' memory, and debugfs | none |
//! | writing, sockets, programs, other processes | seccomp: files are opened for reading only | seccomp: descriptors that it has or is given, and nothing else |
//! | memory, descriptors, core files | resource limits | the same |
//! | regaining anything | no_new_privs; nobody else may trace it | the same |
//!
//! A process that is not root's keeps the user and the capabilities that it has, and loses the rest.

mod filters;
mod threads;

use std::io;

pub use self::threads::{Permitted, confine_thread};

/// Why a process could not be confined. It must not go on then.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel refused one of the steps.
    #[error("cannot give up {what}")]
    Kernel {
        /// What was to be given up.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The filter of system calls could not be made or installed.
    #[error("cannot filter system calls")]
    Filter(#[from] seccompiler::Error),
    /// The same, for the filter itself.
    #[error("cannot filter system calls")]
    Rules(#[from] seccompiler::BackendError),
}

/// Another user than root, if root runs this: nobody.
const NOBODY: u32 = 65534;
/// Of linux/capability.h.
const CAP_DAC_READ_SEARCH: u32 = 2;
/// Of linux/capability.h.
const CAP_SYS_PTRACE: u32 = 19;
/// What is left to a confined process of root's.
const KEPT: u32 = 1 << CAP_DAC_READ_SEARCH | 1 << CAP_SYS_PTRACE;
/// Descriptors: standard ones, and two for each process that is read.
const MOST_DESCRIPTORS: u64 = 1024;

/// Confines this process and all that it will do. `address_space` is its limit in bytes.
///
/// Call it before the process has threads.
///
/// # Errors
/// The step that failed. Those before it have taken effect.
pub fn confine(address_space: u64) -> Result<(), ConfineError> {
    give_up(address_space, MOST_DESCRIPTORS, KEPT)?;
    seccompiler::apply_filter(&filters::helper()?)?;
    Ok(())
}

/// Confines this process to the descriptors that it has and that it is given (SCM_RIGHTS), at most
/// `descriptors` at a time: it neither opens files nor has a capability. Otherwise as [`confine`].
///
/// # Errors
/// The step that failed. Those before it have taken effect.
pub fn confine_to_descriptors(address_space: u64, descriptors: u64) -> Result<(), ConfineError> {
    give_up(address_space, descriptors, 0)?;
    keep_capabilities(0)?;
    seccompiler::apply_filter(&filters::sockets()?)?;
    Ok(())
}

/// Everything but system calls. `kept`: capabilities that a process of root's keeps.
fn give_up(address_space: u64, descriptors: u64, kept: u32) -> Result<(), ConfineError> {
    limit(libc::RLIMIT_AS, address_space, "memory")?;
    limit(libc::RLIMIT_NOFILE, descriptors, "descriptors")?;
    limit(libc::RLIMIT_CORE, 0, "core files")?;
    // SAFETY: prctl with integers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, "new privileges")?;
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        become_nobody(kept)?;
    }
    // SAFETY: prctl with integers only. After the change of user, which resets it.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, "being traced")?;
    // SAFETY: as above.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }, "a later end")
}

fn become_nobody(kept: u32) -> Result<(), ConfineError> {
    // SAFETY: prctl with integers only.
    check(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) }, "root's rights")?;
    // In a user namespace without this user, root is all there is: its capabilities go all the same.
    // SAFETY: an empty list, and integers.
    let changed = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
            && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    };
    let refused = io::Error::last_os_error();
    if !changed && !matches!(refused.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) {
        return Err(ConfineError::Kernel { what: "root's user", source: refused });
    }
    for capability in 0..64 {
        // SAFETY: prctl with integers only. It fails beyond the last capability, and without
        // CAP_SETPCAP; no_new_privs makes the set useless in any case.
        let _ = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    keep_capabilities(kept)
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// This process gets at most so much of a resource, for good; less if it has less already.
pub(crate) fn limit(which: Resource, most: u64, what: &'static str) -> Result<(), ConfineError> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure for the call to fill.
    check(unsafe { libc::getrlimit(which, &raw mut limits) }, what)?;
    let most = most.min(limits.rlim_max);
    let limits = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a complete structure for the call to read.
    check(unsafe { libc::setrlimit(which, &raw const limits) }, what)
}

/// Of this thread's capabilities, only these stay.
fn keep_capabilities(kept: u32) -> Result<(), ConfineError> {
    keep_of_all([kept, 0])
}

/// As [`keep_capabilities`], with the newer ones in a second word.
pub(crate) fn keep_of_all(kept: [u32; 2]) -> Result<(), ConfineError> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut sets = [CapabilitySets::default(); 2];
    // SAFETY: header and two sets, as version 3 has them.
    let read = unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) };
    check(i32::try_from(read).unwrap_or(-1), "capabilities")?;
    for (set, kept) in sets.iter_mut().zip(kept) {
        let kept = set.permitted & kept;
        *set = CapabilitySets { effective: kept, permitted: kept, inheritable: 0 };
    }
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    check(i32::try_from(set).unwrap_or(-1), "capabilities")
}

/// _LINUX_CAPABILITY_VERSION_3.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilitySets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn check(result: libc::c_int, what: &'static str) -> Result<(), ConfineError> {
    if result < 0 {
        return Err(ConfineError::Kernel { what, source: io::Error::last_os_error() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read as _, Write as _};
    use std::net::UdpSocket;
    use std::process::Command;

    const CHILD: &str = "TIMEVISOR_CONFINE_CHILD";
    const SPEAKER: &str = "TIMEVISOR_CONFINE_SPEAKER";

    /// Whether this thread may signal that process, with no signal.
    fn may_signal(pid: u32) -> bool {
        // SAFETY: integers.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, 0) == 0 }
    }

    /// Run by a test below, as [`child`].
    #[test]
    fn speaker() {
        let Some(folder) = std::env::var_os(SPEAKER) else { return };
        let folder = std::path::PathBuf::from(folder);
        let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut status = File::open("/proc/thread-self/status").unwrap();
        confine_to_descriptors(1 << 30, 64).unwrap();
        here.write_all(b"word").unwrap();
        let mut word = [0; 4];
        there.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
        assert!(File::open(folder.join("old")).is_err() && File::open("/proc/self/comm").is_err());
        assert!(UdpSocket::bind("127.0.0.1:0").is_err());
        assert!(std::os::unix::net::UnixStream::connect(folder.join("old")).is_err());
        assert!(Command::new("/bin/true").status().is_err());
        assert!(!may_signal(std::os::unix::process::parent_id()));
        assert!(here.try_clone().is_err(), "fcntl is not needed");
        assert!(Vec::<u8>::new().try_reserve(2 << 30).is_err());
        // The kernel writes it when it is read.
        let mut text = String::new();
        status.read_to_string(&mut text).unwrap();
        for none in ["CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "Seccomp:\t2\n"]
        {
            assert!(text.contains(none), "{text}");
        }
    }

    #[test]
    fn a_speaking_helper_has_its_descriptors_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("old"), "x").unwrap();
        let tests = std::env::current_exe().unwrap();
        let output = Command::new(tests)
            .args(["--exact", "confine::tests::speaker", "--test-threads=1"])
            .env(SPEAKER, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    /// Run by the test below: what is given up is given up by the whole process.
    #[test]
    fn child() {
        let Some(folder) = std::env::var_os(CHILD) else { return };
        let folder = std::path::PathBuf::from(folder);
        // The test harness has threads, so only this one is filtered; what it did before is its own.
        // SAFETY: takes nothing.
        let root = unsafe { libc::geteuid() } == 0;
        confine(1 << 30).unwrap();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.rsplit('\t').next().unwrap_or_default().to_owned()
        };
        assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2".to_owned(), "1".to_owned()));
        if root {
            let kept = u64::from_str_radix(&field("CapPrm:"), 16).unwrap();
            assert_eq!(kept & !u64::from(KEPT), 0, "{kept:x}");
        }
        assert_eq!(fs::read_to_string("/proc/self/comm").map(|_| ()).ok(), Some(()));
        assert!(File::create(folder.join("new")).is_err());
        let written = OpenOptions::new().write(true).open(folder.join("old"));
        assert!(written.is_err());
        assert!(UdpSocket::bind("127.0.0.1:0").is_err());
        assert!(Command::new("/bin/true").status().is_err());
        assert!(fs::remove_file(folder.join("old")).is_err());
        assert!(!may_signal(std::os::unix::process::parent_id()));
        assert!(may_signal(std::process::id()));
        assert!(Vec::<u8>::new().try_reserve(2 << 30).is_err());
    }

    #[test]
    fn a_confined_process_reads_and_does_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("old"), "x").unwrap();
        let tests = std::env::current_exe().unwrap();
        let output = Command::new(tests)
            .args(["--exact", "confine::tests::child", "--test-threads=1"])
            .env(CHILD, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        assert!(folder.path().join("old").exists() && !folder.path().join("new").exists());
    }
}
