//! One helper that speaks QMP, as the daemon sees it: its connections, orders that it has no room
//! for yet, and what it reports.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use timevisor_linux::clock::monotonic;
use timevisor_linux::helper::Helper;
use timevisor_protocols::qmp::allowance::Allowance;
use timevisor_protocols::qmp::dialogue::{BURST_NEWS, NEWS_A_SECOND};
use timevisor_protocols::qmp::{Command, News, Order, Report};
use timevisor_time::Duration;

use super::heartbeat::Heartbeat;

/// Reports that are taken at once, before others have their turn.
const AT_ONCE: usize = 64;
/// Orders that may wait for room. A helper that takes none for so long does not work.
const MOST_WAITING: usize = 4096;
/// When to try again to send what waits.
const AGAIN: Duration = Duration::from_millis(5);

/// A helper must be replaced, for this reason.
pub(super) struct Failed(pub(super) &'static str);

/// The parent's side of one helper.
pub(super) struct Talker {
    /// `None` once it has ended.
    helper: Option<Rc<Helper>>,
    waiting: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    try_again: Duration,
    /// Connections that it has.
    open: BTreeSet<u64>,
    /// Connections that it was told to close.
    closing: BTreeSet<u64>,
    heartbeat: Heartbeat,
    /// What all QEMUs of one user may cause together: those that do so alone lose their connection
    /// before.
    reports: Allowance,
}

impl Talker {
    pub(super) fn new(helper: Rc<Helper>, now: Duration) -> Self {
        Self { helper: Some(helper), ..Self::without_helper(now) }
    }

    fn without_helper(now: Duration) -> Self {
        Self {
            helper: None,
            waiting: VecDeque::new(),
            try_again: Duration::MAX,
            open: BTreeSet::new(),
            closing: BTreeSet::new(),
            heartbeat: Heartbeat::new(now),
            reports: Allowance::new(4.0 * BURST_NEWS, 4.0 * NEWS_A_SECOND, now),
        }
    }

    /// Hands a connection over.
    pub(super) fn open(&mut self, order: &Order, connection: u64, socket: OwnedFd) {
        self.open.insert(connection);
        self.put(order, Some(socket));
    }

    fn close(&mut self, connection: u64) {
        if self.open.remove(&connection) {
            self.closing.insert(connection);
            self.put(&Order::Close(connection), None);
        }
    }

    fn put(&mut self, order: &Order, socket: Option<OwnedFd>) {
        if self.helper.is_some() {
            self.waiting.push_back((order.to_bytes(), socket));
            self.flush();
        }
    }

    /// Sends what the helper has room for. That it has ended is read from its socket.
    fn flush(&mut self) {
        let Some(helper) = &self.helper else { return };
        while let Some((packet, socket)) = self.waiting.front() {
            let sent = match socket {
                Some(socket) => helper.send_with(packet, socket.as_fd()),
                None => helper.send(packet),
            };
            if sent.is_err() {
                self.try_again = monotonic() + AGAIN;
                return;
            }
            self.waiting.pop_front();
        }
        self.try_again = Duration::MAX;
    }

    /// Takes what has arrived, up to a limit: the rest makes the descriptor readable again.
    pub(super) fn receive(
        &mut self,
        now: Duration,
        news: &mut Vec<(u64, News)>,
    ) -> Result<(), Failed> {
        let Some(helper) = self.helper.clone() else { return Ok(()) };
        for _ in 0..AT_ONCE {
            let Some(packet) = helper.receive().map_err(|_| Failed("has ended"))? else { break };
            if !self.reports.take(1, now) {
                return Err(Failed("reports more than all of its user's VMs may cause"));
            }
            let report = Report::from_bytes(&packet);
            let report = report.map_err(|_| Failed("said what is not to be understood"))?;
            news.extend(self.take(report, now)?);
        }
        self.flush();
        Ok(())
    }

    fn take(&mut self, report: Report, now: Duration) -> Result<Option<(u64, News)>, Failed> {
        match report {
            Report::Pong(number) if self.heartbeat.answered(number, now) => Ok(None),
            Report::Closed(connection) if self.closing.remove(&connection) => Ok(None),
            Report::News(connection, news) if self.open.contains(&connection) => {
                if matches!(news, News::Lost(_)) {
                    self.open.remove(&connection);
                }
                Ok(Some((connection, news)))
            }
            // It was said before the order to close had arrived.
            Report::News(connection, _) if self.closing.contains(&connection) => Ok(None),
            _ => Err(Failed("spoke of what was not asked")),
        }
    }

    /// Sends what waits, and asks whether the helper is alive.
    pub(super) fn on_timer(&mut self, now: Duration) -> Result<(), Failed> {
        let Some(helper) = &self.helper else { return Ok(()) };
        if self.heartbeat.hangs(now, || runs(helper.pid())) {
            return Err(Failed("does not answer"));
        }
        if self.waiting.len() > MOST_WAITING {
            return Err(Failed("takes no orders"));
        }
        if let Some(number) = self.heartbeat.ping(now) {
            self.put(&Order::Ping(number), None);
        }
        if now >= self.try_again {
            self.flush();
        }
        Ok(())
    }

    pub(super) fn poll_at(&self) -> Duration {
        self.heartbeat.poll_at().min(self.try_again)
    }

    /// It has no connection, and will say nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.closing.is_empty()
    }

    /// There is no helper any more. Returns the connections that it had.
    pub(super) fn end(&mut self) -> BTreeSet<u64> {
        self.helper = None;
        self.waiting.clear();
        self.closing.clear();
        std::mem::take(&mut self.open)
    }
}

