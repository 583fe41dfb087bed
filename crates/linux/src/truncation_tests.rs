//! Pages are truncated under their readers and writers. What must end the process is tried in a
//! child of this test.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;
use crate::mapping::{Access, PAGE_BYTES, SharedMapping};

fn mapped(access: Access) -> (File, SharedMapping) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE_BYTES as u64).unwrap();
    let mapping = SharedMapping::new(file.try_clone().unwrap(), PAGE_BYTES, access).unwrap();
    (file, mapping)
}

fn word(mapping: &SharedMapping) -> &AtomicU64 {
    // SAFETY: a live mapping of a page, accessed by atomics only.
    unsafe { mapping.as_ptr().cast::<AtomicU64>().as_ref() }
}

#[test]
fn a_thousand_truncated_pages_are_survived_and_others_go_on() {
    survive().unwrap();
    let (_file, other) = mapped(Access::ReadWrite);
    word(&other).store(1, Ordering::Relaxed);
    let mut took = Vec::new();
    for round in 0..1000 {
        let access = if round % 2 == 0 { Access::ReadWrite } else { Access::ReadOnly };
        let (file, page) = mapped(access);
        assert_eq!(word(&page).load(Ordering::Relaxed), 0);
        file.set_len(0).unwrap();
        assert!(!page.is_lost(), "nobody has noticed yet");
        let begun = std::time::Instant::now();
        if access == Access::ReadWrite {
            word(&page).store(round, Ordering::Relaxed);
            assert_eq!(word(&page).load(Ordering::Relaxed), round);
        } else {
            assert_eq!(word(&page).load(Ordering::Relaxed), 0);
        }
        took.push(begun.elapsed());
        assert!(page.is_lost());
        word(&other).fetch_add(1, Ordering::Relaxed);
    }
    assert!(!other.is_lost());
    assert_eq!(word(&other).load(Ordering::Relaxed), 1001);
    took.sort_unstable();
    println!("a fault is survived in {:?} (median), {:?} at most", took[500], took[999]);
}

#[test]
fn more_mappings_than_places_are_all_watched() {
    survive().unwrap();
    let all: Vec<_> = (0..2 * PLACES + 10).map(|_| mapped(Access::ReadWrite)).collect();
    for (file, _) in &all {
        file.set_len(0).unwrap();
    }
    for (_, page) in &all {
        word(page).store(1, Ordering::Relaxed);
    }
    assert!(all.iter().all(|(_, page)| page.is_lost()));
    drop(all);
    let (_file, fresh) = mapped(Access::ReadWrite);
    assert!(!fresh.is_lost(), "a place is clean when it is used again");
}

#[test]
fn many_threads_lose_one_page_together() {
    survive().unwrap();
    for _ in 0..50 {
        let (file, page) = mapped(Access::ReadWrite);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !page.is_lost() {
                        word(&page).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            file.set_len(0).unwrap();
        });
    }
}

const CASE: &str = "TIMEVISOR_SIGBUS_CASE";

/// Run by the tests below in a child of their own, with a case in the environment.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    static CALLED: AtomicBool = AtomicBool::new(false);
    extern "C" fn before(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        CALLED.store(true, Release);
        // SAFETY: leaves without unwinding, as a handler must for a fault.
        unsafe { libc::_exit(7) };
    }
    extern "C" fn counted(_: c_int) {
        CALLED.store(true, Release);
    }
    let install = |handler: libc::sighandler_t, flags| {
        // SAFETY: sigaction is plain data.
        let mut new: libc::sigaction = unsafe { core::mem::zeroed() };
        (new.sa_sigaction, new.sa_flags) = (handler, flags);
        action(Some(&new)).unwrap();
    };
    // A page that is not in the register.
    let stranger = || {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: a fresh mapping of an empty file: every access raises SIGBUS.
        unsafe {
            let page = libc::mmap(
                core::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            );
            page.cast::<u8>().read_volatile();
        }
    };
    match case.as_str() {
        "default" => {
            install(libc::SIG_DFL, 0);
            survive().unwrap();
            stranger();
        }
        "std" => {
            survive().unwrap();
            stranger();
        }
        "handler" => {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = before;
            install(handler as libc::sighandler_t, libc::SA_SIGINFO);
            survive().unwrap();
            let (file, page) = mapped(Access::ReadOnly);
            file.set_len(0).unwrap();
            assert_eq!(word(&page).load(Ordering::Relaxed), 0);
            assert!(page.is_lost() && !CALLED.load(Acquire), "ours is ours");
            stranger();
        }
        "sent" => {
            let handler: extern "C" fn(c_int) = counted;
            install(handler as libc::sighandler_t, 0);
            survive().unwrap();
            // SAFETY: raise sends a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
            assert!(CALLED.load(Acquire), "a signal that was sent is the program's");
            install(libc::SIG_DFL, 0);
            survive().unwrap();
            // SAFETY: as above.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        "over" => {
            survive().unwrap();
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = before;
            install(handler as libc::sighandler_t, libc::SA_SIGINFO);
            survive().unwrap();
            assert_eq!(action(None).unwrap().sa_sigaction, handler as libc::sighandler_t);
            stranger();
        }
        other => panic!("{other}"),
    }
    panic!("{case}: still here");
}

fn ends(case: &str) -> std::process::ExitStatus {
    let tests = std::env::current_exe().unwrap();
    let mut child = Command::new(tests);
    child.args(["--exact", "truncation::tests::child"]).env(CASE, case);
    child.output().unwrap().status
}

#[test]
fn what_is_not_ours_is_passed_on() {
    assert_eq!(ends("default").signal(), Some(libc::SIGBUS));
    assert_eq!(ends("std").signal(), Some(libc::SIGBUS));
    assert_eq!(ends("sent").signal(), Some(libc::SIGBUS));
    assert_eq!(ends("handler").code(), Some(7));
    assert_eq!(ends("over").code(), Some(7));
}
