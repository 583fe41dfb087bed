//! One daemon on one simulated host, step by step, and thousands of random schedules.
//!
//! | module | owns |
//! | --- | --- |
//! | `threads` | threads that sleep, stand still, end, or have the id of another one |
//! | `relocation` | reservations that move to another core |

mod relocation;
mod threads;

use timevisor_reservation::{
    Candidate, Followed, Guarantee, Promise, Question, Reason, Refusal, Request, Reservations,
    Restore as _, release_all,
};
use timevisor_schedule::Reservation;

use super::change::Change;
use super::host::SimulatedHost;
use super::kernel::{Kernel, Policy, cpuset_of};
use super::schedule::{Counts, run};

const MS: u64 = 1_000_000;

/// A host with a VM of two vCPUs, and its daemon.
struct Bench {
    host: SimulatedHost,
    machine: Reservations<Change>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Vec::new(), false)
    }

    fn with(configured: Vec<Request>, emulated: bool) -> Self {
        let mut kernel = Kernel::new(4);
        kernel.start_vm("web", 2, emulated, false);
        let mut host = SimulatedHost::new(kernel);
        let machine = Reservations::start(Ok(Vec::new()), configured, &mut host);
        Self { host, machine }
    }

    fn apply(&mut self, request: &Request) -> Result<Vec<String>, Refusal> {
        let guests = self.host.kernel.clone();
        self.machine.apply(request, &mut self.host, &guests)
    }

    fn candidates(&mut self, vcpu: u32, budget: u64, alone: bool) -> Vec<Candidate> {
        let guests = self.host.kernel.clone();
        let asked = Question {
            vcpu: Some(("web", vcpu)),
            budget: Some(budget * MS),
            period: 50 * MS,
            alone,
        };
        self.machine.candidates(&asked, &self.host, &guests).unwrap()
    }

    fn refusal(&mut self, request: &Request) -> Reason {
        self.apply(request).unwrap_err().reason
    }

    fn follow(&mut self, wanted: Option<&Reservation>) -> Result<(), Refusal> {
        self.follow_on(wanted, Followed::Only)
    }

    fn follow_on(&mut self, wanted: Option<&Reservation>, on: Followed) -> Result<(), Refusal> {
        let guests = self.host.kernel.clone();
        let wanted = wanted.map(|wanted| (wanted, on != Followed::Only));
        self.machine.follow_guest("web", wanted, on, &mut self.host, &guests)
    }

    fn relocate(&mut self, vcpu: u32, core: usize) -> Result<Vec<String>, Refusal> {
        let guests = self.host.kernel.clone();
        self.machine.relocate(("web", vcpu), core, false, &mut self.host, &guests)
    }

    fn sleeps(&mut self, vcpu: usize) {
        let tid = self.host.kernel.vms["web"].vcpus[vcpu];
        self.host.kernel.threads.get_mut(&tid).unwrap().runnable = false;
    }

    fn release(&mut self) -> Vec<String> {
        self.machine.release(None, None, &mut self.host).unwrap()
    }

    /// Advances time and timers, 5 ms at a time.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(5) {
            self.host.kernel.pass(5 * MS);
            let guests = self.host.kernel.clone();
            self.machine.on_timer(&mut self.host, &guests);
        }
    }

    fn restart(&mut self) {
        self.host.lives_for = None;
        let journal = self.host.kernel.journal.clone();
        self.machine = Reservations::start(Ok(journal), Vec::new(), &mut self.host);
    }

    fn policy(&self, vcpu: usize) -> Policy {
        self.host.kernel.threads[&self.host.kernel.vms["web"].vcpus[vcpu]].policy
    }

    fn core(&self, vcpu: u32) -> Option<usize> {
        self.machine.held().iter().find(|held| held.vcpu == vcpu)?.core()
    }

    fn unchanged(&self) {
        assert_eq!(self.host.kernel.differences(), [""; 0]);
        assert_eq!(self.host.kernel.journal, []);
    }
}

