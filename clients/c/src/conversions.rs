//! Between C's structures and numbers and Rust's types.

use core::ffi::c_int;

use timevisor::{
    Achieved, Blackouts, Change, Comparison, Epoch, MeasuredSpan, MissedTicks, Reading,
    Requirement, Status, TimescaleId, ValidUntil,
};

use crate::error::Failure;
use crate::memory::{In, InOut, ns, span};
use crate::types::{
    TIMEVISOR_UNKNOWN_NS, TIMEVISOR_UNKNOWN_TAI_OFFSET, timevisor_achieved, timevisor_blackouts,
    timevisor_change, timevisor_comparison, timevisor_measured_span, timevisor_missed_ticks,
    timevisor_reading, timevisor_requirement, timevisor_status, timevisor_timescale,
    timevisor_validity, timevisor_validity_kind,
};

impl timevisor_reading {
    pub(crate) fn set(&mut self, from: &Reading) {
        let span = |value: Option<u64>| value.map_or(TIMEVISOR_UNKNOWN_NS, ns);
        *self = Self {
            struct_size: self.struct_size,
            status: status(from.status()) as i32,
            earliest_ns: from.earliest_ns(),
            estimate_ns: from.estimate_ns(),
            latest_ns: from.latest_ns(),
            counter: from.counter(),
            disruption: from.disruption(),
            origin: from.origin(),
            below_ns: span(from.below_ns()),
            above_ns: span(from.above_ns()),
            estimated_error_ns: span(from.estimated_error_ns()),
            timescale: match from.timescale() {
                TimescaleId::Utc => timevisor_timescale::Utc,
                TimescaleId::Tai => timevisor_timescale::Tai,
                TimescaleId::Local => timevisor_timescale::Local,
            } as i32,
            tai_offset_s: from.tai_offset().map_or(TIMEVISOR_UNKNOWN_TAI_OFFSET, i32::from),
            known: i32::from(from.is_known()),
            met: i32::from(from.met()),
        };
    }

    /// Into the structure that another one points to, where there is one.
    pub(crate) fn put(at: *mut Self, from: &Reading) -> Result<(), Failure> {
        // SAFETY: from a structure of the caller's; the header has the same rules for it.
        let mut at = unsafe { InOut::new(at) };
        at.fill_if_wanted(|reading| {
            reading.set(from);
            Ok(())
        })
    }
}

impl timevisor_measured_span {
    pub(crate) fn set(&mut self, from: &MeasuredSpan) {
        *self = Self {
            struct_size: self.struct_size,
            status: status(from.status()) as i32,
            shortest_ns: from.shortest_ns(),
            estimate_ns: from.estimate_ns(),
            longest_ns: from.longest_ns(),
        };
    }
}

impl timevisor_achieved {
    pub(crate) fn set(&mut self, from: &Achieved) {
        let span = |value: Option<u64>| value.map_or(TIMEVISOR_UNKNOWN_NS, ns);
        self.below_ns = span(from.below_ns);
        self.above_ns = span(from.above_ns);
        self.estimated_error_ns = span(from.estimated_error_ns);
        self.resolution_ns = span(from.resolution_ns);
    }

    /// Into the structure that another one points to, where there is one.
    pub(crate) fn put(at: *mut Self, from: &Achieved) -> Result<(), Failure> {
        // SAFETY: from a structure of the caller's; the header has the same rules for it.
        let mut at = unsafe { InOut::new(at) };
        at.fill_if_wanted(|achieved| {
            achieved.set(from);
            Ok(())
        })
    }
}

impl timevisor_requirement {
    /// The caller's requirement, if there is one.
    pub(crate) fn read(from: &In<'_, Self>) -> Result<Option<Requirement>, Failure> {
        from.get()?.map(Self::to_rust).transpose()
    }

    fn to_rust(self) -> Result<Requirement, Failure> {
        reserved(self.reserved)?;
        let below = span(self.below_ns, "below_ns")?;
        let above = span(self.above_ns, "above_ns")?;
        let mut requirement = Requirement::between(below, above);
        if self.resolution_ns != 0 {
            requirement = requirement.with_resolution(span(self.resolution_ns, "resolution_ns")?);
        }
        if self.probability != 0.0 {
            requirement = requirement.with_probability(self.probability);
        }
        Ok(requirement)
    }

    pub(crate) fn set(&mut self, from: Option<&Requirement>) {
        self.below_ns = from.map_or(0, |r| ns(r.below_ns()));
        self.above_ns = from.map_or(0, |r| ns(r.above_ns()));
        self.resolution_ns = from.and_then(Requirement::resolution_ns).map_or(0, ns);
        self.probability = from.and_then(Requirement::probability).unwrap_or(0.0);
    }
}

