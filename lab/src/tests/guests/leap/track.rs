//! Relates this machine's counter to CLOCK_REALTIME over a whole test.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_linux::clock::{Bracket, bracket};
use timevisor_linux::counter::HostCounter;

use crate::interrupt;

/// The narrowest of this many brackets is kept.
const TRIES: usize = 10;
/// How often the clock is read.
const EVERY: Duration = Duration::from_millis(200);

/// In the lab, nobody steers CLOCK_REALTIME, so it is linear between two samples.
#[derive(Default)]
pub(super) struct Track {
    looks: Vec<Bracket>,
}

impl Track {
    pub(super) fn look(&mut self, counter: &HostCounter) {
        self.looks.push(bracket(counter, TRIES));
    }

    /// Takes samples until `done`.
    pub(super) fn until(
        &mut self,
        counter: &HostCounter,
        mut done: impl FnMut() -> bool,
    ) -> anyhow::Result<()> {
        while !done() {
            self.look(counter);
            interrupt::sleep(EVERY)?;
        }
        self.look(counter);
        Ok(())
    }

    /// CLOCK_REALTIME at this counter value, and the uncertainty; both in ns.
    pub(super) fn realtime(&self, counter: u64) -> anyhow::Result<(i64, i64)> {
        let next = self.looks.partition_point(|look| look.before <= counter);
        let ends = next
            .checked_sub(1)
            .and_then(|last| Some((self.looks.get(last)?, self.looks.get(next)?)));
        let (from, to) = ends.with_context(|| format!("nobody looked around counter {counter}"))?;
        let middle = |look: &Bracket| look.before + look.width() / 2;
        let (low, high) = (from.realtime.floor_nanos(), to.realtime.floor_nanos());
        let ticks = i128::from(middle(to) - middle(from));
        ensure!(ticks > 0 && high > low, "the counter or the clock stood still");
        let ns = |ticks_since: i128| i64::try_from(ticks_since * i128::from(high - low) / ticks);
        let along = i128::from(counter.wrapping_sub(middle(from)).cast_signed());
        let within = ns(i128::from(from.width().max(to.width())))? / 2 + 2;
        Ok((low + ns(along)?, within))
    }
}
