//! For unit tests: publications with any lines, as a reader would find them.

use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, Lines, Page, PageWriter, Reader, Slew, Update,
};
use timevisor_time::{Duration, Local, TimescaleId};

use crate::snapshot::Snapshot;

/// A counter that stands still.
pub(crate) struct Still(pub(crate) u64);

impl Counter for Still {
    fn id(&self) -> CounterId {
        CounterId::MonotonicRaw
    }
    fn read_ordered(&self) -> u64 {
        self.0
    }
}

pub(crate) fn identity() -> Identity {
    Identity {
        counter: CounterId::MonotonicRaw,
        timescale: TimescaleId::Tai,
        host: [1; 16],
        vm: [0; 16],
        timeline: "tai",
        epoch: 1,
    }
}

/// A publication of these lines, after this many disruptions.
pub(crate) fn published(lines: &Lines<Local>, status: ClockStatus, disruptions: u64) -> Snapshot {
    let page = Page::new();
    let update = Update {
        target: *lines,
        status,
        estimated_error: Duration::from_nanos(10),
        as_of: lines.base,
        tai_offset: None,
        slew: Slew { horizon: 1, jump: Duration::MAX },
    };
    let counter = Still(lines.base);
    let mut writer = PageWriter::recover(&page, identity(), &update, &counter);
    for _ in 0..disruptions {
        writer.disrupt();
        writer.publish(&update, &counter);
    }
    Snapshot::take(&Reader::open(&page, counter, 0).unwrap()).unwrap()
}
