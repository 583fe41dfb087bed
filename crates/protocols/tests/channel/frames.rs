//! Frames byte by byte, and finding them in streams of every kind.

use proptest::prelude::*;
use timevisor_protocols::channel::frame::{HEADER_LEN, MAGIC, MAX_REQUEST_LEN};
use timevisor_protocols::channel::{
    Direction, EncodeError, Frame, FrameReader, Kind, Received, Request,
};

use crate::common::{hello, request};

fn read(direction: Direction, stream: &[u8]) -> Vec<Received> {
    FrameReader::new(direction).feed(stream)
}

fn whole(frames: &[Frame]) -> Vec<Received> {
    frames.iter().cloned().map(Received::Frame).collect()
}

/// With the checksum made right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut register = u32::MAX;
    for byte in bytes[..24].iter().chain(&bytes[28..]) {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 == 1 { 0xEDB8_8320 } else { 0 };
        }
    }
    bytes[24..28].copy_from_slice(&(!register).to_le_bytes());
    bytes
}

/// The checksums come from zlib's crc32 over the same bytes.
#[test]
fn golden_bytes() {
    let keep_alive =
        Frame::of(Kind::Request, 0x0102_0304_0506_0708, 9, &Request::KeepAlive).unwrap();
    let mut expected =
        b"TVCH\x01\x01\x0c\x00\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0".to_vec();
    expected.extend_from_slice(&GOLDEN_KEEP_ALIVE.to_le_bytes());
    expected.extend_from_slice(b"\"keep_alive\"");
    assert_eq!(keep_alive.encode(), expected);
    assert_eq!(read(Direction::ToServer, &expected), whole(&[keep_alive]));

    let mut expected = b"TVCH\x01\x01\x1b\x00\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    expected.extend_from_slice(&GOLDEN_HELLO.to_le_bytes());
    expected.extend_from_slice(br#"{"hello":{"client":"test"}}"#);
    assert_eq!(request(0, 1, &hello()), expected);
}

const GOLDEN_KEEP_ALIVE: u32 = 0xE4D5_87D0;
const GOLDEN_HELLO: u32 = 0x0295_E995;

#[test]
fn limits_of_each_kind() {
    for (kind, max) in [(Kind::Request, 4096), (Kind::Response, 65535), (Kind::Event, 65535)] {
        let frame = Frame::new(kind, 1, 1, vec![b' '; max]).unwrap();
        let direction =
            if kind == Kind::Request { Direction::ToServer } else { Direction::ToClient };
        assert_eq!(read(direction, &frame.encode()), whole(&[frame]));
        let error = Frame::new(kind, 1, 1, vec![b' '; max + 1]).unwrap_err();
        assert!(matches!(error, EncodeError::TooLong { len, max: m } if len == m + 1 && m == max));
    }
    // A reader also refuses it from a peer that writes it anyway.
    let mut bytes = Frame::new(Kind::Request, 1, 1, vec![b' '; 4096]).unwrap().encode();
    bytes[6..8].copy_from_slice(&4097u16.to_le_bytes());
    bytes.push(b' ');
    assert_eq!(read(Direction::ToServer, &sealed(bytes)), []);
}

#[test]
fn a_stream_runs_in_its_direction_only() {
    for (kind, direction) in [
        (Kind::Request, Direction::ToClient),
        (Kind::Response, Direction::ToServer),
        (Kind::Event, Direction::ToServer),
    ] {
        let frame = Frame::new(kind, 1, 1, b"1".to_vec()).unwrap().encode();
        let mut reader = FrameReader::new(direction);
        assert_eq!(reader.feed(&frame), []);
        assert_eq!(reader.skipped(), frame.len() as u64);
    }
}

#[test]
fn another_version_is_told_apart_from_garbage() {
    let mut bytes = request(0, 7, &hello());
    bytes[4] = 2;
    assert_eq!(read(Direction::ToServer, &bytes), [], "the checksum covers the version");
    let received = read(Direction::ToServer, &sealed(bytes));
    let [Received::OtherVersion(header)] = received[..] else { panic!("{received:?}") };
    assert_eq!((header.version, header.session, header.id), (2, 0, 7));
}

#[test]
fn every_bit_matters() {
    let frame = request(3, 7, &hello());
    for bit in 0..frame.len() * 8 {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(read(Direction::ToServer, &damaged), [], "bit {bit}");
    }
}

/// A guest was reset in the middle of a frame: the next hello is found at its own last byte.
#[test]
fn half_a_frame_does_not_swallow_the_next() {
    let half = Frame::new(Kind::Request, 5, 9, vec![b'x'; 4000]).unwrap().encode();
    let frame = request(0, 1, &hello());
    for cut in [1, 4, 27, 28, 29, 100, 4027] {
        let mut reader = FrameReader::new(Direction::ToServer);
        assert_eq!(reader.feed(&half[..cut]), []);
        assert_eq!(reader.feed(&frame).len(), 1, "cut {cut}");
        assert_eq!((reader.skipped(), reader.pending()), (cut as u64, 0));
    }
}

/// Two frames of equal checksum end at the same byte: the longer one is meant.
#[test]
fn of_two_that_end_together_the_outer_one_counts() {
    let inner = Frame::new(Kind::Request, 1, 2, b"1".to_vec()).unwrap().encode();
    let outer = Frame::new(Kind::Request, 1, 1, inner.clone()).unwrap();
    assert_eq!(read(Direction::ToServer, &outer.encode()), whole(&[outer]));
}

#[test]
fn frames_do_not_overlap() {
    let inner = Frame::new(Kind::Request, 1, 2, b"1".to_vec()).unwrap();
    let payload = [inner.encode(), b"2".to_vec()].concat();
    let outer = Frame::new(Kind::Request, 1, 1, payload).unwrap().encode();
    let mut reader = FrameReader::new(Direction::ToServer);
    assert_eq!(reader.feed(&outer), whole(&[inner]));
    assert_eq!((reader.skipped(), reader.pending()), (28 + 1, 0));
}

#[test]
fn memory_is_one_frame_whatever_comes() {
    let header = &Frame::new(Kind::Request, 1, 1, vec![0; MAX_REQUEST_LEN]).unwrap().encode()[..8];
    let mut reader = FrameReader::new(Direction::ToServer);
    for _ in 0..10_000 {
        assert_eq!(reader.feed(header), []);
        assert!(reader.pending() <= HEADER_LEN + MAX_REQUEST_LEN, "{}", reader.pending());
    }
    assert!(reader.skipped() >= 80_000 - (HEADER_LEN + MAX_REQUEST_LEN) as u64);
    assert_eq!(reader.feed(&request(0, 1, &hello())).len(), 1);
    assert_eq!((reader.pending(), reader.since_frame()), (0, 0));
}

fn frame_of(payload: &'static str) -> impl Strategy<Value = Frame> {
    let kind = prop::sample::select(vec![Kind::Response, Kind::Event]);
    (kind, any::<u64>(), any::<u64>(), payload)
        .prop_map(|(kind, session, id, text)| Frame::new(kind, session, id, text.into()).unwrap())
}

fn any_frame() -> impl Strategy<Value = Frame> {
    frame_of("[ -~]{0,80}")
}

/// Rich in what looks like a frame, but is none whatever follows: its payload is too long to come
/// about by chance.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let long = || frame_of("[ -~]{8,80}");
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::sample::select(MAGIC.to_vec()).prop_map(|byte| vec![byte]),
        Just(MAGIC.to_vec()),
        long().prop_map(|frame| frame.encode()[..HEADER_LEN].to_vec()),
        (long(), 0..HEADER_LEN + 4).prop_map(|(frame, cut)| frame.encode()[..cut].to_vec()),
        (long(), any::<prop::sample::Index>()).prop_map(|(frame, at)| {
            let mut bytes = frame.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= 0x20;
            bytes
        }),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

/// What the rule says, the slow way: every start at every end.
fn by_the_rule(direction: Direction, stream: &[u8]) -> Vec<(usize, usize)> {
    let (mut from, mut found) = (0, Vec::new());
    for end in HEADER_LEN..=stream.len() {
        let starts = from..=end - HEADER_LEN.min(end);
        let is_frame = |start: &usize| {
            let bytes = &stream[*start..end];
            let kinds: &[u8] = if direction == Direction::ToServer { &[1] } else { &[2, 3] };
            bytes.starts_with(&MAGIC)
                && kinds.contains(&bytes[5])
                && usize::from(u16::from_le_bytes([bytes[6], bytes[7]])) == bytes.len() - HEADER_LEN
                && sealed(bytes.to_vec()) == bytes
        };
        if let Some(start) = starts.into_iter().find(is_frame) {
            found.push((start, end));
            from = end;
        }
    }
    found
}

proptest! {
    #[test]
    fn frames_come_back_from_between_garbage_however_it_is_cut(
        parts in prop::collection::vec((garbage(), any_frame()), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut stream = Vec::new();
        for (garbage, frame) in &parts {
            stream.extend_from_slice(garbage);
            stream.extend_from_slice(&frame.encode());
        }
        let expected: Vec<Frame> = parts.into_iter().map(|(_, frame)| frame).collect();
        let mut reader = FrameReader::new(Direction::ToClient);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).chain([0, stream.len()]).collect();
        cuts.sort_unstable();
        let got: Vec<_> = cuts.windows(2).flat_map(|w| reader.feed(&stream[w[0]..w[1]])).collect();
        prop_assert_eq!(&got, &whole(&expected));
        let framed: usize = expected.iter().map(|frame| HEADER_LEN + frame.payload.len()).sum();
        prop_assert_eq!(reader.skipped(), (stream.len() - framed) as u64);
        prop_assert_eq!(reader.pending(), 0);
    }

    #[test]
    fn nothing_is_found_but_by_the_rule(
        parts in prop::collection::vec(prop_oneof![garbage(), any_frame().prop_map(|f| f.encode())], 0..5),
    ) {
        let stream = parts.concat();
        let mut reader = FrameReader::new(Direction::ToClient);
        let mut ends = Vec::new();
        for (at, byte) in stream.iter().enumerate() {
            let found = reader.feed(&[*byte]);
            ends.extend(found.iter().map(|_| at + 1));
        }
        let expected = by_the_rule(Direction::ToClient, &stream);
        prop_assert_eq!(ends, expected.iter().map(|(_, end)| *end).collect::<Vec<_>>());
        let framed: usize = expected.iter().map(|(start, end)| end - start).sum();
        prop_assert_eq!(reader.skipped() + reader.pending() as u64, (stream.len() - framed) as u64);
        let mut whole = FrameReader::new(Direction::ToClient);
        whole.feed(&stream);
        prop_assert_eq!(whole.pending(), reader.pending());
    }
}
