//! Tests with the real kernel that a user without permission to load programs gets a clear error.

use super::{BpfError, ElapsedBpf};
use crate::bpf::error::chain;

/// The raw call changes this thread's user alone; libc's would change the whole test process.
fn nobody<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        const NOBODY: libc::c_long = 65_534;
        // SAFETY: the arguments are three numbers; the thread ends after `run`.
        unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        // SAFETY: the call has no arguments and cannot fail.
        assert_ne!(unsafe { libc::syscall(libc::SYS_geteuid) }, 0);
        run()
    });
    thread.join().unwrap()
}

#[test]
fn a_process_without_privileges_is_refused_with_the_next_step() {
    let error = nobody(|| ElapsedBpf::start().map(drop).unwrap_err());
    let text = chain(&error);
    match error {
        BpfError::NotPermitted { .. } => {
            assert!(text.contains("run as root") && text.contains("CAP_BPF"), "{text}");
        }
        BpfError::NotBuilt(_) => assert!(text.contains("install clang"), "{text}"),
        BpfError::NoTypes => assert!(text.contains("CONFIG_DEBUG_INFO_BTF"), "{text}"),
        other => panic!("{other:?}"),
    }
}
