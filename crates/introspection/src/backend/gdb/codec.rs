//! Packets (GDB manual, "Overview" of the remote protocol): `$body#checksum`, acknowledged by `+`.
//! Run-length encoding is rejected, because QEMU does not use it.

/// Maximum size of a packet; larger than QEMU's (MAX_PACKET_LENGTH of gdbstub, 131,104 from 8.2
/// on).
const MAX_PACKET: usize = 256 << 10;

/// What is wrong with the bytes that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The packet is too long.
    #[error("a packet of more than {MAX_PACKET} bytes")]
    Length,
    /// The checksum is wrong.
    #[error("a packet with a wrong checksum")]
    Checksum,
    /// Unexpected byte between packets.
    #[error("byte {0:#04x} where a packet begins")]
    Byte(u8),
    /// The stub asks for a retransmission.
    #[error("it did not understand a packet")]
    Refused,
    /// The packet uses run-length encoding.
    #[error("a packet with repeated bytes")]
    Repeated,
}

/// Encodes a packet.
#[must_use]
pub fn packet(body: &str) -> Vec<u8> {
    let sum = body.bytes().fold(0u8, u8::wrapping_add);
    format!("${body}#{sum:02x}").into_bytes()
}

/// Splits bytes into the bodies of packets.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// This many bytes have been searched and contain no end of a packet.
    looked: usize,
}

impl Decoder {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The unescaped body of the next packet, once it is complete.
    ///
    /// # Errors
    /// When the bytes are not a packet. Nothing that follows can be trusted.
    pub fn body(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let acknowledged = self.bytes.iter().take_while(|byte| **byte == b'+').count();
        if self.looked == 0 {
            self.bytes.drain(..acknowledged);
        }
        match self.bytes.first() {
            None => return Ok(None),
            Some(b'$') => {}
            Some(b'-') => return Err(Fault::Refused),
            Some(other) => return Err(Fault::Byte(*other)),
        }
        let end = self.bytes[self.looked..].iter().position(|byte| *byte == b'#');
        let Some(end) = end.map(|end| end + self.looked) else {
            self.looked = self.bytes.len();
            return if self.looked > MAX_PACKET { Err(Fault::Length) } else { Ok(None) };
        };
        self.looked = end;
        let Some(sum) = self.bytes.get(end + 1..end + 3) else { return Ok(None) };
        let body = &self.bytes[1..end];
        let is = body.iter().copied().fold(0u8, u8::wrapping_add);
        if bytes(sum).as_deref() != Some(&[is]) {
            return Err(Fault::Checksum);
        }
        let body = unescape(body)?;
        self.bytes.drain(..end + 3);
        self.looked = 0;
        Ok(Some(body))
    }
}

fn unescape(body: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut all = Vec::with_capacity(body.len());
    let mut left = body.iter();
    while let Some(byte) = left.next() {
        match byte {
            b'*' => return Err(Fault::Repeated),
            b'}' => all.extend(left.next().map(|escaped| escaped ^ 0x20)),
            other => all.push(*other),
        }
    }
    Ok(all)
}

/// Decodes pairs of hexadecimal digits.
#[must_use]
pub fn bytes(hex: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = hex.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Why and where a VM has stopped, from `T05thread:01;`: the signal, and the thread as the stub
/// writes it.
#[must_use]
pub fn stop(body: &[u8]) -> Option<(u8, u16)> {
    let [b'T', high, low, rest @ ..] = body else { return None };
    let [signal] = bytes(&[*high, *low])?[..] else { return None };
    let mut fields = rest.split(|byte| *byte == b';');
    let thread = fields.find_map(|field| field.strip_prefix(b"thread:"))?;
    let thread = u16::from_str_radix(core::str::from_utf8(thread).ok()?, 16).ok()?;
    Some((signal, thread))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_there_and_back() {
        // The GDB manual's example of a checksum is for "OK".
        assert_eq!(packet("OK"), b"$OK#9a");
        let mut decoder = Decoder::default();
        decoder.push(b"++$OK#9");
        assert_eq!(decoder.body(), Ok(None));
        decoder.push(b"a+$}\x03}]#");
        assert_eq!(decoder.body(), Ok(Some(b"OK".to_vec())));
        assert_eq!(decoder.body(), Ok(None));
        decoder.push(b"5a");
        assert_eq!(decoder.body(), Ok(Some(b"#}".to_vec())));
        assert_eq!(decoder.body(), Ok(None));
    }

    #[test]
    fn what_is_no_packet() {
        let fault = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            decoder.body().unwrap_err()
        };
        assert_eq!(fault(b"$OK#9b"), Fault::Checksum);
        assert_eq!(fault(b"$OK#zz"), Fault::Checksum);
        assert_eq!(fault(b"-"), Fault::Refused);
        assert_eq!(fault(b"x"), Fault::Byte(b'x'));
        assert_eq!(fault(b"$0* #7a"), Fault::Repeated);
        assert_eq!(fault(&[&b"$"[..], &vec![b'a'; MAX_PACKET]].concat()), Fault::Length);
    }

    #[test]
    fn stops() {
        assert_eq!(stop(b"T05thread:0a;"), Some((5, 10)));
        assert_eq!(stop(b"T02hwbreak:;thread:1;core:0;"), Some((2, 1)));
        for odd in [&b"T05"[..], b"S05", b"T5", b"T05thread:;", b"T05thread:123456;", b"OK", b""] {
            assert_eq!(stop(odd), None);
        }
        assert_eq!(bytes(b"00fF"), Some(vec![0, 255]));
        assert_eq!((bytes(b"0"), bytes(b"0g"), bytes(b"xx")), (None, None, None));
    }

    proptest! {
        #[test]
        fn how_a_stream_is_cut_does_not_matter(bodies in prop::collection::vec("[a-z0-9;:]{0,40}", 0..6), cut in 1usize..9) {
            let stream: Vec<u8> = bodies.iter().flat_map(|body| packet(body)).collect();
            let (mut decoder, mut all) = (Decoder::default(), Vec::new());
            for piece in stream.chunks(cut) {
                decoder.push(piece);
                while let Some(body) = decoder.body().unwrap() {
                    all.push(String::from_utf8(body).unwrap());
                }
            }
            prop_assert_eq!(all, bodies);
        }
    }
}
