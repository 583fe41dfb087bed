//! The ordinary read says what the whole one says, wherever it says anything.

use proptest::prelude::*;

use super::*;
use crate::abi::vmclock;
use crate::seqlock::write_end;
use crate::{CounterId, Page};

/// The counter is passed to the functions under test; this one is only of the right kind.
struct Tsc;

impl Counter for Tsc {
    fn id(&self) -> CounterId {
        CounterId::X86Tsc
    }
    fn read_ordered(&self) -> u64 {
        0
    }
}

/// Words of an entry, and the page's two markers.
#[derive(Clone, Debug)]
struct Words {
    base: u64,
    expires_in: i64,
    /// Seconds, fraction, and period of earliest, estimate, latest.
    lines: [[u64; 3]; 3],
    holdover: u64,
    markers: [u64; 2],
    counter: u64,
}

fn page(words: &Words) -> Page {
    let page = Page::new();
    let entry = page.entry(0);
    let set = |index: usize, value: u64| entry[index].store(value, Relaxed);
    set(entry::BASE, words.base);
    set(entry::EXPIRY, words.base.wrapping_add_signed(words.expires_in));
    for (at, line) in [entry::EARLIEST, entry::ESTIMATE, entry::LATEST].into_iter().zip(words.lines)
    {
        line.into_iter().enumerate().for_each(|(offset, word)| set(at + offset, word));
    }
    set(entry::HOLDOVER, words.holdover);
    set(entry::META, u64::MAX);
    page.word(vmclock::AT_DISRUPTION).store(words.markers[0], Relaxed);
    page.word(crate::abi::header::AT_MARKER).store(words.markers[1], Relaxed);
    write_end(&entry[entry::SEQUENCE], 1);
    page
}

/// What both say: the ordinary read, and the whole one.
fn both(words: &Words) -> (Option<Reading>, Result<Reading, super::super::ReadError>) {
    let page = page(words);
    let reader = Reader { page: &page, index: 0, counter: Tsc };
    let whole = reader.snapshot_at(2, words.counter).expect("nobody writes");
    (reader.ordinary(2, words.counter), reader.reading_of(&whole))
}

const PLAIN: Words = Words {
    base: 1 << 40,
    expires_in: 1 << 34,
    lines: [[9, 1 << 50, 1 << 52], [9, 1 << 51, (1 << 52) + 5], [9, 1 << 52, (1 << 52) + 9]],
    holdover: 7,
    markers: [4, 4],
    counter: (1 << 40) + 123_456,
};

#[test]
fn the_ordinary_case_is_the_one_that_is_read_here() {
    let newest = PLAIN.base + u64::from(u32::MAX);
    for counter in [PLAIN.base, PLAIN.counter, newest] {
        let (here, whole) = both(&Words { counter, ..PLAIN });
        assert_eq!(here.map(Ok), Some(whole), "at {counter}");
    }
}

#[test]
fn every_other_case_is_left() {
    let others = [
        ("before the base", Words { counter: PLAIN.base - 1, ..PLAIN }),
        ("long ago", Words { counter: PLAIN.base + (1 << 32), ..PLAIN }),
        ("as old, with the same low half", Words { counter: PLAIN.counter + (5 << 32), ..PLAIN }),
        ("expired", Words { expires_in: 123_455, ..PLAIN }),
        ("loaded with the VM", Words { markers: [5, 4], ..PLAIN }),
        (
            "out of order",
            Words { lines: [PLAIN.lines[0], PLAIN.lines[2], PLAIN.lines[1]], ..PLAIN },
        ),
    ];
    for (case, words) in others {
        assert_eq!(both(&words).0, None, "{case}");
    }
    let page = page(&PLAIN);
    let reader = Reader { page: &page, index: 0, counter: Tsc };
    assert_eq!(reader.ordinary(4, PLAIN.counter), None, "somebody has written since");
}

fn words() -> impl Strategy<Value = Words> {
    let seconds = prop_oneof![Just(9_u64), Just(10), any::<u64>()];
    let period = prop_oneof![(1_u64 << 51)..(1 << 54), any::<u64>()];
    let line = (seconds, any::<u64>(), period).prop_map(|(s, f, p)| [s, f, p]);
    let ticks = prop_oneof![0..1_i64 << 33, -100_i64..100, any::<i64>()];
    let marker = prop_oneof![Just([0, 0]), Just([3, 3]), Just([4, 3]), Just([4, 0])];
    (any::<u64>(), ticks.clone(), [line.clone(), line.clone(), line], any::<u64>(), marker, ticks)
        .prop_map(|(base, expires_in, lines, holdover, markers, ticks)| Words {
            base,
            expires_in,
            lines,
            holdover,
            markers,
            counter: base.wrapping_add_signed(ticks),
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn it_says_what_the_whole_read_says(words in words()) {
        let (here, whole) = both(&words);
        if let Some(here) = here {
            prop_assert_eq!(Ok(here), whole);
        }
    }
}
