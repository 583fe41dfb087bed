//! What is logged of things that go wrong and right: each change once, and ever more rarely if it keeps changing. The full
//! story is in `timevisor status`; a log that a faulty server or a full disk fills helps nobody.

use std::collections::{BTreeMap, VecDeque};

use timevisor_time::Duration;

/// Log lines are counted over this span.
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// What keeps changing is still logged this often.
const RARELY: Duration = Duration::from_secs(4 * 3600);
const HOUR: Duration = Duration::from_secs(3600);
const TEN_MINUTES: Duration = Duration::from_secs(600);
/// So many users have a budget of their own.
const USERS: usize = 64;
/// For states that change a few times when something is plugged in or restarted.
const BURST: usize = 4;

/// How many log lines something may still produce: a few at once, then one every four hours until
/// it has been quiet for a day.
#[derive(Clone, Debug)]
pub struct Budget {
    burst: usize,
    rarely: Duration,
    window: Duration,
    spent: VecDeque<Duration>,
}

impl Budget {
    /// Allows this many lines at once.
    pub fn new(burst: usize) -> Self {
        Self { burst, rarely: RARELY, window: WINDOW, spent: VecDeque::new() }
    }

    /// Allows this many lines at once, and one a day later.
    pub fn daily(burst: usize) -> Self {
        Self { rarely: WINDOW, ..Self::new(burst) }
    }

    /// Allows this many lines an hour, and then one every ten minutes: for what happens often on a
    /// busy host, too.
    pub fn hourly(burst: usize) -> Self {
        Self { rarely: TEN_MINUTES, window: HOUR, ..Self::new(burst) }
    }

    /// Returns true if a line may be logged now, and counts it.
    pub fn take(&mut self, now: Duration) -> bool {
        while self.spent.front().is_some_and(|then| now - *then > self.window) {
            self.spent.pop_front();
        }
        let allowed = self.spent.len() < self.burst
            || self.spent.back().is_none_or(|last| now - *last >= self.rarely);
        if allowed {
            self.spent.push_back(now);
        }
        allowed
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BURST)
    }
}

/// How many log lines each user of this host may still cause, for instance by starting and ending
/// processes.
#[derive(Clone, Debug, Default)]
pub struct PerUser {
    users: BTreeMap<u32, Budget>,
    /// For all others: one user may have tens of thousands of user ids.
    rest: Option<Budget>,
}

impl PerUser {
    /// Lines an hour. A VM's life takes two.
    const LINES: usize = 200;

    /// Returns true if a line about something of this user's may be logged now, and counts it.
    pub fn take(&mut self, user: u32, now: Duration) -> bool {
        let known = self.users.len() < USERS || self.users.contains_key(&user);
        let new = || Budget::hourly(Self::LINES);
        if known {
            self.users.entry(user).or_insert_with(new).take(now)
        } else {
            self.rest.get_or_insert_with(new).take(now)
        }
    }
}

/// The state that the log shows, by a key: an empty one while all is well. Texts with numbers that
/// always change make bad keys.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    said: String,
    budget: Budget,
}

impl Announcer {
    /// Returns true if the log shows another state than `key` and should now show this one. Call it
    /// whenever the state is known: a change that was not logged at once is logged later, if it
    /// lasts.
    pub fn changed(&mut self, now: Duration, key: &str) -> bool {
        let news = self.said != key && self.budget.take(now);
        if news {
            key.clone_into(&mut self.said);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(seconds: i64, state: impl Fn(i64) -> &'static str) -> usize {
        let mut announcer = Announcer::default();
        (0..seconds).filter(|s| announcer.changed(Duration::from_secs(*s), state(*s))).count()
    }

    #[test]
    fn a_state_is_logged_once_and_a_flapping_one_at_most_ten_times_a_day() {
        assert_eq!(lines(86_400, |_| ""), 0, "all is well from the start");
        assert_eq!(lines(86_400, |_| "broken"), 1);
        assert_eq!(lines(86_400, |s| if s < 10 { "broken" } else { "" }), 2);
        for period in [2, 60, 3600] {
            let flapping = lines(86_400, |s| if s % period < period / 2 { "broken" } else { "" });
            assert!((4..=10).contains(&flapping), "every {period} s: {flapping}");
        }
        // Twice a day is a change like any other.
        assert_eq!(lines(86_400, |s| if s % 43_200 < 21_600 { "broken" } else { "" }), 4);
    }

    #[test]
    fn a_user_fills_no_log_and_takes_nothing_from_others() {
        let mut told = PerUser::default();
        let hour = |told: &mut PerUser, user: u32, from: i64| {
            let at = |ms: i64| Duration::from_secs(from) + Duration::from_millis(ms);
            (0..3_600_000).step_by(50).filter(|ms| told.take(user, at(*ms))).count()
        };
        assert!((200..=206).contains(&hour(&mut told, 4001, 0)));
        assert!(told.take(0, Duration::from_secs(3600)), "root's lines are root's");
        // Later, too: the first lines of the hour before are forgotten, and spent again.
        assert!(hour(&mut told, 4001, 3600) <= 206);
        // Sub-ids are as many as one likes.
        let many = (100_000..165_000).filter(|id| told.take(*id, Duration::from_secs(9000)));
        assert!(many.count() <= USERS + PerUser::LINES);
        assert!(told.take(0, Duration::from_secs(9000)));
    }

    #[test]
    fn the_state_that_lasts_is_told_in_the_end() {
        let mut announcer = Announcer { said: String::new(), budget: Budget::new(2) };
        let at = |announcer: &mut Announcer, s, key| announcer.changed(Duration::from_secs(s), key);
        assert!(at(&mut announcer, 0, "a") && at(&mut announcer, 1, ""));
        assert!(!at(&mut announcer, 2, "b"), "the budget is spent");
        assert!(!at(&mut announcer, 3600, "b"));
        assert!(at(&mut announcer, 4 * 3600 + 1, "b"));
        assert!(!at(&mut announcer, 4 * 3600 + 2, "b"));
    }
}
