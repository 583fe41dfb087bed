//! What waits to be written to one connection, and the memory that a user's connections may take together.
//!
//! A program that does not read loses messages, and is told how many; it delays nobody else.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use timevisor_protocols::bus::{FromBus, frame};
use tokio::sync::Notify;

/// The most bytes that wait for one connection.
const MOST: usize = 32 << 20;

/// So much each connection has in any case: slow readers among a user's programs silence nobody else.
const SHARE: usize = 512 << 10;

/// What a frame costs beside its content.
const EACH: usize = 64;

/// The most bytes that wait for all connections of one user, or of one address, and that came from them and are no
/// whole frames yet.
const MOST_OF_ALL: usize = 128 << 20;

/// And of all addresses together: one key may be used from many.
const MOST_OF_NETWORK: usize = 512 << 20;

/// What the connections of one user, or of one address, take together.
#[derive(Clone, Default)]
pub struct Memory {
    own: Rc<Cell<usize>>,
    /// What all addresses take, for one of the network.
    network: Option<Rc<Cell<usize>>>,
}

impl Memory {
    /// An address's, which counts as the network's, too.
    pub fn of_address(network: &Rc<Cell<usize>>) -> Self {
        Self { own: Rc::default(), network: Some(Rc::clone(network)) }
    }

    /// Takes so many bytes; false: there are not so many left.
    pub fn take(&self, bytes: usize) -> bool {
        let counters = [(Some(&self.own), MOST_OF_ALL), (self.network.as_ref(), MOST_OF_NETWORK)];
        let counters = || counters.iter().filter_map(|(counter, most)| Some(((*counter)?, *most)));
        let fits = counters().all(|(counter, most)| counter.get().saturating_add(bytes) <= most);
        if fits {
            counters().for_each(|(counter, _)| counter.set(counter.get() + bytes));
        }
        fits
    }

    /// Gives back what was taken.
    pub fn give(&self, bytes: usize) {
        for counter in [Some(&self.own), self.network.as_ref()].into_iter().flatten() {
            counter.set(counter.get().saturating_sub(bytes));
        }
    }
}

#[derive(Default)]
struct State {
    memory: Memory,
    frames: VecDeque<Vec<u8>>,
    /// Of all that waits, and of what is being written.
    bytes: usize,
    /// Being written: until the next is asked for, it still takes memory.
    writing: usize,
    dropped: u64,
    closes: bool,
}

/// Shared by the hub and the task that writes.
#[derive(Clone)]
pub struct Outbox {
    memory: Memory,
    state: Rc<RefCell<State>>,
    news: Rc<Notify>,
}

impl State {
    /// Takes memory for so many bytes in all, of which the connection's own share is not counted.
    fn hold(&mut self, bytes: usize) -> bool {
        let (before, after) = (counted(self.bytes), counted(bytes));
        if after > before && !self.memory.take(after - before) {
            return false;
        }
        self.memory.give(before.saturating_sub(after));
        self.bytes = bytes;
        true
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// What is beyond a connection's own share.
pub fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(SHARE)
}

impl Outbox {
    pub fn new(memory: Memory) -> Self {
        let mut state = State::default();
        state.memory = memory.clone();
        Self { memory, state: Rc::new(RefCell::new(state)), news: Rc::default() }
    }

    /// What this connection and its user's others take.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// A frame's content.
    pub fn push(&self, content: &[u8]) {
        let mut state = self.state.borrow_mut();
        // What was dropped is told before what comes behind it, or who reads slowly would never learn of it.
        let told =
            (state.dropped > 0).then(|| frame(&FromBus::Overrun { count: state.dropped }.encode()));
        let size = |content: usize| content + EACH;
        let sum =
            state.bytes + size(content.len()) + told.as_ref().map_or(0, |it| size(it.len() - 4));
        if sum > MOST || !state.hold(sum) {
            state.dropped += 1;
        } else {
            if told.is_some() {
                state.dropped = 0;
            }
            state.frames.extend(told);
            state.frames.push_back(frame(content));
        }
        self.news.notify_one();
    }

    /// The connection ends after what was pushed.
    pub fn close(&self) {
        self.state.borrow_mut().closes = true;
        self.news.notify_one();
    }

    /// What to write next, whole frames; `None` when the connection ends.
    pub async fn next(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut state = self.state.borrow_mut();
                let left = state.bytes - std::mem::take(&mut state.writing);
                state.hold(left);
                if !state.frames.is_empty() {
                    let mut bytes = Vec::with_capacity(state.bytes.min(1 << 16));
                    // Few writes for many small frames.
                    while let Some(next) = state.frames.front()
                        && (bytes.is_empty() || bytes.len() + next.len() <= 1 << 16)
                    {
                        bytes.extend_from_slice(next);
                        let gone = next.len() - 4 + EACH;
                        state.writing += gone;
                        state.frames.pop_front();
                    }
                    return Some(bytes);
                }
                if state.dropped > 0 {
                    let count = std::mem::take(&mut state.dropped);
                    return Some(frame(&FromBus::Overrun { count }.encode()));
                }
                if state.closes {
                    return None;
                }
            }
            self.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_of_one_user_take_so_much_memory_together() {
        let (memory, others) = (Memory::default(), Memory::default());
        let outboxes: Vec<_> = (0..6).map(|_| Outbox::new(memory.clone())).collect();
        let piece = vec![0; 1 << 20];
        for outbox in &outboxes {
            (0..31).for_each(|_| outbox.push(&piece));
        }
        let dropped = |outbox: &Outbox| outbox.state.borrow().dropped;
        assert_eq!(outboxes.iter().map(dropped).collect::<Vec<_>>(), [0, 0, 0, 0, 25, 31]);
        assert!(!memory.take(1 << 20) && others.take(1 << 20));
        let other = Outbox::new(others);
        other.push(&piece);
        assert_eq!(dropped(&other), 0);
        // Each has a share of its own, whatever the others do. What was dropped is told first.
        outboxes[5].push(&[0; 1000]);
        assert_eq!(dropped(&outboxes[5]), 0);
        // What is being written takes room, and what was written makes some.
        assert!(outboxes[0].next().await.is_some());
        assert!(!memory.take(1 << 20));
        assert!(outboxes[0].next().await.is_some());
        outboxes[5].push(&piece);
        let overrun = |count| frame(&FromBus::Overrun { count }.encode());
        let told = outboxes[5].next().await.unwrap();
        assert_eq!(told, [overrun(31), frame(&[0; 1000])].concat());
        assert_eq!(outboxes[5].next().await.unwrap().len(), piece.len() + 4);
        // Where nothing comes behind it, when the queue is empty.
        assert!(!outboxes[4].state.borrow().frames.is_empty());
        for _ in 0..6 {
            assert_eq!(outboxes[4].next().await.unwrap().len(), piece.len() + 4);
        }
        assert_eq!(outboxes[4].next().await.unwrap(), overrun(25));
        drop(outboxes);
        assert_eq!(memory.own.get(), 0);
        // Five addresses take what the network is given.
        let network = Rc::default();
        let addresses: Vec<_> = (0..5).map(|_| Memory::of_address(&network)).collect();
        let taken: Vec<_> = addresses.iter().map(|it| it.take(MOST_OF_ALL)).collect();
        assert_eq!(taken, [true, true, true, true, false]);
        addresses[0].give(MOST_OF_ALL);
        assert!(addresses[4].take(MOST_OF_ALL));
    }
}
