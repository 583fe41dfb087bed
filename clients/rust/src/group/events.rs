//! What the program reads: queues with a descriptor each.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use timevisor_coordination::propose::Outcome;
use timevisor_coordination::{MemberId, Name, Proposal, ProposalId, Stamp};
use timevisor_linux::event_fd::EventFd;
use timevisor_protocols::bus::{Gone, Info};
use timevisor_time::{Interval, Local};

use crate::unpoisoned;

/// The most entries that wait in a queue.
const MOST: usize = 65_536;

/// The order in which messages are given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As they come.
    Arrival,
    /// In the order of time: a message is given when every member's clock has surely passed it, or
    /// when it has been held for so long.
    Time {
        /// How long a silent member holds up others.
        hold: Duration,
    },
}

/// A message of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Who sent it.
    pub from: MemberId,
    /// Counts the sender's messages on this topic.
    pub sequence: u64,
    /// When it was sent, as its sender's page said; `None` if that was not known.
    pub stamp: Option<Stamp>,
    /// How much later one that was given before it surely was sent, ns; 0 in the order of arrival.
    pub late_ns: i64,
    /// Members that may still send something older. Empty in the order of arrival.
    pub unheard: Vec<MemberId>,
    /// It was published before this member subscribed.
    pub is_old: bool,
    /// What it says.
    pub payload: Vec<u8>,
}

/// What happened in the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reported {
    /// A member joined, or its clock began or ceased to meet its requirement.
    Present(Info),
    /// A member has gone.
    Gone(MemberId, Gone),
    /// Messages were lost on the way.
    Lost {
        /// Whose; `None`: this program took them too slowly from the bus.
        from: Option<MemberId>,
        /// On which topic; `None`: not known, or of those by which members agree.
        topic: Option<Name>,
        /// How many.
        count: u64,
    },
    /// A member's stamp surely lies in our future: its clock or ours is wrong.
    FromTheFuture {
        /// Whose.
        from: MemberId,
        /// By how much at least, ns.
        by_ns: i64,
    },
    /// A member's stamp is of another origin of the timeline.
    AnotherOrigin(MemberId),
    /// Not everybody who waited at a barrier was released together.
    Split {
        /// Which one.
        barrier: Name,
        /// How many were released.
        fired: usize,
        /// How many were not: they wait on.
        quiet: usize,
    },
    /// The connection to the bus is lost. The library connects again.
    Disconnected,
    /// It is there again.
    Connected,
    /// The bus refuses to let this member join again, for now.
    Refused(String),
    /// This member leads an office until then, ns since the timeline's epoch.
    Leads {
        /// Which one.
        office: Name,
        /// When its latest must be before this.
        until_ns: i64,
    },
    /// It leads no longer.
    LeadsNoMore(Name),
    /// Old messages of a topic were asked for that the bus had not kept.
    HistoryIncomplete {
        /// Which topic.
        topic: Name,
        /// How many at least.
        dropped: u64,
    },
}

/// What happens to proposals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proposed {
    /// Somebody asks for an answer.
    Asked(Box<Proposal>),
    /// It is decided: everybody fires, or nobody.
    Decided(ProposalId, bool),
    /// It is time.
    Fire {
        /// Which one.
        id: ProposalId,
        /// What the page says.
        interval: Interval<Local>,
        /// How late it surely is, ns.
        late_ns: i64,
        /// The proposal's payload.
        payload: Vec<u8>,
    },
    /// Who fired and who did not.
    Outcome(Outcome),
}

#[derive(Debug)]
struct Entries<T> {
    waiting: VecDeque<T>,
    dropped: u64,
    /// Nothing comes any more: the member has left.
    has_ended: bool,
}

#[derive(Debug)]
struct Queue<T> {
    process: u32,
    entries: Mutex<Entries<T>>,
    news: Condvar,
    flag: Option<EventFd>,
}

/// Entries in order. Its descriptor is readable while there are some, and after the end: when the member
/// has left. Those that were not taken in time are dropped, the oldest first, and counted.
#[derive(Debug)]
pub struct Inbox<T>(Arc<Queue<T>>);

impl<T> Inbox<T> {
    pub(super) fn new() -> (Self, Sender<T>) {
        let entries = Entries { waiting: VecDeque::new(), dropped: 0, has_ended: false };
        let entries = Mutex::new(entries);
        let (process, news, flag) = (std::process::id(), Condvar::new(), EventFd::new().ok());
        let queue = Arc::new(Queue { process, entries, news, flag });
        let sender = Sender(Arc::downgrade(&queue));
        (Self(queue), sender)
    }

    /// Whether this is the copy that a fork has left in a child: nothing comes here, and what is there is the
    /// parent's.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.0.process != std::process::id()
    }

    /// The next entry, if there is one. In a child of the process that joined there is none.
    #[must_use]
    pub fn try_next(&self) -> Option<T> {
        if self.is_forked() {
            return None;
        }
        let mut entries = unpoisoned(self.0.entries.lock());
        let next = entries.waiting.pop_front();
        if entries.waiting.is_empty()
            && !entries.has_ended
            && let Some(flag) = &self.0.flag
        {
            let _ = flag.clear();
        }
        next
    }

    /// Whether the member has left, and everything was taken; or this is a child's copy.
    #[must_use]
    pub fn is_over(&self) -> bool {
        if self.is_forked() {
            return true;
        }
        let entries = unpoisoned(self.0.entries.lock());
        entries.has_ended && entries.waiting.is_empty()
    }

    /// Waits for the next entry; `None` when the time is over, or the member has left
    /// ([`Self::is_over`]).
    #[must_use]
    pub fn next_within(&self, timeout: Duration) -> Option<T> {
        let end = Instant::now().checked_add(timeout);
        loop {
            if let Some(next) = self.try_next() {
                return Some(next);
            }
            if self.is_forked() {
                return None;
            }
            let entries = unpoisoned(self.0.entries.lock());
            if !entries.waiting.is_empty() {
                continue;
            }
            if entries.has_ended {
                return None;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            match left {
                Some(Duration::ZERO) => return None,
                Some(left) => drop(unpoisoned(self.0.news.wait_timeout(entries, left))),
                None => drop(unpoisoned(self.0.news.wait(entries))),
            }
        }
    }

    /// How many entries were dropped since the last call.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        std::mem::take(&mut unpoisoned(self.0.entries.lock()).dropped)
    }

    /// The descriptor, for a program's own poll(2).
    ///
    /// # Errors
    /// When the kernel had no descriptor for it.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.0.flag {
            Some(flag) => Ok(flag.as_fd()),
            None => Err(io::Error::other("there was no descriptor for this queue")),
        }
    }
}

/// The other end of an inbox.
#[derive(Debug)]
pub(super) struct Sender<T>(Weak<Queue<T>>);

impl<T> Sender<T> {
    /// False when nobody reads it any more.
    pub fn push(&self, entry: T) -> bool {
        let Some(queue) = self.0.upgrade() else { return false };
        let mut entries = unpoisoned(queue.entries.lock());
        if entries.waiting.len() >= MOST {
            entries.waiting.pop_front();
            entries.dropped += 1;
        }
        entries.waiting.push_back(entry);
        if let Some(flag) = &queue.flag {
            let _ = flag.set();
        }
        queue.news.notify_all();
        true
    }

    pub fn is_read(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let Some(queue) = self.0.upgrade() else { return };
        unpoisoned(queue.entries.lock()).has_ended = true;
        if let Some(flag) = &queue.flag {
            let _ = flag.set();
        }
        queue.news.notify_all();
    }
}
