//! Structures and enumerations that C shares with us. Every structure begins with its size; see
//! `memory`. What goes into them: `conversions`.

use core::ffi::c_char;

use crate::cancel::timevisor_cancel_token;
use crate::memory::Shared;

/// A span that is not known: as wide as can be, so that comparisons with a limit come out on the
/// safe side.
pub const TIMEVISOR_UNKNOWN_NS: i64 = i64::MAX;

/// For timevisor_at: any error will do.
pub const TIMEVISOR_ANY_ERROR_NS: i64 = i64::MAX;

/// TAI - UTC is not known.
pub const TIMEVISOR_UNKNOWN_TAI_OFFSET: i32 = i32::MIN;

/// How far to trust a reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_status {
    /// Nothing is known.
    Unknown = 0,
    /// The first synchronization is under way; bounds, if any, hold.
    Initializing = 1,
    /// Follows its references; bounds hold.
    Synchronized = 2,
    /// Lost its references or its daemon: bounds hold and grow.
    FreeRunning = 3,
    /// Assumptions were contradicted: bounds are being rebuilt and must not be relied on.
    Unreliable = 4,
}

/// What the host announces of a coming disruption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_notice {
    /// Nothing.
    None = 0,
    /// This VM will be moved, saved or stopped: take no further work on.
    Soon = 1,
    /// That begins now.
    Imminent = 2,
}

/// What instants are counted on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_timescale {
    /// ns since 1970-01-01 00:00:00 UTC without leap seconds, as POSIX counts; steps at leap
    /// seconds.
    Utc = 0,
    /// ns since 1970-01-01 00:00:00 TAI.
    Tai = 1,
    /// ns since the timeline was made; belongs to nobody else's clock.
    Local = 2,
}

/// The order of two moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_comparison {
    /// Not known: the intervals overlap, or bounds must not be relied on.
    Uncertain = 0,
    /// The first is surely before the second.
    Before = 1,
    /// The first is surely after the second.
    After = 2,
}

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_when {
    /// The estimate has reached `ns`.
    Until = 0,
    /// `ns` has surely passed: earliest > ns (Spanner's commit-wait).
    Past = 1,
    /// `ns` on the timeline, counted from the estimate at the beginning.
    For = 2,
    /// The time is known and meets the handle's requirement; `ns` is not used. Disruptions do not
    /// end this wait.
    Met = 3,
    /// `lead_ns` (of timevisor_wait_options) before the last moment that is surely before `ns`:
    /// latest + lead_ns >= ns > latest.
    SurelyBefore = 4,
}

/// Whether an age counts the time in which nothing ran: the blackout of a migration, a stopped VM,
/// the time between a checkpoint and its restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_blackouts {
    /// It does: the age is what a clock on the wall says.
    Count = 0,
    /// It does not, as far as CLOCK_MONOTONIC_RAW stood still: in a guest over a migration, in a
    /// container that CRIU has restored.
    Exclude = 1,
}

/// What becomes of ticks whose time came before the program was back to wait for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_missed_ticks {
    /// They are dropped: the next tick is the first one that is not yet due.
    Skip = 0,
    /// They come at once, one after the other, in order.
    CatchUp = 1,
    /// Only the newest comes, at once.
    Coalesce = 2,
}

/// What became of an action that was to be done at a time. Only 0 says: do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_outcome {
    /// Do it now.
    Fired = 0,
    /// Do not: it is later than the latest that was allowed.
    TooLate = 1,
    /// Do not: the clock is not as good as it must be.
    QotViolated = 2,
    /// Do not: the clock may have stepped since this began.
    Disrupted = 3,
}

/// What happened to a timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_change {
    /// The handle's requirement is met now (said at the beginning, too). Only with a requirement.
    Met = 0,
    /// The handle's requirement is not met now (said at the beginning, too). Only with a
    /// requirement.
    Violated = 1,
    /// The clock lost its references or its daemon: bounds hold and grow.
    Holdover = 2,
    /// The clock follows its references again.
    Synchronized = 3,
    /// The clock may have stepped.
    Disrupted = 4,
}

/// For how long a bound holds if nothing new is learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_validity_kind {
    /// It does not hold now.
    Exceeded = 0,
    /// Up to the estimate and the counter value beside it.
    Until = 1,
    /// For longer than the counter runs.
    Unlimited = 2,
}

/// Where to look; TIMEVISOR_OPTIONS_INIT finds what there is, on hosts, in containers and in
/// guests.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_options {
    /// sizeof(timevisor_options)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// Read this page and no other: a page file, a vmclock device below /dev, a PCI resource below
    /// /sys. Or NULL.
    pub page: *const c_char,
    /// Send requirements there and nowhere else: a path, or "vsock:CID:PORT". Or NULL.
    pub channel: *const c_char,
    /// What the operator sees in `timevisor timelines`. NULL: the program's name.
    pub name: *const c_char,
    /// How long timevisord may take to answer; 0: 3 s.
    pub timeout_ns: i64,
}

