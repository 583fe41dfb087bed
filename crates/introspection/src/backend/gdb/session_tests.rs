use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::point::{Filter, Read, Register, SLOT};

const NOW: Duration = Duration::ZERO;
const DESCRIPTION: &str = r#"<reg name="rdx" bitsize="64"/><reg name="rsi" bitsize="64"/><reg name="rdi" bitsize="64"/>
<reg name="rsp" bitsize="64"/><reg name="rip" bitsize="64"/><reg name="gs_base" bitsize="64"/><reg name="cr3" bitsize="64"/>"#;

fn point(id: u16, address: u64, reads: &[Read], filter: Option<Filter>) -> Point {
    let (symbol, reads) = (String::new(), reads.to_vec());
    Point { id, symbol, address, expected: SLOT, reads, filter }
}

fn points() -> [Point; 2] {
    let first =
        [Read::at(Register::GsBase, -8, 8), Read::from(0, 4, 4), Read::value(Register::Rdi)];
    let real_time = Filter { read: 1, mask: 1 << 6 };
    [point(1, 0x1000, &first, Some(real_time)), point(2, 0x2000, &[Read::from(0, 0, 8)], None)]
}

/// Imitates the parts of QEMU's stub that are used.
#[derive(Default)]
struct Stub {
    breakpoints: BTreeSet<u64>,
    memory: BTreeMap<u64, Vec<u8>>,
    rip: u64,
    rdi: u64,
    runs: bool,
    steps: u32,
    /// Its last packet has not been acknowledged yet.
    unheard: bool,
    /// The relay no longer has to send the last words.
    quiet: bool,
}

impl Stub {
    fn stopped(&mut self, rip: u64) -> Vec<u8> {
        assert!(!self.unheard);
        (self.rip, self.runs, self.unheard) = (rip, false, true);
        codec::packet("T05thread:02;")
    }

    fn answer(&mut self, body: &str) -> Option<String> {
        let ok = || Some("OK".to_owned());
        assert!(!self.quiet || body == "D", "{body} after the end");
        let breakpoint = |text: &str| {
            u64::from_str_radix(text.split(',').next().unwrap_or_default(), 16).unwrap()
        };
        assert!(!self.runs, "{body} while the VM runs");
        match body {
            "qSupported:hwbreak+" => {
                Some("PacketSize=1000;qXfer:features:read+;vContSupported+;".to_owned())
            }
            "g" => {
                let all = [0, 0, self.rdi, 0, self.rip, 0x508, 0];
                Some(all.iter().flat_map(|n: &u64| n.to_le_bytes()).map(hex).collect())
            }
            "c" => {
                self.runs = true;
                None
            }
            "D" => {
                self.breakpoints.clear();
                self.runs = true;
                ok()
            }
            "Hg2" => ok(),
            "vCont;s:2" => {
                (self.rip, self.steps) = (self.rip + 5, self.steps + 1);
                Some("T05thread:02;".to_owned())
            }
            _ => {
                if let Some(file) = body.strip_prefix("qXfer:features:read:") {
                    let (file, place) = file.split_once(':').unwrap();
                    let text = match file {
                        "target.xml" => r#"<target><xi:include href="core.xml"/></target>"#,
                        "core.xml" => DESCRIPTION,
                        other => panic!("{other}"),
                    };
                    // In pieces of 100 bytes.
                    let at = usize::from_str_radix(place.split(',').next().unwrap(), 16).unwrap();
                    let end = text.len().min(at + 100);
                    let kind = if end == text.len() { 'l' } else { 'm' };
                    Some(format!("{kind}{}", &text[at..end]))
                } else if let Some(rest) = body.strip_prefix("Z1,") {
                    self.breakpoints.insert(breakpoint(rest));
                    ok()
                } else if let Some(rest) = body.strip_prefix("z1,") {
                    self.breakpoints.remove(&breakpoint(rest));
                    ok()
                } else if let Some(rest) = body.strip_prefix('m') {
                    let found = self.memory.get(&breakpoint(rest));
                    Some(
                        found
                            .map_or("E14".to_owned(), |all| all.iter().copied().map(hex).collect()),
                    )
                } else {
                    panic!("{body}")
                }
            }
        }
    }
}

fn hex(byte: u8) -> String {
    format!("{byte:02x}")
}

