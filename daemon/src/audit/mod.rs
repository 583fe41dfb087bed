//! The audit log: what crates/audit finds worth a record, written by a thread of its own.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | what the clock's thread does for it: looks at the page, and passes records on |
//! | `facts.rs` | references, leap seconds, VMs and reservations, as they are recorded |
//! | `writer.rs` | the thread with the files |
//!
//! A disk may be slow or full: the clock's thread never waits for it, except for at most two seconds
//! when the daemon ends.

mod facts;
mod writer;

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result, bail};
use timevisor_audit::watch::{ClockWatch, Facts, Sample};
use timevisor_audit::{Event, Stamp, report};
use timevisor_clock_page::{Counter as _, Reader};
use timevisor_linux::clock::{monotonic, realtime};
use timevisor_linux::lock_file::{self, LockError};
use timevisor_time::{Duration, Instant, Tai, Utc};

use self::writer::Writer;
use crate::clock::{HostClock, hex};
use crate::config::{AuditConfig, Config, ReferenceConfig};
use crate::references::Reference;
use crate::reservations::Reservations;
use crate::vms::Vms;

/// How long the end of the daemon waits for the last lines.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);
/// How often facts are looked at that no request has changed.
const LOOK: Duration = Duration::from_secs(1);

/// What is sent to the thread.
enum Message {
    Record(Stamp, Event),
    /// Nothing follows; the thread drops this when all is written that can be.
    End(Sender<()>),
}

/// The audit log of this daemon.
pub struct Audit {
    records: Sender<Message>,
    watch: ClockWatch,
    facts: Option<Facts>,
    due: Duration,
}

impl Audit {
    /// Takes the directory and starts the thread; `None` where no log is wanted.
    ///
    /// # Errors
    /// When another daemon writes there. A disk that is full or away is no reason not to serve: it is
    /// tried again.
    pub fn start(config: &AuditConfig) -> Result<Option<Self>> {
        if !config.enabled {
            return Ok(None);
        }
        let lock = take_directory(&config.directory)?;
        let (records, receiver) = mpsc::channel::<Message>();
        let writer = Writer::new(config, lock);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer.run(&receiver))
            .context("cannot start the thread of the audit log")?;
        Ok(Some(Self { records, watch: ClockWatch::default(), facts: None, due: Duration::ZERO }))
    }

    /// Records that the daemon starts.
    pub fn begin(&self, clock: &HostClock) {
        let event = Event::Start {
            version: timevisor_manual::version!().to_owned(),
            pid: std::process::id(),
            host: hex(&clock.host_id),
            counter: clock.counter.id().name().to_owned(),
            assumption: clock.assumption(),
        };
        self.record(look(clock, &[]).0, event);
    }

    /// Looks at the page as readers see it: before each publication, when the old lines are widest, and
    /// after it.
    pub fn sample(&mut self, clock: &HostClock, config: &Config) {
        let (stamp, sample) = look(clock, &config.references);
        let now = monotonic().floor_nanos();
        for (stamp, event) in self.watch.sample(now, stamp, sample) {
            self.record(stamp, event);
        }
        if let Some(event) = self.watch.contradictions(clock.estimate().contradictions()) {
            self.record(stamp, event);
        }
    }

    /// Records what has changed besides the clock. `at_once`: a request may have changed it.
    pub fn look_at(
        &mut self,
        clock: &HostClock,
        references: &[Reference],
        vms: &Vms,
        reservations: &Reservations,
        at_once: bool,
    ) {
        let now = monotonic();
        if now < self.due && !at_once {
            return;
        }
        self.due = now + LOOK;
        let facts = facts::facts(clock, references, vms, reservations);
        let events = facts.since(self.facts.as_ref());
        if !events.is_empty() {
            let (stamp, _) = look(clock, &[]);
            events.into_iter().for_each(|event| self.record(stamp, event));
            self.facts = Some(facts);
        }
    }

    /// Records that the daemon ends, and waits a little until that is written.
    pub fn end(&mut self, clock: &HostClock) {
        if let Some((stamp, event)) = self.watch.end() {
            self.record(stamp, event);
        }
        self.record(look(clock, &[]).0, Event::Stop {});
        let (sender, ended): (_, Receiver<()>) = mpsc::channel();
        if self.records.send(Message::End(sender)).is_ok() {
            let _ = ended.recv_timeout(PATIENCE);
        }
    }

    fn record(&self, stamp: Stamp, event: Event) {
        // The thread ends only by a panic, which ends the daemon.
        let _ = self.records.send(Message::Record(stamp, event));
    }
}

/// Creates the directory if needed, and locks it: two daemons would write two chains into one file.
///
/// # Errors
/// Only when another daemon holds it; other problems are logged, and the thread tries again.
fn take_directory(path: &Path) -> Result<Option<File>> {
    match open_directory(path) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) => match error.downcast_ref() {
            Some(LockError::Held { holder, .. }) => bail!(
                "another timevisord writes its audit log to {}: {holder}; set another audit.directory",
                path.display()
            ),
            _ => {
                tracing::error!(
                    "audit log: {error:#}; nothing is recorded until that is possible, which is tried again"
                );
                Ok(None)
            }
        },
    }
}

/// Names of VMs and users are in there, so it is for root and its group.
fn open_directory(path: &Path) -> Result<File> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    Ok(lock_file::take(&path.join("lock"))?)
}

/// What a reader of the host's page sees now, and the moment in UTC.
fn look(clock: &HostClock, references: &[ReferenceConfig]) -> (Stamp, Sample) {
    let unknown = Stamp::unvouched(realtime().floor_nanos());
    let reader = Reader::open(clock.writer().page(), &clock.counter, 0);
    let Some(reading) = reader.ok().and_then(|reader| reader.read().ok()) else {
        return (unknown, Sample { status: "unknown".to_owned(), ..Sample::default() });
    };
    let status = reading.status().name();
    let vouched = reading.has_estimate() && report::is_vouching(status);
    let chosen = clock.estimate().chosen();
    let last = chosen.and_then(|index| clock.estimate().reference(index).last());
    let sample = Sample {
        status: status.to_owned(),
        vouched,
        bound_ns: reading.has_estimate().then(|| {
            let sides = [reading.estimate - reading.earliest, reading.latest - reading.estimate];
            sides[0].max(sides[1]).ceil_nanos()
        }),
        reason: clock.reason(),
        reference: chosen.and_then(|index| references.get(index)).map(ReferenceConfig::name),
        reference_error_ns: last.map(|exchange| exchange.error.ceil_nanos()),
    };
    let ends = [reading.earliest.floor_nanos(), reading.latest.ceil_nanos()];
    let utc = ends.map(|tai_ns| utc(clock, Instant::from_unix_nanos(i128::from(tai_ns))));
    let stamp = match utc {
        [Some(earliest), Some(latest)] if vouched => Stamp {
            earliest_ns: earliest.floor_nanos(),
            latest_ns: latest.ceil_nanos(),
            vouched: true,
        },
        _ => unknown,
    };
    (stamp, sample)
}

/// `None` next to a leap second, and where TAI - UTC is not known.
fn utc(clock: &HostClock, tai: Instant<Tai>) -> Option<Instant<Utc>> {
    clock.leap.plan(tai)?.utc(tai).map(|(utc, _)| utc)
}
