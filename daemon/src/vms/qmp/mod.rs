//! The helper processes that speak QMP: one for each user, so that nobody's QEMU delays or ends
//! somebody else's connections. The daemon connects, and hands the connection over.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | who has a helper, and what follows when one fails |
//! | `talker.rs` | one helper: its connections, its orders, its reports |
//! | `heartbeat.rs` | whether it is alive |
//! | `helper.rs` | the helper itself: reads, writes, and asks `timevisor_protocols::qmp` what is meant |
//!
//! A helper may have been tricked into anything. It is believed about its own connections, and
//! replaced when it speaks of others, of what was not asked, or too much.

mod heartbeat;
mod helper;
mod talker;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use timevisor_linux::clock::monotonic;
use timevisor_linux::helper::{Dying, Helper};
use timevisor_protocols::qmp::{News, Order};
use timevisor_time::Duration;

pub use self::helper::be_qmp_helper;
pub(super) use self::talker::Line;
use self::talker::{Failed, Talker};

/// The argument that makes timevisord such a helper.
pub const ARGUMENT: &str = "--qmp-helper";

/// Users with a helper of their own, and root. The others share one.
const MOST_HELPERS: usize = 32;
/// Who share one.
const OTHERS: u32 = u32::MAX;
/// A helper without connections ends after this time.
const IDLE: Duration = Duration::from_secs(60);
/// A helper that failed within this time of its start is started again ever later.
const YOUNG: Duration = Duration::from_secs(60);
/// The longest time until one is started again: 2^6 s.
const MOST_FAILURES: u32 = 6;

#[derive(Default)]
struct OfUser {
    running: Option<Running>,
    /// How often it has failed in a row, and when it may be started again.
    failures: u32,
    not_before: Duration,
}

struct Running {
    helper: Rc<Helper>,
    talker: Rc<RefCell<Talker>>,
    started: Duration,
    /// Since when it has no connection.
    idle_since: Option<Duration>,
}

/// All helpers that speak QMP.
#[derive(Default)]
pub struct QmpHelpers {
    users: BTreeMap<u32, OfUser>,
    dying: Vec<Dying>,
    arrived: Vec<(u64, News)>,
    last: u64,
}

impl QmpHelpers {
    /// Has this user's helper speak through a socket, which is a QEMU's. `shared`: see
    /// [`timevisor_protocols::qmp::Dialogue::new`]. Its news come by [`Self::take_news`]; if there
    /// is no helper, that the connection is lost.
    pub fn open(&mut self, user: u32, socket: OwnedFd, shared: bool, now: Duration) -> Line {
        let full = self.users.len() >= MOST_HELPERS && !self.users.contains_key(&user) && user > 0;
        let user = if full { OTHERS } else { user };
        self.last += 1;
        let connection = self.last;
        let talker = match self.users.entry(user).or_default().talker(now) {
            Ok(talker) => talker,
            Err(why) => {
                self.arrived.push((connection, News::Lost(why)));
                return Line::dead(connection);
            }
        };
        // Answers to an earlier connection's commands must not be mistaken for this one's.
        let first_id = now.ceil_nanos().unsigned_abs();
        talker.borrow_mut().open(&Order::Open { connection, first_id, shared }, connection, socket);
        Line::new(connection, talker)
    }

    /// The news since the last call, each with the number of its connection ([`Line::number`]).
    pub fn take_news(&mut self) -> Vec<(u64, News)> {
        std::mem::take(&mut self.arrived)
    }

    pub fn fds(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.users.iter().filter_map(|(user, of)| Some((*user, of.running.as_ref()?.helper.fd())))
    }

    pub fn poll_at(&self) -> Duration {
        if !self.arrived.is_empty() {
            return Duration::ZERO;
        }
        let running = self.users.values().filter_map(|of| of.running.as_ref());
        running.map(|r| r.talker.borrow().poll_at()).min().unwrap_or(Duration::MAX)
    }

    /// Takes what a user's helper has reported.
    pub fn on_ready(&mut self, user: u32) {
        let now = monotonic();
        let Some(running) = self.users.get(&user).and_then(|of| of.running.as_ref()) else {
            return;
        };
        let received = running.talker.borrow_mut().receive(now, &mut self.arrived);
        if let Err(Failed(why)) = received {
            self.failed(user, why, now);
        }
    }