fn request(vcpu: u32, budget: u64) -> Request {
    Request {
        vm: "web".to_owned(),
        vcpu,
        budget: budget * MS,
        at_most: None,
        deadline: None,
        period: 50 * MS,
        promise: Promise::Core,
        core: None,
        alone: false,
        dry_run: false,
    }
}

const fn deadline(budget: u64) -> Policy {
    Policy::Deadline(budget * MS, 50 * MS, 50 * MS)
}

#[test]
fn a_reservation_comes_goes_and_comes_again_after_its_overrun_is_paid_back() {
    let mut bench = Bench::new();
    let dry = bench.apply(&Request { dry_run: true, ..request(0, 20) }).unwrap();
    bench.unchanged();
    assert_eq!(bench.apply(&request(0, 20)).unwrap(), dry);
    assert_eq!(bench.core(0), Some(3), "the last core, never the first");
    bench.pass(10);
    assert_eq!(bench.policy(0), deadline(20));
    assert!(bench.machine.rows(&bench.host)[0].problem.is_none());
    assert!(bench.release().is_empty());
    bench.unchanged();
    // A period and 10 ms of overrun at 40 %.
    let refusal = bench.apply(&request(0, 20)).unwrap_err();
    assert_eq!(refusal.reason, Reason::MakingRoom);
    assert!(refusal.message.contains("another 75 ms"), "{refusal}");
    bench.unchanged();
    bench.pass(75);
    bench.apply(&request(0, 20)).unwrap();
    bench.pass(10);
    assert_eq!(bench.policy(0), deadline(20));
    // Another budget without any gap.
    bench.apply(&request(0, 30)).unwrap();
    assert_eq!(bench.policy(0), deadline(30));
    bench.release();
    bench.unchanged();
}

#[test]
fn the_first_candidate_is_what_apply_takes_and_each_other_core_says_why_not() {
    let mut bench = Bench::new();
    let tried = |found: &[Candidate]| -> Vec<usize> {
        found.iter().filter(|of| of.place.is_some()).map(|of| of.core.number).collect()
    };
    let found = bench.candidates(0, 20, false);
    assert_eq!((tried(&found), found.len()), (vec![3, 2, 1], 4));
    assert!(found[3].why_not.as_ref().unwrap().contains("core 0 is where the kernel's own work"));
    assert_eq!(found[0].left, 475 * MS / 10, "what kernels admit: 95 %");
    bench.unchanged();
    bench.apply(&request(0, 20)).unwrap();
    assert_eq!(bench.core(0), Some(3));

    // Beside 20 of 50 ms: what is left is kept, and 10 us more is not.
    let found = bench.candidates(1, 20, false);
    assert_eq!(tried(&found), [3, 2, 1]);
    assert_eq!(found[0].reserved, ["VM web vCPU 0"]);
    let left = found[0].left;
    assert!((20 * MS..30 * MS).contains(&left), "{left}");
    let on_3 = |budget| Request { core: Some(3), budget, ..request(1, 0) };
    assert_eq!(bench.refusal(&on_3(left + 10_000)), Reason::Unavailable);
    bench.apply(&on_3(left)).unwrap();
    assert_eq!(bench.core(1), Some(3));
    bench.machine.release(Some("web"), Some(1), &mut bench.host).unwrap();
    bench.pass(1000);

    // No room, and not alone.
    for (budget, alone, part) in [(40, false, "cannot keep 40000 us"), (5, true, "to be alone")] {
        let found = bench.candidates(1, budget, alone);
        assert_eq!(tried(&found), [2, 1], "{budget} {alone}");
        let refused = found.iter().find(|of| of.core.number == 3).unwrap();
        assert!(refused.why_not.as_ref().unwrap().contains(part), "{refused:?}");
        assert_eq!(refused.left == 0, alone);
    }
    // Asked for the vCPU that has the core, its own budget is not in the way.
    let found = bench.candidates(0, 45, true);
    assert_eq!(tried(&found), [3]);
    assert!(found[1].why_not.as_ref().unwrap().contains("a reservation on core 3"), "{found:?}");
    bench.release();
    bench.unchanged();
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut bench = Bench::new();
    let on = |core, request| Request { core: Some(core), ..request };
    bench.apply(&on(2, request(0, 30))).unwrap();
    let before = bench.host.kernel.clone();
    assert_eq!(bench.refusal(&on(2, request(1, 30))), Reason::Unavailable);
    assert_eq!(
        bench.refusal(&Request { alone: true, ..on(2, request(1, 5)) }),
        Reason::Unavailable
    );
    assert_eq!(bench.refusal(&request(1, 60)), Reason::BadRequest);
    assert_eq!(bench.refusal(&request(7, 10)), Reason::NotFound);
    assert_eq!(bench.host.kernel.journal, before.journal);
    assert_eq!(bench.host.kernel.threads, before.threads);
    // Any core with room: not core 2, and not core 0.
    bench.apply(&request(1, 40)).unwrap();
    assert_eq!(bench.core(1), Some(3));
    bench.release();
    bench.unchanged();
}

