//! The daemon's end of the introspector: started when it is needed, and again when it has ended.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use timevisor_linux::clock::monotonic;
use timevisor_linux::helper::Helper;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_time::Duration;

use super::introspector::ARGUMENT;
use super::message::{Order, Report};

/// Reports that are taken at once.
const AT_ONCE: usize = 64;
/// How long the daemon waits at its end for trap points to be removed. Running vCPUs reach a place
/// where points can change within 30 s; the next daemon removes what is left.
const PATIENCE: Duration = Duration::from_secs(35);
/// The shortest and the longest time until an introspector that has ended is started again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(64);

/// The introspector, as the daemon sees it.
pub struct Introspector {
    directory: PathBuf,
    helper: Option<Helper>,
    /// Orders for which it had no room yet.
    orders: VecDeque<Vec<u8>>,
    /// When it may be started again, and how long to wait after the next time it ends.
    not_before: Duration,
    pause: Duration,
}

/// What [`Introspector::receive`] found.
pub enum Heard {
    /// These reports.
    Reports(Vec<Report>),
    /// It has ended, or speaks nonsense and was killed.
    Lost,
}

impl Introspector {
    /// Not started.
    pub fn new(directory: PathBuf) -> Self {
        let (orders, not_before) = (VecDeque::new(), Duration::ZERO);
        Self { directory, helper: None, orders, not_before, pause: FIRST_PAUSE }
    }

    pub fn is_running(&self) -> bool {
        self.helper.is_some()
    }

    /// When it may be started; it was started too often lately if that is not now.
    pub fn not_before(&self) -> Duration {
        self.not_before
    }

    /// Starts it, unless it runs.
    ///
    /// # Errors
    /// When there are no more processes or descriptors.
    pub fn start(&mut self) -> std::io::Result<()> {
        if self.helper.is_none() {
            self.helper = Some(Helper::start(ARGUMENT)?);
            self.orders.clear();
            self.tell(&Order::Begin { directory: self.directory.clone() });
        }
        Ok(())
    }

    /// Sends an order, now or when there is room.
    pub fn tell(&mut self, order: &Order) {
        self.orders.push_back(order.to_bytes());
        self.flush();
    }

    /// Sends the orders that there was no room for.
    pub fn flush(&mut self) {
        let Some(helper) = &self.helper else { return };
        while let Some(order) = self.orders.front() {
            // Without room later; that it has ended is read from the socket.
            if helper.send(order).is_err() {
                return;
            }
            self.orders.pop_front();
        }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.helper.as_ref().map(Helper::fd)
    }

    /// Takes what it has reported.
    pub fn receive(&mut self, now: Duration) -> Heard {
        let mut reports = Vec::new();
        let Some(helper) = &self.helper else { return Heard::Reports(reports) };
        for _ in 0..AT_ONCE {
            let packet = match helper.receive() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(_) => return self.lost(now),
            };
            match serde_json::from_slice(&packet) {
                Ok(report) => reports.push(report),
                Err(_) => return self.lost(now),
            }
        }
        if !reports.is_empty() {
            self.pause = FIRST_PAUSE;
        }
        self.flush();
        Heard::Reports(reports)
    }

    fn lost(&mut self, now: Duration) -> Heard {
        if let Some(helper) = self.helper.take() {
            let _ = helper.kill().has_ended();
        }
        self.orders.clear();
        self.not_before = now + self.pause;
        self.pause = (self.pause + self.pause).min(LAST_PAUSE);
        Heard::Lost
    }
}

/// Waits until no trap is left in any guest.
impl Drop for Introspector {
    fn drop(&mut self) {
        let Some(helper) = self.helper.take() else { return };
        let late = monotonic() + PATIENCE;
        // The end of the socket is its order to end; reports may still be on their way.
        let mut ending = helper.close();
        while !ending.has_ended() && monotonic() < late {
            let _ = wait(&mut [] as &mut [PollFd<'_>], Some(std::time::Duration::from_millis(10)));
        }
    }
}
