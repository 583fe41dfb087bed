//! A panic ends the daemon, except in a thread that parses foreign bytes: what a stranger sends may cost
//! what he sent, and nothing else.
//!
//! A daemon that goes on without one of its threads would serve less than it says, so everywhere else
//! a panic aborts and systemd starts the daemon again.

use std::cell::Cell;
use std::panic;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Makes panics abort the process, except those of [contained](contain) threads.
pub fn abort_unless_contained() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        if !CONTAINED.get() {
            std::process::abort();
        }
    }));
}

/// From now on a panic of the calling thread ends this thread alone.
pub fn contain() {
    CONTAINED.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    const CHILD: &str = "TIMEVISOR_PANICS_CHILD";
    const SIGABRT: i32 = 6;

    /// Run by the test below, because it ends its process.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        abort_unless_contained();
        let contained = std::thread::spawn(|| {
            contain();
            panic!("over a stranger's bytes");
        });
        assert!(contained.join().is_err());
        println!("still there");
        let _ = std::thread::spawn(|| panic!("of our own")).join();
        println!("not reached");
    }

    #[test]
    fn a_panic_ends_the_daemon_unless_it_is_contained() {
        let tests = std::env::current_exe().unwrap();
        let arguments = ["--exact", "panics::tests::child", "--test-threads=1", "--nocapture"];
        let output = Command::new(tests).args(arguments).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("still there") && !said.contains("not reached"), "{said}");
        assert_eq!(output.status.signal(), Some(SIGABRT));
    }
}
