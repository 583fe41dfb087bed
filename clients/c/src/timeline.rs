//! [`timevisor_timeline`]: a handle to read a timeline, bound or not.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::{c_char, c_int};
use core::ptr;
use std::ffi::CString;
use std::sync::RwLock;

use timevisor::{Binding, Comparison, Status, Timeline};

use crate::client::{Process, timevisor_client};
use crate::conversions::{comparison, status_from};
use crate::error::{Failure, guard};
use crate::memory::{In, InOut, Out, Text, give, handle, span};
use crate::types::{
    timevisor_comparison, timevisor_measured_span, timevisor_reading, timevisor_requirement,
    timevisor_status, timevisor_timescale, timevisor_validity,
};

/// A timeline: read only, or bound. For any number of threads at once.
pub struct timevisor_timeline {
    pub(crate) timeline: Timeline,
    name: CString,
    pub(crate) process: Process,
    /// While it is bound.
    pub(crate) binding: RwLock<Option<Binding>>,
}

impl timevisor_timeline {
    pub(crate) fn new(timeline: Timeline, binding: Option<Binding>) -> Self {
        let name = CString::new(timeline.name()).unwrap_or_default();
        Self { timeline, name, process: Process::this(), binding: RwLock::new(binding) }
    }
}

/// Opens a timeline of the page for reading only: sends no message and requires nothing.
///
/// Returns 0; -ENOENT: the page has none of this name, it may have to be bound to first; -ENXIO: it
/// cannot be read here; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_open(
    client: Option<&timevisor_client>,
    name: Text<'_>,
    timeline: Out<'_, *mut timevisor_timeline>,
) -> c_int {
    guard(|| {
        give(timeline, || {
            let client = handle(client, "client")?;
            let timeline = client.client.timeline(name.require("name")?)?;
            Ok(timevisor_timeline::new(timeline, None))
        })
    })
}

/// The same timeline, judged by another requirement: `met` in readings, and the events of a watch.
/// Nobody is told; to have the host meet it, bind. The two handles are freed independently.
///
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_with_requirement(
    timeline: Option<&timevisor_timeline>,
    requirement: In<'_, timevisor_requirement>,
    judged: Out<'_, *mut timevisor_timeline>,
) -> c_int {
    guard(|| {
        give(judged, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let requirement = timevisor_requirement::read(&requirement)?
                .ok_or_else(|| Failure::invalid("the requirement is NULL"))?;
            let judged = timeline
                .with_requirement(&requirement)
                .map_err(|error| Failure::invalid(error.to_string()))?;
            Ok(timevisor_timeline::new(judged, None))
        })
    })
}

/// Frees a timeline. A requirement is withdrawn without waiting for the answer. What was started on
/// it goes on. NULL is allowed. Not while another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_free(timeline: Option<Box<timevisor_timeline>>) {
    Process::free(timeline, |timeline| timeline.process);
}

/// Its name. Valid as long as the handle; NULL if the handle is. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_name(timeline: Option<&timevisor_timeline>) -> *const c_char {
    timeline.map_or(ptr::null(), |timeline| timeline.name.as_ptr())
}

/// Now: the counter is read after everything that came before this call. No system call (but
/// where an update takes longer than 20 us: it sleeps then), no allocation, no lock.
///
/// Returns 0; -EIO: the page's writer died inside an update; -EIDRM: the timeline has ended;
/// -EINVAL. Also 0 while nothing is known: see `known` and `status`. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_now(
    timeline: Option<&timevisor_timeline>,
    mut reading: InOut<'_, timevisor_reading>,
) -> c_int {
    guard(|| {
        let now = handle(timeline, "timeline")?.timeline.now()?;
        reading.fill(|reading| {
            reading.set(&now);
            Ok(())
        })?;
        Ok(0)
    })
}

/// A status in a word: "synchronized". "?" if there is no such status. Never NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_status_name(status: c_int) -> *const c_char {
    let Ok(status) = status_from(status) else { return c"?".as_ptr() };
    let name = match status {
        Status::Unknown => c"unknown",
        Status::Initializing => c"initializing",
        Status::Synchronized => c"synchronized",
        Status::FreeRunning => c"freerunning",
        Status::Unreliable => c"unreliable",
    };
    name.as_ptr()
}

/// The counter, to be converted later: the cheapest stamp there is, in ticks. 0 if the handle is
/// NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_stamp(timeline: Option<&timevisor_timeline>) -> u64 {
    timeline.map_or(0, |timeline| timeline.timeline.stamp())
}

/// The time at which the counter was at `stamp`, from everything that was noted of the clock before
/// and since: see timevisor_observe. A stamp of the future is a prediction, which holds unless the
/// clock is disrupted before.
///
/// Returns 0; -ESTALE: a stamp from before the last disruption, from before the handle was opened,
/// from so long ago that it was forgotten (1024 publications), or from where nobody looked for more
/// than a minute; -ENODATA: the time is not known; -EBADMSG: bounds contradict each other; -EIO,
/// -EIDRM, -EINVAL. Any thread; a short lock.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_convert(
    timeline: Option<&timevisor_timeline>,
    stamp: u64,
    mut reading: InOut<'_, timevisor_reading>,
) -> c_int {
    guard(|| {
        let then = handle(timeline, "timeline")?.timeline.convert(stamp)?;
        reading.fill(|reading| {
            reading.set(&then);
            Ok(())
        })?;
        Ok(0)
    })
}

