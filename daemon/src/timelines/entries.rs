//! Timelines as page entries: the content of an entry and its accuracy. The lines come from
//! crates/host-clock.

use timevisor_clock_page::{EntryIdentity, Lines};
use timevisor_guests::entries::TimelineEntry;
use timevisor_host_clock::timelines::{Scale, TimelineState};
use timevisor_host_clock::{ClockState, TimelineClocks};
use timevisor_protocols::channel::{Achieved, Epoch};
use timevisor_time::{Duration, Local, Period, TimescaleId};
use timevisor_timelines::{ClockId, Entry, Source};

/// Entries follow lines that were published at the same moment; their estimates catch up within
/// this time.
const FOLLOW: Duration = Duration::from_secs(1);

/// Creates a page's entry. `age` is the age of the page's owner, with its number of disruptions.
pub fn entry(
    clocks: &TimelineClocks,
    entry: &Entry,
    age: (Option<Lines<Local>>, u64),
) -> TimelineEntry {
    let state = state(clocks, entry.source, entry.epoch, age);
    let clock = clock(clocks, entry.source);
    let timescale = match entry.epoch {
        Epoch::Tai => TimescaleId::Tai,
        Epoch::Utc => TimescaleId::Utc,
        Epoch::Local => TimescaleId::Local,
    };
    let name = entry.name;
    let identity =
        EntryIdentity::new(entry.timeline.0, name.as_str(), timescale, entry.place.generation);
    TimelineEntry {
        index: usize::from(entry.place.entry),
        identity,
        required_ns: entry.required_half_width_ns.unwrap_or(0),
        disruptions: state.disruptions,
        clock: clock.map_or(0, |state| state.origin),
        lines: state.lines,
        status: state.status,
        estimated_error: clock.map_or(Duration::ZERO, |state| state.estimated_error),
        as_of: clock.map_or(clocks.now(), |state| state.as_of),
        tai_offset: clocks.tai_offset().filter(|_| entry.epoch != Epoch::Local),
        slew_horizon: clocks.nominal().ticks_in(FOLLOW),
    }
}

/// Returns a timeline's current quality.
pub fn achieved(
    clocks: &TimelineClocks,
    source: Source,
    epoch: Epoch,
    age: Option<Lines<Local>>,
) -> Achieved {
    // Computed as clients do it: a counter of 1 GHz has a resolution of 1 ns, whatever its rate
    // error.
    let nominal = clocks.nominal().to_bits();
    let tick = nominal - nominal / 1024;
    let resolution_ns = ns(Period::from_bits(tick).span_ceil(1));
    let Some(lines) = state(clocks, source, epoch, (age, 0)).lines else {
        return Achieved { resolution_ns, ..Achieved::default() };
    };
    let at = lines.at(clocks.now());
    let error = clock(clocks, source).map_or(Duration::ZERO, |state| state.estimated_error);
    Achieved {
        below_ns: ns(at.estimate - at.earliest),
        above_ns: ns(at.latest - at.estimate),
        estimated_error_ns: ns(error),
        resolution_ns,
    }
}

fn state(
    clocks: &TimelineClocks,
    source: Source,
    epoch: Epoch,
    age: (Option<Lines<Local>>, u64),
) -> TimelineState {
    match source {
        Source::Clock(ClockId(index)) => {
            let scale = if epoch == Epoch::Utc { Scale::Utc } else { Scale::Tai };
            clocks.following(index, scale)
        }
        Source::Local { life, .. } => clocks.local(life.0),
        Source::Elapsed => clocks.unreferenced(age.0, age.1),
        Source::Undefined => clocks.unreferenced(None, 0),
    }
}

fn clock(clocks: &TimelineClocks, source: Source) -> Option<&ClockState> {
    match source {
        Source::Clock(ClockId(index)) => clocks.clock(index),
        Source::Local { .. } | Source::Elapsed | Source::Undefined => None,
    }
}

/// Rounds up, because errors must never be understated. `None` means unknown.
fn ns(span: Duration) -> Option<u64> {
    (span < Duration::MAX).then(|| u64::try_from(span.ceil_nanos()).unwrap_or(0))
}
