//! Which kernel runs, judged by heartbeats. A reset does not clear memory, so an earlier kernel may
//! still be there: complete, but not running.

use timevisor_time::Duration;

/// How long to wait for a heartbeat. Even an idle kernel ticks every few seconds.
pub const PATIENCE: Duration = Duration::from_nanos(10_000_000_000);

/// Determines which of several kernels runs.
#[derive(Clone, Debug)]
pub struct RunningKernel {
    before: Vec<Option<u64>>,
    until: Duration,
}

/// The result of comparing the heartbeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Read the heartbeats again, a moment later.
    Again,
    /// This one runs.
    Runs(usize),
    /// Several run: a program imitates a kernel, or there is a nested guest.
    Several,
    /// No kernel was seen to run.
    NoneRuns,
}

impl RunningKernel {
    /// Starts with these heartbeats; `None` for a kernel that has none.
    #[must_use]
    pub fn new(before: Vec<Option<u64>>, now: Duration) -> Self {
        Self { before, until: now + PATIENCE }
    }

    /// Takes the current heartbeats of the same kernels. A single kernel without a beat is assumed
    /// to be idle and running, unless the guest was reset.
    #[must_use]
    pub fn take(&self, heartbeats: &[Option<u64>], was_reset: bool, now: Duration) -> Verdict {
        let pairs = self.before.iter().zip(heartbeats).enumerate();
        // A kernel without a heartbeat counts as running, because there is no evidence against it.
        let mut running = pairs
            .filter(|(_, (before, now))| before.is_none() || now != before)
            .map(|(index, _)| index);
        match (running.next(), running.next()) {
            (Some(only), None) => Verdict::Runs(only),
            (Some(_), Some(_)) => Verdict::Several,
            (None, _) if now <= self.until => Verdict::Again,
            (None, _) if self.before.len() == 1 && !was_reset => Verdict::Runs(0),
            (None, _) => Verdict::NoneRuns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_nanos(5);
    const LATE: Duration = Duration::from_nanos(10_000_000_006);

    #[test]
    fn the_one_that_ticks_runs() {
        let kernels = RunningKernel::new(vec![Some(7), Some(9)], START);
        assert_eq!(kernels.take(&[Some(7), Some(9)], true, START), Verdict::Again);
        assert_eq!(kernels.take(&[Some(7), Some(10)], true, START), Verdict::Runs(1));
        assert_eq!(kernels.take(&[Some(8), Some(10)], false, START), Verdict::Several);
        assert_eq!(kernels.take(&[Some(7), Some(9)], false, LATE), Verdict::NoneRuns);
    }

    #[test]
    fn a_lone_silent_kernel_is_idle_unless_the_guest_was_reset() {
        let lone = RunningKernel::new(vec![Some(7)], START);
        assert_eq!(lone.take(&[Some(7)], false, START + PATIENCE), Verdict::Again);
        assert_eq!(lone.take(&[Some(7)], false, LATE), Verdict::Runs(0));
        assert_eq!(lone.take(&[Some(7)], true, LATE), Verdict::NoneRuns);
        assert_eq!(lone.take(&[Some(8)], true, LATE), Verdict::Runs(0));
    }

    #[test]
    fn one_without_a_heartbeat_is_believed() {
        let without = RunningKernel::new(vec![None], START);
        assert_eq!(without.take(&[None], true, START), Verdict::Runs(0));
        let none = RunningKernel::new(Vec::new(), START);
        assert_eq!(none.take(&[], false, LATE), Verdict::NoneRuns);
    }
}
