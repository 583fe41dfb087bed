//! Files that are refused, and what the values of a sound one are. `same_tests.rs` compares
//! described guests with the built-in ones.

use proptest::prelude::*;

use super::*;
use crate::backend::RawEvent;
use crate::os::guest_os::{DecodeError, GuestOs};
use crate::point::{Filter, Read, Register};
use crate::registry;
use crate::symbols::image::Image;
use crate::tasks::event::{Attributes, Kind, Policy, Scheduler, Thread};
use crate::testing_elf::Elf;

pub(super) const SEGMENTS: &str = include_str!("../../../../../plugins/segments/segments.toml");
pub(super) const FREERTOS: &str = include_str!("../../../../../plugins/freertos/freertos.toml");

/// The functions of plugins/segments; version 1 has the first three.
pub(super) const FUNCTIONS: [&str; 5] = [
    "timevisor_begin_segment",
    "timevisor_end_segment",
    "timevisor_retire_segment",
    "timevisor_segment_aborts",
    "timevisor_set_scheduler",
];

/// A guest system with everything that the two others do not have.
pub(super) const RTOS: &str = r#"
format = 1
name = "rtos"
version = "1.2"
supports = "tests"
bits = [64]
reads = [{ name = "me", register = "gs_base" }]

[note]
owner = "Timevisor"
type = 9
size = 8
fields.version = { offset = 0, size = 2, accept = [3, 5] }
fields.tick_us = { offset = 4, size = 4, min = 1, max = 1000 }
shown = ["version"]

[task.me]
tid = { read = "me", size = 4 }
pid = 7
name = "fixed"
policy = { read = "state", offset = 1, size = 1, values = ["normal", "fifo"] }

[task.other]
tid = { read = "state", offset = 4, size = 2 }
name = { read = "state", offset = 8, len = 4 }
policy = "asked"

[[point]]
symbol = "set"
reads = [
  { name = "pointer", argument = 1 },
  { name = "state", from = "pointer", offset = -8, len = 16 },
  { name = "extra", at = "rdx", len = 8, may_fail = true },
]
filter = { read = "pointer", values = [1, 63] }
[point.event]
kind = "set_scheduler"
thread = "me"
target = "other"
policy = "fifo"
nice = { read = "state", offset = 0, size = 1, signed = true }
priority = { read = "state", offset = 0, size = 1, signed = true, subtract_from = 100 }
runtime_ns = { read = "extra", size = 8, unit_ns = 1000000 }
deadline_ns = { read = "extra", size = 4, per_second = 3 }

[[point]]
symbol = "wait"
reads = [{ name = "state", address = 4096, len = 16 }]
[point.event]
kind = "sleep"
thread = "me"
clock = 0
absolute = { read = "state", size = 1 }
ns = { note = "tick_us", unit_ns = 1000 }
"#;

fn rtos() -> Described {
    let elf = Elf::with(true, &["set", "wait"]).note(9, &[0xdead_0003, 250]).bytes();
    Plugin::parse("rtos.toml", RTOS).unwrap().guest(&Image::parse(&elf).unwrap()).unwrap()
}

fn raw(point: u16, failed: u16, parts: &[&[u8]]) -> RawEvent {
    let data = parts.concat();
    RawEvent { sequence: 5, counter: Some(6), counter_error: 1, point, vcpu: 2, failed, data }
}

/// What is said of a file in which `from` is replaced.
fn refused(from: &str, to: &str) -> String {
    assert!(RTOS.contains(from), "{from}");
    let text = RTOS.replacen(from, to, 1);
    Plugin::parse("rtos.toml", &text).map(drop).unwrap_err().to_string()
}

