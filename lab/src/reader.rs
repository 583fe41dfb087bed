//! The guest's lab-reader and the host's own page, both as seen from the host.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{Reader, Reading};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;

/// The virtio-serial port on which the guest's program listens.
pub const PORT: &str = "org.timevisor.reader";
/// The shell line that starts it in the guest.
pub const SNIPPET: &str = "lab-reader /dev/virtio-ports/org.timevisor.reader &\n";

/// A connection to a guest's lab-reader.
#[derive(Debug)]
pub struct GuestReader {
    stream: BufReader<UnixStream>,
}

impl GuestReader {
    /// Connects to the port's socket on the host.
    ///
    /// # Errors
    /// When QEMU does not listen there.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("no reader port at {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(40)))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request and parses the answer.
    ///
    /// # Errors
    /// When the guest does not answer, or answers with an error.
    pub fn ask(&mut self, request: &str) -> anyhow::Result<Value> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        self.answer()
    }

    /// Waits for another answer (from a migrated guest, at its new port), and parses it.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("the guest's reader does not answer")?;
        let value: Value =
            serde_json::from_str(&line).with_context(|| format!("the guest answered {line:?}"))?;
        if let Some(error) = value["error"].as_str() {
            bail!("the guest: {error}");
        }
        Ok(value)
    }
}

/// The host's own page, read as any program on the host would read it.
pub struct HostPage(Reader<ReadPage, HostCounter>);

impl HostPage {
    /// Opens `clock` in a run directory.
    ///
    /// # Errors
    /// When there is no page.
    pub fn open(run_directory: &Path) -> anyhow::Result<Self> {
        Self::entry(run_directory, 0)
    }

    /// Opens a further entry of that page: a timeline that somebody is bound to.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn entry(run_directory: &Path, index: usize) -> anyhow::Result<Self> {
        let path: PathBuf = run_directory.join("clock");
        let page = ReadPage::new(page_file::open(&path)?)?;
        let counter = HostCounter::for_reader(counter_of(&page, index))
            .context("the page wants another counter")?;
        Ok(Self(Reader::open(page, counter, index)?))
    }

    /// Reads the page at the current counter value.
    ///
    /// # Errors
    /// When the daemon died during an update.
    pub fn read(&self) -> anyhow::Result<Reading> {
        Ok(self.0.read()?)
    }

    /// Which clock the timeline is, the same number on all hosts that have it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn clock(&self) -> anyhow::Result<u64> {
        Ok(self.0.clock()?.0)
    }

    /// The counter that the page uses.
    pub fn counter(&self) -> &HostCounter {
        self.0.counter()
    }

    /// Converts a counter value with the lines that are now in force.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn convert(&self, counter: u64) -> anyhow::Result<Reading> {
        Ok(self.0.convert(counter)?)
    }
}
