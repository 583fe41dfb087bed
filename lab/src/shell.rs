//! The host's side of the lab port while the guest serves it: sends one line of shell, and receives
//! its status and output.
//!
//! The guest's side is `serve` in `init.sh`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::interrupt::{self, Late};

/// Sends `line` and waits for its status and output. If they do not arrive in time, the port cannot
/// be used any more.
pub(crate) fn exchange(
    port: &mut UnixStream,
    line: &str,
    timeout: Duration,
) -> anyhow::Result<(i32, String)> {
    port.write_all(format!("{line}\n").as_bytes())?;
    port.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    let answer = interrupt::poll_until(timeout, || {
        match port.read(&mut buffer) {
            Ok(0) => bail!("QEMU closed the lab port"),
            Ok(n) => received.extend(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e.into()),
        }
        parse_answer(&received)
    })?;
    if answer.is_none() {
        // A late answer would be taken for the answer to the next line.
        port.shutdown(Shutdown::Both)?;
    }
    answer.context(Late).with_context(|| format!("no answer within {timeout:?}"))
}

/// Parses `STATUS LENGTH\n` and LENGTH bytes of output, once all of them have arrived.
fn parse_answer(received: &[u8]) -> anyhow::Result<Option<(i32, String)>> {
    let Some(end) = received.iter().position(|b| *b == b'\n') else { return Ok(None) };
    let head = String::from_utf8_lossy(&received[..end]);
    let (status, length) =
        head.split_once(' ').with_context(|| format!("odd answer from the guest: {head:?}"))?;
    let (status, length): (i32, usize) = (status.parse()?, length.trim().parse()?);
    let output = received[end + 1..].get(..length);
    Ok(output.map(|output| (status, String::from_utf8_lossy(output).into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_whole() {
        assert_eq!(parse_answer(b"0 ").unwrap(), None);
        assert_eq!(parse_answer(b"0 3\nab").unwrap(), None);
        assert_eq!(parse_answer(b"7 3\nab\n").unwrap(), Some((7, "ab\n".into())));
        assert!(parse_answer(b"nonsense\n").is_err());
    }
}
