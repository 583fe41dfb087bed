//! VMs that come from another host with a reservation, or have gone to one.

use timevisor_reservation::{Held, Promise, Reason, Request, Reservations};

use super::change::Change;
use super::host::SimulatedHost;
use super::kernel::{Kernel, Policy};

const MS: u64 = 1_000_000;

fn request(vcpu: u32, core: Option<usize>) -> Request {
    Request {
        vm: "web".to_owned(),
        vcpu,
        budget: 20 * MS,
        at_most: None,
        deadline: Some(50 * MS),
        period: 50 * MS,
        promise: Promise::Core,
        core,
        alone: true,
        dry_run: false,
    }
}

struct Bench {
    host: SimulatedHost,
    machine: Reservations<Change>,
}

impl Bench {
    /// The destination, on which a VM of two vCPUs waits.
    fn configured(requests: Vec<Request>) -> Self {
        let mut kernel = Kernel::new(4);
        kernel.start_vm("web", 2, false, false);
        let mut host = SimulatedHost::new(kernel);
        let machine = Reservations::start(Ok(Vec::new()), requests, &mut host);
        Self { host, machine }
    }

    fn admit(&mut self) -> Result<(), Reason> {
        let guests = self.host.kernel.clone();
        let admitted = self.machine.admit("web", &mut self.host, &guests);
        admitted.map_err(|refusal| refusal.reason)
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(5) {
            self.host.kernel.pass(5 * MS);
            let guests = self.host.kernel.clone();
            self.machine.on_timer(&mut self.host, &guests);
        }
    }

    fn policy(&self, vcpu: usize) -> Policy {
        self.host.kernel.threads[&self.host.kernel.vms["web"].vcpus[vcpu]].policy
    }

    /// Who waits for a vCPU is who has a problem.
    fn is_said_to_wait(&self) {
        let rows = self.machine.rows(&self.host);
        let problems = rows.iter().filter(|row| row.problem.is_some());
        let waiting: Vec<&str> = problems.map(|row| row.held.vm.as_str()).collect();
        assert_eq!(self.machine.waiting().collect::<Vec<_>>(), waiting);
    }

    fn is_unchanged(&self) {
        assert_eq!(self.host.kernel.differences(), [""; 0]);
        assert_eq!(self.host.kernel.journal, []);
    }
}

const RESERVED: Policy = Policy::Deadline(20 * MS, 50 * MS, 50 * MS);

#[test]
fn what_is_configured_for_a_vm_that_comes_is_made_at_once_and_once() {
    let mut bench = Bench::configured(vec![request(0, None), request(1, None)]);
    bench.admit().unwrap();
    let held = bench.machine.held().to_vec();
    assert_eq!(held.len(), 2);
    bench.is_said_to_wait();
    bench.pass(10);
    assert_eq!(bench.machine.waiting().count(), 0);
    bench.is_said_to_wait();
    assert_eq!((bench.policy(0), bench.policy(1)), (RESERVED, RESERVED));
    bench.admit().unwrap();
    bench.pass(2000);
    let cores = |bench: &Bench| bench.machine.held().iter().map(Held::core).collect::<Vec<_>>();
    assert_eq!(cores(&bench), held.iter().map(Held::core).collect::<Vec<_>>());
    // Somebody releases it: that stays so, also if it is awaited once more.
    bench.machine.release(Some("web"), None, &mut bench.host).unwrap();
    bench.admit().unwrap();
    bench.is_unchanged();
}

#[test]
fn a_vm_that_has_no_place_gets_nothing_until_there_is_room() {
    let mut bench = Bench::configured(vec![request(0, Some(3)), request(1, Some(3))]);
    assert_eq!(bench.admit(), Err(Reason::Unavailable), "both want to be alone there");
    bench.is_unchanged();
    assert!(bench.machine.problems()[0].contains("alone"), "{:?}", bench.machine.problems());
}

