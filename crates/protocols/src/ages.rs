//! How a process asks timevisord for the age of one of its threads: one message of fixed size each
//! way, over a socket of packets (SOCK_SEQPACKET).
//!
//! Two descriptors come with [`Answer::Given`], those of the maps of records; the registration ends
//! with the connection. What it does not do: say what is in the maps (crates/linux/src/bpf).

/// Name of the socket in the run directory.
pub const SOCKET: &str = "ages";
/// Bytes of a request.
pub const REQUEST: usize = 16;
/// Bytes of an answer.
pub const ANSWER: usize = 512;

/// First bytes of every message; the last one is the version.
const MAGIC: [u8; 8] = *b"TVAGES\0\x01";
/// Where the text of an answer begins.
const TEXT: usize = 24;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// A record for the sender's thread with this id, as the sender sees it (gettid).
    Register(u32),
    /// By what this host counts threads' ages.
    Source,
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The thread has a record.
    Given {
        /// Its place among the records.
        place: u32,
        /// The thread's id in the initial pid namespace, which the record names.
        tid: u32,
    },
    /// By what this host counts threads' ages, and why.
    Source(String),
    /// Why not, and the next step.
    Refused(String),
}

impl Request {
    /// As bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REQUEST] {
        let (what, tid) = match self {
            Self::Register(tid) => (1u32, tid),
            Self::Source => (2, 0),
        };
        let mut bytes = [0; REQUEST];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&what.to_le_bytes());
        bytes[12..].copy_from_slice(&tid.to_le_bytes());
        bytes
    }

    /// From bytes; `None` if they are no request of this version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC {
            return None;
        }
        match (word(bytes, 8)?, word(bytes, 12)?) {
            (1, tid) if tid != 0 => Some(Self::Register(tid)),
            (2, 0) => Some(Self::Source),
            _ => None,
        }
    }
}

impl Answer {
    /// As bytes. A text that is too long is cut.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ANSWER] {
        let (what, place, tid, text) = match self {
            Self::Given { place, tid } => (1u32, *place, *tid, ""),
            Self::Source(text) => (2, 0, 0, text.as_str()),
            Self::Refused(text) => (3, 0, 0, text.as_str()),
        };
        let mut bytes = [0; ANSWER];
        bytes[..8].copy_from_slice(&MAGIC);
        for (at, word) in [(8, what), (12, place), (16, tid)] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let mut end = text.len().min(ANSWER - TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let length = u32::try_from(end).unwrap_or(0);
        bytes[20..TEXT].copy_from_slice(&length.to_le_bytes());
        bytes[TEXT..TEXT + end].copy_from_slice(&text.as_bytes()[..end]);
        bytes
    }

    /// From bytes; `None` if they are no answer of this version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ANSWER] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC {
            return None;
        }
        let length = usize::try_from(word(bytes, 20)?).ok()?;
        let text = bytes.get(TEXT..TEXT.checked_add(length)?)?;
        let text = || String::from_utf8(text.to_vec()).ok();
        match word(bytes, 8)? {
            1 => Some(Self::Given { place: word(bytes, 12)?, tid: word(bytes, 16)? }),
            2 => text().map(Self::Source),
            3 => text().map(Self::Refused),
            _ => None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_stay_the_same() {
        let bytes = *b"TVAGES\0\x01\x01\0\0\0\x34\x12\0\0";
        assert_eq!(Request::Register(0x1234).to_bytes(), bytes);
        assert_eq!(Request::from_bytes(&bytes), Some(Request::Register(0x1234)));
        let answer = Answer::Refused("no".to_owned()).to_bytes();
        assert_eq!(&answer[..26], b"TVAGES\0\x01\x03\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0no");
        assert_eq!(Answer::from_bytes(&answer), Some(Answer::Refused("no".to_owned())));
    }

    #[test]
    fn every_message_comes_back() {
        for request in [Request::Register(1), Request::Register(u32::MAX), Request::Source] {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        }
        for answer in [
            Answer::Given { place: 3, tid: 9 },
            Answer::Source("bpf".to_owned()),
            Answer::Refused(String::new()),
        ] {
            assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        }
        let long = Answer::Refused("\u{e4}".repeat(1000));
        let Some(Answer::Refused(cut)) = Answer::from_bytes(&long.to_bytes()) else { panic!() };
        assert_eq!(cut, "\u{e4}".repeat((ANSWER - TEXT) / 2));
        assert_eq!(Request::from_bytes(&Request::Register(0).to_bytes()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..600), answer in any::<bool>()) {
            let mut message = if answer { Answer::Source("x".to_owned()).to_bytes().to_vec() } else { Request::Source.to_bytes().to_vec() };
            for (at, byte) in message.iter_mut().skip(8).zip(&bytes) {
                *at = *byte;
            }
            let _ = (Request::from_bytes(&message), Answer::from_bytes(&message));
            let _ = (Request::from_bytes(&bytes), Answer::from_bytes(&bytes));
        }
    }
}
