//! A VM's page on UTC, written and read by the production writer and reader, against true UTC.
//!
//! The VM's counter equals the host's. The page outlives its daemon, as a VM's page does.

use timevisor_clock_page::{Counter, Identity, PageWriter, Reader};
use timevisor_host_clock::Publication;
use timevisor_time::{Duration, TimescaleId};

use crate::calendar::Calendar;
use crate::checks::vouches;
use crate::machine::{SharedPage, SimulatedCounter};

/// What readers of the page saw.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct UtcChecks {
    /// Readings whose status vouched for the bounds.
    pub vouched: u64,
    /// Those of them in which true UTC was outside.
    pub uncovered: u64,
    /// The largest distance from the bounds, us.
    pub worst_excess_us: f64,
    /// Changes of the disruption marker between two such readings.
    pub disruptions: u64,
    last_marker: Option<u64>,
}

impl UtcChecks {
    /// Share of the vouched readings in which true UTC was covered; 1 if there were none.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        if self.vouched == 0 { 1.0 } else { 1.0 - self.uncovered as f64 / self.vouched as f64 }
    }
}

/// The page.
#[derive(Default)]
pub struct UtcPage {
    page: SharedPage,
    /// The writer of the running daemon.
    writer: Option<PageWriter<SharedPage>>,
    /// The observations.
    pub checks: UtcChecks,
}

impl UtcPage {
    /// Handles the daemon's death.
    pub fn abandon(&mut self) {
        self.writer = None;
    }

    /// Writes the page from the host's publication, as for every VM.
    pub fn publish(
        &mut self,
        host: &Identity,
        publication: &Publication,
        counter: &SimulatedCounter,
    ) {
        let identity =
            Identity { timescale: TimescaleId::Utc, vm: [1; 16], timeline: "utc", ..*host };
        let writer = self
            .writer
            .get_or_insert_with(|| PageWriter::take_over(self.page.clone(), identity, None));
        let told = publication.utc();
        writer.announce(publication.leap.indicator);
        writer.follow(told.disruptions, &told.update, publication.leap.tai_offset, counter);
    }

    /// A reader's look at true time `t`.
    pub fn look(&mut self, t: Duration, calendar: &Calendar, counter: &SimulatedCounter) {
        let reader = Reader::open(self.page.clone(), counter.clone(), 0).ok();
        let Some(reading) = reader.and_then(|reader| reader.convert(counter.read_ordered()).ok())
        else {
            return;
        };
        let Some(truth) = calendar.unambiguous_utc(t).filter(|_| vouches(reading.status())) else {
            return;
        };
        if !reading.has_estimate() {
            return;
        }
        let checks = &mut self.checks;
        checks.vouched += 1;
        let before = checks.last_marker.replace(reading.disruption);
        checks.disruptions += u64::from(before.is_some_and(|marker| marker != reading.disruption));
        let truth = truth.relabel();
        let excess = (truth - reading.latest).max(reading.earliest - truth);
        if excess > Duration::ZERO {
            checks.uncovered += 1;
            checks.worst_excess_us = checks.worst_excess_us.max(excess.as_secs_f64() * 1e6);
        }
    }
}