/// Exchanges packets until neither side has anything more to send; returns all other actions.
fn talk(gdb: &mut Gdb, stub: &mut Stub, mut actions: Vec<Action>) -> Vec<Action> {
    let mut all = Vec::new();
    while !actions.is_empty() {
        let mut answers = Vec::new();
        for action in core::mem::take(&mut actions) {
            match action {
                Action::Send(bytes) if bytes == b"+" => {
                    assert!(core::mem::take(&mut stub.unheard), "a byte stops the VM");
                }
                Action::Send(bytes) if bytes == [3] => {
                    assert!(stub.runs);
                    (stub.runs, stub.unheard) = (false, true);
                    answers.extend(codec::packet("T02thread:02;"));
                }
                Action::Send(bytes) => {
                    let quiet = bytes.first() == Some(&QUIET);
                    stub.quiet |= quiet;
                    let body = String::from_utf8(bytes[usize::from(quiet)..].to_vec()).unwrap();
                    if body.is_empty() {
                        continue;
                    }
                    assert!(!stub.unheard, "{body} before an acknowledgement");
                    let body = body.strip_prefix('$').unwrap().split('#').next().unwrap();
                    let answer = stub.answer(body);
                    stub.unheard = answer.is_some();
                    answers.extend(answer.iter().flat_map(|text| codec::packet(text)));
                }
                other => all.push(other),
            }
        }
        if !answers.is_empty() {
            actions = gdb.handle(Input::Bytes(&answers), NOW);
        }
    }
    all
}

fn attached() -> (Gdb, Stub) {
    let (mut gdb, mut stub) = (Gdb::default(), Stub::default());
    assert_eq!(gdb.handle(Input::Connected, NOW), vec![]);
    let actions = gdb.attach(&points(), NOW).unwrap();
    assert_eq!(gdb.state(), State::Changing);
    assert_eq!(talk(&mut gdb, &mut stub, actions), vec![Action::Attached(2)]);
    assert_eq!((gdb.state(), stub.runs), (State::Attached, true));
    assert_eq!(stub.breakpoints, BTreeSet::from([0x1000, 0x2000]));
    (gdb, stub)
}

fn hit(gdb: &mut Gdb, stub: &mut Stub, rip: u64) -> Vec<Action> {
    let stop = stub.stopped(rip);
    let actions = gdb.handle(Input::Bytes(&stop), NOW);
    talk(gdb, stub, actions)
}

#[test]
fn a_hit_is_read_and_stepped_over() {
    let (mut gdb, mut stub) = attached();
    stub.rdi = 0x77;
    stub.memory.insert(0x500, 0x9000u64.to_le_bytes().to_vec());
    stub.memory.insert(0x9004, vec![6, 0, 0, 0]);
    let [Action::Event(event)] = &hit(&mut gdb, &mut stub, 0x1000)[..] else { panic!("not one") };
    let data = [&0x9000u64.to_le_bytes()[..], &[6, 0, 0, 0], &0x77u64.to_le_bytes()].concat();
    assert_eq!((event.sequence, event.point, event.vcpu, event.failed), (0, 1, 1, 0));
    assert_eq!((&event.data, event.counter), (&data, None));
    assert_eq!((stub.runs, stub.steps, gdb.state()), (true, 1, State::Attached));
    // The filter drops this event: the VM continues, and the sequence has no gap.
    stub.memory.insert(0x9004, vec![0, 0, 0, 0]);
    assert_eq!(hit(&mut gdb, &mut stub, 0x1000), vec![]);
    stub.memory.insert(0x9004, vec![200, 0, 0, 0]);
    assert_eq!(hit(&mut gdb, &mut stub, 0x1000), vec![]);
    assert_eq!((stub.runs, stub.steps), (true, 3));
    // Unmapped memory, and a read that depends on it.
    stub.memory.clear();
    let [Action::Event(event)] = &hit(&mut gdb, &mut stub, 0x1000)[..] else { panic!("not one") };
    assert_eq!((event.sequence, event.failed, event.data.len()), (1, 0b011, 20));
}

#[test]
fn it_leaves_a_vm_that_runs() {
    let (mut gdb, mut stub) = attached();
    let actions = gdb.detach(NOW);
    assert_eq!(gdb.state(), State::Changing);
    assert_eq!(talk(&mut gdb, &mut stub, actions), vec![Action::Detached]);
    assert_eq!((gdb.state(), stub.runs, stub.breakpoints.len()), (State::Detached, true, 0));
    assert!(stub.quiet, "a second D ends QEMU");
}

#[test]
fn it_leaves_in_the_middle_of_a_hit() {
    let (mut gdb, mut stub) = attached();
    let stop = stub.stopped(0x2000);
    let actions = gdb.handle(Input::Bytes(&stop), NOW);
    assert_eq!(gdb.detach(NOW), vec![], "an answer is awaited");
    let told = talk(&mut gdb, &mut stub, actions);
    assert!(matches!(told[..], [Action::Event(_), Action::Detached]), "{told:?}");
    assert_eq!((stub.runs, stub.breakpoints.len(), stub.steps), (true, 0, 0));
}

