//! Little-endian fields in a byte string, for formats of our own.
//!
//! What it does not do: allocate what a length field claims before the bytes are there.

/// Bytes that are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BytesError {
    /// They end in the middle of a field.
    #[error("it is cut short")]
    Short,
    /// Bytes follow the last field.
    #[error("{0} bytes follow it")]
    Trailing(usize),
    /// A value that is not defined.
    #[error("{0} is not a valid value of a field")]
    Value(u8),
    /// More than allowed.
    #[error("a field has {0} entries, more than allowed")]
    TooLong(usize),
    /// Not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

/// Appends fields.
#[derive(Clone, Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// One byte.
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// One byte, 0 or 1.
    pub fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Sixteen bytes.
    pub fn i128(&mut self, value: i128) {
        self.0.extend(value.to_le_bytes());
    }

    /// A length of one byte, then so many bytes. Texts longer than 255 bytes are cut.
    pub fn short_text(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let bytes = &bytes[..bytes.len().min(255)];
        self.byte(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
        self.0.extend(bytes);
    }

    /// A length of four bytes, then so many bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend(bytes);
    }

    /// How many entries follow, in four bytes.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }
}

/// Takes fields off the front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// So many bytes.
    ///
    /// # Errors
    /// [`BytesError::Short`].
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], BytesError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(BytesError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// So many bytes, known when compiling.
    ///
    /// # Errors
    /// [`BytesError::Short`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], BytesError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BytesError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`BytesError::Short`].
    pub fn byte(&mut self) -> Result<u8, BytesError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// One byte, 0 or 1.
    ///
    /// # Errors
    /// It is cut short, or another value.
    pub fn flag(&mut self) -> Result<bool, BytesError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(BytesError::Value(other)),
        }
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`BytesError::Short`].
    pub fn u16(&mut self) -> Result<u16, BytesError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`BytesError::Short`].
    pub fn u32(&mut self) -> Result<u32, BytesError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`BytesError::Short`].
    pub fn u64(&mut self) -> Result<u64, BytesError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// [`BytesError::Short`].
    pub fn i128(&mut self) -> Result<i128, BytesError> {
        self.array().map(i128::from_le_bytes)
    }

    /// As [`Writer::short_text`] writes it.
    ///
    /// # Errors
    /// It is cut short, or no UTF-8.
    pub fn short_text(&mut self) -> Result<&'a str, BytesError> {
        let length = usize::from(self.byte()?);
        std::str::from_utf8(self.take(length)?).map_err(|_| BytesError::Text)
    }

    /// As [`Writer::bytes`] writes it, at most so many.
    ///
    /// # Errors
    /// It is cut short, or too long.
    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8], BytesError> {
        let length = self.count(most)?;
        self.take(length)
    }

    /// How many entries follow, at most so many.
    ///
    /// # Errors
    /// It is cut short, or too many.
    pub fn count(&mut self, most: usize) -> Result<usize, BytesError> {
        let count = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if count <= most { Ok(count) } else { Err(BytesError::TooLong(count)) }
    }

    /// Nothing may follow.
    ///
    /// # Errors
    /// [`BytesError::Trailing`].
    pub fn end(self) -> Result<(), BytesError> {
        if self.0.is_empty() { Ok(()) } else { Err(BytesError::Trailing(self.0.len())) }
    }
}