impl timevisor_validity {
    pub(crate) fn set(&mut self, from: &ValidUntil) {
        let (kind, estimate_ns, counter) = match *from {
            ValidUntil::Exceeded => (timevisor_validity_kind::Exceeded, 0, 0),
            ValidUntil::Until { estimate_ns, counter } => {
                (timevisor_validity_kind::Until, estimate_ns, counter)
            }
            ValidUntil::Unlimited => (timevisor_validity_kind::Unlimited, 0, 0),
        };
        *self = Self { struct_size: self.struct_size, kind: kind as i32, estimate_ns, counter };
    }
}

pub(crate) fn status(from: Status) -> timevisor_status {
    match from {
        Status::Unknown => timevisor_status::Unknown,
        Status::Initializing => timevisor_status::Initializing,
        Status::Synchronized => timevisor_status::Synchronized,
        Status::FreeRunning => timevisor_status::FreeRunning,
        Status::Unreliable => timevisor_status::Unreliable,
    }
}

pub(crate) fn status_from(code: c_int) -> Result<Status, Failure> {
    use Status::{FreeRunning, Initializing, Synchronized, Unknown, Unreliable};
    let all = [Unknown, Initializing, Synchronized, FreeRunning, Unreliable];
    let found = all.into_iter().find(|one| status(*one) as c_int == code);
    found.ok_or_else(|| no_such("timevisor_status", code))
}

pub(crate) fn timescale_from(code: c_int) -> Result<TimescaleId, Failure> {
    const UTC: c_int = timevisor_timescale::Utc as c_int;
    const TAI: c_int = timevisor_timescale::Tai as c_int;
    const LOCAL: c_int = timevisor_timescale::Local as c_int;
    match code {
        UTC => Ok(TimescaleId::Utc),
        TAI => Ok(TimescaleId::Tai),
        LOCAL => Ok(TimescaleId::Local),
        _ => Err(no_such("timevisor_timescale", code)),
    }
}

pub(crate) fn epoch_from(code: c_int) -> Result<Epoch, Failure> {
    timescale_from(code).map(|timescale| match timescale {
        TimescaleId::Utc => Epoch::Utc,
        TimescaleId::Tai => Epoch::Tai,
        TimescaleId::Local => Epoch::Local,
    })
}

pub(crate) fn epoch(from: Epoch) -> timevisor_timescale {
    match from {
        Epoch::Utc => timevisor_timescale::Utc,
        Epoch::Tai => timevisor_timescale::Tai,
        Epoch::Local => timevisor_timescale::Local,
    }
}

pub(crate) fn missed_ticks_from(code: c_int) -> Result<MissedTicks, Failure> {
    const SKIP: c_int = timevisor_missed_ticks::Skip as c_int;
    const CATCH_UP: c_int = timevisor_missed_ticks::CatchUp as c_int;
    const COALESCE: c_int = timevisor_missed_ticks::Coalesce as c_int;
    match code {
        SKIP => Ok(MissedTicks::Skip),
        CATCH_UP => Ok(MissedTicks::CatchUp),
        COALESCE => Ok(MissedTicks::Coalesce),
        _ => Err(no_such("timevisor_missed_ticks", code)),
    }
}

pub(crate) fn blackouts_from(code: c_int) -> Result<Blackouts, Failure> {
    const COUNT: c_int = timevisor_blackouts::Count as c_int;
    const EXCLUDE: c_int = timevisor_blackouts::Exclude as c_int;
    match code {
        COUNT => Ok(Blackouts::Count),
        EXCLUDE => Ok(Blackouts::Exclude),
        _ => Err(no_such("timevisor_blackouts", code)),
    }
}

pub(crate) fn comparison(from: Comparison) -> timevisor_comparison {
    match from {
        Comparison::Before => timevisor_comparison::Before,
        Comparison::After => timevisor_comparison::After,
        Comparison::Uncertain => timevisor_comparison::Uncertain,
    }
}

pub(crate) fn change(from: Change) -> timevisor_change {
    match from {
        Change::Met => timevisor_change::Met,
        Change::Violated => timevisor_change::Violated,
        Change::Holdover => timevisor_change::Holdover,
        Change::Synchronized => timevisor_change::Synchronized,
        Change::Disrupted => timevisor_change::Disrupted,
    }
}

pub(crate) fn no_such(what: &str, code: c_int) -> Failure {
    Failure::invalid(format!("{code} is no {what}"))
}

/// Reserved fields must be zero, because a later version may give them a meaning.
pub(crate) fn reserved(field: u32) -> Result<(), Failure> {
    if field == 0 { Ok(()) } else { Err(Failure::new(libc::E2BIG, "a reserved field is not 0")) }
}
