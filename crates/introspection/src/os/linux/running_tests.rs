use proptest::prelude::*;

use super::*;
use crate::testing::Flat;

const SIZE: usize = 0x2_0000;
/// Offsets in the order of [`MEMBERS`]. Tasks are 0x200 bytes long, and each is followed by its
/// signal_struct.
const OFFSETS: [u64; MEMBERS.len()] = [0, 16, 0, 32, 48, 52, 56, 60, 64, 72, 88, 92, 96, 104, 112];
const FIRST: u64 = 0x3000;
const TABLES: PageTables = PageTables { root: 0x1000, five_levels: false };
const WALK: Running = Running { first: FIRST, offsets: OFFSETS };

/// A guest whose first GiB is mapped at 0, and which contains only lists.
struct Guest {
    memory: Flat,
    next: u64,
}

impl Guest {
    fn new() -> Self {
        let mut this = Self { memory: Flat(vec![0; SIZE]), next: FIRST + 0x200 };
        this.long(0x1000, 0x2000 | 1);
        this.long(0x2000, 0x81);
        this.empty(FIRST);
        this
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        self.memory.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn long(&mut self, at: u64, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    fn word(&mut self, at: u64, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    fn get(&self, at: u64) -> u64 {
        let at = usize::try_from(at).unwrap();
        u64::from_le_bytes(self.memory.0[at..at + 8].try_into().unwrap())
    }

    fn empty(&mut self, head: u64) {
        self.long(head, head);
        self.long(head + 8, head);
    }

    /// Does what list_add_tail does.
    fn add(&mut self, head: u64, entry: u64) {
        let last = self.get(head + 8);
        self.long(entry, head);
        self.long(entry + 8, last);
        self.long(last, entry);
        self.long(head + 8, entry);
    }

    /// Adds a thread of the process with this signal_struct, or of a new process. Returns the
    /// addresses of the thread and of its process.
    fn task(&mut self, tid: u32, policy: u32, of: Option<u64>) -> (u64, u64) {
        let at = self.next;
        self.next += 0x200;
        let signal = of.unwrap_or(at + 0x100);
        if of.is_none() {
            self.empty(signal);
            self.add(FIRST, at);
        }
        self.add(signal, at + 32);
        self.long(at + 16, signal);
        for (offset, value) in [(56, policy), (60, tid), (64, tid), (88, 40), (92, 2)] {
            self.word(at + offset, value);
        }
        self.put(at + 72, b"rt\x1b\0more");
        for (offset, value) in [(96, 1_000), (104, 2_000), (112, 3_000)] {
            self.long(at + offset, value);
        }
        (at, signal)
    }

    fn tids(&self) -> Result<Vec<u32>, String> {
        let tasks = WALK.tasks(&self.memory, TABLES)?;
        Ok(tasks.iter().map(|task| task.thread.tid).collect())
    }
}

#[test]
fn threads_of_all_processes() {
    let mut guest = Guest::new();
    assert_eq!(guest.tids(), Ok(vec![]));
    let (_, signal) = guest.task(30, 0, None);
    guest.task(31, 6, Some(signal));
    guest.task(29, 2, Some(signal));
    guest.task(7, 1, None);
    guest.task(8, 3, None);
    let tasks = WALK.tasks(&guest.memory, TABLES).unwrap();
    let [fifo, round_robin, deadline] = &tasks[..] else { panic!("{tasks:?}") };
    assert_eq!((fifo.thread.tid, round_robin.thread.tid, deadline.thread.tid), (7, 29, 31));
    assert_eq!(fifo.thread.comm, "rt?");
    let fixed = |policy| Attributes { policy, priority: 40, ..Attributes::default() };
    assert_eq!(fifo.attributes, Some(fixed(Policy::Fifo)));
    assert_eq!(round_robin.attributes, Some(fixed(Policy::RoundRobin)));
    let asked = Attributes {
        policy: Policy::Deadline,
        flags: 2,
        runtime_ns: 1_000,
        deadline_ns: 2_000,
        period_ns: 3_000,
        ..Attributes::default()
    };
    assert_eq!((deadline.attributes, deadline.jobs, deadline.counter), (Some(asked), 0, None));
}

#[test]
fn who_ends_and_who_is_the_kernels() {
    let mut guest = Guest::new();
    let (ending, _) = guest.task(5, 1, None);
    let (zombie, _) = guest.task(6, 1, None);
    let (kernels, _) = guest.task(7, 1, None);
    assert_eq!(guest.tids(), Ok(vec![5, 6, 7]));
    guest.word(ending + 48, 0x4);
    guest.word(zombie + 52, 0x20);
    guest.word(kernels + 48, 0x0020_0000);
    assert_eq!(guest.tids(), Ok(vec![]));
}

#[test]
fn lists_that_are_none() {
    let refused = |of: &dyn Fn(&mut Guest, u64), why: &str| {
        let mut guest = Guest::new();
        let (one, _) = guest.task(1, 1, None);
        guest.task(2, 1, None);
        of(&mut guest, one);
        let said = guest.tids().unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    // A cycle whose links agree.
    refused(&|guest, one| guest.empty(one), "changes");
    refused(
        &|guest, one| {
            guest.long(one, one);
            guest.long(FIRST, one);
            guest.long(one + 8, one);
        },
        "changes",
    );
    // What the kernel leaves in an entry that it has removed (LIST_POISON2).
    refused(&|guest, one| guest.long(one + 8, 0xdead_0000_0000_0122), "changes");
    refused(&|guest, one| guest.long(one, 0xdead_0000_0000_0100), "nothing");
    refused(&|guest, one| guest.long(one + 16, u64::MAX), "nothing");
    refused(&|guest, one| guest.long(one + 16, 1 << 29), "no memory");
    // A cycle of two entries that never returns to the head.
    refused(
        &|guest, one| {
            let other = one + 0x200;
            guest.long(other, one);
        },
        "changes",
    );
}

#[test]
fn no_list_is_followed_forever() {
    let mut guest = Guest::new();
    guest.task(1, 1, None);
    let walk = |left| Walk { memory: &guest.memory, tables: TABLES, left };
    assert_eq!(walk(1).list(FIRST).map(|all| all.len()), Ok(1));
    assert!(walk(0).list(FIRST).unwrap_err().contains("more than"));
}

proptest! {
    #[test]
    fn any_memory_is_walked_or_refused(at in 0..SIZE / 8, values in prop::collection::vec(0u64..0x8000, 1..64)) {
        let mut guest = Guest::new();
        for tid in 0..20 {
            guest.task(tid, tid % 8, None);
        }
        for (n, value) in values.iter().enumerate() {
            let place = (at + n * 7) % (SIZE / 8) * 8;
            guest.long(place as u64, *value);
        }
        if let Ok(tasks) = WALK.tasks(&guest.memory, TABLES) {
            prop_assert!(tasks.len() <= MOST_THREADS);
            prop_assert!(tasks.is_sorted_by_key(|task| task.thread.tid));
        }
    }
}
