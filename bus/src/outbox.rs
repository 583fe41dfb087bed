//! What waits to be written to one connection.
//!
//! A program that does not read loses messages, and is told how many; it delays nobody else.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use timevisor_protocols::bus::{FromBus, frame};
use tokio::sync::Notify;

/// The most bytes that wait for one connection.
const MOST: usize = 32 << 20;

/// What a frame costs beside its content.
const EACH: usize = 64;

#[derive(Default)]
struct State {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    closes: bool,
}

/// Shared by the hub and the task that writes.
#[derive(Clone, Default)]
pub struct Outbox {
    state: Rc<RefCell<State>>,
    news: Rc<Notify>,
}

impl Outbox {
    /// A frame's content.
    pub fn push(&self, content: &[u8]) {
        let mut state = self.state.borrow_mut();
        if state.bytes + content.len() + EACH > MOST {
            state.dropped += 1;
            return;
        }
        state.bytes += content.len() + EACH;
        state.frames.push_back(frame(content));
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
                if !state.frames.is_empty() {
                    let mut bytes = Vec::with_capacity(state.bytes.min(1 << 16));
                    // Few writes for many small frames.
                    while let Some(next) = state.frames.front()
                        && (bytes.is_empty() || bytes.len() + next.len() <= 1 << 16)
                    {
                        bytes.extend_from_slice(next);
                        state.bytes -= next.len() - 4 + EACH;
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
