//! How a reservation follows a guest: a new need is tried at once, and a refused one is retried
//! later. A new need replaces a refused one. A reservation that vanishes is made again, unless a user released it.

use timevisor_time::Duration;

/// Retry delay while other reservations make room for this one.
pub const SOON: Duration = Duration::from_nanos(20_000_000);
/// Retry delay otherwise: another reservation may have been released by then.
pub const LATER: Duration = Duration::from_nanos(1_000_000_000);

/// A need to try, and the host's counter value when the guest asked for it.
pub type Attempt<N> = (N, Option<u64>);

/// The attempts for one guest; `N` is the type of its need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follow<N> {
    refused: Option<(N, Duration)>,
    /// The need that the guest's reservation meets.
    met: Option<N>,
}

impl<N> Default for Follow<N> {
    fn default() -> Self {
        Self { refused: None, met: None }
    }
}

impl<N> Follow<N> {
    /// What to try now, if anything. `new` is the guest's need if it has changed since the last
    /// call.
    pub fn next(&mut self, new: Option<Attempt<N>>, now: Duration) -> Option<Attempt<N>> {
        let attempt = new.or_else(|| {
            // A retry carries no counter value: its latency would include our own retry delay.
            self.refused.take_if(|(_, at)| now >= *at).map(|(need, _)| (need, None))
        })?;
        (self.refused, self.met) = (None, None);
        Some(attempt)
    }

    /// Records that a reservation has been made for this need.
    pub fn on_success(&mut self, need: N) {
        self.met = Some(need);
    }

    /// Takes in whether that reservation is still there, and whether a user has released one of the guest's. One
    /// that has vanished by itself (its vCPU was unplugged, or it was given up) is tried again later. One that
    /// was released stays so until the guest needs something else. Returns whether it has gone since the last
    /// call.
    pub fn on_look(&mut self, is_there: bool, is_released: bool, now: Duration) -> bool {
        let Some(need) = self.met.take_if(|_| !is_there) else { return false };
        if !is_released {
            self.refused = Some((need, now + LATER));
        }
        true
    }

    /// Records that this attempt was refused. `makes_room` says that room is being made for it.
    pub fn on_refusal(&mut self, need: N, makes_room: bool, now: Duration) {
        self.refused = Some((need, now + if makes_room { SOON } else { LATER }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Duration {
        Duration::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_refused_need_is_tried_again_later() {
        let mut follow = Follow::default();
        assert_eq!(follow.next(None, at(0)), None);
        assert_eq!(follow.next(Some(("a", Some(9))), at(0)), Some(("a", Some(9))));
        assert_eq!(follow.next(None, at(5000)), None, "it was met");
        follow.on_refusal("a", false, at(0));
        assert_eq!(follow.next(None, at(999)), None);
        assert_eq!(follow.next(None, at(1000)), Some(("a", None)));
        assert_eq!(follow.next(None, at(9000)), None, "once for each refusal");
        follow.on_refusal("a", true, at(0));
        assert_eq!(follow.next(None, at(20)), Some(("a", None)));
    }

    #[test]
    fn what_has_vanished_is_tried_again_and_what_was_released_is_not() {
        let mut follow = Follow::default();
        assert!(!follow.on_look(false, false, at(0)));
        assert_eq!(follow.next(None, at(5000)), None, "there was none");
        let made = |follow: &mut Follow<&'static str>, ms| {
            assert_eq!(follow.next(Some(("a", None)), at(ms)), Some(("a", None)));
            follow.on_success("a");
            assert!(!follow.on_look(true, false, at(ms)));
            assert_eq!(follow.next(None, at(ms + 5000)), None, "it is there");
        };
        made(&mut follow, 0);
        assert!(follow.on_look(false, false, at(6000)));
        assert!(!follow.on_look(false, false, at(6500)), "that is known");
        assert_eq!(follow.next(None, at(6999)), None);
        assert_eq!(follow.next(None, at(7000)), Some(("a", None)));
        // Its vCPU is not plugged yet.
        follow.on_refusal("a", false, at(7000));
        assert!(!follow.on_look(false, false, at(7020)));
        assert_eq!(follow.next(None, at(8000)), Some(("a", None)));

        made(&mut follow, 9000);
        assert!(follow.on_look(false, true, at(15_000)));
        assert!(!follow.on_look(false, false, at(15_020)));
        assert_eq!(follow.next(None, at(20_000)), None, "a user released it");
        made(&mut follow, 21_000);
    }

    #[test]
    fn a_new_need_replaces_a_refused_one() {
        let mut follow = Follow::default();
        follow.on_refusal("a", false, at(0));
        assert_eq!(follow.next(Some(("b", None)), at(1)), Some(("b", None)));
        assert_eq!(follow.next(None, at(5000)), None);
    }
}
