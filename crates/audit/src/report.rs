//! How long the clock was within a bound, from the lines of a log.
//!
//! A moment counts as within if a `bound` record covers it whose status is vouched for, whose ends
//! are, and whose worst bound is not above the limit. Everything else is a gap with a reason. Where a
//! span's end is itself known only within bounds, the uncertain part counts as a gap.

use crate::event::Event;
use crate::line::Line;
use crate::stamp::{Interval, Stamp};

/// Why a moment does not count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// Nobody recorded anything: timevisord did not run, was killed, or lost records.
    NoRecord,
    /// The clock's status vouched for nothing.
    NotVouched(String),
    /// The bound was above the limit; the worst, ns.
    Above(i64),
}

/// Time that does not count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// ns since 1970.
    pub from_ns: i64,
    /// ns since 1970.
    pub to_ns: i64,
    /// Why.
    pub why: Why,
}

/// What the lines say of a stretch of time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// How long the stretch is, ns.
    pub total_ns: i64,
    /// How much of it was within the limit, ns.
    pub within_ns: i64,
    /// The worst bound that was vouched for, ns.
    pub worst_ns: Option<i64>,
    /// The rest, in order.
    pub gaps: Vec<Gap>,
    /// How often the daemon started.
    pub starts: u64,
    /// How often references contradicted what had been published.
    pub contradictions: u64,
}

impl Report {
    /// The share of the time that was within, in [0, 1]; rounding never makes it 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown to people; one ns of a year is lost")]
    pub fn share(&self) -> f64 {
        let share = self.within_ns as f64 / self.total_ns as f64;
        if self.within_ns < self.total_ns { share.min(1.0 - f64::EPSILON) } else { share }
    }

    /// Whether all of it was within.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.within_ns >= self.total_ns
    }
}

/// A recorded span.
#[derive(Clone, Debug)]
struct Span {
    since: [i64; 2],
    until: [i64; 2],
    /// `None`: within.
    why: Option<Why>,
}

/// Collects lines in their order.
#[derive(Clone, Debug)]
pub struct Reporter {
    from_ns: i64,
    to_ns: i64,
    limit_ns: i64,
    spans: Vec<Span>,
    worst_ns: Option<i64>,
    starts: u64,
    contradictions: u64,
}

impl Reporter {
    /// A report on the time from `from_ns` to `to_ns`, ns since 1970, and a bound of `limit_ns`.
    #[must_use]
    pub fn new(from_ns: i64, to_ns: i64, limit_ns: i64) -> Self {
        Self {
            from_ns,
            to_ns,
            limit_ns,
            spans: Vec::new(),
            worst_ns: None,
            starts: 0,
            contradictions: 0,
        }
    }

    /// Takes in the next line.
    pub fn take(&mut self, line: &Line) {
        let is_inside =
            self.from_ns <= line.stamp.latest_ns && line.stamp.earliest_ns <= self.to_ns;
        match &line.event {
            Event::Start { .. } if is_inside => self.starts += 1,
            Event::Contradiction { .. } if is_inside => self.contradictions += 1,
            Event::Bound { since, since_vouched, status, worst_ns, .. } => {
                self.take_bound(line.stamp, *since, *since_vouched, status, *worst_ns);
            }
            _ => {}
        }
    }

    fn take_bound(
        &mut self,
        stamp: Stamp,
        Interval(since): Interval,
        since_vouched: bool,
        status: &str,
        worst_ns: Option<i64>,
    ) {
        let until = [stamp.earliest_ns, stamp.latest_ns];
        if until[1] < self.from_ns || since[0] > self.to_ns {
            return;
        }
        let is_vouched = stamp.vouched && since_vouched;
        let why = match worst_ns.filter(|_| is_vouched && is_vouching(status)) {
            None => Some(Why::NotVouched(status.to_owned())),
            Some(worst) => {
                self.worst_ns = self.worst_ns.max(Some(worst));
                (worst > self.limit_ns).then_some(Why::Above(worst))
            }
        };
        // Spans that follow one another without a break are one: their common moment is the same, however
        // well it is known.
        match self.spans.last_mut() {
            Some(last) if last.why.is_none() && why.is_none() && last.until == since => {
                last.until = until;
            }
            _ => self.spans.push(Span { since, until, why }),
        }
    }

