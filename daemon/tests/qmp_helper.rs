//! The helper that speaks QMP, as a process: it is handed connections, and reports.
#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use timevisor_linux::helper::Helper;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_protocols::qmp::{Command, News, Order, Report, RunState, VmEvent};

/// Far more than an answer takes.
const LATE: Duration = Duration::from_secs(20);

struct Parent(Helper);

impl Parent {
    fn start() -> Self {
        Self(Helper::start_program(env!("CARGO_BIN_EXE_timevisord"), "--qmp-helper").unwrap())
    }

    fn says(&self, order: &Order) {
        self.0.send(&order.to_bytes()).unwrap();
    }

    /// QEMU's end of a connection that is handed over.
    fn opens(&self, connection: u64) -> UnixStream {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_read_timeout(Some(LATE)).unwrap();
        let order = Order::Open { connection, first_id: 100, shared: false };
        self.0.send_with(&order.to_bytes(), near.as_fd()).unwrap();
        far
    }

    fn hears(&self) -> Report {
        wait(&mut [PollFd::readable(self.0.fd())], Some(LATE)).unwrap();
        Report::from_bytes(&self.0.receive().unwrap().expect("a report")).unwrap()
    }
}

fn hears_command(qemu: &mut UnixStream) -> serde_json::Value {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        qemu.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    serde_json::from_slice(&line).unwrap()
}

fn says(qemu: &mut UnixStream, line: &str) {
    qemu.write_all(format!("{line}\r\n").as_bytes()).unwrap();
}

/// Greeting, negotiation, and the state of a VM that runs.
fn begin(parent: &Parent, connection: u64, qemu: &mut UnixStream) {
    let version = "{\"major\": 10, \"minor\": 0, \"micro\": 2}";
    says(qemu, &format!("{{\"QMP\": {{\"version\": {{\"qemu\": {version}}}}}}}"));
    assert_eq!(hears_command(qemu)["execute"], "qmp_capabilities");
    says(qemu, "{\"return\": {}, \"id\": 100}");
    assert!(matches!(parent.hears(), Report::News(of, News::Greeted(_)) if of == connection));
    for name in ["migrate-set-capabilities", "query-status", "query-migrate", "query-cpus-fast"] {
        assert_eq!(hears_command(qemu)["execute"], name);
    }
    says(qemu, "{\"return\": {\"status\": \"running\", \"running\": true}, \"id\": 102}");
    let Report::News(of, News::Status(status)) = parent.hears() else { panic!("no status") };
    assert_eq!((of, status.state), (connection, RunState::Running));
}

const STOP: &str = "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"STOP\"}";

#[test]
fn it_speaks_for_several_qemus_at_once() {
    let parent = Parent::start();
    let (mut one, mut two) = (parent.opens(1), parent.opens(2));
    begin(&parent, 2, &mut two);
    begin(&parent, 1, &mut one);
    says(&mut two, STOP);
    assert_eq!(parent.hears(), Report::News(2, News::Event(VmEvent::Stop)));
    parent.says(&Order::Do(1, Command::Resume));
    let cont = hears_command(&mut one);
    assert_eq!(cont["execute"], "cont");
    says(&mut one, &format!("{{\"return\": {{}}, \"id\": {}}}", cont["id"]));
    assert_eq!(parent.hears(), Report::News(1, News::Resumed));
    // Nobody else is affected by one that says nonsense, or is closed.
    says(&mut one, "nonsense");
    assert!(matches!(parent.hears(), Report::News(1, News::Lost(_))));
    assert_eq!(one.read(&mut [0]).unwrap(), 0, "it is closed");
    says(&mut two, STOP);
    assert_eq!(parent.hears(), Report::News(2, News::Event(VmEvent::Stop)));
    parent.says(&Order::Close(2));
    assert_eq!(parent.hears(), Report::Closed(2));
    assert_eq!(two.read(&mut [0]).unwrap(), 0);
    // To one that it does not have, too: it may have been lost meanwhile.
    parent.says(&Order::Close(1));
    parent.says(&Order::Do(1, Command::Resume));
    parent.says(&Order::Ping(7));
    assert_eq!((parent.hears(), parent.hears()), (Report::Closed(1), Report::Pong(7)));
}

/// One that is closed while it is read, and one that has never said anything.
#[test]
fn a_qemu_that_ends_is_lost() {
    let parent = Parent::start();
    let mut qemu = parent.opens(1);
    begin(&parent, 1, &mut qemu);
    drop(qemu);
    drop(parent.opens(2));
    let mut lost = [parent.hears(), parent.hears()].map(|report| match report {
        Report::News(connection, News::Lost(_)) => connection,
        other => panic!("{other:?}"),
    });
    lost.sort_unstable();
    assert_eq!(lost, [1, 2]);
}

#[test]
fn two_hundred_connections_are_one_process() {
    let parent = Parent::start();
    let mut qemus: Vec<_> = (0..200u32).map(|number| parent.opens(number.into())).collect();
    for (number, qemu) in (0..200u32).zip(&mut qemus).rev() {
        begin(&parent, number.into(), qemu);
    }
    for (connection, qemu) in (0..).zip(&mut qemus) {
        says(qemu, STOP);
        assert_eq!(parent.hears(), Report::News(connection, News::Event(VmEvent::Stop)));
    }
}

/// It ends with its parent, and with what is not an order.
#[test]
fn a_helper_without_a_parent_or_an_order_ends() {
    let parent = Parent::start();
    let mut qemu = parent.opens(1);
    drop(parent);
    assert_eq!(qemu.read(&mut [0]).unwrap(), 0);
    let parent = Parent::start();
    let mut qemu = parent.opens(1);
    parent.0.send(b"[]").unwrap();
    assert_eq!(qemu.read(&mut [0]).unwrap(), 0);
}
