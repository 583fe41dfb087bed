//! What may follow the header: extension fields and a MAC (RFC 5905 section 7.5 as replaced by RFC
//! 7822).
//!
//! Length alone tells the two apart: a last field without a MAC has at least 28 bytes, a MAC at
//! most 24.
//!
//! What it does not do: interpret a field or verify a MAC. The plain client needs neither; it only
//! refuses packets with a malformed end.

/// Key id alone: a crypto-NAK.
const CRYPTO_NAK_LEN: usize = 4;
/// Key id and a 16-byte digest (MD5, AES-CMAC).
const SHORT_MAC_LEN: usize = 20;
/// Key id and a 20-byte digest (SHA-1).
const LONG_MAC_LEN: usize = 24;
/// The shortest legal field: type, length, 12 bytes of value.
const MIN_FIELD_LEN: usize = 16;

/// One extension field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtensionField<'a> {
    /// The field type.
    pub kind: u16,
    /// The value with its padding; type and length are not in it.
    pub body: &'a [u8],
}

/// Everything after the header.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tail<'a> {
    /// In the order of the packet.
    pub fields: Vec<ExtensionField<'a>>,
    /// Key id and digest, unverified.
    pub mac: Option<&'a [u8]>,
}

/// Bytes after the header that are neither extension fields nor a MAC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TailError {
    /// A field's length is below 16, not a multiple of 4, or beyond the packet.
    #[error(
        "extension field at byte {at} claims {len} bytes of {left}; the packet is damaged or not NTP"
    )]
    FieldLength {
        /// Offset from the end of the header.
        at: usize,
        /// What the field claims.
        len: usize,
        /// What the packet still holds.
        left: usize,
    },
    /// Too short for a field and not the length of a MAC.
    #[error(
        "{left} bytes at the end are neither an extension field nor a MAC; the packet is damaged or not NTP"
    )]
    Remainder {
        /// Bytes left over.
        left: usize,
    },
}

/// Splits the bytes after the header without an allocation: iterates over the fields, and then
/// knows the MAC. Nothing follows an error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    total: usize,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Starts at the end of the header.
    #[must_use]
    pub const fn new(tail: &'a [u8]) -> Self {
        Self { total: tail.len(), rest: tail }
    }

    /// The MAC behind the fields that were iterated over.
    ///
    /// # Errors
    /// When what is left has not the length of a MAC.
    pub const fn mac(&self) -> Result<Option<&'a [u8]>, TailError> {
        match self.rest.len() {
            0 => Ok(None),
            CRYPTO_NAK_LEN | SHORT_MAC_LEN | LONG_MAC_LEN => Ok(Some(self.rest)),
            left => Err(TailError::Remainder { left }),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<ExtensionField<'a>, TailError>;

    fn next(&mut self) -> Option<Self::Item> {
        let [kind_hi, kind_lo, len_hi, len_lo, ..] = *self.rest else { return None };
        let left = self.rest.len();
        if left <= LONG_MAC_LEN {
            return None;
        }
        let len = usize::from(u16::from_be_bytes([len_hi, len_lo]));
        if len < MIN_FIELD_LEN || !len.is_multiple_of(4) || len > left {
            let at = self.total - left;
            self.rest = &[];
            return Some(Err(TailError::FieldLength { at, len, left }));
        }
        let (field, rest) = self.rest.split_at(len);
        self.rest = rest;
        let kind = u16::from_be_bytes([kind_hi, kind_lo]);
        Some(Ok(ExtensionField { kind, body: &field[4..] }))
    }
}

impl<'a> Tail<'a> {
    /// Splits the bytes after the header.
    ///
    /// # Errors
    /// [`TailError`] says which length does not fit.
    pub fn parse(tail: &'a [u8]) -> Result<Self, TailError> {
        let mut rest = Fields::new(tail);
        let fields = rest.by_ref().collect::<Result<_, _>>()?;
        Ok(Self { fields, mac: rest.mac()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(kind: u16, len: u16) -> Vec<u8> {
        let mut bytes = vec![0xab; usize::from(len)];
        bytes[..2].copy_from_slice(&kind.to_be_bytes());
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    #[test]
    fn nothing_a_mac_or_a_crypto_nak() {
        assert_eq!(Tail::parse(&[]), Ok(Tail::default()));
        for len in [4, 20, 24] {
            let bytes = vec![7; len];
            assert_eq!(Tail::parse(&bytes), Ok(Tail { fields: vec![], mac: Some(&bytes[..]) }));
        }
    }

    #[test]
    fn fields_then_a_mac() {
        let bytes = [field(0x0104, 36), field(0x0204, 16), vec![9; 20]].concat();
        let tail = Tail::parse(&bytes).unwrap();
        assert_eq!(
            tail.fields.iter().map(|f| (f.kind, f.body.len())).collect::<Vec<_>>(),
            [(0x0104, 32), (0x0204, 12)]
        );
        assert_eq!(tail.mac, Some(&[9; 20][..]));
    }

    #[test]
    fn bad_lengths_are_refused() {
        // A length of zero must not loop forever.
        assert_eq!(Tail::parse(&[0; 28]), Err(TailError::FieldLength { at: 0, len: 0, left: 28 }));
        let beyond = [field(1, 28), field(2, 64)[..40].to_vec()].concat();
        assert_eq!(Tail::parse(&beyond), Err(TailError::FieldLength { at: 28, len: 64, left: 40 }));
        let odd = [vec![0, 1, 0, 30], vec![0; 30]].concat();
        assert_eq!(Tail::parse(&odd), Err(TailError::FieldLength { at: 0, len: 30, left: 34 }));
        for left in [1, 3, 8, 16, 23] {
            assert_eq!(Tail::parse(&vec![0; left]), Err(TailError::Remainder { left }));
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_loses_no_byte(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(tail) = Tail::parse(&bytes) {
                let fields: usize = tail.fields.iter().map(|f| f.body.len() + 4).sum();
                prop_assert_eq!(fields + tail.mac.map_or(0, <[u8]>::len), bytes.len());
            }
        }

        #[test]
        fn well_formed_tails_parse(lens in prop::collection::vec(7u16..40, 1..10), mac in any::<bool>()) {
            let mut bytes: Vec<u8> = lens.iter().enumerate().flat_map(|(i, n)| field(u16::try_from(i).unwrap(), n * 4)).collect();
            bytes.extend(vec![1; if mac { 20 } else { 0 }]);
            let tail = Tail::parse(&bytes).unwrap();
            prop_assert_eq!(tail.fields.len(), lens.len());
            prop_assert_eq!(tail.mac.is_some(), mac);
        }
    }
}
