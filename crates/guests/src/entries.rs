//! Timelines as page entries: the host's lines for each timeline, converted to the reader's
//! counter. Pure.

use timevisor_clock_page::{ClockStatus, EntryIdentity, EntryUpdate, Lines, Slew, Update};
use timevisor_time::{Duration, Local};

use crate::counter_mapping::CounterMapping;
use crate::guest_clock::for_guest;

/// One timeline's entry, as a function of the host's counter.
#[derive(Clone, Copy, Debug)]
pub struct TimelineEntry {
    /// The entry's index on the page, 1 to 17.
    pub index: usize,
    /// The timeline.
    pub identity: EntryIdentity,
    /// The tightest required half-width in ns; 0 if there is no requirement.
    pub required_ns: u64,
    /// Changes whenever earlier publications become void.
    pub disruptions: u64,
    /// Which clock it is, the same number on every host that has it; 0: this host's own.
    pub clock: u64,
    /// The lines in force on the host's counter, on the timeline's own scale; `None` while nothing
    /// is known.
    pub lines: Option<Lines<Local>>,
    /// Its status.
    pub status: ClockStatus,
    /// Estimated error, one sigma.
    pub estimated_error: Duration,
    /// Host counter value at the newest reference fact.
    pub as_of: u64,
    /// TAI - UTC, where known and meaningful.
    pub tai_offset: Option<i16>,
    /// The number of host ticks within which an entry's estimate converges to the lines.
    pub slew_horizon: u64,
}

impl TimelineEntry {
    /// The entry for a page whose reader uses the host's counter.
    #[must_use]
    pub fn on_host(&self) -> EntryUpdate {
        self.with(self.lines, self.as_of, self.slew_horizon)
    }

    /// The entry for the page of a guest with this counter mapping. Without a mapping, its time is
    /// unknown.
    #[must_use]
    pub fn for_guest(&self, mapping: Option<&CounterMapping>) -> EntryUpdate {
        let Some(mapping) = mapping else {
            return EntryUpdate { update: Err(ClockStatus::Unknown), ..self.on_host() };
        };
        let lines = self.lines.and_then(|lines| for_guest(&lines, mapping));
        let horizon =
            mapping.guest_from_host(self.slew_horizon).wrapping_sub(mapping.guest_from_host(0));
        self.with(lines, mapping.guest_from_host(self.as_of), horizon)
    }

    fn with(&self, lines: Option<Lines<Local>>, as_of: u64, horizon: u64) -> EntryUpdate {
        let update = lines.map(|target| Update {
            target,
            status: self.status,
            estimated_error: self.estimated_error,
            as_of,
            tai_offset: self.tai_offset,
            // These lines already move monotonically.
            slew: Slew { horizon, jump: Duration::ZERO },
        });
        EntryUpdate {
            index: self.index,
            identity: self.identity,
            required_ns: self.required_ns,
            disruptions: self.disruptions,
            clock: self.clock,
            update: update.ok_or(self.status),
        }
    }
}

#[cfg(test)]
mod tests {
    use timevisor_clock_page::{Line, Page, Reader};
    use timevisor_time::{Instant, Period, TimescaleId};

    use super::*;
    use timevisor_time::CounterRatio;

    fn entry() -> TimelineEntry {
        let period = Period::from_hz(1_000_000_000).unwrap();
        let line = |ns| Line { time: Instant::from_unix_nanos(ns), period };
        let lines = Lines {
            base: 1_000,
            expiry: 1_000_000_000,
            earliest: line(4_000),
            estimate: line(5_000),
            latest: line(6_000),
            holdover: 0,
        };
        TimelineEntry {
            index: 1,
            identity: EntryIdentity::new(5, "cell7", TimescaleId::Local, 3),
            required_ns: 0,
            disruptions: 0,
            clock: 0,
            lines: Some(lines),
            status: ClockStatus::Synchronized,
            estimated_error: Duration::ZERO,
            as_of: 1_000,
            tai_offset: None,
            slew_horizon: 8_000,
        }
    }

    #[test]
    fn a_guest_reads_the_same_instant_at_the_same_moment() {
        let mapping = CounterMapping { ratio: CounterRatio::ONE, offset: 500, running: true };
        let (host, guest) =
            (entry().on_host().update.unwrap(), entry().for_guest(Some(&mapping)).update.unwrap());
        let at = mapping.guest_from_host(2_000);
        assert_eq!(guest.target.at(at), host.target.at(2_000));
        assert_eq!((guest.as_of, guest.slew.horizon), (1_500, 8_000));
    }

    #[test]
    fn without_a_relation_between_the_counters_nothing_is_claimed() {
        assert_eq!(entry().for_guest(None).update.unwrap_err(), ClockStatus::Unknown);
        let unknown = TimelineEntry { lines: None, status: ClockStatus::Initializing, ..entry() };
        assert_eq!(unknown.on_host().update.unwrap_err(), ClockStatus::Initializing);
    }

    #[test]
    fn it_is_read_back_from_a_page() {
        struct Still(u64);
        impl timevisor_clock_page::Counter for Still {
            fn id(&self) -> timevisor_clock_page::CounterId {
                timevisor_clock_page::CounterId::X86Tsc
            }
            fn read_ordered(&self) -> u64 {
                self.0
            }
        }
        let page = Page::new();
        let identity = timevisor_clock_page::Identity {
            counter: timevisor_clock_page::CounterId::X86Tsc,
            timescale: TimescaleId::Tai,
            host: [1; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: 1,
        };
        let mut writer = timevisor_clock_page::PageWriter::take_over(&page, identity, Some(37));
        writer.write_entries(&[entry().on_host()], &Still(2_000));
        let reading = Reader::open(&page, Still(2_000), 1).unwrap().read().unwrap();
        assert_eq!((reading.estimate.ceil_nanos(), reading.generation()), (6_000, 3));
    }
}