#[test]
fn a_journal_that_is_not_understood_stops_everything() {
    let mut bench = Bench::new();
    bench.machine = Reservations::start(Err("bad file".to_owned()), Vec::new(), &mut bench.host);
    let refusal = bench.apply(&request(0, 20)).unwrap_err();
    assert_eq!((refusal.reason, refusal.message.as_str()), (Reason::Unavailable, "bad file"));
    bench.unchanged();
}

#[test]
fn a_vm_that_ends_gives_its_core_back() {
    let mut bench = Bench::new();
    bench.apply(&request(0, 20)).unwrap();
    bench.host.kernel.end_vm("web");
    bench.pass(1_005);
    assert!(bench.machine.held().is_empty());
    bench.unchanged();
}

#[test]
fn a_vcpu_with_another_thread_has_a_problem_until_its_reservation_ends() {
    let mut bench = Bench::new();
    bench.apply(&request(0, 20)).unwrap();
    bench.pass(10);
    bench.host.kernel.replace_vcpu("web", 0);
    let problem = bench.machine.rows(&bench.host)[0].problem.clone().unwrap();
    assert!(problem.contains("not in force"), "{problem}");
    bench.pass(1_005);
    assert!(bench.machine.held().is_empty(), "an unplugged vCPU's ends by itself");
    bench.unchanged();
    // The core becomes free when the former budget's period has ended.
    while bench.apply(&request(0, 20)).is_err_and(|refusal| refusal.reason == Reason::MakingRoom) {
        bench.pass(5);
    }
    bench.pass(10);
    assert_eq!(bench.policy(0), deadline(20));
    bench.release();
    bench.unchanged();
}

