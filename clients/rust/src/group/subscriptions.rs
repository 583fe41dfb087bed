//! A member's subscriptions: what it gets of a topic's messages, in which order, and the kept ones first.

use std::collections::BTreeSet;

use timevisor_coordination::order::{self, TimeOrder};
use timevisor_coordination::{Envelope, MemberId, Name, Now, Stamp};
use timevisor_protocols::bus::ToBus;

use super::events::{Inbox, Message, Order, Reported, Sender};
use super::span;
use super::state::{State, id_of};

pub(super) struct Subscriber {
    number: u64,
    topic: Name,
    /// So many kept messages were asked for, and the bus has not answered yet. Until then what comes is for others:
    /// it will be among the kept ones, or was sent before this one subscribed.
    asked: Option<u32>,
    /// Kept messages that have come; they are given when all have: a connection that breaks meanwhile brings all again.
    old: Vec<Message>,
    pub(super) order: Option<TimeOrder<Message>>,
    inbox: Sender<Message>,
}

impl State {
    pub fn subscribe(&mut self, topic: Name, order: Order, history: u32) -> Inbox<Message> {
        let (inbox, sender) = Inbox::new();
        let order = match order {
            Order::Arrival => None,
            Order::Time { hold } => {
                let settings = order::Settings { hold: span(hold), ..order::Settings::default() };
                let members = self.members.values().filter_map(|info| id_of(&info.who));
                Some(TimeOrder::new(settings, members))
            }
        };
        let is_timed = order.is_some();
        self.subscribed += 1;
        let (number, asked) = (self.subscribed, Some(history));
        self.subscribers.push(Subscriber {
            number,
            topic,
            asked,
            old: Vec::new(),
            order,
            inbox: sender,
        });
        // Who has not joined again yet asks then.
        if self.has_joined {
            self.ask(topic, history, Some(number));
        }
        if is_timed {
            self.asked_for_ticks = None;
        }
        inbox
    }

    /// After the connection was lost: subscribes again. What was sent meanwhile is reported as lost by
    /// its sequence numbers.
    pub fn subscribe_again(&mut self) {
        self.unanswered.clear();
        let topics: BTreeSet<_> = self.subscribers.iter().map(|it| it.topic).collect();
        for topic in topics {
            self.ask(topic, 0, None);
        }
        self.subscribers.iter_mut().for_each(|it| it.old.clear());
        let asked = |it: &Subscriber| Some((it.topic, it.asked?, it.number));
        let asked: Vec<_> = self.subscribers.iter().filter_map(asked).collect();
        for (topic, history, number) in asked {
            self.ask(topic, history, Some(number));
        }
    }

    fn ask(&mut self, topic: Name, history: u32, number: Option<u64>) {
        self.unanswered.entry(topic).or_default().push_back(number);
        let topic = topic.as_str().to_owned();
        self.send(&ToBus::Subscribe { handle: self.place.handle, topic, history });
    }

    /// The bus has answered the oldest subscription of this topic that it had not answered. So many of the messages
    /// that were asked for were not kept.
    pub fn subscribed(&mut self, topic: Name, dropped: u64) {
        let Some(waiting) = self.unanswered.get_mut(&topic) else { return };
        let number = waiting.pop_front().flatten();
        if waiting.is_empty() {
            self.unanswered.remove(&topic);
        }
        if let Some(number) = number
            && let Some(subscriber) = self.subscribers.iter_mut().find(|it| it.number == number)
        {
            subscriber.asked = None;
            for message in subscriber.old.drain(..) {
                subscriber.inbox.push(message);
            }
        }
        if dropped > 0 {
            self.report(&Reported::HistoryIncomplete { topic, dropped });
        }
    }

    /// Kept messages are for who has asked for them.
    pub(super) fn heard_old(&mut self, envelope: Envelope) {
        let Envelope { from, sequence, stamp, message } = envelope;
        let timevisor_coordination::Message::Publication { topic, payload } = message else {
            return;
        };
        let asked =
            self.unanswered.get(&topic).and_then(|waiting| waiting.front().copied().flatten());
        if let Some(subscriber) = self.subscribers.iter_mut().find(|it| Some(it.number) == asked) {
            let (late_ns, unheard) = (0, Vec::new());
            let is_old = true;
            let message = Message { from, sequence, stamp, late_ns, unheard, is_old, payload };
            subscriber.old.push(message);
        }
    }

    /// Ends subscriptions that nobody reads any more.
    pub(super) fn drop_unread(&mut self) {
        let (read, unread): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.subscribers).into_iter().partition(|it| it.inbox.is_read());
        self.subscribers = read;
        for Subscriber { topic, .. } in unread {
            if self.has_joined && self.subscribers.iter().all(|it| it.topic != topic) {
                let topic = topic.as_str().to_owned();
                self.send(&ToBus::Unsubscribe { handle: self.place.handle, topic });
            }
        }
    }

    /// Gives messages in the order of time.
    pub(super) fn deliver(&mut self, own: MemberId, now: &Now) {
        let changed = now.reading.is_some_and(|reading| {
            self.origin.replace(reading.origin).is_some_and(|before| before != reading.origin)
        });
        for Subscriber { order, inbox, .. } in &mut self.subscribers {
            let Some(order) = order else { continue };
            let mut ready = if changed { order.restarted() } else { Vec::new() };
            if let Some(reading) = now.reading {
                order.passed(own, reading.earliest());
            }
            ready.extend(order.deliver(now.elapsed));
            for delivery in ready {
                let (late_ns, unheard) = (delivery.late.ceil_nanos(), delivery.unheard);
                inbox.push(Message { late_ns, unheard, ..delivery.message });
            }
        }
    }

    pub(super) fn received(
        &mut self,
        topic: Name,
        (from, sequence): (MemberId, u64),
        stamp: Option<Stamp>,
        payload: &[u8],
        now: &Now,
    ) {
        let origin = now.reading.map(|reading| reading.origin);
        let is_for = |it: &&mut Subscriber| it.topic == topic && it.asked.is_none();
        for subscriber in self.subscribers.iter_mut().filter(is_for) {
            let message = Message {
                from,
                sequence,
                stamp,
                late_ns: 0,
                unheard: Vec::new(),
                is_old: false,
                payload: payload.to_vec(),
            };
            match (&mut subscriber.order, stamp) {
                (Some(order), Some(stamp)) if Some(stamp.origin) == origin => {
                    order.arrived(from, sequence, stamp.interval, message, now.elapsed);
                }
                // What has no place in the order is given at once.
                _ => drop(subscriber.inbox.push(message)),
            }
        }
    }
}