/// How far true time may be from the estimate, and how surely.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_requirement {
    /// sizeof(timevisor_requirement)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// True time is at most this much before the estimate; 1 or more.
    pub below_ns: i64,
    /// True time is at most this much after the estimate; 1 or more.
    pub above_ns: i64,
    /// The clock must tell instants apart that are this far from each other; 0: any resolution will
    /// do.
    pub resolution_ns: i64,
    /// 0: by the hard bounds. Otherwise 0.5 <= probability < 1: by the estimated error, taken for
    /// one sigma of a normal distribution.
    pub probability: f64,
}

/// What a timeline gives. TIMEVISOR_UNKNOWN_NS: that is not known.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_achieved {
    /// sizeof(timevisor_achieved)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// Estimate minus earliest.
    pub below_ns: i64,
    /// Latest minus estimate.
    pub above_ns: i64,
    /// One sigma of the estimate.
    pub estimated_error_ns: i64,
    /// One tick of the counter.
    pub resolution_ns: i64,
}

/// How to bind.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_bind_options {
    /// sizeof(timevisor_bind_options)
    pub struct_size: u32,
    /// Not 0: bind even if the requirement cannot be met; readings then say so.
    pub best_effort: i32,
    /// Not 0: make the timeline, on `timescale`, where there is none of this name.
    pub create: i32,
    /// A timevisor_timescale; used with `create`.
    pub timescale: i32,
    /// NULL, or where to put what the timeline gives; after -ERANGE what it could give.
    pub achieved: *mut timevisor_achieved,
}

/// What a timeline says of one moment: true time was between earliest and latest when the counter
/// was at `counter`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_reading {
    /// sizeof(timevisor_reading)
    pub struct_size: u32,
    /// A timevisor_status.
    pub status: i32,
    /// True time is not before this, rounded down. -(2^63 - 1) when nothing is known.
    pub earliest_ns: i64,
    /// The best guess, rounded down. 0 when nothing is known.
    pub estimate_ns: i64,
    /// True time is not after this, rounded up. 2^63 - 1 when nothing is known.
    pub latest_ns: i64,
    /// The counter value that it is valid for, in ticks.
    pub counter: u64,
    /// Changes when the clock may have stepped: readings with different numbers are not of one
    /// continuous clock.
    pub disruption: u64,
    /// Which clock it is of. Readings of local timelines have an order only where this is the same.
    pub origin: u64,
    /// Estimate minus earliest, rounded up, or TIMEVISOR_UNKNOWN_NS.
    pub below_ns: i64,
    /// Latest minus estimate, rounded up, or TIMEVISOR_UNKNOWN_NS.
    pub above_ns: i64,
    /// One sigma of the estimate, rounded up, not a bound; or TIMEVISOR_UNKNOWN_NS.
    pub estimated_error_ns: i64,
    /// A timevisor_timescale: what the instants are counted on.
    pub timescale: i32,
    /// TAI - UTC in seconds, or TIMEVISOR_UNKNOWN_TAI_OFFSET.
    pub tai_offset_s: i32,
    /// 0 while nothing is known, otherwise 1.
    pub known: i32,
    /// 1 when this meets the handle's requirement or there is none, otherwise 0.
    pub met: i32,
}

/// How much true time went by between two stamps, ns: all three are below zero when the first stamp
/// is the later one.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_measured_span {
    /// sizeof(timevisor_measured_span)
    pub struct_size: u32,
    /// A timevisor_status: the least that the clock promised between the two.
    pub status: i32,
    /// No less time than this went by, rounded down.
    pub shortest_ns: i64,
    /// The best guess, to the nearest ns: by the clock's mean rate around the stamps.
    pub estimate_ns: i64,
    /// No more time than this went by, rounded up.
    pub longest_ns: i64,
}

/// Until when a bound holds if nothing new is learned.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_validity {
    /// sizeof(timevisor_validity)
    pub struct_size: u32,
    /// A timevisor_validity_kind.
    pub kind: i32,
    /// The estimate at that moment; 0 unless kind is TIMEVISOR_VALIDITY_KIND_UNTIL.
    pub estimate_ns: i64,
    /// The counter at that moment, in ticks; likewise.
    pub counter: u64,
}

/// One timeline that a client may bind to.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_timeline_row {
    /// sizeof(timevisor_timeline_row)
    pub struct_size: u32,
    /// A timevisor_timescale.
    pub timescale: i32,
    /// Its name; belongs to the list.
    pub name: *const c_char,
    /// Bindings to it, of all tenants.
    pub members: u32,
    /// 1 when a client made it, and it is gone with its last binding; otherwise 0.
    pub temporary: i32,
    /// NULL, or where to put the tightest requirement; all 0 when there is none.
    pub required: *mut timevisor_requirement,
    /// NULL, or where to put what it gives now.
    pub achieved: *mut timevisor_achieved,
}

