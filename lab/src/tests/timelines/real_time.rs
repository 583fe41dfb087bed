//! A reader with a real-time priority on the processor of its page's writer: whenever it wakes it may interrupt the
//! writer in the middle of an update, which cannot end then unless the reader lets it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, Line, Lines, Page, PageWriter, Reader, Slew, Update,
};
use timevisor_linux::affinity;
use timevisor_linux::counter::HostCounter;
use timevisor_linux::scheduling::Attributes;
use timevisor_time::{Duration as Span, Instant as Moment, Local, Period, RateError, TimescaleId};

use crate::scenario::Context;

const READS: usize = 5_000;
const CYCLE: Duration = Duration::from_micros(200);
const PRIORITY: u32 = 10;

/// A counter, and how often readers have left the processor to the writer.
struct Counted<'a>(HostCounter, &'a AtomicUsize);

impl Counter for Counted<'_> {
    fn id(&self) -> CounterId {
        self.0.id()
    }
    fn read_ordered(&self) -> u64 {
        self.0.read_ordered()
    }
    fn let_others_run(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.let_others_run();
    }
}

pub(crate) fn interrupts_its_writer(_: &Context) -> anyhow::Result<String> {
    let counter = HostCounter::for_reader(CounterId::MonotonicRaw).context("no counter")?;
    let page = Page::default();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(counter.read_ordered()), &counter);
    let processor = *affinity::allowed()?.first().context("no processor")?;
    let ends = AtomicBool::new(false);
    let (published, found) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            affinity::pin(processor)?;
            let mut published = 0_u64;
            while !ends.load(Ordering::Relaxed) {
                writer.publish(&update(counter.read_ordered()), &counter);
                published += 1;
            }
            anyhow::Ok(published)
        });
        let found = scope.spawn(|| read(&page, counter, processor)).join();
        ends.store(true, Ordering::Relaxed);
        (writing.join(), found)
    });
    let panicked = |_| anyhow::anyhow!("a thread panicked");
    let (published, (slept, longest)) = (published.map_err(panicked)??, found.map_err(panicked)??);
    ensure!(slept > 0, "no reading met an update under way: nothing was tried");
    Ok(format!(
        "{READS} readings under SCHED_FIFO on the processor of a writer that published {published} times: they let it go on {slept} times, \
         and none failed; the longest took {} us",
        longest.as_micros()
    ))
}

/// How often readings slept, and the longest of all.
fn read(page: &Page, counter: HostCounter, processor: usize) -> anyhow::Result<(usize, Duration)> {
    affinity::pin(processor)?;
    // 0: this thread.
    Attributes::fifo(PRIORITY).set(0)?;
    let slept = AtomicUsize::new(0);
    let reader = Reader::open(page, Counted(counter, &slept), 0)?;
    let mut longest = Duration::ZERO;
    for _ in 0..READS {
        std::thread::sleep(CYCLE);
        let begun = Instant::now();
        let reading = reader.read().context("a reading failed")?;
        let took = begun.elapsed();
        ensure!(reading.has_estimate(), "a reading knows nothing");
        longest = longest.max(took);
    }
    Ok((slept.load(Ordering::Relaxed), longest))
}

fn identity() -> Identity {
    Identity {
        counter: CounterId::MonotonicRaw,
        timescale: TimescaleId::Tai,
        host: [1; 16],
        vm: [0; 16],
        timeline: "tai",
        epoch: 1,
    }
}

/// 1 us to both sides, within 15 ppm.
fn update(base: u64) -> Update {
    const PERIOD_HZ: u64 = 1_000_000_000;
    let period = Period::from_hz(PERIOD_HZ).unwrap_or_else(|| unreachable!("not 0"));
    let rate = RateError::from_ppm(15);
    let time = Moment::<Local>::from_unix_nanos(i128::from(base));
    let line = |time, period| Line { time, period };
    let radius = Span::from_micros(1);
    Update {
        target: Lines {
            base,
            expiry: base + 64 * PERIOD_HZ,
            earliest: line(time - radius, period.slowest_time(rate)),
            estimate: line(time, period),
            latest: line(time + radius, period.fastest_time(rate)),
            holdover: 0,
        },
        status: ClockStatus::Synchronized,
        estimated_error: Span::from_nanos(120),
        as_of: base,
        tai_offset: Some(37),
        slew: Slew { horizon: 8 * PERIOD_HZ, jump: Span::from_millis(1) },
    }
}
