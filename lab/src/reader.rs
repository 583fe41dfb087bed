//! The guest's lab-reader from the host's side, and the comparison of what both read.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{Reader, Reading};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;

/// The virtio-serial port the guest's program listens at.
pub const PORT: &str = "org.timevisor.reader";
/// What starts it in the guest.
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

    /// Asks, and parses the answer.
    ///
    /// # Errors
    /// When the guest does not answer, or answers with an error.
    pub fn ask(&mut self, request: &str) -> anyhow::Result<Value> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
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

/// The host's own page, read like any program on the host reads it.
pub struct HostPage(Reader<ReadPage, HostCounter>);

impl HostPage {
    /// Opens `clock` in a run directory.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(run_directory: &Path) -> anyhow::Result<Self> {
        let path: PathBuf = run_directory.join("clock");
        let page = ReadPage::new(page_file::open(&path)?)?;
        let counter = HostCounter::for_reader(counter_of(&page, 0))
            .context("the page wants another counter")?;
        Ok(Self(Reader::open(page, counter, 0)?))
    }

    /// Now.
    ///
    /// # Errors
    /// When the daemon died inside an update.
    pub fn read(&self) -> anyhow::Result<Reading> {
        Ok(self.0.read()?)
    }

    /// What the lines now in force say of a counter value.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn convert(&self, counter: u64) -> anyhow::Result<Reading> {
        Ok(self.0.convert(counter)?)
    }
}

/// One comparison of the guest with the host. All in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// Guest estimate minus the host page's estimate at the very same counter value.
    pub difference: i64,
    /// How far the guest's estimate lies outside the host's two readings around it; 0 when between them.
    pub outside: i64,
    /// How far apart the host's two readings were.
    pub distance: i64,
    /// The guest's half-width.
    pub half_width: i64,
    /// /dev/ptp0 minus the host page's estimate at the middle of its bracket, and half the bracket.
    pub ptp: Option<(i64, i64)>,
    /// The guest's interval and the host's at the same counter value overlap.
    pub overlaps: bool,
}

/// Compares a guest that reads `host counter + offset` (which is what `vm list` says) with the host's page.
///
/// # Errors
/// When either cannot be read, or the guest knows no time.
pub fn compare(
    page: &HostPage,
    guest: &mut GuestReader,
    offset: i64,
) -> anyhow::Result<Comparison> {
    let before = page.read()?;
    let answer = guest.ask("read")?;
    let after = page.read()?;
    ensure!(answer["known"] == true, "the guest knows no time: {answer}");
    // A UTC page is compared on TAI.
    let shift = match answer["timescale"].as_str() {
        Some("utc") => {
            answer["tai_offset"].as_i64().context("a UTC page without TAI - UTC")? * 1_000_000_000
        }
        _ => 0,
    };
    let ns = |name: &str| {
        answer[name].as_i64().map(|ns| ns + shift).with_context(|| format!("no {name} in {answer}"))
    };
    let (earliest, estimate, latest) = (ns("earliest_ns")?, ns("estimate_ns")?, ns("latest_ns")?);
    let host_counter =
        |guest: &Value| guest.as_u64().map(|c| c.wrapping_sub(offset.cast_unsigned()));
    let counter = host_counter(&answer["counter"]).context("no counter")?;
    let same = page.convert(counter)?;
    let (low, high) = (before.estimate.floor_nanos(), after.estimate.floor_nanos());
    let ptp = answer["ptp"]["ns"].as_i64().and_then(|ptp| {
        let (from, to) =
            (host_counter(&answer["ptp"]["before"])?, host_counter(&answer["ptp"]["after"])?);
        let (from, to) = (
            page.convert(from).ok()?.estimate.floor_nanos(),
            page.convert(to).ok()?.estimate.floor_nanos(),
        );
        // A UTC page's clock reads UTC.
        Some((ptp + shift - from.midpoint(to), (to - from) / 2))
    });
    Ok(Comparison {
        difference: estimate - same.estimate.floor_nanos(),
        outside: (low - estimate).max(estimate - high).max(0),
        distance: high - low,
        half_width: (latest - estimate).max(estimate - earliest),
        ptp,
        overlaps: earliest <= same.latest.ceil_nanos() && latest >= same.earliest.floor_nanos(),
    })
}
