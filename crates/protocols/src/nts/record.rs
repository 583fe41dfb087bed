//! The records of NTS key establishment (RFC 8915 section 4): type, critical bit, body.
//!
//! What it does not do: know which records a message must have. [`super::negotiation`] does.

/// Type and length.
pub const HEADER_LEN: usize = 4;

/// The bit in front of the type: a receiver that does not know the type must give up.
const CRITICAL: u16 = 0x8000;

/// RFC 8915 section 4.1.1.
pub const END_OF_MESSAGE: u16 = 0;
/// RFC 8915 section 4.1.2.
pub const NEXT_PROTOCOL: u16 = 1;
/// RFC 8915 section 4.1.3.
pub const ERROR: u16 = 2;
/// RFC 8915 section 4.1.4.
pub const WARNING: u16 = 3;
/// RFC 8915 section 4.1.5.
pub const AEAD_ALGORITHM: u16 = 4;
/// RFC 8915 section 4.1.6.
pub const NEW_COOKIE: u16 = 5;
/// RFC 8915 section 4.1.7.
pub const NTP_SERVER: u16 = 6;
/// RFC 8915 section 4.1.8.
pub const NTP_PORT: u16 = 7;

/// One record. The body is unchecked, as it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The receiver must understand the record or refuse the message.
    pub critical: bool,
    /// The type, 15 bits.
    pub kind: u16,
    /// At most 65,535 bytes.
    pub body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Splits one record off the front; `None` while it is incomplete.
    #[must_use]
    pub fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let [kind_hi, kind_lo, len_hi, len_lo] = *header;
        let kind = u16::from_be_bytes([kind_hi, kind_lo]);
        let len = usize::from(u16::from_be_bytes([len_hi, len_lo]));
        let (body, rest) = rest.split_at_checked(len)?;
        Some((Self { critical: kind & CRITICAL != 0, kind: kind & !CRITICAL, body }, rest))
    }

    /// Returns the body as a list of 16-bit numbers; `None` if its length is odd.
    #[must_use]
    pub fn numbers(&self) -> Option<Vec<u16>> {
        let (pairs, odd) = self.body.as_chunks::<2>();
        odd.is_empty().then(|| pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect())
    }

    /// Returns the body as exactly one 16-bit number.
    #[must_use]
    pub fn number(&self) -> Option<u16> {
        Some(u16::from_be_bytes(self.body.try_into().ok()?))
    }

    /// Appends the record to a message. A body beyond 65,535 bytes is truncated; no caller makes
    /// one.
    pub fn write(&self, message: &mut Vec<u8>) {
        let kind = self.kind | if self.critical { CRITICAL } else { 0 };
        let len = u16::try_from(self.body.len()).unwrap_or(u16::MAX);
        message.extend(kind.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(&self.body[..usize::from(len)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_critical_bit_is_not_part_of_the_type() {
        let (record, rest) = Record::split(&[0x80, 0x01, 0, 2, 0, 0, 9]).unwrap();
        assert_eq!(record, Record { critical: true, kind: NEXT_PROTOCOL, body: &[0, 0] });
        assert_eq!((record.number(), rest), (Some(0), &[9][..]));
        let (record, _) = Record::split(&[0x00, 0x01, 0, 0]).unwrap();
        assert_eq!((record.critical, record.kind), (false, NEXT_PROTOCOL));
    }

    #[test]
    fn numbers_have_two_bytes_each() {
        let record = |body| Record { critical: false, kind: AEAD_ALGORITHM, body };
        assert_eq!(record(&[0, 15, 0, 30]).numbers(), Some(vec![15, 30]));
        assert_eq!(record(&[]).numbers(), Some(vec![]));
        assert_eq!(record(&[0, 15, 0]).numbers(), None);
        assert_eq!(record(&[0, 15, 0, 30]).number(), None);
    }

    proptest! {
        #[test]
        fn records_round_trip_and_no_prefix_is_one(
            critical in any::<bool>(), kind in 0u16..0x8000, body in prop::collection::vec(any::<u8>(), 0..80), cut in any::<prop::sample::Index>(),
        ) {
            let record = Record { critical, kind, body: &body };
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            prop_assert_eq!(Record::split(&bytes), Some((record, &[][..])));
            prop_assert_eq!(Record::split(&bytes[..cut.index(bytes.len())]), None);
        }
    }
}