/// How to wait.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_wait_options {
    /// sizeof(timevisor_wait_options)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// Read the clock in a loop instead of sleeping this close to the end: costs a processor, saves
    /// the wake-up of about 50 us.
    pub spin_ns: i64,
    /// Give up after this long, on this machine's own clock; 0: never.
    pub timeout_ns: i64,
    /// NULL, or what lets another thread end the wait.
    pub cancel: *const timevisor_cancel_token,
    /// With TIMEVISOR_WHEN_SURELY_BEFORE, where it must be 1 or more: what the program needs to
    /// wake up (50 to 100 us) and for its work. Not used otherwise.
    pub lead_ns: i64,
}

/// A wait that ended because its time had come.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_waited {
    /// sizeof(timevisor_waited)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// How far beyond the time that was waited for the reading is, never below 0: its estimate
    /// (with TIMEVISOR_WHEN_PAST: its earliest; with TIMEVISOR_WHEN_SURELY_BEFORE: its latest +
    /// lead_ns) less that time. 0 with TIMEVISOR_WHEN_MET.
    pub lateness_ns: i64,
    /// NULL, or where to put the reading that ended the wait.
    pub reading: *mut timevisor_reading,
}

/// One tick.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_tick {
    /// sizeof(timevisor_tick)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// When it was due.
    pub scheduled_ns: i64,
    /// The reading's estimate less scheduled_ns, never below 0.
    pub lateness_ns: i64,
    /// Ticks between the last one and this one that do not come.
    pub missed: u64,
    /// NULL, or where to put the reading that found it due.
    pub reading: *mut timevisor_reading,
}

/// What is known when an action's time has come, or has not.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_at_result {
    /// sizeof(timevisor_at_result)
    pub struct_size: u32,
    /// A timevisor_outcome, the same as what the function returns.
    pub outcome: i32,
    /// TIMEVISOR_OUTCOME_FIRED: the estimate, never before the time itself. Otherwise 0.
    pub actual_ns: i64,
    /// TIMEVISOR_OUTCOME_FIRED, TIMEVISOR_OUTCOME_QOT_VIOLATED: true time is within this of the
    /// estimate, or TIMEVISOR_UNKNOWN_NS. Otherwise 0.
    pub error_ns: i64,
    /// TIMEVISOR_OUTCOME_TOO_LATE: by how much. Otherwise 0.
    pub too_late_by_ns: i64,
    /// NULL, or where to put the reading that decided.
    pub reading: *mut timevisor_reading,
}

/// A change and what is known at that moment.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_event {
    /// sizeof(timevisor_event)
    pub struct_size: u32,
    /// A timevisor_change.
    pub change: i32,
    /// NULL, or where to put until when the requirement stays met if nothing new is learned.
    pub valid_until: *mut timevisor_validity,
    /// NULL, or where to put the reading that noticed it.
    pub reading: *mut timevisor_reading,
}

/// The processor time that a vCPU has had since it began.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_host_cpu_time {
    /// sizeof(timevisor_host_cpu_time)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// Not less.
    pub least_ns: u64,
    /// Not more; UINT64_MAX where that is not known.
    pub most_ns: u64,
    /// Compare two readings only if this is the same in both.
    pub disruption: u64,
}

macro_rules! shared {
    ($($name:ident)*) => {$(
        // SAFETY: repr(C), begins with struct_size, has numbers and raw pointers only; the sizes
        // below add up.
        unsafe impl Shared for $name {}
    )*};
}

shared! {
    timevisor_options timevisor_requirement timevisor_achieved timevisor_bind_options timevisor_reading timevisor_validity
    timevisor_timeline_row timevisor_wait_options timevisor_waited timevisor_tick timevisor_at_result timevisor_event
    timevisor_host_cpu_time timevisor_measured_span
}

/// The sizes of version 0 on 64-bit machines: what older programs pass, and proof that there is no
/// padding.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<timevisor_options>() == 2 * 4 + 3 * 8 + 8);
    assert!(size_of::<timevisor_requirement>() == 2 * 4 + 4 * 8);
    assert!(size_of::<timevisor_achieved>() == 2 * 4 + 4 * 8);
    assert!(size_of::<timevisor_bind_options>() == 4 * 4 + 8);
    assert!(size_of::<timevisor_reading>() == 2 * 4 + 9 * 8 + 4 * 4);
    assert!(size_of::<timevisor_measured_span>() == 2 * 4 + 3 * 8);
    assert!(size_of::<timevisor_validity>() == 2 * 4 + 2 * 8);
    assert!(size_of::<timevisor_timeline_row>() == 2 * 4 + 8 + 2 * 4 + 2 * 8);
    assert!(size_of::<timevisor_wait_options>() == 2 * 4 + 2 * 8 + 8 + 8);
    assert!(size_of::<timevisor_waited>() == 2 * 4 + 8 + 8);
    assert!(size_of::<timevisor_tick>() == 2 * 4 + 3 * 8 + 8);
    assert!(size_of::<timevisor_at_result>() == 2 * 4 + 3 * 8 + 8);
    assert!(size_of::<timevisor_event>() == 2 * 4 + 2 * 8);
    assert!(size_of::<timevisor_host_cpu_time>() == 2 * 4 + 3 * 8);
};
