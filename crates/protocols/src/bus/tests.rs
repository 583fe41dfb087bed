use super::*;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    "[a-z0-9]{1,32}"
}

fn who() -> impl Strategy<Value = Who> {
    (text(), any::<u64>()).prop_map(|(name, incarnation)| Who { name, incarnation })
}

fn sides() -> impl Strategy<Value = Option<Sides>> {
    let both = (any::<u64>(), any::<u64>());
    proptest::option::of(both.prop_map(|(below_ns, above_ns)| Sides { below_ns, above_ns }))
}

fn info() -> impl Strategy<Value = Info> {
    (who(), sides(), sides(), any::<bool>()).prop_map(|(who, requirement, achieved, met)| Info {
        who,
        requirement,
        achieved,
        met,
    })
}

fn infos() -> impl Strategy<Value = Vec<Info>> {
    proptest::collection::vec(info(), 0..5)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..100)
}

fn to_bus() -> impl Strategy<Value = ToBus> {
    let handle = any::<u32>();
    prop_oneof![
        (any::<u16>(), text()).prop_map(|(version, client)| ToBus::Hello { version, client }),
        (handle, text(), who(), text(), sides(), any::<u32>()).prop_map(
            |(handle, group, who, timeline, requirement, lease_ms)| ToBus::Join {
                handle,
                group,
                who,
                timeline,
                requirement,
                lease_ms
            }
        ),
        (handle, any::<[u8; 16]>()).prop_map(|(handle, proof)| ToBus::Prove { handle, proof }),
        (handle, sides(), any::<bool>()).prop_map(|(handle, achieved, met)| ToBus::Alive {
            handle,
            achieved,
            met
        }),
        handle.prop_map(|handle| ToBus::Leave { handle }),
        (handle, text(), any::<u32>()).prop_map(|(handle, topic, history)| ToBus::Subscribe {
            handle,
            topic,
            history
        }),
        (handle, text()).prop_map(|(handle, topic)| ToBus::Unsubscribe { handle, topic }),
        (handle, proptest::option::of(who()), proptest::option::of(text()), bytes())
            .prop_map(|(handle, to, topic, message)| ToBus::Send { handle, to, topic, message }),
    ]
}

fn from_bus() -> impl Strategy<Value = FromBus> {
    let handle = any::<u32>();
    let handles = || proptest::collection::vec(any::<u32>(), 0..4);
    let gone = proptest::collection::vec((who(), Just(Gone::Silent)), 0..3);
    prop_oneof![
        (any::<u16>(), any::<u64>())
            .prop_map(|(version, incarnation)| FromBus::Welcome { version, incarnation }),
        (handle, any::<[u8; 16]>())
            .prop_map(|(handle, nonce)| FromBus::Challenge { handle, nonce }),
        (handle, any::<u32>(), infos()).prop_map(|(handle, lease_ms, members)| {
            FromBus::Joined { handle, lease_ms, members }
        }),
        (handle, text()).prop_map(|(handle, text)| FromBus::Refused {
            handle,
            refusal: Refusal::Timeline,
            text
        }),
        (handles(), infos(), gone).prop_map(|(handles, present, gone)| FromBus::Members {
            handles,
            present,
            gone
        }),
        (handles(), any::<bool>(), bytes()).prop_map(|(handles, is_old, message)| {
            FromBus::Deliver { handles, is_old, message }
        }),
        (handle, text(), any::<u32>(), any::<u64>()).prop_map(|(handle, topic, sent, dropped)| {
            FromBus::History { handle, topic, sent, dropped }
        }),
        any::<u64>().prop_map(|count| FromBus::Overrun { count }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(to in to_bus(), from in from_bus()) {
        prop_assert_eq!(ToBus::decode(&to.encode()), Ok(to));
        prop_assert_eq!(FromBus::decode(&from.encode()), Ok(from));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in bytes()) {
        if let Ok(to) = ToBus::decode(&bytes) {
            prop_assert_eq!(to.encode(), bytes.clone());
        }
        if let Ok(from) = FromBus::decode(&bytes) {
            prop_assert_eq!(from.encode(), bytes);
        }
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut(
        contents in proptest::collection::vec(bytes(), 0..6), size in 1_usize..40,
    ) {
        let stream: Vec<u8> = contents.iter().flat_map(|content| frame(content)).collect();
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for part in stream.chunks(size) {
            frames.push(part);
            while let Some(content) = frames.take().unwrap() {
                found.push(content.to_vec());
            }
        }
        prop_assert_eq!(found, contents);
    }
}

#[test]
fn a_stream_of_something_else_is_refused() {
    let mut frames = Frames::default();
    frames.push(b"GET / HTTP/1.1\r\n");
    assert!(matches!(frames.take(), Err(FrameError::TooLong(_))));
}

/// The format, byte by byte: a change of it needs another version.
#[test]
fn a_join_has_these_bytes() {
    let join = ToBus::Join {
        handle: 1,
        group: "cell7".into(),
        who: Who { name: "arm-a".into(), incarnation: 2 },
        timeline: "tai".into(),
        requirement: Some(Sides { below_ns: 100_000, above_ns: 256 }),
        lease_ms: 1_000,
    };
    let mut expected = vec![2, 1, 0, 0, 0, 5];
    expected.extend(b"cell7\x05arm-a");
    expected.extend([2, 0, 0, 0, 0, 0, 0, 0, 3]);
    expected.extend(b"tai\x01");
    expected.extend([0xa0, 0x86, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xe8, 3, 0, 0]);
    assert_eq!(join.encode(), expected);
}

#[test]
fn what_a_bus_says_is_opened_with_its_groups_key_only() {
    use crate::nts::shared::Secret;
    use between::{Between, BetweenError, PURPOSE};
    use zeroize::Zeroizing;
    let key = |byte: u8| Secret::new(Zeroizing::new([byte; 32])).message_key(PURPOSE);
    let info = Info {
        who: Who { name: "a".into(), incarnation: 3 },
        requirement: None,
        achieved: Some(Sides { below_ns: 1, above_ns: 2 }),
        met: true,
    };
    for said in [
        Between::Roster {
            timeline: "tai".into(),
            lease_ms: 3_000,
            knows: vec![1, 2],
            members: vec![info.clone()],
        },
        Between::Message { to: Some(info.who.clone()), topic: None, message: vec![1, 2, 3] },
        Between::Message { to: None, topic: Some("t".into()), message: Vec::new() },
    ] {
        let bytes = said.seal(&key(1), "cell7", 7, 9);
        let opened = Between::open(&bytes, &key(1), "cell7").unwrap();
        assert_eq!((opened.bus, opened.count, opened.said), (7, 9, said));
        assert_eq!(Between::open(&bytes, &key(2), "cell7"), Err(BetweenError::Key));
        assert_eq!(Between::open(&bytes, &key(1), "cell8"), Err(BetweenError::Key));
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert!(Between::open(&changed, &key(1), "cell7").is_err(), "byte {index}");
            assert!(Between::open(&bytes[..index], &key(1), "cell7").is_err());
        }
    }
}
