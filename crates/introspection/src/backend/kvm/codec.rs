//! Encodes points and targets for the BPF programs, and decodes their events (bpf/introspect.h).

use super::layout::KvmLayout;
use crate::backend::RawEvent;
use crate::memory::PageTables;
use crate::point::{Base, Point, Read, Register, limits};
use timevisor_time::CounterRatio;

/// Bytes of `struct target`.
pub const TARGET: usize = 144;
/// Bytes of `struct point`.
pub const POINT: usize = 272;
/// Bytes of `struct event` that precede its data.
const HEAD: usize = 16;
const NONE: u8 = 0xff;

/// A piece of the guest's memory, and its location in QEMU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapped {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address in QEMU's memory.
    pub at: u64,
}

/// `struct target`. `bases` is the guest-virtual address of an array with the GS base of each
/// processor, for hosts that are not AMD. `linear` is the guest-virtual address at which the
/// guest's kernel maps all memory in order. 0 means that there is none.
#[must_use]
pub fn target(
    pid: u32,
    tables: &PageTables,
    pieces: [Mapped; 2],
    layout: &KvmLayout,
    bases: u64,
    linear: u64,
) -> [u8; TARGET] {
    let (vmcb, gs_base, cr3) = layout.vmcb.unwrap_or_default();
    let piece = |piece: Mapped| [piece.address, piece.len, piece.at];
    let [low, high] = pieces.map(piece);
    let words = [u64::from(pid), tables.root, if tables.five_levels { 5 } else { 4 }]
        .into_iter()
        .chain(low)
        .chain(high)
        .chain([layout.registers, layout.rip, layout.vcpu_id, layout.times].map(u64::from))
        .chain([vmcb, gs_base, cr3].map(u64::from))
        .chain([bases, linear]);
    let mut bytes = [0; TARGET];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Encodes a `struct point`; `None` for a point with too many reads or too much data.
#[must_use]
pub fn point(point: &Point) -> Option<[u8; POINT]> {
    let mut bytes = Vec::with_capacity(POINT);
    bytes.extend(point.filter.map_or(0, |filter| filter.mask).to_le_bytes());
    bytes.extend(point.id.to_le_bytes());
    bytes.push(u8::try_from(point.reads.len()).ok()?);
    bytes.push(point.filter.map_or(NONE, |filter| filter.read));
    let all = point.reads.iter().try_fold(0u16, |sum, read| sum.checked_add(read.len))?;
    bytes.extend(all.to_le_bytes());
    bytes.extend([0; 2]);
    let mut at = 0u16;
    for (n, read) in point.reads.iter().enumerate() {
        let (base, of) = match read.base {
            Base::Register(register) => (0, register as u8),
            Base::Earlier(earlier) => (1, earlier),
            Base::Value(register) => (2, register as u8),
            Base::Absolute => (3, 0),
        };
        bytes.extend(read.offset.to_le_bytes());
        bytes.extend([base, of]);
        bytes.extend(read.len.to_le_bytes());
        bytes.extend(at.to_le_bytes());
        // The filter is applied when its read is made.
        let decides = point.filter.is_some_and(|filter| usize::from(filter.read) == n);
        let like = like(&point.reads[..n], read).filter(|_| !decides);
        bytes.extend([like.unwrap_or(NONE), 0]);
        at += read.len;
    }
    (bytes.len() <= POINT && usize::from(all) <= limits::DATA).then(|| bytes.resize(POINT, 0))?;
    bytes.try_into().ok()
}

/// The index of an earlier read of the same member through another pointer.
fn like(before: &[Read], read: &Read) -> Option<u8> {
    let same = |other: &Read| {
        let member = (other.offset, other.len) == (read.offset, read.len);
        member && matches!((other.base, read.base), (Base::Earlier(a), Base::Earlier(b)) if a != b)
    };
    u8::try_from(before.iter().position(same)?).ok()
}

/// Whether a point reads this register.
#[must_use]
pub fn needs(point: &Point, register: Register) -> bool {
    point.reads.iter().any(|read| match read.base {
        Base::Register(of) | Base::Value(of) => of == register,
        Base::Earlier(_) | Base::Absolute => false,
    })
}

/// Decodes an event of a guest whose counter runs at `ratio` times the host's rate; `None` for
/// bytes that are not an event.
#[must_use]
pub fn event(bytes: &[u8], sequence: u64, ratio: CounterRatio) -> Option<RawEvent> {
    let short = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let scaled = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let (counter, counter_error) = ratio.host_from_scaled(scaled)?;
    let data = bytes.get(HEAD..)?;
    let len = usize::from(short(14)?);
    Some(RawEvent {
        sequence,
        counter: Some(counter),
        counter_error,
        point: short(8)?,
        vcpu: short(10)?,
        failed: short(12)?,
        data: data.get(..len)?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Filter, SLOT};

    fn words(bytes: &[u8]) -> Vec<u64> {
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Offsets in `struct target` and `struct point`, computed by hand.
    #[test]
    fn as_the_header_has_it() {
        let layout =
            KvmLayout { registers: 10, rip: 11, vcpu_id: 12, times: 13, vmcb: Some((14, 15, 16)) };
        let tables = PageTables { root: 2, five_levels: true };
        let low = Mapped { address: 4, len: 5, at: 6 };
        let high = Mapped { address: 7, len: 8, at: 9 };
        let bytes = target(1, &tables, [low, high], &layout, 17, 18);
        let all = [1, 2, 5, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18];
        assert_eq!(words(&bytes), all);

        let one = Point {
            id: 0x0201,
            symbol: String::new(),
            address: 0x1122,
            expected: SLOT,
            reads: vec![
                Read::at(Register::GsBase, -1, 8),
                Read::from(0, 4, 16),
                Read::value(Register::Rdi),
            ],
            filter: Some(Filter { read: 1, mask: 6 }),
        };
        let bytes = point(&one).unwrap();
        assert_eq!(words(&bytes[..8]), [6]);
        assert_eq!(bytes[8..16], [1, 2, 3, 1, 32, 0, 0, 0]);
        assert_eq!(bytes[16..32], [[0xff; 8], [0, 16, 8, 0, 0, 0, 255, 0]].concat());
        assert_eq!(bytes[32..48], [4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 16, 0, 8, 0, 255, 0]);
        assert_eq!(bytes[48..64], [0, 0, 0, 0, 0, 0, 0, 0, 2, 7, 8, 0, 24, 0, 255, 0]);
        assert!(needs(&one, Register::GsBase) && needs(&one, Register::Rdi));
        assert!(!needs(&one, Register::Cr3) && bytes[64..].iter().all(|byte| *byte == 0));
        // The third and fifth read the same member of two structures.
        let two = vec![
            Read::value(Register::Rdi),
            Read::value(Register::Rsi),
            Read::from(0, 4, 16),
            Read::from(1, 4, 8),
            Read::from(1, 4, 16),
        ];
        for (filter, like) in [(None, 2), (Some(Filter { read: 4, mask: 1 }), NONE)] {
            let bytes = point(&Point { reads: two.clone(), filter, ..one.clone() }).unwrap();
            let likes = bytes[16..].chunks_exact(16).take(5).map(|read| read[14]);
            assert_eq!(likes.collect::<Vec<_>>(), [NONE, NONE, NONE, NONE, like]);
        }
        let many = Point { reads: vec![Read::value(Register::Rdi); 17], filter: None, ..one };
        assert_eq!(point(&many), None);
        for (len, fits) in [(128, true), (129, false), (40_000, false)] {
            let large = Point { reads: vec![Read::at(Register::Rdi, 0, len); 2], ..many.clone() };
            assert_eq!(point(&large).is_some(), fits, "{len}");
        }
    }

    #[test]
    fn events() {
        let mut bytes = 77u64.to_le_bytes().to_vec();
        for short in [3u16, 1, 0b10, 4] {
            bytes.extend(short.to_le_bytes());
        }
        bytes.extend([9, 8, 7, 6, 5]);
        let raw = event(&bytes, 12, CounterRatio::ONE).unwrap();
        assert_eq!((raw.counter, raw.counter_error), (Some(77), 0));
        assert_eq!((raw.sequence, raw.point, raw.vcpu, raw.failed), (12, 3, 1, 2));
        assert_eq!(raw.data, [9, 8, 7, 6]);
        for len in 0..bytes.len() - 1 {
            assert_eq!(event(&bytes[..len], 0, CounterRatio::ONE), None, "{len}");
        }
    }
}
