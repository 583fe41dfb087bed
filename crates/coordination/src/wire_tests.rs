use super::*;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Name> {
    "[A-Za-z0-9_][A-Za-z0-9._-]{0,31}".prop_map(|text| text.parse().unwrap())
}

fn member() -> impl Strategy<Value = MemberId> {
    (name(), any::<u64>()).prop_map(|(name, incarnation)| MemberId { name, incarnation })
}

fn id() -> impl Strategy<Value = ProposalId> {
    (member(), any::<u64>()).prop_map(|(proposer, number)| ProposalId { proposer, number })
}

fn instant() -> impl Strategy<Value = Instant<Local>> {
    any::<i128>().prop_map(Instant::from_bits)
}

fn interval() -> impl Strategy<Value = Interval<Local>> {
    (instant(), instant()).prop_map(|(a, b)| Interval::new(a.min(b), a.max(b)).unwrap())
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..200)
}

fn proposal() -> impl Strategy<Value = Proposal> {
    let members = proptest::collection::btree_set(member(), 0..6);
    let times = (instant(), any::<u64>(), instant(), any::<i128>());
    (id(), times, members, payload()).prop_map(
        |(id, (at, origin, decide_by, late), participants, payload)| Proposal {
            id,
            at,
            origin,
            decide_by,
            late_at_most: Duration::from_bits(late),
            participants: participants.into_iter().collect(),
            payload,
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    prop_oneof![
        interval().prop_map(Report::Fired),
        prop_oneof![
            Just(Why::Rejected),
            Just(Why::Aborted),
            Just(Why::Undecided),
            Just(Why::Late),
            Just(Why::Clock)
        ]
        .prop_map(Report::Quiet),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (name(), payload()).prop_map(|(topic, payload)| Message::Publication { topic, payload }),
        Just(Message::Tick),
        any::<i128>().prop_map(|every| Message::WantTicks { every: Duration::from_bits(every) }),
        proposal().prop_map(|proposal| Message::Propose(Box::new(proposal))),
        (id(), any::<bool>(), any::<u32>()).prop_map(|(id, accepts, attempt)| Message::Vote {
            id,
            accepts,
            attempt
        }),
        (id(), any::<bool>()).prop_map(|(id, commits)| Message::Decide { id, commits }),
        (id(), report()).prop_map(|(id, report)| Message::Report { id, report }),
        id().prop_map(|id| Message::Ask { id }),
        (name(), any::<u64>(), any::<u32>())
            .prop_map(|(barrier, round, parties)| { Message::Arrive { barrier, round, parties } }),
        (name(), instant()).prop_map(|(office, until)| Message::Claim { office, until }),
        (name(), instant(), proptest::option::of(instant()))
            .prop_map(|(office, until, taken_until)| Message::Grant { office, until, taken_until }),
        (name(), instant()).prop_map(|(office, until)| Message::Release { office, until }),
    ]
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let stamp =
        (interval(), any::<u64>()).prop_map(|(interval, origin)| Stamp { interval, origin });
    (member(), any::<u64>(), proptest::option::of(stamp), message())
        .prop_map(|(from, sequence, stamp, message)| Envelope { from, sequence, stamp, message })
}

proptest! {
    #[test]
    fn what_is_written_is_read(envelope in envelope()) {
        prop_assert_eq!(Envelope::decode(&envelope.encode()), Ok(envelope));
    }

    #[test]
    fn no_prefix_of_a_message_is_one(envelope in envelope(), part in 0_usize..1000) {
        let bytes = envelope.encode();
        let length = bytes.len() * part / 1000;
        prop_assert!(Envelope::decode(&bytes[..length]).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(envelope) = Envelope::decode(&bytes) {
            prop_assert_eq!(envelope.encode(), bytes);
        }
    }
}

/// The format, byte by byte: a change of it needs another version.
#[test]
fn a_vote_has_these_bytes() {
    let own = MemberId { name: "arm-a".parse().unwrap(), incarnation: 2 };
    let interval =
        Interval::new(Instant::from_bits(1 << 64), Instant::from_bits((1 << 64) + 3)).unwrap();
    let envelope = Envelope {
        from: own,
        sequence: 0,
        stamp: Some(Stamp { interval, origin: 7 }),
        message: Message::Vote {
            id: ProposalId { proposer: own, number: 5 },
            accepts: true,
            attempt: 1,
        },
    };
    let name = [5, b'a', b'r', b'm', b'-', b'a', 2, 0, 0, 0, 0, 0, 0, 0];
    let mut expected = vec![1];
    expected.extend(name);
    expected.extend([0; 8]);
    expected.push(1);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    expected.push(4);
    expected.extend(name);
    expected.extend([5, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([1, 1, 0, 0, 0]);
    assert_eq!(envelope.encode(), expected);
}

#[test]
fn bad_messages_are_refused_with_a_reason() {
    let own = MemberId { name: "a".parse().unwrap(), incarnation: 0 };
    let tick = Envelope { from: own, sequence: 1, stamp: None, message: Message::Tick };
    let mut bytes = tick.encode();
    bytes.push(0);
    assert_eq!(Envelope::decode(&bytes), Err(BytesError::Trailing(1).into()));
    let mut bytes = tick.encode();
    bytes[0] = 2;
    assert_eq!(Envelope::decode(&bytes), Err(WireError::Version(2)));
    let mut bytes = tick.encode();
    *bytes.last_mut().unwrap() = 99;
    assert_eq!(Envelope::decode(&bytes), Err(BytesError::Value(99).into()));
    // A payload that claims to be longer than allowed is not allocated.
    let topic = "t".parse().unwrap();
    let publication = Message::Publication { topic, payload: Vec::new() };
    let mut bytes = Envelope { message: publication, ..tick }.encode();
    let length = bytes.len();
    bytes[length - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Envelope::decode(&bytes), Err(BytesError::TooLong(u32::MAX as usize).into()));
}
