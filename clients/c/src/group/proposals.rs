//! [`timevisor_pending`]: a proposal that was made; [`timevisor_proposals`]: what happens to proposals.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use timevisor::group::{Outcome, Pending as Proposal, ProposalId, Proposed};

use super::conversions::{
    NO_NAME, agreement, ends, name, parts, proposal_id, put_part, texts, timeout,
};
use super::inbox::Entries;
use super::member::{group_of, timevisor_group};
use super::messages::payload;
use super::types::{
    timevisor_group_outcome, timevisor_part, timevisor_propose_options, timevisor_proposed,
    timevisor_proposed_kind as Kind,
};
use crate::error::{Failure, guard};
use crate::memory::{In, InOut, Out, bytes, give, handle, span};
use crate::pending::Pending;

/// How late members that fire may be, unless stated.
const LATE_AT_MOST: Duration = Duration::from_millis(10);

/// A proposal that was made. For any number of threads at once.
pub struct timevisor_pending {
    pending: Proposal,
    outcome: Mutex<Option<Outcome>>,
}

/// Proposes that all members, or those that the options name, fire at a time, in ns since the
/// timeline's epoch. The payload is copied.
///
/// payload: `length` bytes, at most 1 MiB; may be NULL if that is 0. options: with whom, or NULL.
/// Returns 0; -ETIME: the time is too close; -ENODATA: the clock does not meet the requirement now;
/// -ENOENT: no member has such a name; -EMSGSIZE: a longer payload; -EUSERS: too many proposals, or
/// members; -EINVAL: also when this member is not among them. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_propose(
    group: Option<&timevisor_group>,
    at_ns: i64,
    payload: *const c_void,
    length: usize,
    options: In<'_, timevisor_propose_options>,
    pending: Out<'_, *mut timevisor_pending>,
) -> c_int {
    guard(|| {
        give(pending, || {
            // SAFETY: the caller says that it has so many bytes, and leaves them alone.
            let payload = unsafe { bytes(payload, length)? };
            let (mut names, mut late_at_most) = (None, LATE_AT_MOST);
            if let Some(given) = options.get()? {
                if given.count > 0 {
                    // SAFETY: from a structure of the caller's, which says so.
                    names = Some(unsafe { texts(given.names, given.count as usize)? });
                }
                if given.late_at_most_ns != 0 {
                    late_at_most = span(given.late_at_most_ns, "late_at_most_ns")?;
                }
            }
            let group = group_of(group)?;
            let pending = group.propose_with(at_ns, payload, names.as_deref(), late_at_most)?;
            Ok(timevisor_pending { pending, outcome: Mutex::default() })
        })
    })
}

/// Waits until it is decided.
///
/// timeout_ns: give up after this long; 0: never.
/// Returns 1: everybody is to fire; 0: nobody; -ETIMEDOUT; -ESHUTDOWN: this member has left; -EINVAL.
/// Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pending_decided(
    pending: Option<&timevisor_pending>,
    timeout_ns: i64,
) -> c_int {
    guard(|| Ok(handle(pending, "pending")?.pending.decided(timeout(timeout_ns)?)?.into()))
}

/// Waits for the outcome, which `outcome` (or NULL) gets. With `unknown` members it may be corrected
/// later: call this again, or see timevisor_proposals_next.
///
/// timeout_ns: give up after this long; 0: never.
/// Returns 0; -ETIMEDOUT; -ESHUTDOWN: this member has left; -EINVAL. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pending_wait(
    pending: Option<&timevisor_pending>,
    timeout_ns: i64,
    mut outcome: InOut<'_, timevisor_group_outcome>,
) -> c_int {
    guard(|| {
        outcome.check()?;
        let pending = handle(pending, "pending")?;
        let found = pending.pending.wait(timeout(timeout_ns)?)?;
        outcome.fill_if_wanted(|outcome| {
            outcome.set(&found);
            Ok(())
        })?;
        *pending.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        Ok(0)
    })
}

/// What one member did, as the last outcome of timevisor_pending_wait has it: first those that fired,
/// then those that did not, then those that were not heard.
///
/// Returns 0; -ENOENT: there are not so many, or no outcome yet; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pending_part(
    pending: Option<&timevisor_pending>,
    index: usize,
    part: InOut<'_, timevisor_part>,
) -> c_int {
    guard(|| {
        let outcome = &handle(pending, "pending")?.outcome;
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        put_part(outcome.as_ref(), index, part)
    })
}

/// Frees the handle; the proposal stands. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pending_free(pending: Option<Box<timevisor_pending>>) {
    drop(pending);
}

/// What happens to proposals. One thread at a time. Of more than 65536 entries that nobody takes the
/// oldest are dropped.
pub struct timevisor_proposals {
    pending: Pending<Entries<Proposed>>,
}

/// Proposals of others, to be answered, where TIMEVISOR_ACCEPT_ASK was said; and from now on what is to
/// be done because of proposals, and what came of them.
///
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_proposals(
    group: Option<&timevisor_group>,
    proposals: Out<'_, *mut timevisor_proposals>,
) -> c_int {
    guard(|| {
        give(proposals, || {
            let pending = Pending::new(Entries::begin(group_of(group)?.proposals())?);
            Ok(timevisor_proposals { pending })
        })
    })
}

