//! `[clockbound]`: this host's clock for programs linked with AWS ClockBound's clients.
//!
//! A thread reads the published page like any other program, and writes what it promises into ClockBound's
//! two segments: layout 3, the bounds as a line over the counter, and layout 2, a bound on CLOCK_REALTIME,
//! which is said only while `clock.discipline` steers that clock. The clock's thread wakes it after each
//! publication and never waits for it. What the fields say is in crates/protocols, `clockbound`.
//!
//! A daemon that ends writes "unknown". Of one that was killed, clients say so themselves when the page's
//! lines expire (`clock.validity`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration as StdDuration, Instant as StdInstant};

use anyhow::{Context, Result};
use timevisor_clock_page::reader::{Promise, check, counter_of};
use timevisor_clock_page::{ClockStatus, Counter, CounterId, Reader};
use timevisor_linux::clock::{bracket, monotonic};
use timevisor_linux::clockbound_segment::{QUIET, Segment, SegmentError};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;
use timevisor_protocols::clockbound::{
    Bodies, Bounded, Disciplined, NAME_2, NAME_3, Status, VERSION_2, VERSION_3,
};

use crate::config::ClockboundConfig;

/// How often the segments are renewed at least.
const INTERVAL: StdDuration = StdDuration::from_millis(500);
/// The same while layout 2 is said: its bound grows by half a millisecond a second.
const SHORT_INTERVAL: StdDuration = StdDuration::from_millis(50);
/// After this time a segment that could not be written is tried again.
const RETRY: StdDuration = StdDuration::from_secs(30);
const BRACKET_TRIES: usize = 3;

/// What the clock's thread tells the one that writes.
#[derive(Default)]
struct Told {
    ended: AtomicBool,
    /// [`crate::discipline::Discipline::drift_ppb`]; 0: CLOCK_REALTIME may do anything.
    drift_ppb: AtomicU32,
}

/// The thread that writes; it ends, and says "unknown", when this is dropped.
pub struct ClockBound {
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

impl ClockBound {
    /// Starts the thread for the page in the run directory, which exists; `None` unless configured.
    ///
    /// # Errors
    /// When the page cannot be read. Problems with the segments are told by the thread, which tries again.
    pub fn start(config: &ClockboundConfig, run_directory: &Path) -> Result<Option<Self>> {
        if !config.enabled {
            return Ok(None);
        }
        let told = Arc::new(Told::default());
        let page = PageClock::open(&run_directory.join("clock")).context("[clockbound]")?;
        let writer = Writer { page, directory: config.directory.clone(), told: Arc::clone(&told) };
        let thread = std::thread::Builder::new()
            .name("clockbound".to_owned())
            .spawn(move || writer.run())
            .context("cannot start the thread for ClockBound's clients")?;
        Ok(Some(Self { told, thread: Some(thread) }))
    }

    /// How fast CLOCK_REALTIME runs away at most, ppb; `None` while it may do anything. Never waits.
    pub fn tell(&self, drift_ppb: Option<u32>) {
        let drift_ppb = drift_ppb.unwrap_or(0);
        if self.told.drift_ppb.swap(drift_ppb, Relaxed) != drift_ppb {
            self.renew();
        }
    }

    /// The page was written. Never waits.
    pub fn renew(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for ClockBound {
    fn drop(&mut self) {
        self.told.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct Writer {
    page: PageClock,
    directory: PathBuf,
    told: Arc<Told>,
}

impl Writer {
    fn run(self) {
        let mut said = String::new();
        while !self.has_ended() {
            if let Err(error) = self.serve(&mut said) {
                let text = format!("{:#}", anyhow::Error::new(error));
                if said != text {
                    tracing::error!("[clockbound]: clients of ClockBound get no time: {text}");
                    said = text;
                }
                self.pause(RETRY);
            }
        }
    }

    /// Writes the segments until the daemon ends.
    fn serve(&self, said: &mut String) -> Result<(), SegmentError> {
        let unknown = Bodies::unknown(None);
        let mut older = Segment::create(&self.directory, NAME_2, VERSION_2, &unknown.older)?;
        let mut newer = Segment::create(&self.directory, NAME_3, VERSION_3, &unknown.newer)?;
        if older.is_of_before() || newer.is_of_before() {
            self.pause(QUIET);
        }
        while !self.has_ended() {
            let now = self.page.look(self.told.drift_ppb.load(Relaxed)).unwrap_or(unknown);
            newer.publish(&now.newer)?;
            older.publish(&now.older)?;
            if !said.ends_with(SERVING) {
                *said = format!("{} {SERVING}", self.directory.display());
                tracing::info!("{said}");
            }
            park_timeout(if now.tells_realtime() { SHORT_INTERVAL } else { INTERVAL });
        }
        newer.publish(&unknown.newer)?;
        older.publish(&unknown.older)
    }

    fn has_ended(&self) -> bool {
        self.told.ended.load(Relaxed)
    }

    /// Waits that long, unless the daemon ends.
    fn pause(&self, span: StdDuration) {
        let until = StdInstant::now() + span;
        while !self.has_ended() && StdInstant::now() < until {
            park_timeout(until.saturating_duration_since(StdInstant::now()));
        }
    }
}

/// What the log shows of a directory that is written.
const SERVING: &str = "has this host's clock for ClockBound's clients";

struct PageClock {
    reader: Reader<ReadPage, HostCounter>,
}

impl PageClock {
    fn open(path: &Path) -> Result<Self> {
        let page = ReadPage::new(page_file::open(path)?).context("the page cannot be used")?;
        check(&page)?;
        let id = counter_of(&page, 0);
        let counter = HostCounter::for_reader(id)
            .with_context(|| format!("the page counts {}, which is not here", id.name()))?;
        if !is_the_clients(id) {
            tracing::warn!(
                "[clockbound]: clients read the processor's counter and the page counts {}; shm1 says \"unknown\"",
                id.name()
            );
        }
        Ok(Self { reader: Reader::open(page, counter, 0)? })
    }

    /// What the page promises now, `drift_ppb` as in [`Told`].
    fn look(&self, drift_ppb: u32) -> Option<Bodies> {
        let before = monotonic();
        let seen = bracket(self.reader.counter(), BRACKET_TRIES);
        let promise = Promise::of(&self.reader.words().ok()?, seen.before)?;
        let status = match promise.status {
            ClockStatus::Synchronized => Status::Synchronized,
            _ => Status::FreeRunning,
        };
        let Promise { from, at_from, until, at_until, .. } = promise;
        let bounded = Bounded { from, at_from, until, at_until };
        let disciplined = Disciplined {
            monotonic: before,
            realtime: seen.realtime,
            earliest: at_from.earliest(),
            latest: promise.at(seen.after)?.latest(),
            left: promise.left(),
            // The rate that was fed forward and the true one are both within the page's limits.
            drift_ppb: promise.rate_spread_ppb().saturating_mul(2).saturating_add(drift_ppb),
        };
        let is_read = is_the_clients(self.reader.counter().id());
        let bounded = is_read.then_some(&bounded);
        Some(Bodies::of(status, None, bounded, (drift_ppb != 0).then_some(&disciplined)))
    }
}

/// Whether clients of layout 3 read this counter.
fn is_the_clients(counter: CounterId) -> bool {
    match counter {
        CounterId::X86Tsc => cfg!(target_arch = "x86_64"),
        CounterId::ArmVcnt => cfg!(target_arch = "aarch64"),
        CounterId::MonotonicRaw | CounterId::Invalid => false,
    }
}