    /// The report.
    #[must_use]
    pub fn report(&self) -> Report {
        let clip = |[from, to]: [i64; 2]| [from.max(self.from_ns), to.min(self.to_ns)];
        let is_some = |[from, to]: &[i64; 2]| from < to;
        // What is within, as short as it can have been; everything else, as long.
        let within = self.spans.iter().filter(|span| span.why.is_none());
        let within = within.map(|span| clip([span.since[1], span.until[0]])).filter(is_some);
        let named: Vec<([i64; 2], &Why)> = self
            .spans
            .iter()
            .filter_map(|span| Some((clip([span.since[0], span.until[1]]), span.why.as_ref()?)))
            .filter(|(span, _)| is_some(span))
            .collect();
        let bad = union(named.iter().map(|(span, _)| *span).collect());
        let within = without(&union(within.collect()), &bad);
        let rest = without(&[[self.from_ns, self.to_ns]], &within);
        let mut gaps: Vec<Gap> = rest.iter().flat_map(|gap| explained(*gap, &named)).collect();
        // A moment's uncertainty at the edge of a named gap belongs to it.
        gaps.retain(|gap| gap.from_ns < gap.to_ns);
        Report {
            total_ns: self.to_ns - self.from_ns,
            within_ns: within.iter().map(|[from, to]| to - from).sum(),
            worst_ns: self.worst_ns,
            gaps,
            starts: self.starts,
            contradictions: self.contradictions,
        }
    }
}

/// Whether a clock with this status vouches for its bound.
#[must_use]
pub fn is_vouching(status: &str) -> bool {
    ["synchronized", "freerunning"].contains(&status)
}

/// The parts of one gap, each with its reason.
fn explained(gap: [i64; 2], named: &[([i64; 2], &Why)]) -> Vec<Gap> {
    let mut parts: Vec<Gap> = Vec::new();
    let mut at = gap[0];
    let mut add = |from_ns: i64, to_ns: i64, why: &Why| match parts.last_mut() {
        Some(last) if last.to_ns == from_ns && is_alike(&last.why, why) => {
            last.to_ns = to_ns;
            if let (Why::Above(worst), Why::Above(other)) = (&mut last.why, why) {
                *worst = (*worst).max(*other);
            }
        }
        _ => parts.push(Gap { from_ns, to_ns, why: why.clone() }),
    };
    let mut sorted: Vec<_> = named.iter().collect();
    sorted.sort_by_key(|(span, _)| *span);
    for ([from, to], why) in sorted {
        let (from, to) = ((*from).max(at), (*to).min(gap[1]));
        if from >= to {
            continue;
        }
        if at < from {
            add(at, from, &Why::NoRecord);
        }
        add(from, to, why);
        at = to;
    }
    if at < gap[1] {
        add(at, gap[1], &Why::NoRecord);
    }
    parts
}

fn is_alike(one: &Why, other: &Why) -> bool {
    matches!((one, other), (Why::Above(_), Why::Above(_))) || one == other
}

/// Sorted and disjoint.
fn union(mut spans: Vec<[i64; 2]>) -> Vec<[i64; 2]> {
    spans.sort_unstable();
    let mut out: Vec<[i64; 2]> = Vec::new();
    for [from, to] in spans {
        match out.last_mut() {
            Some(last) if from <= last[1] => last[1] = last[1].max(to),
            _ => out.push([from, to]),
        }
    }
    out
}

/// What of `spans` is in none of `others`; both sorted and disjoint.
fn without(spans: &[[i64; 2]], others: &[[i64; 2]]) -> Vec<[i64; 2]> {
    let mut out = Vec::new();
    for [from, to] in spans {
        let mut at = *from;
        let first = others.partition_point(|other| other[1] <= at);
        for other in others[first..].iter().take_while(|other| other[0] < *to) {
            if at < other[0] {
                out.push([at, other[0]]);
            }
            at = at.max(other[1]);
        }
        if at < *to {
            out.push([at, *to]);
        }
    }
    out
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
