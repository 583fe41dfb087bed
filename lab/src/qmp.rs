//! A blocking QMP client for the tests: commands, and events as they arrive.
//!
//! The daemon has its own client; this one lets a test check the daemon independently. Out-of-band
//! execution is not supported.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};

use crate::interrupt::{self, Late};

/// The time limit for the answer to a command; a TCG guest on a busy machine needs at most a
/// second.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection to one QEMU, with capabilities negotiated.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    partial: Vec<u8>,
    events: VecDeque<Value>,
}

impl Qmp {
    /// Negotiates capabilities on a connection to a QMP socket.
    ///
    /// # Errors
    /// When the other side does not speak QMP.
    pub fn new(stream: UnixStream) -> anyhow::Result<Self> {
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        let mut qmp =
            Self { reader: BufReader::new(stream), partial: Vec::new(), events: VecDeque::new() };
        let greeting = qmp.next_message(ANSWER)?.context("no QMP greeting")?;
        if greeting.get("QMP").is_none() {
            bail!("not a QMP greeting: {greeting}");
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// When nothing listens there or it does not speak QMP.
    pub fn connect(path: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("cannot connect to QMP at {}", path.display()))?;
        Self::new(stream)
    }

    /// Runs `command` and returns its result.
    ///
    /// # Errors
    /// When QEMU refuses it or does not answer.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> anyhow::Result<Value> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes()).context("QMP connection lost")?;
        loop {
            let message = self
                .next_message(ANSWER)?
                .context(Late)
                .with_context(|| format!("QEMU did not answer {command}"))?;
            if let Some(result) = message.get("return") {
                return Ok(result.clone());
            }
            if let Some(error) = message.get("error") {
                let text = error.get("desc").and_then(Value::as_str).unwrap_or("no description");
                bail!("QEMU refused {command}: {text}");
            }
            self.events.push_back(message);
        }
    }

    /// Runs `command` without arguments.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn run(&mut self, command: &str) -> anyhow::Result<Value> {
        self.execute(command, &json!({}))
    }

    /// Waits for the event `name`, which may already have arrived, and returns it whole. Earlier
    /// events are dropped.
    ///
    /// # Errors
    /// When it does not come within `timeout`.
    pub fn wait_event(&mut self, name: &str, timeout: Duration) -> anyhow::Result<Value> {
        let end = Instant::now() + timeout;
        loop {
            let event = self
                .next_event(end.saturating_duration_since(Instant::now()))
                .with_context(|| format!("waiting {timeout:?} for {name}"))?;
            if event.get("event").and_then(Value::as_str) == Some(name) {
                return Ok(event);
            }
        }
    }

    /// The next event, whole, in the order QEMU sent them.
    ///
    /// # Errors
    /// When none comes within `timeout`.
    pub fn next_event(&mut self, timeout: Duration) -> anyhow::Result<Value> {
        match self.events.pop_front() {
            Some(event) => Ok(event),
            None => self.next_message(timeout)?.context("no QMP event came"),
        }
    }

    fn next_message(&mut self, timeout: Duration) -> anyhow::Result<Option<Value>> {
        let Self { reader, partial, .. } = self;
        interrupt::poll_until(timeout, || match reader.read_until(b'\n', partial) {
            Ok(0) => Err(anyhow!("QEMU closed the QMP connection")),
            Ok(_) if partial.ends_with(b"\n") => {
                let message = serde_json::from_slice(partial).context("QEMU sent no JSON")?;
                partial.clear();
                Ok(Some(message))
            }
            Ok(_) => Ok(None),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(e) => Err(e).context("QMP connection lost"),
        })
    }
}