#[test]
fn points_are_made_for_the_image() {
    let guest = rtos();
    assert_eq!(guest.name(), "rtos 3");
    let [set, wait] = guest.points() else { panic!("{guest:?}") };
    let reads = [
        Read::value(Register::GsBase),
        Read::value(Register::Rsi),
        Read::from(1, -8, 16),
        Read::at(Register::Rdx, 0, 8),
    ];
    assert_eq!((set.id, set.symbol.as_str(), set.reads.as_slice()), (1, "set", &reads[..]));
    assert_eq!(set.filter, Some(Filter { read: 1, mask: 1 << 1 | 1 << 63 }));
    assert_eq!((wait.id, wait.reads[1], wait.filter), (2, Read::absolute(4096, 16), None));
    assert_eq!(wait.address, set.address + 16);
}

#[test]
fn values_are_computed_and_cut_to_their_range() {
    let mut guest = rtos();
    let me = 0xffff_ffff_0000_0009u64.to_le_bytes();
    let state = *b"\xfe\x01..\x34\x12..na\x1be-...";
    let pointer = [0; 8];
    let mut event = |failed, extra: u64| {
        guest.decode(&raw(1, failed, &[&me, &pointer, &state, &extra.to_le_bytes()])).unwrap()
    };
    let told = event(0, 5);
    assert_eq!((told.sequence, told.counter, told.counter_error, told.vcpu), (5, Some(6), 1, 2));
    let fixed = |policy| Thread { tid: 9, pid: 7, comm: "fixed".into(), policy };
    assert_eq!(told.thread, fixed(Policy::Fifo));
    let other = |policy| Thread { tid: 0x1234, pid: 0, comm: "na?e".into(), policy };
    let asked = |runtime_ns, deadline_ns| Attributes {
        policy: Policy::Fifo,
        nice: -2,
        priority: 102,
        runtime_ns,
        deadline_ns,
        ..Attributes::default()
    };
    let set = |policy, attributes| Kind::SetScheduler { target: other(policy), attributes };
    assert_eq!(told.kind, set(Policy::Normal, asked(5_000_000, 1_666_666_666)));
    // Its policy is then the one that it asked for; no number overflows.
    let told = event(0, u64::MAX);
    assert_eq!(told.kind, set(Policy::Fifo, asked(u64::MAX, 1_431_655_765_000_000_000)));
    // A read that may fail is zero then, whatever its bytes are.
    assert_eq!(event(1 << 3, 5).kind, set(Policy::Fifo, asked(0, 0)));
    let lost = raw(1, 1 << 2, &[&me, &pointer, &state, &pointer]);
    assert_eq!(guest.event(&lost), Err(DecodeError::Read { point: 1, read: 2 }));

    let wait = |first: u8, policy: u8| {
        let mut state = state;
        (state[0], state[1]) = (first, policy);
        let event = guest.event(&raw(2, 0, &[&me, &state])).unwrap();
        (event.thread.policy, event.kind)
    };
    let sleep = |absolute| Kind::Sleep { clock: 0, absolute, ns: 250_000 };
    assert_eq!(wait(0, 0), (Policy::Normal, sleep(false)));
    assert_eq!(wait(4, 2), (Policy::Other(2), sleep(true)));
    assert_eq!(guest.event(&raw(3, 0, &[])), Err(DecodeError::Point(3)));
    assert_eq!(guest.tasks().iter().count(), 1);
    guest.cleanup();
    assert_eq!(guest.tasks().iter().count(), 0);
}