/// Its thread left SCHED_DEADLINE a moment ago: the kernel could forget it if it came back at once.
#[test]
fn a_vm_that_runs_here_again_gets_what_it_had_as_soon_as_that_is_possible() {
    let mut bench = Bench::configured(Vec::new());
    let guests = bench.host.kernel.clone();
    let soft = Request { alone: false, at_most: Some(30 * MS), ..request(1, None) };
    for asked in [request(0, Some(2)), soft.clone()] {
        bench.machine.apply(&asked, &mut bench.host, &guests).unwrap();
    }
    bench.pass(1000);
    let leaves = |bench: &mut Bench| {
        let had = bench.machine.requests("web");
        bench.machine.release(Some("web"), None, &mut bench.host).unwrap();
        bench.is_unchanged();
        had
    };
    let had = leaves(&mut bench);
    bench.machine.come_back(had, &mut bench.host, &guests);
    assert!(bench.machine.held().is_empty(), "the threads pay back");
    assert!(bench.machine.poll_at() <= bench.host.kernel.now + 20 * MS, "it is tried again soon");
    // It leaves again before that, and comes back once more.
    let had = leaves(&mut bench);
    assert_eq!(had, [request(0, None), soft]);
    bench.machine.come_back(had, &mut bench.host, &guests);
    bench.pass(70);
    assert!(bench.machine.held().is_empty(), "they still do");
    bench.pass(40);
    let mut made =
        bench.machine.held().iter().map(|held| (held.vcpu, held.soft)).collect::<Vec<_>>();
    made.sort_unstable();
    assert_eq!(made, [(0, None), (1, Some((20 * MS, 30 * MS)))]);
    assert_eq!(bench.host.warnings, [""; 0]);

    // Meanwhile somebody decides otherwise: another reservation stays, and a release is one.
    let had = leaves(&mut bench);
    bench.machine.come_back(had, &mut bench.host, &guests);
    let fifo = Request { promise: Promise::Fifo, alone: false, ..request(0, None) };
    bench.machine.apply(&fifo, &mut bench.host, &guests).unwrap();
    bench.machine.release(Some("web"), Some(1), &mut bench.host).unwrap();
    bench.pass(1000);
    assert_eq!((bench.policy(0), bench.policy(1)), (Policy::Fifo, Policy::Other));
    leaves(&mut bench);
    // It leaves while it is waited for, and that is noticed later: it still had it.
    bench.machine.apply(&request(0, None), &mut bench.host, &guests).unwrap();
    bench.pass(1000);
    let had = leaves(&mut bench);
    bench.machine.come_back(had.clone(), &mut bench.host, &guests);
    let mut away = guests.clone();
    away.vms.clear();
    for _ in 0..40 {
        bench.host.kernel.pass(50 * MS);
        bench.machine.on_timer(&mut bench.host, &away);
    }
    assert_eq!(leaves(&mut bench), had);
    // Its process ends: another one of that name is another VM.
    bench.machine.apply(&request(0, None), &mut bench.host, &guests).unwrap();
    bench.pass(1000);
    let had = leaves(&mut bench);
    bench.machine.come_back(had, &mut bench.host, &guests);
    assert!(bench.machine.held().is_empty(), "it pays back");
    bench.host.kernel.end_vm("web");
    bench.host.kernel.start_vm("web", 2, false, false);
    bench.pass(1000);
    bench.is_unchanged();
    assert_eq!(bench.machine.poll_at(), u64::MAX, "nothing is left to do");
}

/// What is not a matter of time is said once.
#[test]
fn a_vm_that_runs_here_again_and_has_no_core_is_told() {
    let mut bench = Bench::configured(Vec::new());
    let guests = bench.host.kernel.clone();
    bench.machine.apply(&request(0, None), &mut bench.host, &guests).unwrap();
    let had = bench.machine.requests("web");
    bench.machine.release(Some("web"), None, &mut bench.host).unwrap();
    bench.pass(1000);
    bench.host.powerless = true;
    bench.machine.come_back(had, &mut bench.host, &guests);
    bench.pass(1000);
    let said = |text: &&String| text.contains("without its former reservation");
    assert_eq!(bench.host.warnings.iter().filter(said).count(), 1, "{:?}", bench.host.warnings);
    bench.is_unchanged();
}

#[test]
fn what_a_vm_had_can_be_asked_for_again() {
    let mut bench = Bench::configured(Vec::new());
    let guests = bench.host.kernel.clone();
    let soft = Request { alone: false, at_most: Some(30 * MS), ..request(1, None) };
    for asked in [request(0, Some(2)), soft.clone()] {
        bench.machine.apply(&asked, &mut bench.host, &guests).unwrap();
    }
    bench.pass(1000);
    // On any core: another host has others.
    assert_eq!(bench.machine.requests("web"), [request(0, None), soft]);
    assert_eq!(bench.machine.requests("db"), []);
}
