//! The bytes of a recording: docs/reference/recordings.md.

use timevisor_clock_page::abi::{entry, header};
use timevisor_clock_page::{CounterId, EntryWords, Page};
use timevisor_protocols::channel::is_name;
use timevisor_time::TimescaleId;

use super::RecordingError;

/// "TIMEVREC".
const MAGIC: [u8; 8] = *b"TIMEVREC";
/// Readers refuse any other version.
const VERSION: u32 = 1;
/// Bytes before the first record.
pub(super) const HEADER: usize = 128;
/// Bytes in a record.
pub(super) const RECORD: usize = 208;

/// Both as u16.
const SIZES: [u8; 4] = [128, 0, 208, 0];
const _: () = assert!(SIZES[0] as usize == HEADER && SIZES[2] as usize == RECORD);

/// Bytes at the end of a file that may be without a valid record: 80 minutes at one per second.
/// Records lost in a power failure are zeroes or torn.
pub(super) const MAX_TORN: usize = 5000 * RECORD;

const AT_VERSION: usize = 8;
const AT_SIZES: usize = 12;
const AT_HOST: usize = 16;
const AT_VM: usize = 32;
const AT_KIND: usize = 48;
const AT_NAME: usize = 56;
const AT_HEADER_CHECK: usize = HEADER - 4;

const AT_WORDS: usize = 8;
const AT_RECORD_CHECK: usize = RECORD - 4;

/// The clock that a recording belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Subject {
    pub(crate) host: [u8; 16],
    pub(crate) vm: [u8; 16],
    pub(crate) counter: CounterId,
    pub(crate) timescale: TimescaleId,
    pub(crate) name: String,
}

impl Subject {
    /// The subject of a page's entry, as it is now.
    pub(super) fn of_page(
        page: &Page,
        name: &str,
        counter: CounterId,
        timescale: TimescaleId,
    ) -> Self {
        let bytes = page.bytes();
        let id = |at: usize| core::array::from_fn(|index| bytes[at + index]);
        let (host, vm) = (id(header::AT_HOST_ID), id(header::AT_VM_ID));
        Self { host, vm, counter, timescale, name: name.to_owned() }
    }

    /// Whether both are the same timeline of the same machine. A VM stays the same on another host.
    pub(super) fn is_same_machine(&self, other: &Self) -> bool {
        let is_host = self.vm == [0; 16];
        self.vm == other.vm
            && (!is_host || self.host == other.host)
            && (self.counter, self.timescale) == (other.counter, other.timescale)
            && self.name == other.name
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(AT_VERSION, &VERSION.to_le_bytes());
        put(AT_SIZES, &SIZES);
        put(AT_HOST, &self.host);
        put(AT_VM, &self.vm);
        put(AT_KIND, &[self.counter as u8, self.timescale as u8]);
        put(AT_NAME, &self.name.as_bytes()[..self.name.len().min(32)]);
        let check = crc32(&bytes[..AT_HEADER_CHECK]).to_le_bytes();
        bytes[AT_HEADER_CHECK..].copy_from_slice(&check);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RecordingError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(RecordingError::NotARecording);
        }
        let version = bytes.get(AT_VERSION..AT_SIZES).ok_or(RecordingError::NotARecording)?;
        let version = u32::from_le_bytes(version.try_into().unwrap_or_default());
        if version != VERSION {
            return Err(RecordingError::Version(version));
        }
        let damaged = RecordingError::Damaged { at: 0 };
        let Some(bytes) = bytes.first_chunk::<HEADER>() else { return Err(damaged) };
        let check = crc32(&bytes[..AT_HEADER_CHECK]).to_le_bytes();
        let timescale = TimescaleId::from_u8(bytes[AT_KIND + 1]);
        let name = &bytes[AT_NAME..AT_NAME + 32];
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(32)];
        let (Some(timescale), Ok(name)) = (timescale, core::str::from_utf8(name)) else {
            return Err(damaged);
        };
        // Names are printed to terminals.
        if bytes[AT_HEADER_CHECK..] != check || !is_name(name) {
            return Err(damaged);
        }
        let id = |at: usize| core::array::from_fn(|index| bytes[at + index]);
        Ok(Self {
            host: id(AT_HOST),
            vm: id(AT_VM),
            counter: CounterId::from_u8(bytes[AT_KIND]),
            timescale,
            name: name.to_owned(),
        })
    }
}

