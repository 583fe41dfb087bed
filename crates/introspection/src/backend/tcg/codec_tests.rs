use proptest::prelude::*;

use super::*;
use crate::point::{Filter, Read, Register, SLOT};

fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    [&len.to_le_bytes()[..], &kind.to_le_bytes(), &[0; 2], payload].concat()
}

fn event(sequence: u64, data: &[u8]) -> Vec<u8> {
    let longs = [sequence, 77, 5].map(u64::to_le_bytes).concat();
    let len = u16::try_from(data.len()).unwrap();
    let words = [3, 1, 2, len].map(u16::to_le_bytes).concat();
    frame(kind::EVENT, &[longs, words, data.to_vec()].concat())
}

fn decode(stream: &[u8]) -> Result<Vec<Message>, Fault> {
    let mut decoder = Decoder::default();
    decoder.push(stream);
    std::iter::from_fn(|| decoder.message().transpose()).collect()
}

fn point() -> Point {
    Point {
        id: 2,
        symbol: "do_exit".into(),
        address: 0xffff_ffff_8100_0004,
        expected: SLOT,
        reads: vec![
            Read::at(Register::GsBase, -8, 8),
            Read::from(0, 0x970, 4),
            Read::value(Register::Rdi),
        ],
        filter: Some(Filter { read: 1, mask: 0x46 }),
    }
}

/// The bytes match the layout in plugins/tcg/introspect.h.
#[test]
fn golden_points() {
    let bytes = points(7, &[point()]).unwrap();
    let expected = [
        "58000000 0100 0000", // 88 bytes of kind 1
        "07000000 0100 0000", // generation 7, one point
        "0200 03 01 05 000000 040000 81ffffffff 0f1f440000000000 4600000000000000",
        "00 10 0800 00000000 f8ffffffffffffff",
        "01 00 0400 00000000 7009000000000000",
        "02 07 0800 00000000 0000000000000000",
    ];
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected.join("").replace(' ', ""));
}

#[test]
fn golden_messages() {
    let hello =
        "5456495001000200ffff030000000000 0900000000000000 0400000000000000 0102000000000000";
    let bytes: Vec<u8> = hello
        .replace(' ', "")
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let expected = Message::Hello {
        version: 1,
        vcpus: 2,
        registers: 0x3_ffff,
        next: 9,
        dropped: 4,
        epoch: 0x201,
    };
    assert_eq!(decode(&frame(kind::HELLO, &bytes)), Ok(vec![expected]));

    let raw = RawEvent {
        sequence: 9,
        counter: Some(77),
        counter_error: 0,
        point: 3,
        vcpu: 1,
        failed: 2,
        data: b"abc".to_vec(),
    };
    assert_eq!(decode(&event(9, b"abc")), Ok(vec![Message::Event { event: raw, dropped: 5 }]));
    let mismatch = [1, 0, 0, 0, 4, 0, 2, 0, 0xe8, 1, 2, 3, 4, 5, 6, 7];
    let found = Message::Mismatch { generation: 1, point: 4, found: vec![0xe8, 1] };
    assert_eq!(decode(&frame(kind::MISMATCH, &mismatch)), Ok(vec![found]));
    let words = [1, 0, 0, 0, 4, 0, 0, 0];
    let installed = Message::Installed { generation: 1, count: 4 };
    assert_eq!(decode(&frame(kind::INSTALLED, &words)), Ok(vec![installed]));
    let refused = Message::Refused { generation: 1, code: 4 };
    assert_eq!(decode(&frame(kind::REFUSED, &words)), Ok(vec![refused]));
}

#[test]
fn damaged_frames() {
    assert_eq!(decode(&frame(kind::STATUS, &[0; 15])), Err(Fault::Damaged(kind::STATUS)));
    assert_eq!(decode(&frame(kind::STATUS, &[0; 17])), Err(Fault::Damaged(kind::STATUS)));
    assert_eq!(decode(&frame(9, &[])), Err(Fault::Kind(9)));
    assert_eq!(decode(&frame(kind::HELLO, &[0; 40])), Err(Fault::Damaged(kind::HELLO)));
    assert_eq!(decode(&[1, 4, 0, 0, 0x83, 0, 0, 0]), Err(Fault::Long(1025)));
    let mut long = event(1, &[7; 300]);
    assert_eq!(decode(&long), Err(Fault::Damaged(kind::EVENT)), "more than a point may read");
    long.truncate(20);
    assert_eq!(decode(&long), Ok(vec![]), "not complete");
    let lies = frame(kind::MISMATCH, &[1, 0, 0, 0, 4, 0, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(decode(&lies), Err(Fault::Damaged(kind::MISMATCH)));
}

#[test]
fn points_that_the_plugin_would_refuse() {
    let refused = |change: &dyn Fn(&mut Point)| {
        let mut point = point();
        change(&mut point);
        assert_eq!(points(1, &[point]), Err(Refused::Reads(2)));
    };
    refused(&|p| p.reads = vec![Read::value(Register::Rdi); 17]);
    refused(&|p| p.reads = vec![Read::at(Register::Rdi, 0, 257)]);
    refused(&|p| p.reads = vec![Read::at(Register::Rdi, 0, 0)]);
    refused(&|p| p.reads[1] = Read::from(1, 0, 4));
    refused(&|p| {
        p.reads[1].len = 2;
        p.reads[2] = Read::from(1, 0, 4);
    });
    refused(&|p| p.reads[2].len = 4);
    refused(&|p| p.filter = Some(Filter { read: 3, mask: 1 }));
    refused(&|p| p.reads[1].len = 16);
    assert_eq!(points(1, &vec![point(); 33]), Err(Refused::Points(33, 32)));
}

#[test]
fn variables_and_pointers_of_32_bits() {
    let reads = vec![Read::absolute(0x5000, 4), Read::from(0, 8, 16)];
    let frame = points(1, &[Point { reads, filter: None, ..point() }]).unwrap();
    let variable = [3, 0, 4, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0];
    let target = [1, 0, 16, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
    assert!(frame.ends_with(&[variable, target].concat()), "{frame:?}");
}

proptest! {
    #[test]
    fn how_a_stream_is_cut_does_not_matter(
        stream in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..12),
            (any::<u64>(), prop::collection::vec(any::<u8>(), 0..256)).prop_map(|(n, data)| event(n, &data)),
            any::<[u8; 16]>().prop_map(|bytes| frame(kind::STATUS, &bytes)),
        ], 0..8),
        cuts in prop::collection::vec(1usize..200, 1..20),
    ) {
        let stream = stream.concat();
        let (mut decoder, mut left, mut found) = (Decoder::default(), &stream[..], Vec::new());
        let mut fault = None;
        for cut in cuts.iter().cycle() {
            let (now, later) = left.split_at(left.len().min(*cut));
            decoder.push(now);
            left = later;
            loop {
                match decoder.message() {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(error) => { fault = Some(error); break }
                }
            }
            if left.is_empty() || fault.is_some() {
                break;
            }
        }
        match decode(&stream) {
            Ok(all) => prop_assert!(fault.is_none() && all == found),
            Err(error) => prop_assert_eq!(fault, Some(error)),
        }
    }
}
