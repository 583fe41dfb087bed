//! Reservations that move to another core.

use super::*;

#[test]
fn a_reservation_moves_without_leaving_its_policy() {
    for (emulated, asleep) in [(false, false), (false, true), (true, false)] {
        let mut bench = Bench::with(Vec::new(), emulated);
        bench.apply(&request(0, 20)).unwrap();
        let pid = bench.host.kernel.vms["web"].pid;
        // Born during the reservation.
        let worker = bench.host.kernel.start_thread(Some(pid));
        bench.pass(10);
        if asleep {
            bench.sleeps(0);
        }
        bench.relocate(0, 1).unwrap();
        let tid = bench.host.kernel.vms["web"].vcpus[0];
        let thread = &bench.host.kernel.threads[&tid];
        assert_eq!((thread.policy, thread.group.as_str()), (deadline(20), "timevisor-cpu1"));
        assert!(!asleep || thread.last_core == 1, "woken before the old core is freed");
        assert_eq!(bench.machine.rows(&bench.host)[0].problem, None);
        assert_eq!(bench.core(0), Some(1));
        assert!(!bench.host.kernel.folders.contains("timevisor-cpu3"), "core 3 is free");
        for other in [pid, worker] {
            let allowed = &bench.host.kernel.threads[&other].allowed;
            assert_eq!(*allowed, [0, 2, 3].into(), "thread {other}");
        }
        // In place, there, and moved again.
        bench.apply(&request(0, 25)).unwrap();
        assert_eq!((bench.core(0), bench.policy(0)), (Some(1), deadline(25)));
        bench.restart();
        bench.relocate(0, 2).unwrap();
        assert_eq!(bench.policy(0), deadline(25));
        bench.release();
        bench.unchanged();
    }
}

#[test]
fn a_move_that_is_refused_changes_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.relocate(0, 1).unwrap_err().reason, Reason::NotFound);
    bench.apply(&request(0, 20)).unwrap();
    bench.apply(&Request { core: Some(2), ..request(1, 40) }).unwrap();
    bench.pass(10);
    let before = bench.host.kernel.clone();
    assert_eq!(bench.relocate(0, 3).unwrap_err().reason, Reason::BadRequest, "it is there");
    assert_eq!(bench.relocate(0, 2).unwrap_err().reason, Reason::Unavailable, "no room");
    bench.host.broken_core = Some(1);
    let refusal = bench.relocate(0, 1).unwrap_err();
    assert!(refusal.message.contains("that core is broken"), "{refusal}");
    assert_eq!(bench.host.kernel.threads, before.threads);
    assert_eq!(bench.host.kernel.folders, before.folders);
    assert_eq!(bench.host.kernel.journal, before.journal);
    bench.release();
    bench.unchanged();
    let mut bench = Bench::new();
    bench.apply(&Request { promise: Promise::Fifo, ..request(0, 20) }).unwrap();
    assert_eq!(bench.relocate(0, 1).unwrap_err().reason, Reason::Unsupported);
}

/// A debugger has its thread: it stays charged to the old core, which must not be given away.
#[test]
fn a_vcpu_that_sleeps_and_cannot_be_woken_does_not_move() {
    let mut bench = Bench::new();
    bench.apply(&request(0, 20)).unwrap();
    bench.pass(10);
    bench.sleeps(0);
    bench.host.can_wake = false;
    let before = bench.host.kernel.clone();
    let refusal = bench.relocate(0, 1).unwrap_err();
    assert_eq!(refusal.reason, Reason::Unsupported);
    assert!(refusal.message.contains("cannot be woken"), "{refusal}");
    assert!(refusal.message.contains("move it when it runs"), "{refusal}");
    assert_eq!(bench.host.kernel.threads, before.threads);
    assert_eq!(bench.host.kernel.folders, before.folders);
    assert_eq!(bench.host.kernel.journal, before.journal);
    assert_eq!((bench.core(0), bench.policy(0)), (Some(3), deadline(20)));
    bench.host.can_wake = true;
    bench.relocate(0, 1).unwrap();
    assert_eq!((bench.core(0), bench.policy(0)), (Some(1), deadline(20)));
    bench.release();
    bench.unchanged();
}

#[test]
fn moves_of_several_reservations_of_one_vm_leave_nothing_behind() {
    let all: [&[(u32, usize)]; 4] =
        [&[(0, 2)], &[(1, 1)], &[(0, 2), (1, 1), (0, 3)], &[(1, 2), (0, 1), (1, 3)]];
    for moves in all {
        for emulated in [false, true] {
            for first in [0, 1] {
                let mut bench = Bench::with(Vec::new(), emulated);
                bench.apply(&request(0, 15)).unwrap();
                bench.apply(&request(1, 15)).unwrap();
                for (vcpu, core) in moves {
                    bench.pass(60);
                    bench.relocate(*vcpu, *core).unwrap();
                    for row in bench.machine.rows(&bench.host) {
                        assert_eq!(row.problem, None, "{moves:?}");
                    }
                }
                bench.machine.release(Some("web"), Some(first), &mut bench.host).unwrap();
                assert_eq!(bench.machine.rows(&bench.host)[0].problem, None, "{moves:?}");
                bench.release();
                bench.unchanged();
            }
        }
    }
}