/// A choice of a scheduler by a constant, by the scheduler's own numbers, and by a list.
#[test]
fn a_scheduler_is_named_or_has_a_number() {
    let listed = "{ read = \"scheduler\", size = 4, values = [\"fifo\", \"rma\", \"edf\", \"hvdf\", \"lbesa\", \"dasa_nd\", \"dasa\"] }";
    assert!(SEGMENTS.contains(listed));
    let with = |scheduler: &str| {
        let text = SEGMENTS.replace(listed, scheduler);
        Plugin::parse("robot.toml", &text).map_err(|error| error.to_string())
    };
    let chosen = |scheduler: &str, number: u32| {
        let elf = Elf::with(false, &FUNCTIONS).note(2, &[2]).bytes();
        let guest = with(scheduler).unwrap().guest(&Image::parse(&elf).unwrap()).unwrap();
        let words = [number, 4, 3].map(u32::to_le_bytes).concat();
        let event = guest.event(&raw(5, 0, &[&words])).unwrap();
        assert_eq!(event.thread, Thread::default());
        let Kind::ChooseScheduler { scheduler, priority: 4, processors: 3 } = event.kind else {
            panic!("{event:?}")
        };
        scheduler
    };
    assert_eq!(chosen("\"dasa\"", 1), Scheduler::Dasa);
    let own = "{ read = \"scheduler\", size = 4 }";
    assert_eq!(chosen(own, 3), Scheduler::Hvdf);
    assert_eq!(chosen(own, 70), Scheduler::Other(70));
    let reversed = "{ read = \"scheduler\", size = 4, values = [\"edf\", \"rma\"] }";
    assert_eq!([chosen(reversed, 0), chosen(reversed, 1)], [Scheduler::Edf, Scheduler::Rma]);
    assert_eq!(chosen(reversed, 2), Scheduler::Other(2));
    let why = with("\"deadline\"").unwrap_err();
    for part in ["set_scheduler.event.scheduler: ", "is not a scheduler; name one of fifo, rma"] {
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn images_that_it_is_not_for() {
    let plugin = Plugin::parse("rtos.toml", RTOS).unwrap();
    let why = |elf: Elf| plugin.guest(&Image::parse(&elf.bytes()).unwrap()).unwrap_err();
    let elf = |wide, functions: &[&str]| Elf::with(wide, functions);
    let both = ["set", "wait"];
    assert!(why(elf(true, &both)).contains("no note of Timevisor with type 9"));
    assert!(why(elf(true, &both).note(9, &[3])).contains("4 bytes, not 8"));
    assert!(why(elf(true, &both).note(9, &[4, 1])).contains("version 4; accepted is 3, 5"));
    assert!(why(elf(true, &both).note(9, &[5, 0])).contains("tick_us 0; accepted is 1 to 1000"));
    assert!(why(elf(false, &both).note(9, &[5, 1])).contains("32 bits"));
    assert!(why(elf(true, &both[..1]).note(9, &[5, 1])).contains("no symbol wait"));
    let alias = elf(true, &["set"]).symbol("wait", 0x10_0000).note(9, &[5, 1]);
    assert!(why(alias).contains("wait and set are one function"));
}

#[test]
fn every_error_names_the_file_the_key_and_what_to_do() {
    for (from, to, parts) in [
        ("format = 1", "format = 2", ["format: 2 is not known", "write `format = 1`"]),
        ("format = 1", "", ["format: it is missing", "write `format = 1`"]),
        ("version = \"1.2\"", "", ["missing field `version`", "lists all keys"]),
        ("pid = 7", "pidd = 7", ["line 19: unknown field `pidd`", "lists all keys"]),
        ("len = 16 }", "length = 16 }", ["unknown field `length`", "lists all keys"]),
        ("size = 1, signed", "sise = 1, signed", ["unknown field `sise`", "lists all keys"]),
        ("\"rtos\"", "\"a\\u001bb\"", ["name: ", "give such a text"]),
        ("bits = [64]", "bits = [16]", ["bits: not a list", "list the widths"]),
        ("owner = \"Timevisor\"", "owner = \"\"", ["note.owner: ", "give the name"]),
        ("type = 9", "type = -1", ["note.type: -1", "give the type"]),
        ("size = 8\n", "size = 7\n", ["note.fields.tick_us: 4 bytes at 4", "`offset` and `size`"]),
        (", accept = [3, 5]", "", ["note.fields: no field", "accept = [...]"]),
        ("accept = [3, 5]", "accept = [3], min = 1", ["both `accept`", "remove"]),
        ("[\"version\"]", "[\"release\"]", ["note.shown: ", "name one of [note.fields]"]),
        ("register = \"gs_base\"", "register = \"rax\"", ["reads.me.register: ", "rdi, rsi"]),
        ("argument = 1", "argument = 3", ["point.set.reads.pointer.argument: ", "bits = [32]"]),
        ("argument = 1", "argument = 1, at = \"rdi\"", ["not exactly one place", "give one of"]),
        ("argument = 1", "argument = 1, len = 8", ["neither `offset` nor `len`", "remove them"]),
        ("from = \"pointer\"", "from = \"extra\"", ["reads.state.from: no read", "earlier"]),
        ("offset = -8, len = 16", "len = 0", ["state.len: 0 is not 1 to 256", "in this range"]),
        ("offset = -8, len = 16", "offset = 9", ["without `len`", "give the bytes"]),
        ("name = \"extra\"", "name = \"state\"", ["two reads", "a name of its own"]),
        ("name = \"extra\"", "name = \"Extra\"", ["is not a name", "use a-z"]),
        ("read = \"pointer\", values", "read = \"state\", values", ["filter: state", "by itself"]),
        ("values = [1, 63]", "values = [64]", ["point.set.filter: 64", "in this range"]),
        ("values = [1, 63]", "values = []", ["no number passes", "remove the point"]),
        ("kind = \"sleep\"", "kind = \"nap\"", ["unknown variant `nap`", "lists all keys"]),
        (
            "thread = \"me\"\nclock",
            "thread = \"you\"\nclock",
            ["event.thread: there is no [task.you]", "name a task"],
        ),
        (
            "policy = \"asked\"",
            "policy = \"lazy\"",
            ["task.other.policy: \"lazy\"", "normal, fifo"],
        ),
        ("policy = \"asked\"", "policy = \"keep\"", ["the policy \"keep\"", "use \"asked\""]),
        (
            "offset = 4, size = 2",
            "offset = 15, size = 2",
            ["task.other.tid: 2 bytes at 15", "read more"],
        ),
        ("offset = 4, size = 2", "offset = 4, size = 8", ["4 bytes at most", "size = 4"]),
        ("offset = 4, size = 2", "offset = 4, size = 3", ["1, 2, 4 or 8", "give its `size`"]),
        (
            "offset = 8, len = 4",
            "offset = 8, len = 9",
            ["task.other.name: 9 bytes at 8", "read more"],
        ),
        ("per_second = 3", "per_second = 0", ["deadline_ns.per_second: 0", "in this range"]),
        ("per_second = 3", "per_second = 3, unit_ns = 3", ["not one unit", "unit_ns"]),
        (
            "pid = 7",
            "pid = { read = \"me\", size = 4, unit_ns = 5 }",
            ["a unit where no time is", "remove"],
        ),
        ("pid = 7", "pid = { read = \"me\", note = \"version\" }", ["exactly one of", "say where"]),
        ("pid = 7", "otherwise = \"me\"", ["without `unless_zero`", "remove"]),
        (
            "pid = 7",
            "unless_zero = { read = \"me\", size = 4 }\notherwise = \"me\"",
            ["more than 8 tasks", "nobody"],
        ),
        ("clock = 0", "clock = -1", ["point.wait.event.clock: -1", "in this range"]),
        ("symbol = \"wait\"", "symbol = \"set\"", ["two points", "make one"]),
        (
            "[task.other]",
            "[task.more]\ntid = 1\nname = \"m\"\npolicy = \"fifo\"\n[task.other]",
            ["task.more: no event", "remove it"],
        ),
    ] {
        let why = refused(from, to);
        assert!(why.starts_with("rtos.toml: "), "{why}");
        assert!(parts.iter().all(|part| why.contains(part)), "{from:?} -> {to:?}: {why}");
        assert!(!why.contains('\n'), "{why}");
    }
    let odd = refused("[task.other]", "[task.\"a\\n\\u001bb\"]");
    assert!(odd.contains("task.a??b: \"a\\n\\u{1b}b\" is not a name"), "{odd}");
    let kind = Plugin::parse("a", "format = 1\nname = 5\n").unwrap_err().to_string();
    assert!(kind.starts_with("a: line 2: invalid type"), "{kind}");
    assert!(Plugin::parse("a", "format = ").unwrap_err().to_string().contains("line 1"));
    let long = format!("{RTOS}#{}", "x".repeat(1 << 16));
    assert!(Plugin::parse("a", &long).unwrap_err().to_string().contains("at most 65536"));
}

#[test]
fn limits_of_points_reads_and_data() {
    let (before, _) = RTOS.split_once("[task.me]").unwrap();
    let with = |points: usize, reads: usize, len: usize| {
        let reads: Vec<_> = (0..reads)
            .map(|n| format!("{{ name = \"r{n}\", at = \"rsp\", len = {len} }}"))
            .collect();
        let mut text =
            format!("{before}\n[task.t]\ntid = 1\nname = \"t\"\npolicy = \"deadline\"\n");
        for n in 0..points {
            let point = format!("[[point]]\nsymbol = \"f{n}\"\nreads = [{}]\n", reads.join(", "));
            text += &(point + "event = { kind = \"yield\", thread = \"t\" }\n");
        }
        Plugin::parse("many.toml", &text).map(drop).map_err(|error| error.to_string())
    };
    // Each point also has the read of all points, of 8 bytes.
    assert_eq!(with(32, 1, 248), Ok(()));
    assert_eq!(with(1, 15, 8), Ok(()));
    assert!(with(0, 1, 1).unwrap_err().contains("0 points"));
    assert!(with(33, 1, 1).unwrap_err().contains("33 points; 1 to 32"));
    assert!(with(1, 16, 1).unwrap_err().contains("more than 16 reads"));
    assert!(with(1, 1, 249).unwrap_err().contains("257 bytes; 256"));
}

#[test]
fn built_in_guest_systems_come_first() {
    let ours = Elf::with(false, &FUNCTIONS).note(2, &[2]).bytes();
    let plugin = Plugin::parse("robot.toml", &SEGMENTS.replace("Timevisor", "RobotCtrl")).unwrap();
    let name = |bytes: &[u8]| {
        let image = Image::parse(bytes).unwrap();
        let broken = vec![Plugin::parse("broken.toml", "").unwrap_err()];
        let plugins = Plugins { all: vec![plugin.clone()], broken };
        let found = registry::probe_image_or_plugin(&image, &plugins);
        found.map(|guest| guest.name()).map_err(|why| why.reasons)
    };
    assert_eq!(name(&ours), Ok("real-time segments, version 2".to_owned()));
    let at = ours.windows(9).position(|part| part == b"Timevisor").unwrap();
    let mut theirs = ours;
    theirs[at..at + 9].copy_from_slice(b"RobotCtrl");
    assert_eq!(name(&theirs), Ok("segments by a file 2".to_owned()));
    theirs[at] = b'X';
    // One reason each; those of files come before those of what is built in.
    let begins = |bytes: &[u8], expected: [&str; 4]| {
        let why = name(bytes).unwrap_err();
        let same = why.iter().zip(expected).all(|(why, expected)| why.starts_with(expected));
        assert!(why.len() == expected.len() && same, "{why:#?}");
        why
    };
    let broken = "a broken plugin: broken.toml: format: it is missing";
    let why =
        begins(&theirs, [broken, "not segments by a file of", "not FreeRTOS", "not real-time"]);
    assert!(why[1].contains("no note of RobotCtrl with type 2"), "{why:#?}");
    // The guest system that was meant comes first: the one whose note is there.
    let old = Elf::with(false, &FUNCTIONS).note(2, &[9]).bytes();
    begins(&old, ["not real-time", broken, "not segments by a file of", "not FreeRTOS"]);
    let mut old = old;
    let at = old.windows(9).position(|part| part == b"Timevisor").unwrap();
    old[at..at + 9].copy_from_slice(b"RobotCtrl");
    let why = begins(&old, ["not segments by a file of", broken, "not FreeRTOS", "not real-time"]);
    assert!(why[0].contains("version 9; accepted is 2"), "{why:#?}");
}

/// An exit code is what wait(2) has in its second byte.
#[test]
fn a_task_ends_with_a_status_or_a_code() {
    let (before, _) = RTOS.split_once("[[point]]").unwrap();
    let (before, _) = before.split_once("[task.me]").unwrap();
    let with = |how: &str| {
        let text = format!(
            "{before}[task.t]\ntid = 1\nname = \"t\"\npolicy = \"fifo\"\n[[point]]\n\
             symbol = \"exit\"\nreads = [{{ name = \"code\", argument = 0 }}]\n\
             event = {{ kind = \"exit\", thread = \"t\"{how} }}\n"
        );
        Plugin::parse("exit.toml", &text).map_err(|error| error.to_string())
    };
    let status = |how: &str, argument: i64| {
        let elf = Elf::with(true, &["exit"]).note(9, &[0xdead_0003, 250]).bytes();
        let guest = with(how).unwrap().guest(&Image::parse(&elf).unwrap()).unwrap();
        let event = guest.event(&raw(1, 0, &[&[0; 8], &argument.to_le_bytes()])).unwrap();
        let Kind::Exit { status } = event.kind else { panic!("{event:?}") };
        status
    };
    let code = ", code = { read = \"code\", size = 4, signed = true }";
    assert_eq!([status(code, 3), status(code, -1), status(code, 256 + 7)], [768, 255 << 8, 7 << 8]);
    let unsigned = ", code = { read = \"code\", size = 4 }";
    assert_eq!([status(unsigned, 3), status(unsigned, -2)], [768, 254 << 8]);
    assert_eq!([status(", code = 255", 0), status("", 3)], [255 << 8, 0]);
    assert_eq!(status(", status = { read = \"code\", size = 4 }", 3), 3);
    for (how, parts) in [
        (", status = 1, code = 1", ["point.exit.event.code: both", "give `code`"]),
        (", code = 256", ["point.exit.event.code: 256 is not 0 to 255", "in this range"]),
        (", cod = 1", ["unknown field `cod`", "lists all keys"]),
    ] {
        let why = with(how).unwrap_err();
        assert!(parts.iter().all(|part| why.contains(part)), "{how}: {why}");
    }
}

/// A guest that says its tasks' names only when it creates them.
#[test]
fn a_task_without_a_name_keeps_the_one_that_is_known() {
    let nameless = RTOS.replacen("name = \"fixed\"\n", "", 1).replacen("pid = 7\n", "", 1);
    let nameless = nameless.replacen("tid = { read = \"me\", size = 4 }", "tid = 0x1234", 1);
    let elf = Elf::with(true, &["set", "wait"]).note(9, &[3, 250]).bytes();
    let plugin = Plugin::parse("rtos.toml", &nameless).unwrap();
    let mut guest = plugin.guest(&Image::parse(&elf).unwrap()).unwrap();
    let state = *b"\0\x01..\x34\x12..robo-...";
    let wait = raw(2, 0, &[&[0; 8], &state]);
    assert_eq!(guest.event(&wait).unwrap().thread.comm, "", "no event has named it");
    guest.decode(&raw(1, 0, &[&[0; 8], &[0; 8], &state, &[0; 8]])).unwrap();
    assert_eq!(guest.decode(&wait).unwrap().thread.comm, "robo");
    assert_eq!(guest.tasks().get(0x1234).unwrap().thread.comm, "robo");
}

/// What an image lacks is said with the file, the key, and what was perhaps meant.
#[test]
fn a_misspelt_symbol() {
    let why = |from: &str, to: &str| {
        let elf = Elf::with(true, &["set", "wait"]).note(9, &[3, 250]).symbol("ctid", 0x5000);
        let plugin = Plugin::parse("/p/rtos.toml", &RTOS.replacen(from, to, 1)).unwrap();
        plugin.guest(&Image::parse(&elf.bytes()).unwrap()).unwrap_err()
    };
    assert_eq!(
        why("symbol = \"wait\"", "symbol = \"wiat\""),
        "/p/rtos.toml: point.wiat.symbol: the image has no symbol wiat; did you mean wait?"
    );
    assert_eq!(
        why("register = \"gs_base\"", "symbol = \"ctdi\", len = 8"),
        "/p/rtos.toml: reads.me.symbol: the image has no symbol ctdi; did you mean ctid?"
    );
    assert_eq!(
        why("address = 4096", "symbol = \"current_task\""),
        "/p/rtos.toml: point.wait.reads.state.symbol: the image has no symbol current_task"
    );
    let guest = rtos();
    let names = [guest.read_name(1, 2), guest.read_name(1, 4), guest.read_name(3, 0)];
    assert_eq!(names, [Some("state"), None, None]);
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [("[", "]"), ("{ a = ", "}"), ("", "")] {
        let value = format!("format = {}1{}", open.repeat(9000), close.repeat(9000));
        assert!(Plugin::parse("deep.toml", &value).is_err());
    }
    let dotted = "a.".repeat(30_000);
    for text in [format!("{dotted}a = 1"), format!("[{dotted}a]"), format!("[[{dotted}a]]")] {
        assert!(Plugin::parse("deep.toml", &text).is_err());
    }
}

/// A file with a few of its bytes changed, which often is still one.
fn changed() -> impl Strategy<Value = String> {
    let change = (any::<prop::sample::Index>(), "[ -~\n]{0,3}");
    let file = prop::sample::select(vec![SEGMENTS, FREERTOS, RTOS]);
    (file, prop::collection::vec(change, 0..4)).prop_map(|(file, changes)| {
        let mut text: Vec<char> = file.chars().collect();
        for (at, new) in changes {
            let at = at.index(text.len());
            text.splice(at..(at + new.len()).min(text.len()), new.chars());
        }
        text.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn any_text_is_a_plugin_or_refused(text in "(format = 1\n)?(.|\n){0,300}") {
        let error = Plugin::parse("any.toml", &text).map(drop);
        let error = error.expect_err("so short a text is no plugin").to_string();
        prop_assert!(error.chars().all(|c| (' '..='~').contains(&c)), "{}", error);
    }

    #[test]
    fn a_changed_file_is_refused_or_bounded(
        text in changed(),
        point in 0u16..40,
        failed in any::<u16>(),
        data in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let plugin = match Plugin::parse("any.toml", &text) {
            Ok(plugin) => plugin,
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.chars().all(|c| (' '..='~').contains(&c)), "{}", error);
                return Ok(());
            }
        };
        let functions = [&FUNCTIONS[..], &["set", "wait", "timevisor_task_created",
            "xTaskDelayUntil", "vTaskDelay", "vTaskPrioritySet", "vTaskDelete"]].concat();
        for wide in [false, true] {
            let elf = Elf::with(wide, &functions)
                .note(9, &[3, 250])
                .note(2, &[2])
                .note(1, &[1, 11, 2, 0, 4, 4, 1000, 1, 44, 52, 12])
                .symbol("pxCurrentTCB", 0x5000)
                .symbol("xSchedulerRunning", 0x5004);
            let Ok(mut guest) = plugin.guest(&Image::parse(&elf.bytes()).unwrap()) else { continue };
            prop_assert!(guest.points().len() <= crate::point::limits::POINTS);
            for of in guest.points() {
                let len: usize = of.reads.iter().map(|read| usize::from(read.len)).sum();
                prop_assert!(len <= crate::point::limits::DATA);
                prop_assert!(of.reads.len() <= crate::point::limits::READS);
            }
            let raw = RawEvent { failed, ..raw(point, 0, &[&data]) };
            if let Ok(event) = guest.decode(&raw) {
                prop_assert!(event.thread.comm.chars().all(|c| (' '..='~').contains(&c)));
            }
        }
    }
}
