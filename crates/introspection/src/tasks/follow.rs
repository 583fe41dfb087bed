//! How a reservation follows a guest: a new need is tried at once, and a refused one is retried
//! later. A new need replaces a refused one.

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
}

impl<N> Default for Follow<N> {
    fn default() -> Self {
        Self { refused: None }
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
        self.refused = None;
        Some(attempt)
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
    fn a_new_need_replaces_a_refused_one() {
        let mut follow = Follow::default();
        follow.on_refusal("a", false, at(0));
        assert_eq!(follow.next(Some(("b", None)), at(1)), Some(("b", None)));
        assert_eq!(follow.next(None, at(5000)), None);
    }
}
