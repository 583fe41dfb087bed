//! A few members on a network that delivers at once, or not at all.

use std::collections::BTreeSet;

use timevisor_time::{Duration, Instant, Interval, Local};

use crate::member::{Event, Member, Settings};
use crate::{Envelope, MemberId, Name, Now, Reading, To};

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn id(index: usize) -> MemberId {
    MemberId { name: name(&format!("m{index}")), incarnation: 1 }
}

pub fn at(ms: i64) -> Instant<Local> {
    Instant::from_bits(0) + Duration::from_millis(ms)
}

/// What a page with bounds of 10 us says so many ms after the begin.
pub fn now_at(ms: i64) -> Now {
    let elapsed = Duration::from_millis(ms);
    let estimate = at(ms);
    let interval = Interval::around(estimate, Duration::from_micros(10));
    Now { elapsed, reading: Some(Reading { interval, estimate, origin: 7, met: true }) }
}

pub struct Net {
    pub members: Vec<Member>,
    pub now: Now,
    pub ms: i64,
    /// From whom to whom nothing comes through.
    pub cut: BTreeSet<(usize, usize)>,
    /// What members told, in order.
    pub told: Vec<(usize, Event)>,
    /// Whether members accept what they are asked.
    pub accepts: Vec<Option<bool>>,
}

impl Net {
    pub fn new(count: usize) -> Self {
        let settings = Settings { longest_term: Duration::from_millis(500), ..Settings::default() };
        let member = |index| Member::new(id(index), settings, index as u64);
        Self {
            members: (0..count).map(member).collect(),
            now: now_at(0),
            ms: 0,
            cut: BTreeSet::new(),
            told: Vec::new(),
            accepts: vec![Some(true); count],
        }
    }

    /// Nothing comes through to or from this member.
    pub fn isolate(&mut self, member: usize) {
        for other in 0..self.members.len() {
            self.cut.extend([(member, other), (other, member)]);
        }
    }

    /// Delivers what there is.
    pub fn flush(&mut self) {
        loop {
            let mut mail: Vec<(usize, To, Envelope)> = Vec::new();
            for (index, member) in self.members.iter_mut().enumerate() {
                mail.extend(member.outbox().into_iter().map(|(to, it)| (index, to, it)));
                self.told.extend(member.events().into_iter().map(|event| (index, event)));
            }
            for (from, to, envelope) in mail.iter().cloned() {
                for index in 0..self.members.len() {
                    let reached = index != from && matches_to(to, index);
                    if reached && !self.cut.contains(&(from, index)) {
                        let bytes = envelope.encode();
                        let now = self.now;
                        self.members[index].heard(Envelope::decode(&bytes).unwrap(), &now);
                    }
                }
            }
            let answers = self.answer();
            if mail.is_empty() && !answers {
                return;
            }
        }
    }

    fn answer(&mut self) -> bool {
        let mut any = false;
        for (index, member) in self.members.iter_mut().enumerate() {
            for event in member.events() {
                if let Event::Asked(proposal) = &event
                    && let Some(accepts) = self.accepts[index]
                {
                    member.answer(proposal.id, accepts, &self.now);
                    any = true;
                }
                self.told.push((index, event));
            }
        }
        any
    }

    /// Goes on to then, a millisecond at a time.
    pub fn run_to(&mut self, ms: i64) {
        while self.ms < ms {
            self.ms += 1;
            self.now = now_at(self.ms);
            let now = self.now;
            self.members.iter_mut().for_each(|member| member.on_timer(&now));
            self.flush();
        }
    }

    pub fn told_by(&self, index: usize) -> impl Iterator<Item = &Event> {
        self.told.iter().filter(move |(by, _)| *by == index).map(|(_, event)| event)
    }
}

fn matches_to(to: To, index: usize) -> bool {
    match to {
        To::All => true,
        To::Member(member) => member == id(index),
    }
}
