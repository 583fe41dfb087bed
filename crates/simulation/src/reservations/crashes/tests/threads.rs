//! Threads that sleep, stand still, end, or have the id of another one.

use super::*;

#[test]
fn a_thread_that_the_kernel_forgot_runs_again() {
    let mut bench = Bench::new();
    bench.apply(&request(0, 20)).unwrap();
    bench.pass(1_005);
    let tid = bench.host.kernel.vms["web"].vcpus[0];
    bench.host.kernel.threads.get_mut(&tid).unwrap().frozen = true;
    // It sleeps, so nothing is wrong.
    bench.host.kernel.threads.get_mut(&tid).unwrap().runnable = false;
    bench.pass(3_000);
    assert!(bench.host.kernel.threads[&tid].frozen);
    bench.host.kernel.threads.get_mut(&tid).unwrap().runnable = true;
    bench.pass(3_000);
    assert!(!bench.host.kernel.threads[&tid].frozen);
    assert_eq!(bench.policy(0), deadline(20));
    let renewed = |text: &&String| text.contains("does not let it run");
    assert_eq!(bench.host.warnings.iter().filter(renewed).count(), 1, "{:?}", bench.host.warnings);
    bench.release();
    bench.unchanged();
}

#[test]
fn a_sleeping_vcpu_is_woken_and_has_its_budget_at_once() {
    for emulated in [false, true] {
        let mut bench = Bench::with(Vec::new(), emulated);
        bench.sleeps(0);
        bench.apply(&request(0, 20)).unwrap();
        assert_eq!(bench.policy(0), deadline(20));
        assert_eq!(bench.machine.rows(&bench.host)[0].problem, None);
        bench.release();
        bench.unchanged();
    }
}

#[test]
fn a_debugger_that_ends_no_longer_keeps_a_vcpu_from_its_core() {
    let mut bench = Bench::new();
    bench.host.can_wake = false;
    bench.sleeps(0);
    bench.apply(&request(0, 20)).unwrap();
    bench.pass(2_000);
    assert_eq!(bench.policy(0), Policy::Other);
    bench.host.can_wake = true;
    bench.pass(1_005);
    assert_eq!(bench.policy(0), deadline(20));
}

#[test]
fn a_reused_thread_id_is_never_touched() {
    for waits in [false, true] {
        let mut bench = Bench::new();
        if waits {
            bench.host.can_wake = false;
            bench.sleeps(1);
        }
        bench.apply(&request(1, 20)).unwrap();
        bench.apply(&request(0, 20)).unwrap();
        let tid = bench.host.kernel.vms["web"].vcpus[1];
        // Somebody else's thread has the id by now; differences() compares it with what it was.
        bench.host.kernel.unplug_vcpu("web", true);
        let stranger = bench.host.kernel.threads[&tid].clone();
        assert!(bench.apply(&request(1, 30)).is_err(), "no such vCPU");
        bench.pass(1_005);
        assert_eq!(bench.machine.held().len(), 1, "waits {waits}");
        bench.restart();
        bench.pass(1_005);
        bench.release();
        let now = bench.host.kernel.threads[&tid].clone();
        assert_eq!(
            (now.policy, &now.group, &now.allowed),
            (stranger.policy, &stranger.group, &stranger.allowed)
        );
        bench.unchanged();
    }
    // A daemon that was not there when it happened.
    let mut bench = Bench::new();
    bench.apply(&request(1, 20)).unwrap();
    bench.host.kernel.unplug_vcpu("web", true);
    let journal = bench.host.kernel.journal.clone();
    assert_eq!(release_all(&mut bench.host, &journal), [""; 0]);
    assert_eq!(bench.host.kernel.differences(), [""; 0]);
    // The same within the process: QEMU's new thread is an ordinary one.
    let mut bench = Bench::new();
    bench.apply(&request(0, 20)).unwrap();
    bench.host.kernel.replace_vcpu_by_its_id("web", 0);
    bench.pass(1_005);
    assert!(bench.machine.held().is_empty());
    bench.unchanged();
}