    /// Asks whether helpers are alive; replaces those that are not, and ends those without work.
    pub fn on_timer(&mut self, now: Duration) {
        self.dying.retain_mut(|dying| !dying.has_ended());
        let mut failed = Vec::new();
        for (user, of) in &mut self.users {
            let Some(running) = &mut of.running else { continue };
            let mut talker = running.talker.borrow_mut();
            if let Err(Failed(why)) = talker.on_timer(now) {
                failed.push((*user, why));
            } else if !talker.is_idle() {
                running.idle_since = None;
            } else if now >= *running.idle_since.get_or_insert(now) + IDLE {
                drop(talker);
                self.dying.extend(of.end());
            }
        }
        for (user, why) in failed {
            self.failed(user, why, now);
        }
        // Otherwise users who had a VM once would take the places of those who have one.
        self.users.retain(|_, of| of.running.is_some() || now < of.not_before + YOUNG);
    }

    /// A helper hangs, has ended or is not to be believed. Its connections are made again.
    fn failed(&mut self, user: u32, why: &'static str, now: Duration) {
        let Some(of) = self.users.get_mut(&user) else { return };
        let Some(running) = &of.running else { return };
        let young = now < running.started + YOUNG;
        of.failures = if young { (of.failures + 1).min(MOST_FAILURES) } else { 1 };
        of.not_before = now + Duration::from_secs(1 << (of.failures - 1));
        let lost = running.talker.borrow_mut().end();
        tracing::debug!("the helper that speaks QMP for user {user} {why}");
        let text = || News::Lost(format!("the helper that speaks QMP {why}"));
        self.arrived.extend(lost.into_iter().map(|connection| (connection, text())));
        self.dying.extend(of.end());
        self.dying.retain_mut(|dying| !dying.has_ended());
    }
}

impl OfUser {
    fn talker(&mut self, now: Duration) -> Result<Rc<RefCell<Talker>>, String> {
        if let Some(running) = &self.running {
            return Ok(Rc::clone(&running.talker));
        }
        if now < self.not_before {
            return Err(
                "the helper that speaks QMP has failed; it is started again soon".to_owned()
            );
        }
        let helper = Helper::start(ARGUMENT);
        let helper = Rc::new(helper.map_err(|error| format!("no helper to speak QMP: {error}"))?);
        let talker = Rc::new(RefCell::new(Talker::new(Rc::clone(&helper), now)));
        let running =
            Running { helper, talker: Rc::clone(&talker), started: now, idle_since: None };
        self.running = Some(running);
        Ok(talker)
    }

    /// Kills the helper.
    fn end(&mut self) -> Option<Dying> {
        let running = self.running.take()?;
        // Lines may outlive it, without a helper.
        running.talker.borrow_mut().end();
        Rc::into_inner(running.helper).map(Helper::kill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use timevisor_linux::poll::{PollFd, wait};

    /// The helper is this test program, which does not know the argument and ends at once.
    #[test]
    fn a_helper_that_ends_costs_its_user_the_connections_and_nobody_else_anything() {
        let mut helpers = QmpHelpers::default();
        let now = monotonic();
        let open = |helpers: &mut QmpHelpers, user| {
            let (near, far) = UnixStream::pair().unwrap();
            (helpers.open(user, near.into(), false, now), far)
        };
        let ((one, _far), (other, _other_far)) =
            (open(&mut helpers, 1000), open(&mut helpers, 1001));
        assert_eq!(helpers.fds().map(|(user, _)| user).collect::<Vec<_>>(), [1000, 1001]);
        while helpers.fds().any(|(user, _)| user == 1000) {
            {
                let mut fds: Vec<_> = helpers.fds().map(|(_, fd)| PollFd::readable(fd)).collect();
                wait(&mut fds[..1], None).unwrap();
            }
            helpers.on_ready(1000);
        }
        let lost = helpers.take_news();
        assert!(matches!(&lost[..], [(of, News::Lost(_))] if *of == one.number()), "{lost:?}");
        assert_eq!(helpers.fds().map(|(user, _)| user).collect::<Vec<_>>(), [1001]);
        // It is not started again at once, and the connection says so.
        let (again, _again_far) = open(&mut helpers, 1000);
        let lost = helpers.take_news();
        assert!(
            matches!(&lost[..], [(of, News::Lost(why))] if *of == again.number() && why.contains("again"))
        );
        assert!(other.number() != again.number() && helpers.poll_at() > Duration::ZERO);
    }
}
