//! One look at the page: CLOCK_REALTIME beside it, and what the host announces, both of one era.
//!
//! A VM may be moved between any two instructions. A clock that was right before the move and a
//! notice that was taken back after it are no reason to let the workload go on: the clock is late
//! by now. The page's disruption marker changes with every move, so both are read again when it has.

use timevisor_clock_page::Notice;
use timevisor_time::Duration;

use super::law::Seen;
use crate::set_clock::law::Era;
use crate::set_clock::view::{Looked, View};

/// A page that changes more often than this vouches for nothing.
const TRIES: usize = 5;

/// What is looked at.
pub trait Sight {
    /// The page's era; `None` while it cannot be read.
    fn era(&mut self) -> Option<Era>;
    /// How far CLOCK_REALTIME is surely off; `None` while the page vouches for nothing.
    fn off(&mut self) -> Option<Duration>;
    /// What the host announces.
    fn notice(&mut self) -> Notice;
}

impl Sight for View {
    fn era(&mut self) -> Option<Era> {
        // Follows the timeline to another page.
        Self::era(self)
    }

    fn off(&mut self) -> Option<Duration> {
        match self.look_settled() {
            Looked::Beside(beside) => Some(beside.outside()),
            Looked::Nothing => None,
        }
    }

    fn notice(&mut self) -> Notice {
        Self::notice(self)
    }
}

/// Looks until all of it is of one era.
pub fn see(sight: &mut impl Sight) -> Seen {
    for _ in 0..TRIES {
        let era = sight.era();
        let seen = Seen { off: sight.off(), notice: sight.notice() };
        if sight.era() == era {
            return seen;
        }
    }
    Seen { off: None, notice: sight.notice() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM that is moved after so many reads: its clock is then late, and nothing is announced.
    struct Moved {
        reads: usize,
        after: usize,
    }

    impl Moved {
        fn has_moved(&mut self) -> bool {
            self.reads += 1;
            self.reads > self.after
        }
    }

    impl Sight for Moved {
        fn era(&mut self) -> Option<Era> {
            Some(Era { disruption: u64::from(self.has_moved()), tai_offset: None })
        }
        fn off(&mut self) -> Option<Duration> {
            Some(if self.has_moved() { Duration::from_millis(70) } else { Duration::ZERO })
        }
        fn notice(&mut self) -> Notice {
            if self.has_moved() { Notice::None } else { Notice::Imminent }
        }
    }

    #[test]
    fn a_move_in_the_middle_of_a_look_is_seen() {
        for after in 0..8 {
            let seen = see(&mut Moved { reads: 0, after });
            let late = seen.off != Some(Duration::ZERO);
            assert!(late || seen.notice == Notice::Imminent, "moved after {after} reads: {seen:?}");
        }
    }

    /// A page in constant change.
    struct Changing(u64);

    impl Sight for Changing {
        fn era(&mut self) -> Option<Era> {
            self.0 += 1;
            Some(Era { disruption: self.0, tai_offset: None })
        }
        fn off(&mut self) -> Option<Duration> {
            Some(Duration::ZERO)
        }
        fn notice(&mut self) -> Notice {
            Notice::None
        }
    }

    #[test]
    fn a_page_that_never_settles_vouches_for_nothing() {
        assert_eq!(see(&mut Changing(0)).off, None);
    }
}