#[test]
fn an_unplugged_vcpu_gets_what_is_configured_when_it_is_plugged_again() {
    let mut bench = Bench::with(vec![request(1, 20)], false);
    bench.pass(1_005);
    assert_eq!(bench.core(1), Some(3));
    let vm = bench.host.kernel.vms["web"].clone();
    bench.host.kernel.unplug_vcpu("web", false);
    bench.pass(2_010);
    assert!(bench.machine.held().is_empty());
    bench.unchanged();
    let plugged = bench.host.kernel.start_thread(Some(vm.pid));
    bench.host.kernel.vms.get_mut("web").unwrap().vcpus.push(plugged);
    bench.pass(1_005);
    assert_eq!((bench.core(1), bench.policy(1)), (Some(3), deadline(20)));
}

#[test]
fn a_sleeping_vcpu_that_cannot_be_woken_gets_its_budget_when_it_runs() {
    let mut bench = Bench::new();
    bench.host.can_wake = false;
    bench.sleeps(0);
    let tid = bench.host.kernel.vms["web"].vcpus[0];
    bench.apply(&request(0, 20)).unwrap();
    bench.pass(100);
    let problem = bench.machine.rows(&bench.host)[0].problem.clone();
    assert_eq!(problem.as_deref(), Some("waits for the vCPU to run"));
    assert_eq!(bench.policy(0), Policy::Other);
    bench.host.kernel.threads.get_mut(&tid).unwrap().runnable = true;
    bench.pass(10);
    assert_eq!(bench.policy(0), deadline(20));
    bench.release();
    bench.unchanged();
}

#[test]
fn a_sleeping_vcpu_gets_the_budget_that_was_asked_for_last() {
    for emulated in [false, true] {
        let mut bench = Bench::with(Vec::new(), emulated);
        bench.host.can_wake = false;
        bench.sleeps(0);
        let tid = bench.host.kernel.vms["web"].vcpus[0];
        bench.apply(&request(0, 20)).unwrap();
        bench.pass(100);
        bench.apply(&request(0, 30)).unwrap();
        bench.pass(100);
        let problem = bench.machine.rows(&bench.host)[0].problem.clone();
        assert_eq!(problem.as_deref(), Some("waits for the vCPU to run"));
        bench.host.kernel.threads.get_mut(&tid).unwrap().runnable = true;
        bench.pass(10);
        assert_eq!(bench.policy(0), deadline(30));
        assert_eq!(bench.host.warnings, [""; 0]);
        bench.release();
        bench.unchanged();
    }
}

/// An earlier version did not write when threads started. What it held is held on, what it changed is
/// undone, and threads that get the ids of those from now on are told from them.
#[test]
fn a_journal_without_start_times_is_held_on_and_completed() {
    let older = |bench: &mut Bench| {
        bench.host.kernel.journal.iter_mut().for_each(|held| held.threads.clear());
    };
    for reused in [false, true] {
        let mut bench = Bench::with(Vec::new(), true);
        bench.apply(&request(0, 20)).unwrap();
        bench.apply(&request(1, 20)).unwrap();
        bench.pass(1_005);
        older(&mut bench);
        bench.restart();
        assert_eq!((bench.policy(0), bench.policy(1)), (deadline(20), deadline(20)));
        let journal = bench.host.kernel.journal.clone();
        assert_eq!(journal.len(), 2);
        for held in &journal {
            let own = bench.host.kernel.threads[&held.tid].started;
            assert_eq!(held.threads.get(&held.tid), Some(&own));
        }
        if reused {
            // A thread of somebody else gets the id of vCPU 1's, in the daemon's absence.
            bench.host.kernel.unplug_vcpu("web", true);
            bench.restart();
            assert_eq!(bench.machine.held().len(), 1);
        }
        bench.release();
        bench.unchanged();
    }
    // The vCPU was replaced before this version came, by a thread with its id: that is an ordinary one.
    let mut bench = Bench::new();
    bench.apply(&request(0, 20)).unwrap();
    bench.host.kernel.replace_vcpu_by_its_id("web", 0);
    older(&mut bench);
    bench.restart();
    assert!(bench.machine.held().is_empty());
    bench.unchanged();
    // And without a daemon.
    let mut bench = Bench::new();
    bench.apply(&request(1, 20)).unwrap();
    bench.host.kernel.unplug_vcpu("web", true);
    older(&mut bench);
    let journal = bench.host.kernel.journal.clone();
    assert_eq!(release_all(&mut bench.host, &journal), [""; 0]);
    assert_eq!(bench.host.kernel.differences(), [""; 0]);
}
