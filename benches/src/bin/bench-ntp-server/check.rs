//! Is what an answer says true? Its root distance against the half-width on the server's page at
//! its departure, and its stamps against the clock that the server follows, which is this machine's
//! own.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use timevisor_clock_page::Reader;
use timevisor_clock_page::reader::counter_of;
use timevisor_linux::clock::realtime;
use timevisor_linux::counter::HostCounter;
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;
use timevisor_protocols::ntp::Packet;
use timevisor_protocols::ntp::precise::Reply;
use timevisor_time::{Duration, Instant, Utc};

/// Which answers are checked.
pub(crate) const EVERY: u64 = 997;

/// How far above the half-width a root distance may be: its unit, 2^-16 s (15.3 us), and the
/// bound's growth in the 10 ms that the server allows for until the answer has left, at 100 ppm (1
/// us).
const MARGIN: Duration = Duration::from_micros(17);

/// The same for precise bounds: the growth, and the roundings.
const PRECISE_MARGIN: Duration = Duration::from_nanos(1_100);

pub(crate) struct Checker {
    reader: Reader<ReadPage, HostCounter>,
    /// Before requests were sent: the base of the page's lines, and the clock.
    before: Option<(u64, Instant<Utc>)>,
    checked: u64,
    worst_excess: Duration,
}

impl Checker {
    pub(crate) fn open(run_directory: &Path) -> Result<Self> {
        let page = ReadPage::new(page_file::open(&run_directory.join("clock"))?)?;
        let counter = HostCounter::for_reader(counter_of(&page, 0)).context("another counter")?;
        let reader = Reader::open(page, counter, 0)?;
        Ok(Self { reader, before: None, checked: 0, worst_excess: Duration::ZERO })
    }

    /// Requests are about to be sent.
    pub(crate) fn sending(&mut self) -> Result<()> {
        if self.before.is_none() {
            self.before = Some((self.reader.lines()?.base, realtime()));
        }
        Ok(())
    }

    /// An answer to one of them, or of those before, is here.
    pub(crate) fn check(&mut self, answer: &Packet, field: Option<&Reply>) -> Result<()> {
        let Some((base, sent)) = self.before.take() else { return Ok(()) };
        let (lines, now, here) = (self.reader.lines()?, self.reader.read()?, realtime());
        let (arrival, departure) =
            (answer.receive.to_instant(here), answer.transmit.to_instant(here));
        if lines.base != base || departure < sent {
            // The page was written meanwhile, or the request left before: which lines were served
            // is not known.
            return Ok(());
        }
        let distance =
            answer.root_delay.to_duration().half() + answer.root_dispersion.to_duration();
        let tai = now.tai_offset().context("the page has no TAI - UTC")?;
        let departure_tai = (departure + Duration::from_secs(i64::from(tai))).relabel();
        let ago = lines.estimate.period.ticks_in(now.estimate - departure_tai);
        let then = self.reader.convert(now.counter.saturating_sub(ago))?.half_width();
        ensure!(
            distance >= then && distance <= then + MARGIN,
            "root distance {distance}, but the page's half-width was {then}: {answer:?}"
        );
        if let Some(field) = field {
            let told = field.bounds.largest();
            ensure!(
                told >= then && told <= then + PRECISE_MARGIN,
                "bounds of {told}, but the page's half-width was {then}: {field:?}"
            );
        }
        ensure!(
            arrival - distance <= here && sent <= departure + distance && arrival <= departure,
            "{arrival:?} to {departure:?} +- {distance} does not fit {sent:?} to {here:?}"
        );
        self.worst_excess = self.worst_excess.max(distance - then);
        self.checked += 1;
        Ok(())
    }

    pub(crate) fn checked(&self) -> u64 {
        self.checked
    }

    pub(crate) fn summary(&self) -> String {
        format!(
            "root distance never below the page's half-width, at most {} above",
            self.worst_excess
        )
    }
}