#[test]
fn a_vm_that_somebody_else_stops_stays_stopped() {
    let (mut gdb, mut stub) = attached();
    (stub.runs, stub.unheard) = (false, true);
    let actions = gdb.handle(Input::Bytes(&codec::packet("T02thread:01;")), NOW);
    let told = talk(&mut gdb, &mut stub, actions);
    assert!(matches!(&told[..], [Action::Close(why)] if why.contains("somebody else")), "{told:?}");
    assert_eq!((stub.runs, stub.breakpoints.len(), gdb.state()), (false, 0, State::Away));
    assert!(stub.quiet, "its end would let the VM go on");
}

#[test]
fn a_stub_that_does_not_do() {
    let refused = |answers: &[&str], why: &str| {
        let mut gdb = Gdb::default();
        gdb.handle(Input::Connected, NOW);
        gdb.attach(&points(), NOW).unwrap();
        let bytes: Vec<u8> = answers.iter().flat_map(|text| codec::packet(text)).collect();
        let actions = gdb.handle(Input::Bytes(&bytes), NOW);
        let Some(Action::Close(said)) = actions.last() else { panic!("{actions:?}") };
        assert!(said.contains(why), "{said}");
        assert_eq!(gdb.handle(Input::Bytes(b"$OK#9a"), NOW), vec![]);
    };
    let good = "qXfer:features:read+;vContSupported+";
    let description = format!("l{DESCRIPTION}");
    refused(&["PacketSize=1000"], "describe");
    refused(&[good, "E00"], "describe");
    refused(&[good, "l<target/>"], "x86-64");
    refused(&[good, &description, "E22"], "refuses breakpoint 1");
    refused(&[good, &description, "OK", "OK", "OK"], "nothing that was asked");
    refused(&[good, &description, "OK", "OK", "T05thread:01;", "E22"], "none");
    refused(&[good, &description, "OK", "OK", "T05thread:01;", "OK", "00"], "registers");
    let nowhere = "00".repeat(56);
    refused(&[good, &description, "OK", "OK", "T05thread:01;", "OK", &nowhere], "no point");
}

#[test]
fn an_answer_that_does_not_come() {
    let mut gdb = Gdb::default();
    gdb.handle(Input::Connected, NOW);
    gdb.attach(&points(), NOW).unwrap();
    let late = gdb.poll_at(NOW).unwrap();
    assert_eq!(gdb.handle(Input::Timer, NOW), vec![]);
    assert!(matches!(gdb.handle(Input::Timer, late)[..], [Action::Close(_)]));
    // While the VM runs, the backend waits for it to stop.
    let (mut gdb, _) = attached();
    assert_eq!((gdb.poll_at(NOW), gdb.handle(Input::Timer, late)), (None, vec![]));
}

#[test]
fn points_that_are_too_many() {
    let mut gdb = Gdb::default();
    gdb.handle(Input::Connected, NOW);
    let many = vec![points()[0].clone(); limits::POINTS + 1];
    assert_eq!(gdb.attach(&many, NOW), Err(Refused::Points(33, 32)));
    let large = point(9, 0, &[Read::absolute(0, 257)], None);
    assert_eq!(gdb.attach(&[large], NOW), Err(Refused::Reads(9)));
    assert_eq!(gdb.state(), State::Detached);
}

proptest! {
    #[test]
    fn whatever_it_says(bodies in prop::collection::vec(
        prop_oneof![
            Just("OK".to_owned()), Just("T05thread:02;".to_owned()), Just("T02thread:01;".to_owned()), Just("E14".to_owned()),
            Just("qXfer:features:read+;vContSupported+".to_owned()), Just(format!("l{DESCRIPTION}")),
            Just("0010000000000000".repeat(7)), Just("06000000".to_owned()), "[0-9a-f]{0,32}",
        ], 0..40)) {
        let mut gdb = Gdb::default();
        gdb.handle(Input::Connected, NOW);
        gdb.attach(&points(), NOW).unwrap();
        let mut events = 0;
        for body in bodies {
            for action in gdb.handle(Input::Bytes(&codec::packet(&body)), NOW) {
                if let Action::Event(event) = action {
                    prop_assert_eq!(event.sequence, events);
                    prop_assert!(event.data.len() == 20 || event.data.len() == 8);
                    events += 1;
                }
            }
        }
    }
}
