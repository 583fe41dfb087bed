//! When to report a guest's tasks and demand again: soon after a change, but not more often than
//! anyone looks.

use timevisor_time::Duration;

use crate::tasks::event::{Event, Kind};

/// Maximum age of the reported task list.
pub const MAXIMUM_AGE: Duration = Duration::from_nanos(20_000_000);

/// What has changed since the last report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    has_changed: bool,
    due_at: Duration,
    asked: Option<u64>,
}

impl Report {
    /// Records that an event was decoded.
    pub const fn on_event(&mut self, event: &Event) {
        self.has_changed = true;
        if matches!(event.kind, Kind::SetScheduler { .. } | Kind::Exit { .. }) {
            self.asked = event.counter;
        }
    }

    /// Records that the initial scan found this many tasks.
    pub const fn on_scan(&mut self, found: usize) {
        self.has_changed |= found > 0;
    }

    /// The host's counter when the guest last asked for another policy, or gave one up by exiting.
    #[must_use]
    pub const fn asked(&self) -> Option<u64> {
        self.asked
    }

    /// Whether to report now. Each change is reported once.
    pub fn take(&mut self, now: Duration) -> bool {
        let is_due = self.has_changed && now >= self.due_at;
        if is_due {
            (self.has_changed, self.due_at) = (false, now + MAXIMUM_AGE);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::event::{Attributes, Thread};

    fn at(ms: i64) -> Duration {
        Duration::from_nanos(ms * 1_000_000)
    }

    fn event(counter: u64, kind: Kind) -> Event {
        let (thread, counter) = (Thread::default(), Some(counter));
        Event { sequence: 0, counter, counter_error: 0, vcpu: 0, thread, kind }
    }

    #[test]
    fn a_change_is_reported_once_and_not_too_often() {
        let mut report = Report::default();
        assert!(!report.take(at(1)), "nothing has changed");
        report.on_event(&event(1, Kind::Yield));
        assert!(report.take(at(1)) && !report.take(at(100)));
        report.on_event(&event(2, Kind::Yield));
        assert!(report.take(at(100)));
        report.on_event(&event(3, Kind::Yield));
        assert!(!report.take(at(119)) && report.take(at(120)));
        report.on_scan(0);
        assert!(!report.take(at(200)));
        report.on_scan(1);
        assert!(report.take(at(200)));
    }

    #[test]
    fn a_job_is_no_request() {
        let mut report = Report::default();
        let (target, attributes) = (Thread::default(), Attributes::default());
        report.on_event(&event(5, Kind::SetScheduler { target, attributes }));
        report.on_event(&event(6, Kind::Yield));
        assert_eq!(report.asked(), Some(5));
        report.on_event(&event(7, Kind::Exit { status: 0 }));
        assert_eq!(report.asked(), Some(7));
    }
}
