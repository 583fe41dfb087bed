//! Names, identities and outcomes between C and Rust.

use core::ffi::{c_char, c_int};
use std::time::Duration;

use timevisor::group::{Id, Outcome, ProposalId, Why};
use timevisor::{Interval, Local};

use super::types::{
    Name, TIMEVISOR_NAME_SIZE, timevisor_agreement, timevisor_group_outcome, timevisor_part,
    timevisor_part_kind, timevisor_proposed,
};
use crate::error::Failure;
use crate::memory::{InOut, Text, span};

/// No name.
pub(super) const NO_NAME: Name = [0; TIMEVISOR_NAME_SIZE];

/// A name for a caller.
pub(super) fn name(text: &str) -> Name {
    let mut name = NO_NAME;
    // The last one stays zero; no name is as long.
    for (to, from) in name[..TIMEVISOR_NAME_SIZE - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed() as c_char;
    }
    name
}

/// A proposal that a caller names.
pub(super) fn proposal_id(from: &timevisor_proposed) -> Result<ProposalId, Failure> {
    let bytes = from.proposer.iter().map(|byte| byte.to_ne_bytes()[0]);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8(bytes).ok().and_then(|name| name.parse().ok());
    let name = name.ok_or_else(|| {
        Failure::invalid("the proposal is none that timevisor_proposals_next gave")
    })?;
    let proposer = Id { name, incarnation: from.incarnation };
    Ok(ProposalId { proposer, number: from.number })
}

/// How long to wait; 0: for ever.
pub(super) fn timeout(ns: i64) -> Result<Duration, Failure> {
    let timeout = span(ns, "timeout_ns")?;
    Ok(if timeout.is_zero() { Duration::MAX } else { timeout })
}

/// Names out of a caller's array.
///
/// # Safety
/// `at` is NULL, or points to `count` texts, which live as long as `'a`.
pub(super) unsafe fn texts<'a>(
    at: *const *const c_char,
    count: usize,
) -> Result<Vec<&'a str>, Failure> {
    if at.is_null() {
        let none = (count == 0).then(Vec::new);
        return none.ok_or_else(|| Failure::invalid("the array of names is NULL"));
    }
    // SAFETY: as the caller of this function says; so for the texts.
    let text = |index| unsafe { Text::new(at.add(index).read()) };
    (0..count).map(|index| text(index).require("name")).collect()
}

/// Rounded outwards.
pub(super) fn ends(interval: &Interval<Local>) -> (i64, i64) {
    (interval.earliest().floor_nanos(), interval.latest().ceil_nanos())
}

pub(super) fn agreement(outcome: &Outcome) -> i32 {
    (match outcome.agreed() {
        Some(true) => timevisor_agreement::All,
        Some(false) => timevisor_agreement::None,
        None => timevisor_agreement::Open,
    }) as i32
}

pub(super) fn parts(outcome: &Outcome) -> usize {
    outcome.fired.len() + outcome.quiet.len() + outcome.unknown.len()
}

impl timevisor_group_outcome {
    pub(super) fn set(&mut self, from: &Outcome) {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        *self = Self {
            struct_size: self.struct_size,
            agreed: agreement(from),
            fired: count(from.fired.len()),
            quiet: count(from.quiet.len()),
            unknown: count(from.unknown.len()),
            reserved: 0,
        };
    }
}

/// One member's part, in the order: fired, quiet, unknown.
pub(super) fn put_part(
    outcome: Option<&Outcome>,
    index: usize,
    mut to: InOut<'_, timevisor_part>,
) -> Result<c_int, Failure> {
    let outcome = outcome.ok_or_else(|| {
        Failure::new(libc::ENOENT, "no outcome was given yet; wait for one, then look at its parts")
    })?;
    let fired = outcome.fired.iter().map(|(who, at)| (*who, timevisor_part_kind::Fired, ends(at)));
    let quiet = outcome.quiet.iter().map(|(who, why)| (*who, kind(*why), (0, 0)));
    let unknown = outcome.unknown.iter().map(|who| (*who, timevisor_part_kind::Unknown, (0, 0)));
    let found = fired.chain(quiet).chain(unknown).nth(index);
    let (who, kind, (earliest_ns, latest_ns)) = found.ok_or_else(|| {
        let count = parts(outcome);
        Failure::new(libc::ENOENT, format!("the outcome has {count} members; index {index}"))
    })?;
    to.fill(|to| {
        *to = timevisor_part {
            struct_size: to.struct_size,
            kind: kind as i32,
            name: name(who.name.as_str()),
            incarnation: who.incarnation,
            earliest_ns,
            latest_ns,
        };
        Ok(())
    })?;
    Ok(0)
}

fn kind(why: Why) -> timevisor_part_kind {
    match why {
        Why::Rejected => timevisor_part_kind::Rejected,
        Why::Aborted => timevisor_part_kind::Aborted,
        Why::Undecided => timevisor_part_kind::Undecided,
        Why::Late => timevisor_part_kind::Late,
        Why::Clock => timevisor_part_kind::Clock,
    }
}
