//! What a VM's page says while QEMU has not said, or says, that the VM waits for a migration: the page's
//! bytes, as its guest reads them.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

use timevisor_clock_page::{ClockStatus, Counter, CounterId, LeapIndicator, Policy, Update};
use timevisor_clock_page::{Known, NotedBirth};
use timevisor_linux::mapping::{Access, PAGE_BYTES, SharedMapping};
use timevisor_linux::process::{FdSearch, Process};
use timevisor_protocols::qmp::{MigrationStatus, QueryStatus, RunState, VmEvent};
use timevisor_time::{CounterRatio, Duration, Instant, Interval, Period, Tai, TimescaleId};

use crate::command_line::CommandLine;
use crate::counter_mapping::CounterMapping;
use crate::delivery::{DeliveryError, DeliveryKind, PageDelivery};
use crate::host::{HostIdentity, HostUpdate, ScaleUpdate};
use crate::qemu::{Accelerator, Qemu};
use crate::transit::{Step, Transit};
use crate::vm::Vm;

/// A host's counter.
struct Hand(Cell<u64>);

impl Counter for Hand {
    fn id(&self) -> CounterId {
        CounterId::X86Tsc
    }
    fn read_ordered(&self) -> u64 {
        self.0.get()
    }
}

/// A page in a file, which stands for the memory of a vmclock device.
struct Device(PathBuf);

impl PageDelivery for Device {
    fn kind(&self) -> DeliveryKind {
        DeliveryKind::Vmclock
    }
    fn attach(&self, _: &Qemu) -> Result<Option<SharedMapping>, DeliveryError> {
        let file = OpenOptions::new().read(true).write(true).open(&self.0).unwrap();
        Ok(Some(SharedMapping::new(file, PAGE_BYTES, Access::ReadWrite).unwrap()))
    }
}

/// This process in the role of a QEMU under KVM.
fn qemu(incoming: bool) -> Qemu {
    let command_line = CommandLine { incoming, loads_state: incoming, ..CommandLine::default() };
    Qemu {
        process: Process::open(std::process::id()).unwrap(),
        name: "web".into(),
        accelerator: Accelerator::Kvm,
        command_line,
        pages: FdSearch { found: Vec::new(), cut: false },
        files: Vec::new(),
    }
}

fn host() -> HostIdentity {
    HostIdentity { id: [1; 16], counter: CounterId::X86Tsc, epoch: 5, tai_offset: Some(37) }
}

/// A host that knows the time.
fn known(counter: &Hand) -> HostUpdate {
    let nominal = Period::from_hz(2_000_000_000).unwrap();
    let policy = Policy { nominal, validity: Duration::from_secs(10) };
    let estimate = Instant::<Tai>::from_unix_nanos(1_700_000_000_000_000_000);
    let error = Duration::from_nanos(1000);
    let known = Known {
        interval: Interval::new(estimate - error, estimate + error).unwrap(),
        estimate,
        period: nominal,
        slopes: (nominal, nominal),
        limits: (nominal, nominal),
    };
    let now = counter.0.get();
    let update = Update {
        target: policy.lines(now, &known).shifted(Duration::ZERO),
        status: ClockStatus::Synchronized,
        estimated_error: error,
        as_of: now,
        tai_offset: Some(37),
        slew: policy.slew(),
    };
    let scale = ScaleUpdate { update: Ok(update), disruptions: 0 };
    let leap = LeapIndicator::default();
    HostUpdate { tai: scale, utc: scale, tai_offset: Some(37), leap }
}

const MAPPING: CounterMapping =
    CounterMapping { ratio: CounterRatio::ONE, offset: -7, running: true };

/// A VM whose page is in a file.
struct World {
    folder: tempfile::TempDir,
    counter: Hand,
    vm: Vm,
}

impl World {
    fn new(incoming: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device = Device(folder.path().join("page"));
        File::create(&device.0).unwrap().set_len(PAGE_BYTES as u64).unwrap();
        let vm = Vm::attach(qemu(incoming), "web", TimescaleId::Tai, host(), &[&device]).unwrap();
        Self { folder, counter: Hand(Cell::new(1 << 40)), vm }
    }

