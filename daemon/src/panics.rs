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
