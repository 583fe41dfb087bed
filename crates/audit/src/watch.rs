//! Which changes of a host's state are events: the state goes in with each publication, what is worth
//! a record comes out.

use std::collections::BTreeMap;

use crate::event::Event;
use crate::stamp::Stamp;

/// A bound is recorded at least this often, ns.
pub const EVERY_NS: i64 = 60_000_000_000;

/// What a reader of the clock sees.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Its status.
    pub status: String,
    /// Whether that vouches for the bound.
    pub vouched: bool,
    /// The larger side of the bound, ns.
    pub bound_ns: Option<i64>,
    /// Why it is not synchronized.
    pub reason: Option<String>,
    /// The reference that counts most.
    pub reference: Option<String>,
    /// What that one states of its distance from UTC, ns.
    pub reference_error_ns: Option<i64>,
}

/// A span with one status.
#[derive(Clone, Debug)]
struct Span {
    since: Stamp,
    since_ns: i64,
    last: Stamp,
    last_sample: Sample,
    worst_ns: Option<i64>,
}

/// Follows one clock.
#[derive(Clone, Debug, Default)]
pub struct ClockWatch {
    span: Option<Span>,
    contradictions: u64,
}

impl ClockWatch {
    /// Takes in what readers see at monotonic time `now_ns`, and returns what to record. It must be
    /// called before each publication, where the old lines are widest, and after it.
    pub fn sample(&mut self, now_ns: i64, stamp: Stamp, sample: Sample) -> Vec<(Stamp, Event)> {
        let mut events = Vec::new();
        let Some(span) = &mut self.span else {
            events.push((stamp, status(None, &sample)));
            self.span = Some(Span::begin(now_ns, stamp, sample));
            return events;
        };
        if span.last_sample.status != sample.status {
            let before = Some(span.last_sample.status.clone());
            // Time between two looks counts as the worse of the two.
            if sample.vouched && !span.last_sample.vouched {
                span.last = stamp;
            }
            let changed_at = span.last;
            events.extend(span.end());
            events.push((stamp, status(before, &sample)));
            let mut next = Span::begin(now_ns, stamp, sample);
            next.since = changed_at;
            self.span = Some(next);
            return events;
        }
        span.take(stamp, sample);
        if now_ns - span.since_ns >= EVERY_NS {
            events.extend(span.end());
            let (last, sample) = (span.last, span.last_sample.clone());
            self.span = Some(Span::begin(now_ns, last, sample));
        }
        events
    }

    /// The clock has been contradicted this often in all.
    pub fn contradictions(&mut self, count: u64) -> Option<Event> {
        let is_more = count > self.contradictions;
        self.contradictions = count;
        is_more.then_some(Event::Contradiction { count })
    }

    /// What is still to be recorded when the daemon ends.
    pub fn end(&mut self) -> Option<(Stamp, Event)> {
        self.span.take().and_then(|span| span.end())
    }
}

impl Span {
    fn begin(now_ns: i64, stamp: Stamp, sample: Sample) -> Self {
        let worst_ns = sample.bound_ns;
        Self { since: stamp, since_ns: now_ns, last: stamp, last_sample: sample, worst_ns }
    }

    fn take(&mut self, stamp: Stamp, sample: Sample) {
        self.worst_ns = self.worst_ns.zip(sample.bound_ns).map(|(a, b)| a.max(b));
        (self.last, self.last_sample) = (stamp, sample);
    }

    fn end(&self) -> Option<(Stamp, Event)> {
        let sample = &self.last_sample;
        let event = Event::Bound {
            since: self.since.interval(),
            since_vouched: self.since.vouched,
            status: sample.status.clone(),
            worst_ns: self.worst_ns,
            reference: sample.reference.clone(),
            reference_error_ns: sample.reference_error_ns,
        };
        (self.last != self.since).then_some((self.last, event))
    }
}

fn status(before: Option<String>, sample: &Sample) -> Event {
    Event::Status { before, status: sample.status.clone(), reason: sample.reason.clone() }
}

/// A reference, as it is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Its state in a word.
    pub state: String,
    /// In more words. That they change is no event.
    pub detail: String,
}

/// A VM, as it is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vm {
    /// The user id of its process.
    pub uid: u32,
    /// `here`, `incoming`, `leaving`, `left` or `failed`.
    pub state: String,
}

/// A reservation, as it is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The user id of the VM's process.
    pub uid: Option<u32>,
    /// `core 3`, `global`, `fifo` or `limit`.
    pub promise: String,
    /// ns.
    pub budget_ns: u64,
    /// ns.
    pub period_ns: u64,
    /// ns.
    pub deadline_ns: u64,
}

/// Everything besides the clock that changes are recorded of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// By name.
    pub references: BTreeMap<String, Reference>,
    /// TAI - UTC, s, and the next leap second, as in [`Event::Leap`].
    pub leap: (Option<i16>, String),
    /// By name and process.
    pub vms: BTreeMap<(String, u32), Vm>,
    /// By VM and vCPU.
    pub reservations: BTreeMap<(String, u32), Reservation>,
}

impl Facts {
    /// What has changed since `before`; `None` at the start, when everything is recorded.
    #[must_use]
    pub fn since(&self, before: Option<&Self>) -> Vec<Event> {
        let nothing = Self::default();
        let old = before.unwrap_or(&nothing);
        let mut events = Vec::new();
        if before.is_none() || self.leap != old.leap {
            let (tai_utc, next) = self.leap.clone();
            events.push(Event::Leap { tai_utc, next });
        }
        for (name, was, is) in changes(&old.references, &self.references) {
            let state = |of: &Reference| of.state.clone();
            if was.map(state) == is.map(state) {
                continue;
            }
            let detail = is.map_or_else(String::new, |is| is.detail.clone());
            let (before, state) = (was.map(state), is.map(state));
            events.push(Event::Reference { name: name.clone(), before, state, detail });
        }
        for ((name, pid), was, is) in changes(&old.vms, &self.vms) {
            let state = |of: &Vm| of.state.clone();
            let uid = is.or(was).map_or(0, |vm| vm.uid);
            let (before, state) = (was.map(state), is.map(state));
            events.push(Event::Vm { name: name.clone(), pid: *pid, uid, before, state });
        }
        for ((vm, vcpu), was, is) in changes(&old.reservations, &self.reservations) {
            let change = match (was, is) {
                (None, _) => "made",
                (_, None) => "released",
                // Its VM has ended, which says nothing of the reservation.
                (Some(was), Some(is)) if (Reservation { uid: is.uid, ..was.clone() }) == *is => {
                    continue;
                }
                _ => "changed",
            };
            let Some(of) = is.or(was) else { continue };
            events.push(Event::Reservation {
                vm: vm.clone(),
                vcpu: *vcpu,
                uid: of.uid,
                change: change.to_owned(),
                promise: of.promise.clone(),
                budget_ns: of.budget_ns,
                period_ns: of.period_ns,
                deadline_ns: of.deadline_ns,
            });
        }
        events
    }
}

/// What is there in one of two maps only, or differs.
fn changes<'a, K: Ord, V: PartialEq>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, Option<&'a V>, Option<&'a V>)> {
    let gone = old.iter().filter(|(key, _)| !new.contains_key(*key));
    let gone = gone.map(|(key, was)| (key, Some(was), None));
    let there = new.iter().map(|(key, is)| (key, old.get(key), Some(is)));
    gone.chain(there).filter(|(_, was, is)| was != is)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