/// Answers a proposal that was given with TIMEVISOR_PROPOSED_KIND_ASKED: `accepts` is 1 or 0. Only who
/// proposes and which one is read.
///
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_answer(
    group: Option<&timevisor_group>,
    asked: In<'_, timevisor_proposed>,
    accepts: c_int,
) -> c_int {
    guard(|| {
        let id = proposal_id(&asked.require("proposal")?)?;
        group_of(group)?.answer(id, accepts != 0);
        Ok(0)
    })
}

/// Waits for what happens next. `proposed` may be NULL.
///
/// timeout_ns: give up after this long; 0: never.
/// Returns as timevisor_subscription_next. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_proposals_next(
    proposals: Option<&timevisor_proposals>,
    timeout_ns: i64,
    mut proposed: InOut<'_, timevisor_proposed>,
) -> c_int {
    guard(|| {
        proposed.check()?;
        let timeout = timeout(timeout_ns)?;
        let pending = &handle(proposals, "proposals")?.pending;
        pending.with(|entries| entries.next(timeout, |found| tell(&mut proposed, found)))
    })
}

/// The descriptor to poll: see timevisor_subscription_fd.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_proposals_fd(proposals: Option<&timevisor_proposals>) -> c_int {
    guard(|| Ok(handle(proposals, "proposals")?.pending.fd()))
}

/// Takes what happened next; never blocks. `proposed` may be NULL.
///
/// Returns 0; -EAGAIN: nothing, poll again; otherwise as timevisor_subscription_next.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_proposals_on_ready(
    proposals: Option<&timevisor_proposals>,
    mut proposed: InOut<'_, timevisor_proposed>,
) -> c_int {
    guard(|| {
        proposed.check()?;
        let pending = &handle(proposals, "proposals")?.pending;
        pending.with(|entries| entries.on_ready(|found| tell(&mut proposed, found)))
    })
}

/// What one member did, if what was given last is an outcome: see timevisor_pending_part.
///
/// Returns 0; -ENOENT: there are not so many, or it is no outcome; -EBUSY, -EINVAL. One thread at a
/// time.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_proposals_part(
    proposals: Option<&timevisor_proposals>,
    index: usize,
    part: InOut<'_, timevisor_part>,
) -> c_int {
    guard(|| {
        handle(proposals, "proposals")?.pending.with(|entries| {
            let outcome = match entries.last() {
                Some(Proposed::Outcome(outcome)) => Some(outcome),
                _ => None,
            };
            put_part(outcome, index, part)
        })
    })
}

/// How many entries were dropped since the last call, because nobody took them. -EBUSY, -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_proposals_dropped(proposals: Option<&timevisor_proposals>) -> c_int {
    guard(|| handle(proposals, "proposals")?.pending.with(|entries| Ok(entries.dropped())))
}

/// Ends it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_proposals_free(proposals: Option<Box<timevisor_proposals>>) {
    drop(proposals);
}

fn tell(to: &mut InOut<'_, timevisor_proposed>, found: &Proposed) -> Result<(), Failure> {
    to.fill_if_wanted(|to| {
        *to = timevisor_proposed {
            struct_size: to.struct_size,
            kind: 0,
            proposer: NO_NAME,
            incarnation: 0,
            number: 0,
            at_ns: 0,
            earliest_ns: 0,
            latest_ns: 0,
            late_ns: 0,
            commits: 0,
            agreed: 0,
            parts: 0,
            payload: payload(&[]),
            length: 0,
        };
        to.set(found);
        Ok(())
    })
}

impl timevisor_proposed {
    fn set(&mut self, found: &Proposed) {
        let (kind, id) = match found {
            Proposed::Asked(proposal) => {
                self.at_ns = proposal.at.floor_nanos();
                self.late_ns = proposal.late_at_most.ceil_nanos();
                self.carry(&proposal.payload);
                (Kind::Asked, proposal.id)
            }
            Proposed::Decided(id, commits) => {
                self.commits = i32::from(*commits);
                (Kind::Decided, *id)
            }
            Proposed::Fire { id, interval, late_ns, payload } => {
                (self.earliest_ns, self.latest_ns) = ends(interval);
                self.late_ns = *late_ns;
                self.carry(payload);
                (Kind::Fire, *id)
            }
            Proposed::Outcome(outcome) => {
                self.agreed = agreement(outcome);
                self.parts = parts(outcome) as u64;
                (Kind::Outcome, outcome.id)
            }
        };
        let ProposalId { proposer, number } = id;
        (self.kind, self.number) = (kind as i32, number);
        (self.proposer, self.incarnation) = (name(proposer.name.as_str()), proposer.incarnation);
    }

    fn carry(&mut self, bytes: &[u8]) {
        (self.payload, self.length) = (payload(bytes), bytes.len() as u64);
    }
}
