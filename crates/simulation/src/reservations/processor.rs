//! [`run`]: several reservations on one core, by earliest deadline first, as SCHED_DEADLINE runs
//! them.
//!
//! What it does not do: charge for switches. If two deadlines are equal, the one listed later runs,
//! so that the first, which is under examination, is never favoured.

use timevisor_schedule::Reservation;

use super::guest::Guest;
use super::server::Server;
use super::windows::Window;

/// A reservation and its guest.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    server: Server,
    /// Its guest.
    pub guest: Guest<'a>,
    /// When it ran; adjacent windows are not merged.
    pub ran: Vec<Window>,
    /// The intervals in which it was continuously runnable; the last one may have no end.
    pub busy: Vec<Window>,
}

impl<'a> Member<'a> {
    /// A member that has not run yet.
    #[must_use]
    pub fn new(of: Reservation, guest: Guest<'a>) -> Self {
        Self { server: Server::new(of), guest, ran: Vec::new(), busy: Vec::new() }
    }
}

/// When the kernel notices that a budget is exhausted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enforcement {
    /// Immediately (the HRTICK_DL feature).
    Exact,
    /// At the next tick; the tick's length in ns.
    Tick(u64),
}

/// Runs until the jobs of the first are done, one of them is late, or `end` is reached.
pub fn run(members: &mut [Member<'_>], enforcement: Enforcement, end: u64) {
    let mut now = 0;
    let mut running: Option<usize> = None;
    loop {
        let mut next = end;
        for member in members.iter_mut() {
            if member.server.timer().is_some_and(|timer| timer <= now) {
                member.server.replenish(now);
            }
            if member.guest.next_release().is_some_and(|release| release <= now) {
                member.guest.release(now);
            }
            if member.guest.ready() && !member.server.queued() {
                member.server.wake(now);
                member.busy.push((now, u64::MAX));
            }
            let events = [member.guest.next_release(), member.server.timer()];
            next = events.into_iter().flatten().fold(next, u64::min);
        }
        let pick = most_urgent(members);
        if let Some(previous) = running.filter(|previous| pick != Some(*previous)) {
            // It leaves the processor: its time is accounted for, by tick or not.
            members[previous].server.account();
        }
        running = pick;
        if now >= end || members[0].guest.done() || members[0].guest.outcome.missed.is_some() {
            return;
        }
        let Some(index) = pick else {
            now = next;
            continue;
        };
        let member = &mut members[index];
        let gone = gone(&member.server, enforcement, now);
        let done = member.guest.left().map_or(u64::MAX, |left| now + left);
        let until = next.min(gone).min(done);
        if until > now {
            member.guest.run(now, until - now);
            member.server.spend(until - now);
            member.ran.push((now, until));
        }
        if until == gone {
            member.server.account();
        }
        if !member.guest.ready() && member.guest.next_release().is_none_or(|next| next > until) {
            member.server.sleep();
            if let Some(busy) = member.busy.last_mut() {
                busy.1 = until;
            }
            running = None;
        }
        now = until;
    }
}

fn most_urgent(members: &[Member<'_>]) -> Option<usize> {
    let urgency = |(index, member): (usize, &Member<'_>)| Some((member.server.urgency()?, index));
    let all = members.iter().enumerate().filter_map(urgency);
    all.min_by_key(|(urgency, index)| (*urgency, core::cmp::Reverse(*index)))
        .map(|(_, index)| index)
}

/// When a server that runs from now on is stopped.
fn gone(server: &Server, enforcement: Enforcement, now: u64) -> u64 {
    let gone = now + server.runtime().max(0).unsigned_abs();
    match enforcement {
        Enforcement::Exact => gone,
        Enforcement::Tick(tick) => gone.next_multiple_of(tick),
    }
}
