//! Converts stamps of a timeline's counter to times, and to spans between them.

use crate::difference::is_before;
use crate::error::ConvertError;
use crate::measured_span::MeasuredSpan;
use crate::reading::Reading;
use crate::timeline::Timeline;

impl Timeline {
    /// The time at which the counter was at `stamp`, from the publications that were noted before
    /// and since (see [`Self::observe`]). The result is never wider than a reading taken at that
    /// time, provided that a publication was noted then, and it is narrower when the clock has
    /// learned something since. At least 1024 publications are remembered, 17 minutes at one per
    /// second.
    ///
    /// A stamp in the future gives a prediction, which holds unless the clock is disrupted before.
    ///
    /// ```
    /// let clock = timevisor::manual::Clock::new(0);
    /// clock.set_error(std::time::Duration::from_micros(50));
    /// clock.step(0); // what was known before does not count any more
    /// let timeline = clock.timeline();
    /// timeline.observe()?;
    /// let stamp = timeline.stamp();
    /// clock.advance(std::time::Duration::from_secs(1));
    /// clock.set_error(std::time::Duration::from_micros(10));
    /// assert_eq!(timeline.now()?.half_width_ns(), Some(10_000));
    /// let then = timeline.convert(stamp)?;
    /// assert!(then.half_width_ns() <= Some(10_001)); // 50 us at the time, 10 us in hindsight
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the stamp is from before the first publication remembered since the last disruption
    /// (opening a timeline notes one), when no publication was noted around the stamp for more than
    /// a minute, or when the page cannot be read.
    pub fn convert(&self, stamp: u64) -> Result<Reading, ConvertError> {
        let place = self.shared.place();
        let history = place.noted()?;
        let reading = Reading::of_stamp(&history.convert(stamp)?, stamp, place.origin);
        Ok(place.judge(reading, &self.need()))
    }

    /// The time of something that happened while the counter went from `first` to `last`, for
    /// example what [`PacketStamps::stamp_of`](crate::PacketStamps::stamp_of) returns for a packet.
    /// True time lies between the earliest bound at `first` and the latest bound at `last`. The
    /// estimate is that of the middle.
    ///
    /// # Errors
    /// As [`Self::convert`]; also [`ConvertError::WrongOrder`].
    pub fn convert_between(&self, first: u64, last: u64) -> Result<Reading, ConvertError> {
        let place = self.shared.place();
        let history = place.noted()?;
        let convert = |stamp| Ok(Reading::of_stamp(&history.convert(stamp)?, stamp, place.origin));
        Ok(place.judge(Reading::between(first, last, convert)?, &self.need()))
    }

    /// How much true time elapsed between two stamps. The result is never wider than the difference
    /// of two conversions, and for short spans it is much narrower: the clock's offset cancels, and
    /// only the error of its rate remains (15 ppm: 150 ns over 10 ms, whatever the offset's bound
    /// is).
    ///
    /// ```
    /// use std::time::Duration;
    /// let clock = timevisor::manual::Clock::new(0);
    /// clock.set_error(Duration::from_micros(50));
    /// clock.set_growth_ppb(15_000);
    /// clock.step(0); // what was known before does not count any more
    /// let timeline = clock.timeline();
    /// timeline.observe()?;
    /// let begin = timeline.stamp();
    /// clock.advance(Duration::from_millis(10));
    /// let span = timeline.span(begin, timeline.stamp())?;
    /// assert_eq!((span.shortest_ns(), span.longest_ns()), (9_999_849, 10_000_150));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::convert`]; [`ConvertError::Disrupted`] if the clock was disrupted between the
    /// stamps.
    pub fn span(&self, from: u64, to: u64) -> Result<MeasuredSpan, ConvertError> {
        let history = self.shared.place().noted()?;
        if is_before(to, from) {
            return Ok(MeasuredSpan::back(&history.between(to, from)?));
        }
        Ok(MeasuredSpan::ahead(&history.between(from, to)?))
    }
}