/// The time of something that happened while the counter went from `first` to `last`, such as a
/// packet: true time lies between the earliest of the first and the latest of the last.
///
/// Returns as timevisor_convert; -EINVAL also when the first one is the later one. Any thread; a
/// short lock.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_convert_between(
    timeline: Option<&timevisor_timeline>,
    first: u64,
    last: u64,
    mut reading: InOut<'_, timevisor_reading>,
) -> c_int {
    guard(|| {
        let then = handle(timeline, "timeline")?.timeline.convert_between(first, last)?;
        reading.fill(|reading| {
            reading.set(&then);
            Ok(())
        })?;
        Ok(0)
    })
}

/// How much true time went by between two stamps. It is never wider than the difference of two
/// conversions, and for short spans much narrower: only the error of the counter's rate is left (15
/// ppm: 150 ns over 10 ms). Below zero when `from` is the later one.
///
/// Returns as timevisor_convert; -ESTALE also when the clock was disrupted between the stamps. Any
/// thread; a short lock.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_span(
    timeline: Option<&timevisor_timeline>,
    from: u64,
    to: u64,
    mut span: InOut<'_, timevisor_measured_span>,
) -> c_int {
    guard(|| {
        let found = handle(timeline, "timeline")?.timeline.span(from, to)?;
        span.fill(|span| {
            span.set(&found);
            Ok(())
        })?;
        Ok(0)
    })
}

/// Records the present publication for later conversions. Waits, watches and conversions do so,
/// too; a program that only takes stamps should call this every few seconds.
///
/// Returns 0; -EIO, -EIDRM, -EINVAL. Any thread; a short lock.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_observe(timeline: Option<&timevisor_timeline>) -> c_int {
    guard(|| {
        handle(timeline, "timeline")?.timeline.observe()?;
        Ok(0)
    })
}

/// Is it surely before t_ns now (TIMEVISOR_COMPARISON_BEFORE: latest < t), surely after it
/// (TIMEVISOR_COMPARISON_AFTER: earliest > t), or is that not known
/// (TIMEVISOR_COMPARISON_UNCERTAIN)?
///
/// Returns a timevisor_comparison; -EIO, -EIDRM, -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_compare_to(timeline: Option<&timevisor_timeline>, t_ns: i64) -> c_int {
    guard(|| {
        let order = handle(timeline, "timeline")?.timeline.compare_to(t_ns)?;
        Ok(comparison(order) as c_int)
    })
}

/// Was the moment of a reading surely before t_ns, surely after it, or is that not known?
///
/// Returns a timevisor_comparison; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_reading_compare_to(
    reading: In<'_, timevisor_reading>,
    t_ns: i64,
) -> c_int {
    guard(|| {
        let reading = reading.require("reading")?;
        Ok(order(reading.is_trustworthy(), &reading, t_ns, t_ns) as c_int)
    })
}

/// Was the moment of `reading` surely before that of `other`, surely after it, or is that not
/// known? Readings on different timescales have no order, nor have readings of different local
/// timelines or from the two sides of a disruption of one, nor has anything whose status is unknown
/// or unreliable. UTC repeats itself at a leap second: order across one needs TAI.
///
/// Returns a timevisor_comparison; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_reading_compare(
    reading: In<'_, timevisor_reading>,
    other: In<'_, timevisor_reading>,
) -> c_int {
    guard(|| {
        let (reading, other) = (reading.require("reading")?, other.require("other reading")?);
        let local = reading.timescale == timevisor_timescale::Local as i32;
        let same_clock = reading.origin == other.origin && reading.disruption == other.disruption;
        let comparable = reading.timescale == other.timescale
            && (!local || same_clock)
            && reading.is_trustworthy()
            && other.is_trustworthy();
        Ok(order(comparable, &reading, other.earliest_ns, other.latest_ns) as c_int)
    })
}

impl timevisor_reading {
    fn is_trustworthy(&self) -> bool {
        let doubtful = [timevisor_status::Unknown as i32, timevisor_status::Unreliable as i32];
        self.known != 0 && !doubtful.contains(&self.status)
    }
}

/// Bounds are rounded outward: what is certain in nanoseconds is certain.
fn order(
    comparable: bool,
    reading: &timevisor_reading,
    earliest_ns: i64,
    latest_ns: i64,
) -> timevisor_comparison {
    if comparable && reading.latest_ns < earliest_ns {
        comparison(Comparison::Before)
    } else if comparable && reading.earliest_ns > latest_ns {
        comparison(Comparison::After)
    } else {
        comparison(Comparison::Uncertain)
    }
}

/// Has t_ns surely not come yet?
///
/// Returns 1 or 0; -EIO, -EIDRM, -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_is_surely_before(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
) -> c_int {
    guard(|| Ok(handle(timeline, "timeline")?.timeline.is_surely_before(t_ns)?.into()))
}

/// Has t_ns surely passed?
///
/// Returns 1 or 0; -EIO, -EIDRM, -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_is_surely_past(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
) -> c_int {
    guard(|| Ok(handle(timeline, "timeline")?.timeline.is_surely_past(t_ns)?.into()))
}

/// Until when true time stays within half_width_ns of the estimate if nothing new is learned.
///
/// Returns 0; -EIO, -EIDRM, -EINVAL. Any thread; a short lock.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_valid_until(
    timeline: Option<&timevisor_timeline>,
    half_width_ns: i64,
    mut until: InOut<'_, timevisor_validity>,
) -> c_int {
    guard(|| {
        let half_width = span(half_width_ns, "half_width_ns")?;
        let found = handle(timeline, "timeline")?.timeline.valid_until(half_width)?;
        until.fill(|until| {
            until.set(&found);
            Ok(())
        })?;
        Ok(0)
    })
}