/// Whether a process computes, or waits for a processor or a disk.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['R', 'D']))
}

/// One connection's orders to its helper. Dropping it closes the connection.
pub(in crate::vms) struct Line {
    number: u64,
    talker: Rc<RefCell<Talker>>,
}

impl Line {
    pub(super) fn new(number: u64, talker: Rc<RefCell<Talker>>) -> Self {
        Self { number, talker }
    }

    /// One without a helper: orders have no effect.
    pub(in crate::vms) fn dead(number: u64) -> Self {
        Self::new(number, Rc::new(RefCell::new(Talker::without_helper(Duration::ZERO))))
    }

    /// Which connection's news are meant.
    pub(in crate::vms) fn number(&self) -> u64 {
        self.number
    }

    /// Has QEMU do something.
    pub(in crate::vms) fn order(&self, command: Command) {
        self.talker.borrow_mut().put(&Order::Do(self.number, command), None);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.talker.borrow_mut().close(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_protocols::qmp::VmEvent;

    fn talker(open: &[u64], closing: &[u64]) -> Talker {
        let mut talker = Talker::without_helper(Duration::ZERO);
        talker.open.extend(open);
        talker.closing.extend(closing);
        talker
    }

    fn stop(connection: u64) -> Report {
        Report::News(connection, News::Event(VmEvent::Stop))
    }

    #[test]
    fn a_helper_is_believed_about_its_own_connections_only() {
        let mut talker = talker(&[3], &[4]);
        let mut take = |report| talker.take(report, Duration::ZERO).map_err(|Failed(why)| why);
        assert_eq!(take(stop(3)), Ok(Some((3, News::Event(VmEvent::Stop)))));
        assert_eq!(take(stop(4)), Ok(None), "the order to close it was on its way");
        assert_eq!(take(Report::Closed(4)), Ok(None));
        for other in [stop(4), stop(5), Report::Closed(3), Report::Closed(4), Report::Pong(0)] {
            assert!(take(other).is_err());
        }
    }

    #[test]
    fn nothing_follows_a_loss() {
        let mut talker = talker(&[3], &[]);
        let lost = News::Lost("gone".to_owned());
        let taken = talker.take(Report::News(3, lost.clone()), Duration::ZERO);
        assert!(matches!(taken, Ok(Some((3, told))) if told == lost));
        assert!(talker.take(stop(3), Duration::ZERO).is_err() && talker.is_idle());
        talker.close(3);
        assert!(talker.is_idle(), "it is closed already");
    }
}