    fn page(&self) -> Vec<u8> {
        fs::read(self.folder.path().join("page")).unwrap()
    }

    fn status(&self) -> ClockStatus {
        ClockStatus::from_u8(self.page()[0x22])
    }

    /// All that a daemon does in a turn of its loop.
    fn turn(&mut self) {
        self.vm.look();
        if let Some(moment) = self.vm.question() {
            self.vm.learn(moment, Ok(MAPPING));
        }
        self.vm.publish(&known(&self.counter), &self.counter);
        self.vm.publish_entries(1000, &[], &self.counter);
        self.vm.set_birth(NotedBirth::Begun);
    }

    fn says(&mut self, state: RunState, running: bool) -> Step {
        let step = self.vm.on_status(&QueryStatus { running, state });
        self.turn();
        step
    }
}

#[test]
fn nothing_is_written_before_qemus_first_word() {
    let mut world = World::new(true);
    world.vm.await_word("why");
    let before = world.page();
    for _ in 0..3 {
        world.turn();
    }
    // A word that is no answer to what the VM's state is.
    world.vm.on_event(&VmEvent::Resume);
    world.turn();
    assert_eq!(world.page(), before);
    assert_eq!((world.vm.awaits(), world.vm.problem()), (None, Some("why")));
    assert!(!world.vm.has_arrived());
    assert_eq!(world.vm.birth(), NotedBirth::Nothing);
    world.vm.retire();
    assert_eq!(fs::read(world.folder.path().join("page")).unwrap(), before);
}

#[test]
fn one_that_waits_is_told_nothing_until_it_has_come() {
    let mut world = World::new(true);
    world.vm.await_word("why");
    let before = world.page();
    assert_eq!(world.says(RunState::InMigrate, false), Step::Nothing);
    assert_eq!((world.vm.awaits(), world.vm.problem()), (Some(true), None));
    assert!(!world.vm.has_arrived());
    world.vm.on_event(&VmEvent::Migration(MigrationStatus::Active));
    world.turn();
    assert_eq!(world.page(), before);

    let step = world.vm.on_event(&VmEvent::Migration(MigrationStatus::Completed));
    // Its vCPUs are held back, and the page may be right before they run.
    assert_eq!(step, Step::Arrive);
    world.turn();
    assert_eq!((world.vm.awaits(), world.status()), (Some(false), ClockStatus::Synchronized));
    assert!(world.vm.has_arrived());
}

#[test]
fn one_that_came_before_qemus_first_word_is_served_at_once() {
    for (state, running) in [(RunState::Running, true), (RunState::Paused, false)] {
        let mut world = World::new(true);
        world.vm.await_word("why");
        assert_eq!(world.says(state, running), Step::Nothing);
        assert_eq!(world.vm.awaits(), Some(false));
        assert!(world.vm.has_arrived());
        let told = world.status() == ClockStatus::Synchronized;
        assert_eq!(told, running, "a VM that is stopped is told nothing");
    }
}

#[test]
fn one_that_was_served_and_turns_out_to_wait_is_withdrawn() {
    let mut world = World::new(true);
    world.turn();
    assert_eq!(world.status(), ClockStatus::Synchronized, "nobody had it wait");
    world.says(RunState::InMigrate, false);
    // So does a page without time say it to stock drivers (decision 2).
    assert_eq!(world.status(), ClockStatus::Unreliable);
    assert_eq!(world.vm.transit(), &Transit::Incoming);
}

#[test]
fn one_that_an_earlier_daemon_knew_to_wait_is_told_nothing() {
    let mut world = World::new(true);
    world.vm.await_arrival();
    let before = world.page();
    world.turn();
    assert_eq!((world.page(), world.vm.awaits()), (before, Some(true)));
    assert_eq!(world.says(RunState::Running, true), Step::Arrive);
    assert_eq!(world.status(), ClockStatus::Synchronized);
}

#[test]
fn one_that_never_waited_is_served_without_a_word() {
    let mut world = World::new(false);
    world.turn();
    assert_eq!((world.status(), world.vm.awaits()), (ClockStatus::Synchronized, Some(false)));
    assert!(!world.vm.has_arrived(), "it was not started for a migration");
}
