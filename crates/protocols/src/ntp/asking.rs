//! Whether the next request carries the extension field of [`super::precise`].
//!
//! No server may be lost because of the field. A server that ignores it is not asked with it again
//! for [`IGNORED`]. A server, or a filter on the path, that drops longer packets shows as requests
//! that are lost with the field and answered without it; so after each loss of a request with the
//! field, the next one goes without. After a few such pairs in a row the field is left out for
//! [`DROPPED`].
//!
//! What it does not do: know why a request was lost. On a path that loses one packet in ten, an
//! honest Timevisor's server looks like a filter once in a thousand tries, and is asked again an
//! hour later.

use timevisor_time::Duration;

/// A server that ignored the field is asked again after this time: it may have been updated.
const IGNORED: Duration = Duration::from_secs(3600);
/// The same where a request with the field is lost for certain.
const DROPPED: Duration = Duration::from_secs(6 * 3600);
/// Pairs of a loss with the field and an answer without it until the field is left out.
const PAIRS: u32 = 3;
/// The same for a server that has answered with the field before.
const PAIRS_IF_KNOWN: u32 = 8;

/// The state for one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    enabled: bool,
    /// The server has answered with the field.
    known: bool,
    /// Pairs in a row.
    pairs: u32,
    /// The last request carried the field and was lost.
    lost: bool,
    /// The last request went without the field because the one before it was lost.
    second_try: bool,
    /// Without the field until then.
    paused: Option<Duration>,
}

impl Asking {
    pub(super) const fn new(enabled: bool) -> Self {
        let (known, lost, second_try) = (false, false, false);
        Self { enabled, known, pairs: 0, lost, second_try, paused: None }
    }

    /// Switches the field on or off. What is known about the server is kept if that is no change.
    pub(super) fn set(&mut self, enabled: bool) {
        if self.enabled != enabled {
            *self = Self::new(enabled);
        }
    }

    /// Another server is asked from now on.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.enabled);
    }

    /// Returns whether the request that leaves at `now` carries the field.
    pub(super) fn wants(&mut self, now: Duration) -> bool {
        self.second_try = core::mem::take(&mut self.lost);
        !self.second_try && self.enabled && self.paused.is_none_or(|until| now >= until)
    }

    /// A request was lost. `carried`: it had the field. Without the field, the server or the path
    /// is down, which says nothing about the field.
    pub(super) fn lost(&mut self, carried: bool) {
        self.lost = carried;
    }

    /// A request was answered. `carried`: it had the field; `replied`: so had the answer.
    pub(super) fn answered(&mut self, now: Duration, carried: bool, replied: bool) {
        if replied {
            (self.known, self.pairs, self.paused) = (true, 0, None);
        } else if carried {
            self.known = false;
            self.paused = Some(now + IGNORED);
        } else if core::mem::take(&mut self.second_try) {
            self.pairs += 1;
            if self.pairs >= self.limit() {
                // After the pause one more pair is enough.
                self.pairs = self.limit() - 1;
                self.paused = Some(now + DROPPED);
            }
        }
    }

    const fn limit(&self) -> u32 {
        if self.known { PAIRS_IF_KNOWN } else { PAIRS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(4);

    /// Polls `server` (whether it answers a request with and without the field, and whether with
    /// the field) and returns how many requests carried the field, were lost, and answered with it.
    fn poll(
        asking: &mut Asking,
        now: &mut Duration,
        times: u32,
        server: fn(bool) -> Option<bool>,
    ) -> [u32; 3] {
        let mut counts = [0; 3];
        for _ in 0..times {
            let carried = asking.wants(*now);
            counts[0] += u32::from(carried);
            match server(carried) {
                None => {
                    asking.lost(carried);
                    counts[1] += 1;
                }
                Some(replied) => {
                    asking.answered(*now, carried, replied);
                    counts[2] += u32::from(replied);
                }
            }
            *now += POLL;
        }
        counts
    }

    const TIMEVISOR: fn(bool) -> Option<bool> = Some;
    const OTHER: fn(bool) -> Option<bool> = |_| Some(false);
    const FILTER: fn(bool) -> Option<bool> = |carried| (!carried).then_some(false);
    const DOWN: fn(bool) -> Option<bool> = |_| None;

    #[test]
    fn a_timevisor_is_always_asked_and_others_once_an_hour() {
        let (mut asking, mut now) = (Asking::new(true), Duration::ZERO);
        assert_eq!(poll(&mut asking, &mut now, 1000, TIMEVISOR), [1000, 0, 1000]);
        // Replaced by another server: 24 h.
        assert_eq!(poll(&mut asking, &mut now, 21_600, OTHER), [24, 0, 0]);
        // Replaced again: noticed within the hour.
        assert!(poll(&mut asking, &mut now, 1800, TIMEVISOR)[2] >= 900);
    }

    #[test]
    fn a_filter_costs_three_requests_and_then_one_in_six_hours() {
        let (mut asking, mut now) = (Asking::new(true), Duration::ZERO);
        assert_eq!(poll(&mut asking, &mut now, 6, FILTER), [3, 3, 0]);
        assert_eq!(poll(&mut asking, &mut now, 21_600, FILTER), [3, 3, 0], "24 h");
        // A Timevisor whose path gets a filter costs more before it is given up.
        let (mut asking, mut now) = (Asking::new(true), Duration::ZERO);
        let _ = poll(&mut asking, &mut now, 10, TIMEVISOR);
        assert_eq!(poll(&mut asking, &mut now, 1000, FILTER), [8, 8, 0]);
    }

    #[test]
    fn an_outage_decides_nothing() {
        let (mut asking, mut now) = (Asking::new(true), Duration::ZERO);
        let _ = poll(&mut asking, &mut now, 10, TIMEVISOR);
        assert_eq!(poll(&mut asking, &mut now, 1000, DOWN), [500, 1000, 0]);
        assert!(poll(&mut asking, &mut now, 10, TIMEVISOR)[2] >= 9);
    }

    #[test]
    fn it_can_be_switched() {
        let (mut asking, mut now) = (Asking::new(false), Duration::ZERO);
        assert_eq!(poll(&mut asking, &mut now, 10, TIMEVISOR)[0], 0);
        asking.set(true);
        assert_eq!(poll(&mut asking, &mut now, 2, OTHER)[0], 1);
        asking.set(true);
        assert_eq!(poll(&mut asking, &mut now, 2, OTHER)[0], 0, "still known to ignore it");
    }
}
