//! The note in a FreeRTOS kernel, written by plugins/freertos/freertos_tasks_c_additions.h.

/// The note's type.
pub const KIND: u32 = 1;
/// Version of the note's layout.
const LAYOUT: u32 = 1;
/// Upper limit of offsets; larger than any task control block.
const MOST_OFFSET: u32 = 65_536;
/// Maximum number of bytes of a name that are read.
const MOST_NAME: u32 = 16;
/// Highest tick rate. Above it, a tick would be shorter than a nanosecond.
const MOST_RATE: u32 = 1_000_000_000;

/// The contents of the note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// Version: major, minor, build.
    pub version: [u32; 3],
    /// Ticks per second.
    pub tick_rate_hz: u32,
    /// Tasks of equal priority share the processor by time slicing.
    pub time_slicing: bool,
    /// Offset of uxPriority in a task control block.
    pub priority: u32,
    /// Offset of pcTaskName in a task control block.
    pub name: u32,
    /// Bytes of a name that are read.
    pub name_len: u16,
}

impl Note {
    /// Parses the bytes of the note.
    ///
    /// # Errors
    /// When its layout or a value is not supported.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (words, rest) = bytes.as_chunks::<4>();
        let words: Vec<u32> = words.iter().take(12).map(|word| u32::from_le_bytes(*word)).collect();
        if words.first().is_some_and(|layout| *layout != LAYOUT) {
            return Err(format!(
                "its note has layout {}, not {LAYOUT}: build it with this version's plugins/freertos",
                words[0]
            ));
        }
        let [_, major, minor, build, pointer, tick, tick_rate_hz, slicing, priority, name, size] =
            words[..]
        else {
            return Err(format!("its note has {} bytes, not 44", bytes.len()));
        };
        if !rest.is_empty() {
            return Err(format!("its note has {} bytes, not 44", bytes.len()));
        }
        if (pointer, tick) != (4, 4) {
            return Err(format!(
                "pointers of {pointer} and ticks of {tick} bytes; known are ports for x86 with 4 of each \
                 (GCC/IA32_flat, TICK_TYPE_WIDTH_32_BITS)"
            ));
        }
        if !(1..=MOST_RATE).contains(&tick_rate_hz) {
            return Err(format!("{tick_rate_hz} ticks a second"));
        }
        if priority.max(name) > MOST_OFFSET || size == 0 {
            return Err(format!("a priority at {priority}, a name of {size} bytes at {name}"));
        }
        let name_len = u16::try_from(size.min(MOST_NAME)).unwrap_or(1);
        let (version, time_slicing) = ([major, minor, build], slicing != 0);
        Ok(Self { version, tick_rate_hz, time_slicing, priority, name, name_len })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: [u32; 11] = [1, 11, 2, 0, 4, 4, 1000, 1, 44, 52, 12];

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_kernel_and_those_that_are_not_known() {
        let note = Note::parse(&bytes(&GOOD)).unwrap();
        assert_eq!((note.version, note.tick_rate_hz, note.name_len), ([11, 2, 0], 1000, 12));
        let with = |n: usize, value: u32| {
            let mut words = GOOD;
            words[n] = value;
            Note::parse(&bytes(&words))
        };
        assert_eq!(with(10, 200).unwrap().name_len, 16);
        for (n, value, why) in [
            (0, 2, "layout 2"),
            (4, 8, "pointers of 8"),
            (5, 2, "ticks of 2"),
            (6, 0, "0 ticks"),
            (8, 1 << 20, "priority"),
            (10, 0, "name of 0"),
        ] {
            let error = with(n, value).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(note) = Note::parse(&bytes) {
                prop_assert!(bytes.len() == 44 && (1..=16).contains(&note.name_len));
            }
        }

        #[test]
        fn another_length(cut in 0usize..64) {
            let mut bytes = bytes(&GOOD);
            bytes.resize(cut, 0);
            prop_assert_eq!(Note::parse(&bytes).is_ok(), cut == 44);
        }
    }
}