/// One publication, and the last time at which it was seen in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// A counter value at which it was in force; not before its base.
    pub(super) seen: u64,
    pub(super) words: EntryWords,
}

impl Record {
    /// Whether the page's entry used the header's counter and timescale.
    pub(super) fn is_of(&self, subject: &Subject) -> bool {
        let [_, timescale, _, counter, ..] = self.words[entry::META].to_le_bytes();
        CounterId::from_u8(counter) == subject.counter
            && TimescaleId::from_u8(timescale) == Some(subject.timescale)
    }

    pub(super) fn encode(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..AT_WORDS].copy_from_slice(&self.seen.to_le_bytes());
        for (to, word) in bytes[AT_WORDS..].chunks_exact_mut(8).zip(self.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let check = crc32(&bytes[..AT_RECORD_CHECK]).to_le_bytes();
        bytes[AT_RECORD_CHECK..].copy_from_slice(&check);
        bytes
    }

    /// Decodes a record; `None` if the checksum does not match.
    pub(super) fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        if bytes[AT_RECORD_CHECK..] != crc32(&bytes[..AT_RECORD_CHECK]).to_le_bytes() {
            return None;
        }
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        Some(Self { seen: word(0), words: core::array::from_fn(|i| word(AT_WORDS + 8 * i)) })
    }

    /// Whether both records publish the same lines and status. The requirement on the timeline is
    /// not compared.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.words[entry::META..=entry::AS_OF] == other.words[entry::META..=entry::AS_OF]
    }
}

/// The number of bytes up to the end of the last valid record; the input starts with a record.
pub(super) fn valid_length(bytes: &[u8]) -> usize {
    let (records, _) = bytes.as_chunks::<RECORD>();
    let last = records.iter().rposition(|record| Record::decode(record).is_some());
    last.map_or(0, |last| (last + 1) * RECORD)
}

/// CRC-32 (IEEE 802.3), as of zlib and PNG.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let (mut table, mut index) = ([0; 256], 0u32);
        while index < 256 {
            let (mut value, mut bit) = (index, 0);
            while bit < 8 {
                value = if value & 1 == 1 { (value >> 1) ^ 0xedb8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[index as usize] = value;
            index += 1;
        }
        table
    };
    let step = |crc: u32, byte: &u8| TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8);
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    /// docs/reference/recordings.md shows these bytes.
    #[test]
    fn golden_bytes() {
        let subject = Subject {
            host: [0xa5; 16],
            vm: [0; 16],
            counter: CounterId::X86Tsc,
            timescale: TimescaleId::Tai,
            name: "tai".to_owned(),
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let header = subject.encode();
        assert_eq!(hex(&header[..16]), "54494d4556524543010000008000d000");
        assert_eq!(hex(&header[48..64]), "01010000000000007461690000000000");
        assert_eq!(Subject::decode(&header).unwrap(), subject);
        for name in ["", "a name", "\u{1b}[2Jtai", "t\u{e4}i"] {
            let hostile = Subject { name: name.to_owned(), ..subject.clone() };
            let refused = Subject::decode(&hostile.encode());
            assert!(matches!(refused, Err(RecordingError::Damaged { at: 0 })), "{name:?}");
        }
        let record = Record { seen: 0x1122, words: core::array::from_fn(|i| i as u64) };
        let bytes = record.encode();
        assert_eq!(hex(&bytes[..24]), "221100000000000000000000000000000100000000000000");
        assert_eq!(bytes.len(), 208);
        assert_eq!(Record::decode(&bytes), Some(record));
    }
}
