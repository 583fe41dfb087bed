//! The latest events of one guest, for later queries. Bounded, because a guest may cause any number
//! of events.

use std::collections::VecDeque;

use crate::tasks::event::Event;

/// Maximum number of events that are remembered.
pub const REMEMBERED: usize = 8192;
/// Maximum number of events in one answer.
pub const ANSWER: usize = 256;

/// The latest events, numbered from 0.
#[derive(Clone, Debug)]
pub struct History<E = Event> {
    events: VecDeque<E>,
    next: u64,
}

impl<E> Default for History<E> {
    fn default() -> Self {
        Self { events: VecDeque::new(), next: 0 }
    }
}

/// Part of a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part<'a, E = Event> {
    /// The events, in order.
    pub events: Vec<&'a E>,
    /// The number of the event after them, where the next query begins.
    pub next: u64,
    /// How many of the requested events have already been forgotten.
    pub forgotten: u64,
}

impl<E> History<E> {
    /// Adds an event.
    pub fn push(&mut self, event: E) {
        if self.events.len() >= REMEMBERED {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.next += 1;
    }

    /// So many events came and are not known: everything before the next one is forgotten.
    pub fn skip(&mut self, unknown: u64) {
        if unknown > 0 {
            self.events.clear();
            self.next = self.next.saturating_add(unknown);
        }
    }

    /// How many events there have been.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.next
    }

    /// The events from number `from` on. Without `from`, there are no events, only the number of
    /// the next one. A number in the future, from an earlier daemon, counts as the next one.
    #[must_use]
    pub fn part(&self, from: Option<u64>) -> Part<'_, E> {
        let first = self.next - self.events.len() as u64;
        let from = from.unwrap_or(self.next).min(self.next);
        let begin = from.max(first);
        let skip = usize::try_from(begin - first).unwrap_or(usize::MAX);
        let events: Vec<&E> = self.events.iter().skip(skip).take(ANSWER).collect();
        let next = begin + events.len() as u64;
        Part { events, next, forgotten: begin - from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::event::{Kind, Thread};

    fn event(sequence: u64) -> Event {
        Event {
            sequence,
            counter: None,
            counter_error: 0,
            vcpu: 0,
            thread: Thread::default(),
            kind: Kind::Yield,
        }
    }

    #[test]
    fn events_are_given_in_parts_and_forgotten_in_the_end() {
        let mut history = History::<Event>::default();
        let all = REMEMBERED as u64 + 10;
        for n in 0..all {
            history.push(event(n));
        }
        let now = history.part(None);
        assert_eq!((now.events.len(), now.next, now.forgotten), (0, all, 0));
        let first = history.part(Some(3));
        assert_eq!(
            (first.events.len(), first.next, first.forgotten),
            (ANSWER, 10 + ANSWER as u64, 7)
        );
        assert_eq!(first.events[0].sequence, 10);
        let last = history.part(Some(all - 1));
        assert_eq!((last.events.len(), last.next), (1, all));
        assert_eq!(history.part(Some(u64::MAX)).next, all, "of an earlier daemon");
        assert_eq!(history.count(), all);
    }

    #[test]
    fn what_is_not_known_counts() {
        let mut history = History::default();
        history.push('a');
        history.skip(0);
        assert_eq!(history.part(Some(0)).events, [&'a']);
        history.skip(5);
        history.push('b');
        let part = history.part(Some(0));
        assert_eq!((part.events, part.next, part.forgotten), (vec![&'b'], 7, 6));
    }

    #[test]
    fn an_empty_history_has_an_answer() {
        let empty: Part<'_, Event> = Part { events: Vec::new(), next: 0, forgotten: 0 };
        assert_eq!(History::default().part(None), empty);
        assert_eq!(History::default().part(Some(7)), empty);
    }
}
