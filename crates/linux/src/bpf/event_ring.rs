//! The memory that bpf/introspect.bpf.c and its reader share (`struct shared`): the settings, and a
//! ring of events that programs on any processor fill and one reader empties.

use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;

use super::settings::SETTINGS;
use crate::mapping::{Access, MapError, SharedMapping};

/// `SLOTS`, `READS`, and the 8-byte words of `struct event`.
const SLOTS: usize = 4096;
const WORDS: usize = 34;
/// Words for `KNOWN` vCPUs that only the programs use.
const KNOWN: usize = 32 * 4;
/// Marks an event that the filter dropped.
const NOTHING: u16 = 0xffff;
/// Offset of `len` in an event.
const LEN_AT: usize = 14;

/// `struct slot`.
#[repr(C)]
struct Slot {
    turn: AtomicU64,
    event: [AtomicU64; WORDS],
    reserved: [AtomicU64; 5],
}

/// `struct shared`.
#[repr(C)]
struct Shared {
    head: AtomicU64,
    tail: AtomicU64,
    dropped: AtomicU64,
    known: [AtomicU64; KNOWN],
    settings: [AtomicU64; SETTINGS / 8],
    slots: [Slot; SLOTS],
}

/// The reader of such a ring.
#[derive(Debug)]
pub struct EventRing {
    mapping: SharedMapping,
    /// Number of events taken so far.
    tail: u64,
}

impl EventRing {
    /// Maps one `struct shared`, which is all zeroes until a program has run.
    pub(super) fn new(map: File) -> Result<Self, MapError> {
        Ok(Self {
            mapping: SharedMapping::new(map, size_of::<Shared>(), Access::ReadWrite)?,
            tail: 0,
        })
    }

    fn shared(&self) -> &Shared {
        let shared: NonNull<Shared> = self.mapping.as_ptr().cast();
        // SAFETY: the mapping is as long as it and lives as long as the reference. It is aligned to
        // a page, all access is atomic, and atomics need no valid value.
        unsafe { shared.as_ref() }
    }

    /// Writes the settings. Allowed only while no program runs.
    pub(super) fn ask(&self, settings: &[u8; SETTINGS]) {
        for (word, bytes) in self.shared().settings.iter().zip(settings.chunks_exact(8)) {
            let bytes = bytes.try_into().unwrap_or_default();
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// The bytes of the next event that is complete, `struct event` with its data.
    pub(super) fn next(&mut self) -> Option<[u8; 8 * WORDS]> {
        loop {
            let turn = self.tail;
            let slot = &self.shared().slots[usize::try_from(turn).unwrap_or(0) % SLOTS];
            if slot.turn.load(Ordering::Acquire) != turn + 1 {
                return None;
            }
            let mut bytes = [0; 8 * WORDS];
            for (place, word) in bytes.chunks_exact_mut(8).zip(&slot.event) {
                place.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            self.tail = turn + 1;
            // From here on programs may write this slot again.
            self.shared().tail.store(self.tail, Ordering::Release);
            if bytes[LEN_AT..LEN_AT + 2] != NOTHING.to_le_bytes() {
                return Some(bytes);
            }
        }
    }

    /// Number of events that found no free slot.
    pub(super) fn dropped(&self) -> u64 {
        self.shared().dropped.load(Ordering::Relaxed)
    }
}

/// The layout of bpf/introspect.h, counted by hand.
const _: () = {
    assert!(size_of::<Slot>() == 5 * 64 && offset_of!(Slot, event) == 8);
    assert!(offset_of!(Shared, settings) == 24 + 32 * 32);
    assert!(SETTINGS == 144 + 32 * 8 + 32 * 272);
    assert!(offset_of!(Shared, slots) == offset_of!(Shared, settings) + SETTINGS);
};

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    /// A ring in a file, and its reader.
    fn ring() -> (EventRing, EventRing) {
        let path = std::env::temp_dir().join(format!("timevisor-ring-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(size_of::<Shared>() as u64).unwrap();
        let other = File::from(file.as_fd().try_clone_to_owned().unwrap());
        (EventRing::new(file).unwrap(), EventRing::new(other).unwrap())
    }

    /// Writes an event as a program does.
    fn write(writer: &EventRing, turn: u64, scaled: u64, len: u16) {
        let slot = &writer.shared().slots[usize::try_from(turn).unwrap() % SLOTS];
        slot.event[0].store(scaled, Ordering::Relaxed);
        slot.event[1].store(u64::from(len) << 48, Ordering::Relaxed);
        slot.turn.store(turn + 1, Ordering::Release);
    }

    #[test]
    fn events_come_in_order_when_they_are_complete() {
        let (writer, mut reader) = ring();
        assert_eq!(reader.next(), None);
        write(&writer, 1, 11, 0);
        assert_eq!(reader.next(), None, "the one before is not complete");
        write(&writer, 0, 10, 0);
        let scaled = |bytes: [u8; 8 * WORDS]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(reader.next().map(scaled), Some(10));
        assert_eq!(reader.next().map(scaled), Some(11));
        assert_eq!(reader.next(), None);
        // A filtered event takes a turn and is not reported.
        write(&writer, 2, 12, NOTHING);
        write(&writer, 3, 13, 0);
        assert_eq!(reader.next().map(scaled), Some(13));
        assert_eq!(writer.shared().tail.load(Ordering::Relaxed), 4);
        // Reuse the same slots: content from the previous turn is not mistaken for the next.
        for turn in 4..3 * SLOTS as u64 {
            assert_eq!(reader.next(), None);
            write(&writer, turn, turn, 0);
            assert_eq!(reader.next().map(scaled), Some(turn));
        }
        writer.shared().dropped.store(7, Ordering::Relaxed);
        assert_eq!(reader.dropped(), 7);
    }
}
