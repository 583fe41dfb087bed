use proptest::prelude::*;

use super::points::{CREATE, DELAY, DELETE, PRIORITY, UNTIL};
use super::*;
use crate::registry;
use crate::tasks::event::{Attributes, Kind, Policy, Thread};
use crate::testing_elf::Elf;

const FUNCTIONS: [&str; 5] =
    ["timevisor_task_created", "xTaskDelayUntil", "vTaskDelay", "vTaskPrioritySet", "vTaskDelete"];
const NOTE: [u32; 11] = [1, 11, 2, 0, 4, 4, 1000, 1, 44, 52, 12];

fn kernel() -> Elf {
    Elf::with(false, &FUNCTIONS)
        .note(1, &NOTE)
        .symbol("pxCurrentTCB", 0x5000)
        .symbol("xSchedulerRunning", 0x5004)
}

fn guest(elf: &Elf) -> Result<Box<dyn GuestOs>, String> {
    let bytes = elf.bytes();
    let image = Image::parse(&bytes).map_err(|e| e.to_string())?;
    registry::probe_image(&image).map_err(|why| why[0].to_string())
}

/// An event with these reads; the task with control block 0x2000 is running.
fn raw(point: u16, failed: u16, parts: &[&[u8]]) -> RawEvent {
    let own: [&[u8]; 3] = [&0x2000u32.to_le_bytes(), b"ctl\x1b\0\0\0\0\0\0\0\0", &[1, 0, 0, 0]];
    let data = [&own[..], parts].concat().concat();
    RawEvent { sequence: 3, counter: Some(4), counter_error: 0, point, vcpu: 0, failed, data }
}

fn word(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

const NAME: &[u8; 12] = b"nav\0\0\0\0\0\0\0\0\0";

fn task(tid: u32, comm: &str, policy: Policy) -> Thread {
    Thread { tid, pid: 0, comm: comm.to_owned(), policy }
}

#[test]
fn calls_as_events() {
    let mut guest = guest(&kernel()).unwrap();
    assert_eq!(guest.name(), "FreeRTOS 11.2.0");
    assert_eq!(guest.points().len(), 5);
    let own = task(0x2000, "ctl?", Policy::RoundRobin);
    let nav = task(0x3000, "nav", Policy::RoundRobin);
    let mut kind = |raw: &RawEvent| {
        let event = guest.decode(raw).unwrap();
        assert_eq!((event.sequence, event.counter), (3, Some(4)));
        (event.thread, event.kind)
    };
    let fixed =
        |priority| Attributes { policy: Policy::RoundRobin, priority, ..Attributes::default() };
    let set = |target, priority| Kind::SetScheduler { target, attributes: fixed(priority) };
    let sleep = |absolute, ns| Kind::Sleep { clock: 1, absolute, ns };

    let created = task(0x3000, "nav", Policy::Normal);
    let create = raw(CREATE, 0, &[&word(0x3000), NAME, &word(4)]);
    assert_eq!(kind(&create), (own.clone(), set(created.clone(), 4)));
    // Ticks wrap around like the kernel's.
    let until = raw(UNTIL, 0, &[&word(0x9000), &word(5), &word(u32::MAX)]);
    assert_eq!(kind(&until), (own.clone(), sleep(true, 4_000_000)));
    let delay = raw(DELAY, 0, &[&word(u32::MAX)]);
    assert_eq!(kind(&delay), (own.clone(), sleep(false, 4_294_967_295_000_000)));
    let priority = raw(PRIORITY, 0, &[&word(0x3000), NAME, &word(7)]);
    assert_eq!(kind(&priority), (own.clone(), set(nav.clone(), 7)));
    // The task's own priority: there is no name at NULL.
    let priority = raw(PRIORITY, 1 << 4, &[&word(0), &[0; 12], &word(6)]);
    assert_eq!(kind(&priority), (own.clone(), set(own.clone(), 6)));
    let delete = raw(DELETE, 0, &[&word(0x3000), NAME]);
    assert_eq!(kind(&delete), (nav, Kind::Exit { status: 0 }));
    // Before the scheduler starts, no task runs, whatever the kernel's variable says.
    let mut early = create.clone();
    early.data[16..20].fill(0);
    assert_eq!(kind(&early), (Thread::default(), set(created, 4)));

    let known: Vec<(u32, u64)> = guest.tasks().iter().map(|t| (t.thread.tid, t.jobs)).collect();
    assert_eq!(known, [(0x2000, 2), (0x3000, 0)]);
    guest.cleanup();
    assert_eq!(guest.tasks().iter().count(), 0);
}

#[test]
fn a_failed_read_is_an_error() {
    let mut guest = guest(&kernel()).unwrap();
    let until = raw(UNTIL, 1 << 5, &[&word(0x9000), &word(5), &word(0)]);
    assert_eq!(guest.decode(&until), Err(DecodeError::Read { point: UNTIL, read: 5 }));
    let nobody = raw(9, 0, &[]);
    assert_eq!(guest.decode(&nobody), Err(DecodeError::Point(9)));
}

#[test]
fn other_kernels_are_refused() {
    let refused = |elf: &Elf| guest(elf).map(drop).unwrap_err();
    let mut note = NOTE;
    note[4] = 8;
    let wide = Elf { notes: Vec::new(), ..kernel() }.note(1, &note);
    assert!(refused(&wide).contains("pointers of 8"));
    assert!(refused(&Elf { wide: true, ..kernel() }).contains("64 bits"));
    let mut without = kernel();
    without.symbols.retain(|(name, _)| name != "vTaskDelete");
    assert!(refused(&without).contains("no symbol vTaskDelete"));
    let mut plain = kernel();
    plain.code[16] = 0x55;
    let why = refused(&plain);
    assert!(why.contains("xTaskDelayUntil begins with") && why.contains("-mnop-mcount"), "{why}");
}

proptest! {
    #[test]
    fn anything_is_decoded_or_refused(
        point in 0u16..8,
        failed in any::<u16>(),
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut guest = guest(&kernel()).unwrap();
        let raw = RawEvent { sequence: 0, counter: None, counter_error: 0, point, vcpu: 0, failed, data };
        if let Ok(event) = guest.decode(&raw) {
            prop_assert!(event.thread.comm.chars().all(|c| (' '..='~').contains(&c)));
        }
    }
}