/// An action during which the daemon is killed, with its preparation.
type Act = (&'static str, fn(&mut Bench), fn(&mut Bench));

const ACTS: [Act; 8] = [
    ("apply", |_| {}, |bench| drop(bench.apply(&request(0, 20)))),
    (
        "change",
        |bench| drop(bench.apply(&request(0, 20)).unwrap()),
        |bench| drop(bench.apply(&request(0, 30))),
    ),
    (
        "release",
        |bench| {
            bench.apply(&request(0, 20)).unwrap();
            bench.apply(&request(1, 20)).unwrap();
        },
        |bench| drop(bench.machine.release(Some("web"), Some(0), &mut bench.host)),
    ),
    (
        "move",
        |bench| drop(bench.apply(&request(0, 20)).unwrap()),
        |bench| drop(bench.relocate(0, 1)),
    ),
    (
        "move away from another vCPU of its VM",
        |bench| {
            bench.apply(&request(0, 10)).unwrap();
            bench.apply(&request(1, 10)).unwrap();
        },
        |bench| drop(bench.relocate(0, 2)),
    ),
    (
        "move to another VM's core",
        |bench| {
            bench.host.kernel.start_vm("db", 1, false, false);
            bench.apply(&Request { vm: "db".to_owned(), core: Some(2), ..request(0, 10) }).unwrap();
            bench.apply(&request(0, 10)).unwrap();
        },
        |bench| drop(bench.relocate(0, 2)),
    ),
    (
        "limit",
        |_| {},
        |bench| drop(bench.apply(&Request { promise: Promise::Limit, ..request(0, 20) })),
    ),
    (
        "VM gone",
        |bench| drop(bench.apply(&request(0, 20)).unwrap()),
        |bench| {
            bench.host.kernel.end_vm("web");
            bench.pass(1_005);
        },
    ),
];

#[test]
fn a_daemon_that_dies_at_any_effect_leaves_nothing_that_the_next_one_cannot_undo() {
    let mut deaths = 0;
    for (name, prepare, act) in ACTS {
        for emulated in [false, true] {
            let mut effects = 0;
            loop {
                effects += 1;
                let mut bench = Bench::with(Vec::new(), emulated);
                prepare(&mut bench);
                bench.pass(10);
                bench.host.lives_for = Some(effects);
                act(&mut bench);
                let died = bench.host.is_dead();
                let mut without_daemon = bench.host.kernel.clone();
                bench.restart();
                for row in bench.machine.rows(&bench.host) {
                    assert_eq!(row.problem, None, "{name}, {effects}: held on, not in force");
                }
                assert_eq!(bench.host.kernel.journal, bench.machine.held(), "{name}, {effects}");
                assert_eq!(bench.release(), [""; 0], "{name}, {effects}");
                bench.unchanged();
                // The same, without a new daemon.
                let journal = std::mem::take(&mut without_daemon.journal);
                let mut host = SimulatedHost::new(without_daemon);
                assert_eq!(release_all(&mut host, &journal), [""; 0], "{name}, {effects}");
                assert_eq!(host.kernel.differences(), [""; 0], "{name}, {effects}");
                if !died {
                    break;
                }
            }
            assert!(effects > 2, "{name} has {effects} effects");
            println!("{name}, emulated {emulated}: died at each of {} effects", effects - 1);
            deaths += effects - 1;
        }
    }
    println!("{deaths} deaths, twice each: with and without a daemon afterwards");
}

#[test]
fn the_next_core_is_tried_if_nothing_is_left_of_the_attempt_and_the_core_was_the_cause() {
    let mut bench = Bench::new();
    bench.host.broken_core = Some(3);
    bench.apply(&request(0, 20)).unwrap();
    assert_eq!(bench.core(0), Some(2));
    assert!(
        bench.host.warnings[0].contains("core 3: that core is broken"),
        "{:?}",
        bench.host.warnings
    );
    // Named: no other.
    let named = bench.apply(&Request { core: Some(3), ..request(1, 20) }).unwrap_err();
    assert!(named.message.contains("core 3"), "{named}");
    bench.release();
    bench.unchanged();

    // A policy was changed before it failed: the thread may not come back at once.
    let mut bench = Bench::with(Vec::new(), true);
    bench.host.broken_main = true;
    bench.sleeps(0);
    let refusal = bench.apply(&request(0, 20)).unwrap_err();
    assert_eq!(refusal.message.matches("core ").count(), 1, "{refusal}");
    bench.unchanged();

    // Not the core: said once, tried once.
    let mut bench = Bench::new();
    bench.host.powerless = true;
    bench.sleeps(0);
    let refusal = bench.apply(&request(0, 20)).unwrap_err();
    assert_eq!(refusal.message, "CAP_SYS_NICE is missing");
    assert_eq!(bench.host.policies_tried, 1);
    bench.unchanged();
}

#[test]
fn two_reservations_of_one_emulated_vm_share_its_main_thread_in_any_order() {
    for first in [0, 1] {
        for cores in [[2, 3], [3, 3]] {
            let mut bench = Bench::with(Vec::new(), true);
            for vcpu in [0, 1] {
                let core = Some(cores[usize::try_from(vcpu).unwrap()]);
                bench.apply(&Request { core, ..request(vcpu, 15) }).unwrap();
            }
            bench.pass(10);
            let main = |bench: &Bench| {
                let thread = &bench.host.kernel.threads[&bench.host.kernel.vms["web"].pid];
                (thread.policy, thread.allowed.clone())
            };
            let left = bench.core(1 - first).unwrap();
            bench.machine.release(Some("web"), Some(first), &mut bench.host).unwrap();
            let (policy, allowed) = main(&bench);
            assert_eq!(policy, Policy::Fifo);
            assert!(!allowed.contains(&left), "{allowed:?}");
            assert!(bench.machine.rows(&bench.host)[0].problem.is_none());
            bench.release();
            bench.unchanged();
        }
    }
}

#[test]
fn cpusets_of_others_are_separated_again_and_get_their_value_back() {
    let mut bench = Bench::new();
    bench.apply(&request(0, 20)).unwrap();
    bench.host.kernel.start_vm("db", 1, false, true);
    bench.pass(1_005);
    assert_eq!(bench.host.kernel.files[&cpuset_of("db")], "0");
    assert!(bench.host.kernel.is_isolated(3));
    bench.release();
    assert_eq!(bench.host.kernel.files[&cpuset_of("db")], "1");
    bench.unchanged();
}

#[test]
fn what_is_configured_is_made_once_for_each_start_of_its_vm() {
    let mut bench = Bench::with(vec![request(0, 20)], false);
    bench.pass(1_005);
    assert_eq!(bench.core(0), Some(3));
    // A manual release takes precedence until the VM restarts.
    bench.release();
    bench.pass(2_000);
    assert_eq!(bench.core(0), None);
    bench.host.kernel.end_vm("web");
    bench.pass(1_005);
    bench.host.kernel.start_vm("web", 1, false, false);
    bench.pass(1_005);
    assert_eq!(bench.core(0), Some(3));
}

#[test]
fn what_follows_a_guest_gives_way_to_what_is_made_by_hand_and_ends_with_the_daemon() {
    let mut bench = Bench::new();
    let wanted = Reservation::shared(10 * MS, 50 * MS).unwrap();
    assert_eq!(bench.follow(Some(&wanted)).unwrap_err().reason, Reason::Unsupported, "two vCPUs");
    bench.host.kernel.end_vm("web");
    bench.host.kernel.start_vm("web", 1, false, false);
    bench.follow(Some(&wanted)).unwrap();
    bench.pass(10);
    assert_eq!(bench.policy(0), deadline(10));
    bench.restart();
    assert!(bench.machine.held().is_empty(), "nobody follows the guest any more");
    bench.unchanged();
    bench.pass(200);
    bench.follow(Some(&wanted)).unwrap();
    bench.apply(&request(0, 20)).unwrap();
    assert_eq!(bench.follow(Some(&wanted)).unwrap_err().reason, Reason::AlreadyExists);
    bench.follow(None).unwrap();
    assert_eq!(bench.core(0), Some(3), "made by hand meanwhile: it stays");
    bench.release();
    bench.unchanged();
}

#[test]
fn what_follows_a_guest_is_on_the_vcpus_where_its_tasks_run() {
    let mut bench = Bench::new();
    let of = |budget| Reservation::shared(budget * MS, 50 * MS).unwrap();
    let held = |bench: &Bench| {
        let of_vm = bench.machine.held().iter().filter(|held| held.vm == "web");
        let mut all: Vec<_> = of_vm.map(|held| (held.vcpu, held.budget / MS)).collect();
        all.sort_unstable();
        all
    };
    // The guest keeps them on the second.
    bench.follow_on(Some(&of(10)), Followed::One(1)).unwrap();
    assert_eq!(held(&bench), [(1, 10)]);
    bench.follow_on(None, Followed::One(1)).unwrap();
    bench.unchanged();
    bench.pass(200);
    // On any: each gets the same, and none if there are more than is planned for.
    let three = bench.follow_on(Some(&of(10)), Followed::AnyOf(3)).unwrap_err();
    assert!(three.message.contains("has 2 vCPUs, and its tasks are planned for 3"), "{three}");
    bench.follow_on(Some(&of(10)), Followed::AnyOf(2)).unwrap();
    bench.follow_on(Some(&of(20)), Followed::AnyOf(2)).unwrap();
    assert_eq!(held(&bench), [(0, 20), (1, 20)]);
    assert!(bench.machine.serves("web", Followed::AnyOf(2)));
    assert_eq!(bench.machine.followed_vms(None, Some(1)), ["web".to_owned()].into());
    assert!(bench.machine.followed_vms(Some("db"), None).is_empty());
    bench.machine.release(Some("web"), Some(1), &mut bench.host).unwrap();
    assert!(!bench.machine.serves("web", Followed::AnyOf(2)));
    assert!(bench.machine.serves("web", Followed::Only));
    bench.follow_on(None, Followed::AnyOf(2)).unwrap();
    assert!(!bench.machine.serves("web", Followed::Only));
    bench.unchanged();
    bench.pass(200);
    // One core is left: the first vCPU would have it, but not the second.
    bench.host.kernel.start_vm("db", 2, false, false);
    for (vcpu, core) in [(0, 3), (1, 2)] {
        let core = Some(core);
        let request = Request { vm: "db".to_owned(), core, alone: true, ..request(vcpu, 10) };
        bench.apply(&request).unwrap();
    }
    bench.pass(10);
    let before = bench.host.kernel.journal.clone();
    bench.follow_on(Some(&of(10)), Followed::AnyOf(2)).unwrap_err();
    assert_eq!(held(&bench), []);
    assert_eq!(bench.host.kernel.journal, before);
    // One that was made by hand stays, and nothing follows beside it.
    bench.pass(200);
    bench.apply(&request(0, 15)).unwrap();
    let by_hand = bench.follow_on(Some(&of(10)), Followed::AnyOf(2)).unwrap_err();
    assert_eq!(by_hand.reason, Reason::AlreadyExists);
    assert_eq!(held(&bench), [(0, 15)]);
    bench.release();
    bench.unchanged();
}

#[test]
fn a_soft_reservation_shrinks_for_a_hard_one() {
    let mut bench = Bench::new();
    let core = Some(3);
    bench.apply(&Request { at_most: Some(40 * MS), core, ..request(0, 10) }).unwrap();
    // It uses a third of the core, which is more than its minimum budget.
    bench.pass(5_000);
    let budget = bench.machine.held()[0].budget;
    assert!(budget > 10 * MS, "{budget}");
    let hard = Request { core, ..request(1, 30) };
    assert_eq!(bench.refusal(&hard), Reason::MakingRoom);
    assert_eq!(bench.machine.held()[0].budget, 10 * MS);
    bench.pass(55);
    bench.apply(&hard).unwrap();
    bench.release();
    bench.unchanged();
}

#[test]
fn weaker_promises_change_less() {
    for (promise, guarantee, policy) in [
        (Promise::Global, Guarantee::Global, deadline(20)),
        (Promise::Fifo, Guarantee::Fifo, Policy::Fifo),
        (Promise::Limit, Guarantee::Limit, Policy::Other),
    ] {
        let mut bench = Bench::new();
        bench.apply(&Request { promise, ..request(0, 20) }).unwrap();
        assert_eq!(bench.machine.held()[0].guarantee, guarantee);
        assert_eq!(bench.policy(0), policy);
        let held = &bench.machine.held()[0];
        assert!(bench.host.is_alive(held.pid, held.start_time, held.tid));
        assert_eq!(bench.host.kernel.threads[&held.pid].allowed.len(), 4);
        bench.restart();
        assert_eq!(bench.machine.held().len(), 1, "{promise:?} is held on");
        bench.release();
        bench.unchanged();
    }
}

#[test]
fn thousands_of_schedules_end_as_they_began_wherever_the_daemon_died() {
    let mut counts = Counts::default();
    let mut wrong = Vec::new();
    for seed in 0..3000 {
        match run(seed) {
            Ok(more) => counts += more,
            Err(why) => wrong.push(why),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    // The schedules cover the cases that they are meant for.
    let Counts { granted, refused, deaths, continued, without_daemon, slept, moved } = counts;
    for (what, count) in [
        ("granted", granted),
        ("refused", refused),
        ("deaths", deaths),
        ("continued", continued),
        ("without a daemon", without_daemon),
        ("slept", slept),
        ("moved", moved),
    ] {
        assert!(count > 500, "{what}: {count} of {counts:?}");
    }
}
