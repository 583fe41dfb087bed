//! What an earlier writer has left on a page: facts of the page's owner that outlive a daemon, and
//! that travel with a VM where its page does.

use core::sync::atomic::Ordering::Relaxed;

use timevisor_time::{Duration, Instant, Tai, TimescaleId};

use super::PageWriter;
use super::stores::ceil_ns;
use crate::abi::{header, vmclock};
use crate::page::{Page, WritablePage};

/// What a page says of the moment when its owner's timeline `elapsed` read 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NotedBirth {
    /// Nothing: nobody can have read an age.
    #[default]
    Nothing,
    /// An age may have been read, and when it began is not known: it must not begin again.
    Begun,
    /// It read 0 then.
    At {
        /// The instant.
        zero: Instant<Tai>,
        /// The true one is at most this far away.
        within: Duration,
    },
}

impl NotedBirth {
    /// What a page says of a guest that began elsewhere, where the page is not the one that it had
    /// there: the guest may have read an age.
    #[must_use]
    pub fn of_one_that_came(self) -> Self {
        if self == Self::Nothing { Self::Begun } else { self }
    }
}

/// The largest error of an instant that can be told from [`header::BIRTH_BEGUN`].
const LARGEST_WITHIN: u64 = i64::MAX.unsigned_abs();

/// The timescale of a page that a Timevisor has written, maybe another host's. A guest's driver may
/// have probed it. `None` of other pages: QEMU's own, before anybody has written it, says UTC.
#[must_use]
pub fn timescale_left_on(page: &Page) -> Option<TimescaleId> {
    let is_ours = page.word(header::AT_MAGIC).load(Relaxed) == header::MAGIC;
    timescale_on(page).filter(|_| is_ours)
}

fn timescale_on(page: &Page) -> Option<TimescaleId> {
    if page.head(vmclock::AT_MAGIC).load(Relaxed) != vmclock::MAGIC {
        return None;
    }
    let [.., scale] = page.head(vmclock::AT_VERSION).load(Relaxed).to_le_bytes();
    [TimescaleId::Utc, TimescaleId::Tai].into_iter().find(|id| *id as u8 == scale)
}

impl<P: WritablePage> PageWriter<P> {
    /// The timescale on the page, whatever wrote it; `None` for one that stock drivers refuse, and
    /// where there is no page.
    #[must_use]
    pub fn found_timescale(&self) -> Option<TimescaleId> {
        timescale_on(&self.page)
    }

    /// Notes when the page's owner was born (when `elapsed` read 0).
    pub fn set_birth(&self, birth: NotedBirth) {
        let word = |at: usize, value: u64| self.page.word(at).store(value, Relaxed);
        let (zero, within) = match birth {
            NotedBirth::Nothing => (Instant::from_bits(0), 0),
            NotedBirth::Begun => (Instant::from_bits(0), header::BIRTH_BEGUN),
            NotedBirth::At { zero, within } => (zero, ceil_ns(within).clamp(1, LARGEST_WITHIN)),
        };
        let (secs, frac) = zero.to_words();
        word(header::AT_BIRTH, secs);
        word(header::AT_BIRTH + 8, frac);
        word(header::AT_BIRTH_WITHIN, within);
    }

    /// What the page says of its owner's birth, whatever wrote it.
    #[must_use]
    pub fn found_birth(&self) -> NotedBirth {
        let word = |at: usize| self.page.word(at).load(Relaxed);
        match (word(header::AT_BIRTH_WITHIN), i64::try_from(word(header::AT_BIRTH_WITHIN))) {
            (0, _) => NotedBirth::Nothing,
            (_, Ok(within)) => NotedBirth::At {
                zero: Instant::from_words(word(header::AT_BIRTH), word(header::AT_BIRTH + 8)),
                within: Duration::from_nanos(within),
            },
            (_, Err(_)) => NotedBirth::Begun,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::identity;
    use super::*;
    use crate::Identity;

    #[test]
    fn a_page_tells_its_timescale_once_somebody_has_written_it() {
        for timescale in [TimescaleId::Utc, TimescaleId::Tai] {
            let page = Page::new();
            assert_eq!(timescale_left_on(&page), None);
            // As QEMU makes it: a magic, and a timescale that is zero.
            page.head(vmclock::AT_MAGIC).store(vmclock::MAGIC, Relaxed);
            assert_eq!(timescale_left_on(&page), None);
            let writer =
                PageWriter::take_over(&page, Identity { timescale, ..identity() }, Some(37));
            assert_eq!(timescale_left_on(&page), Some(timescale));
            assert_eq!(writer.found_timescale(), Some(timescale));
        }
    }

    /// A page file keeps what it says when another daemon takes it over.
    #[test]
    fn a_birth_outlives_its_writer() {
        let at = |within| NotedBirth::At {
            zero: Instant::from_unix_nanos(1_795_000_000_000_000_000),
            within: Duration::from_nanos(within),
        };
        let page = Page::new();
        let writer = PageWriter::take_over(&page, identity(), Some(37));
        assert_eq!(writer.found_birth(), NotedBirth::Nothing);
        for birth in [NotedBirth::Begun, at(1), at(70), at(i64::MAX)] {
            writer.set_birth(birth);
            let mut next = PageWriter::take_over(&page, identity(), Some(37));
            assert_eq!(next.found_birth(), birth);
            next.arrive(identity(), Some(37));
            assert_eq!(next.found_birth(), birth);
        }
        writer.set_birth(at(0));
        assert_eq!(writer.found_birth(), at(1), "an instant is known to something");
        writer.set_birth(NotedBirth::Nothing);
        assert_eq!(writer.found_birth(), NotedBirth::Nothing);
    }
}
