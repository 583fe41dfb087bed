//! Splits a byte stream into lines of bounded length, without I/O.
//!
//! What it does not do: decode. A line that exceeds the limit is reported once, as soon as it does,
//! and skipped to its end, so that memory stays bounded whatever the peer sends.

use std::mem;

/// A line exceeded the limit of its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a line exceeds {max} bytes; the peer does not speak this protocol or the message must be split"
)]
pub struct LineTooLong {
    /// The limit, without the line end.
    pub max: usize,
}

/// Collects bytes into lines. A line ends in `\n` or `\r\n`; neither is part of it.
#[derive(Clone, Debug)]
pub struct LineReader {
    max: usize,
    partial: Vec<u8>,
    /// Inside a line that was reported as too long.
    skipping: bool,
}

impl LineReader {
    /// A splitter for lines of up to `max` bytes, not counting the line end.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { max, partial: Vec::new(), skipping: false }
    }

    /// Takes what was read and returns the lines that are now complete, in order.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, LineTooLong>> {
        let mut lines = Vec::new();
        let mut pieces = bytes.split(|b| *b == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            let ends = pieces.peek().is_some();
            self.extend(piece, ends, &mut lines);
        }
        lines
    }

    /// Bytes of an unfinished line: if this is not 0 at the end of the stream, a message was cut
    /// off.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.partial.len()
    }

    fn extend(&mut self, piece: &[u8], ends: bool, lines: &mut Vec<Result<Vec<u8>, LineTooLong>>) {
        if !self.skipping {
            self.partial.extend_from_slice(piece);
            // The `\r` of a line end may lie just beyond the limit; this is checked when the line
            // ends.
            let content = self.partial.strip_suffix(b"\r").map_or(self.partial.len(), <[u8]>::len);
            if content > self.max {
                self.partial = Vec::new();
                self.skipping = true;
                lines.push(Err(LineTooLong { max: self.max }));
            } else if ends {
                self.partial.truncate(content);
                lines.push(Ok(mem::take(&mut self.partial)));
            }
        }
        self.skipping &= !ends;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ok(line: &str) -> Result<Vec<u8>, LineTooLong> {
        Ok(line.as_bytes().to_vec())
    }

    #[test]
    fn lines_in_pieces() {
        let mut reader = LineReader::new(10);
        assert_eq!(reader.feed(b"one\ntw"), [ok("one")]);
        assert_eq!(reader.pending(), 2);
        assert_eq!(reader.feed(b"o\r"), []);
        assert_eq!(reader.feed(b"\n\nthree\n"), [ok("two"), ok(""), ok("three")]);
        assert_eq!(reader.pending(), 0);
    }

    #[test]
    fn a_long_line_is_reported_once_and_skipped() {
        let long = Err(LineTooLong { max: 4 });
        let mut reader = LineReader::new(4);
        assert_eq!(reader.feed(b"1234\r\n12345"), [ok("1234"), long.clone()]);
        assert_eq!(reader.feed(b"6789"), []);
        assert_eq!(reader.pending(), 0);
        assert_eq!(reader.feed(b"0\nnext\n"), [ok("next")]);
        assert_eq!(reader.feed(b"1234\rx\nnext\n"), [long, ok("next")]);
    }

    proptest! {
        #[test]
        fn how_the_stream_is_cut_does_not_matter(
            stream in prop::collection::vec(prop::sample::select(b"ab\r\n".to_vec()), 0..60),
            cuts in prop::collection::vec(0usize..60, 0..6),
        ) {
            let mut whole = LineReader::new(5);
            let expected = whole.feed(&stream);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(stream.len())).chain([0, stream.len()]).collect();
            cuts.sort_unstable();
            let mut pieces = LineReader::new(5);
            let got: Vec<_> = cuts.windows(2).flat_map(|w| pieces.feed(&stream[w[0]..w[1]])).collect();
            prop_assert_eq!(got, expected);
            prop_assert!(pieces.pending() <= 6);
        }

        #[test]
        fn short_lines_come_back_as_sent(lines in prop::collection::vec("[a-z]{0,9}", 0..8)) {
            let stream: String = lines.iter().map(|l| format!("{l}\n")).collect();
            let got = LineReader::new(9).feed(stream.as_bytes());
            prop_assert_eq!(got, lines.iter().map(|l| ok(l)).collect::<Vec<_>>());
        }
    }
}
