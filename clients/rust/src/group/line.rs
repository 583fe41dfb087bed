//! [`Line`]: a connection to a bus, which all members of this process share that use this bus. Its thread is in
//! `driver.rs`.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use timevisor_linux::event_fd::EventFd;
use timevisor_protocols::bus::ToBus;

use super::address::BusAddress;
use super::connection::Connection;
use super::driver;
use super::error::JoinError;
use super::seat::Seat;
use crate::unpoisoned;

/// As many as a bus lets in on one connection.
const MOST_MEMBERS: usize = 1024;

/// The lines of this process. After a fork the child has its parent's, which it does not use.
static LINES: Mutex<Vec<Weak<Line>>> = Mutex::new(Vec::new());

/// A connection to a bus and its members.
pub struct Line {
    pub buses: Vec<BusAddress>,
    process: u32,
    /// Wakes the thread.
    pub flag: EventFd,
    /// Only the thread replaces it. Locked after a member's state, never before.
    connection: Mutex<Option<Connection>>,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// The handle that was given last.
    last: u32,
    count: usize,
    /// Members that the thread does not know yet.
    new: Vec<Seat>,
    /// Everybody has gone: the thread ends.
    is_over: bool,
}

/// A member's place on a line.
#[derive(Clone)]
pub struct Place {
    pub line: Arc<Line>,
    pub handle: u32,
}

impl Place {
    /// A place on a line that is there already, and up.
    pub fn shared(buses: &[BusAddress]) -> Option<Self> {
        // Where another thread joins right now, or did when this process was forked, a line of its own will do.
        let mut lines = LINES.try_lock().ok()?;
        lines.retain(|line| line.strong_count() > 0);
        let fits = |line: &Arc<Line>| {
            line.process == std::process::id() && line.buses == buses && line.takes_frames()
        };
        lines.iter().filter_map(Weak::upgrade).find_map(|line| {
            let handle = fits(&line).then(|| line.reserve()).flatten()?;
            Some(Self { line, handle })
        })
    }

    /// A place on a new line. Over the network connecting may take seconds.
    pub fn alone(buses: Vec<BusAddress>) -> Result<Self, JoinError> {
        let connection = Connection::open(&buses)?;
        let line = Arc::new(Line {
            buses,
            process: std::process::id(),
            flag: EventFd::new()?,
            connection: Mutex::new(Some(connection)),
            places: Mutex::default(),
        });
        let handle = line.reserve().ok_or(JoinError::Silent)?;
        driver::start(&line)?;
        if let Ok(mut lines) = LINES.try_lock() {
            lines.push(Arc::downgrade(&line));
        }
        Ok(Self { line, handle })
    }

    /// The thread looks after this member from now on.
    pub fn take(&self, seat: Seat) {
        unpoisoned(self.line.places.lock()).new.push(seat);
        self.line.wake();
    }
}

impl Line {
    fn reserve(&self) -> Option<u32> {
        let mut places = unpoisoned(self.places.lock());
        if places.is_over || places.count >= MOST_MEMBERS {
            return None;
        }
        places.count += 1;
        places.last = places.last.checked_add(1)?;
        Some(places.last)
    }

    /// Members that have come since the last call.
    pub fn new_seats(&self) -> Vec<Seat> {
        std::mem::take(&mut unpoisoned(self.places.lock()).new)
    }

    /// So many members have gone. When nobody is left, the line takes nobody any more.
    pub fn leave(&self, count: usize) {
        let mut places = unpoisoned(self.places.lock());
        places.count = places.count.saturating_sub(count);
        places.is_over |= places.count == 0;
        self.wake();
    }

    /// Whether nobody is left.
    pub fn is_over(&self) -> bool {
        unpoisoned(self.places.lock()).is_over
    }

    pub fn wake(&self) {
        let _ = self.flag.set();
    }

    /// Writes what is taken now; false when something is left.
    pub fn has_written(&self) -> bool {
        match &mut *self.connection() {
            Some(connection) => {
                connection.flush();
                !connection.wants_to_write()
            }
            None => true,
        }
    }

    pub fn connection(&self) -> MutexGuard<'_, Option<Connection>> {
        unpoisoned(self.connection.lock())
    }

    /// Whether the bus is connected, and takes frames as fast as they come.
    pub fn takes_frames(&self) -> bool {
        self.connection().as_ref().is_some_and(|it| !it.is_over() && !it.is_stalled())
    }

    /// Writes a frame, or as much of it as is taken now. What is left the thread writes, which has to be woken.
    pub fn send(&self, frame: &ToBus) {
        if let Some(connection) = &mut *self.connection() {
            connection.send(frame);
        }
    }
}
