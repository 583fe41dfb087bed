//! A clock that jumps: two readings that this machine's counter cannot reconcile.
//!
//! Between two readings a clock can only gain what its stated errors, and the rates of the clock and
//! of the counter, explain. More than that is a jump: somebody set the clock, the device lost its
//! source, or its file leads to another clock.
//!
//! What it does not do: decide which of the two readings is right. The ensemble does: a confirmed
//! jump reaches it as a contradiction, which makes a clock without a majority unreliable.

use timevisor_estimate::Exchange;
use timevisor_time::{Duration, Period, RateError};

use super::tally::Refused;

/// Rate errors of the counter and of the clock together: 100 ppm each, which no crystal in use
/// exceeds. A smaller jump is left to the ensemble, which knows the rate better.
const RATES: RateError = RateError::from_ppm(200);

/// By how much the clock jumped between two readings, beyond what explains itself; positive is
/// forward.
pub fn jump(before: &Exchange, after: &Exchange, period: Period) -> Option<Duration> {
    let most = period.span_ceil(after.tf.wrapping_sub(before.ta));
    let least = period.span(after.ta.saturating_sub(before.tf));
    let went = after.tb - before.te;
    let slack = before.error + after.error;
    let (high, low) = (most + RATES.over(most) + slack, least - RATES.over(least) - slack);
    if went > high {
        Some(went - high)
    } else if went < low {
        Some(went - low)
    } else {
        None
    }
}

/// Watches the readings of one clock.
#[derive(Debug, Default)]
pub struct Watch {
    last: Option<Exchange>,
    jumps: u64,
    latest: Duration,
}

impl Watch {
    /// Takes a reading. One that jumped is taken again at once: if the second agrees with it, the
    /// clock has jumped, and that reading is returned. Otherwise it was a wild reading.
    pub fn read(
        &mut self,
        period: Period,
        mut read: impl FnMut() -> Result<Exchange, Refused>,
    ) -> Result<Exchange, Refused> {
        let mut exchange = read()?;
        let jumped = self.last.and_then(|last| jump(&last, &exchange, period));
        if let Some(by) = jumped {
            let again = read()?;
            if jump(&exchange, &again, period).is_some() {
                let text = format!(
                    "two readings in a row differ by more than its stated error (the first by {by} from the one \
                     before); check the driver (dmesg)"
                );
                return Err(Refused::new("wild-reading", text));
            }
            (self.jumps, self.latest, exchange) = (self.jumps + 1, by, again);
        }
        self.last = Some(exchange);
        Ok(exchange)
    }

    /// The number of jumps so far.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }

    /// What there is to say of jumps.
    pub fn remark(&self) -> Option<String> {
        let (jumps, latest) = (self.jumps, self.latest);
        let times = if jumps == 1 { "once".to_owned() } else { format!("{jumps} times") };
        (jumps > 0)
            .then(|| format!("jumped against this machine's counter {times}, last by {latest}"))
    }

    /// Forgets the last reading: the counter's relation to time was broken.
    pub fn restart(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_time::Instant;

    fn period() -> Period {
        Period::from_hz(1_000_000_000).unwrap()
    }

    /// A reading at a counter value of nanoseconds, of a clock that is off by `off` ns, right to
    /// 1 us by its own word.
    fn reading(at: u64, off: i128) -> Exchange {
        let time = Instant::from_unix_nanos(1_700_000_000_000_000_000 + i128::from(at) + off);
        let error = Duration::from_micros(1);
        Exchange { ta: at - 500, tb: time, te: time, tf: at + 500, error }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn errors_and_rates_explain_no_jump() {
        let first = reading(SECOND, 0);
        for off in [0, 200_000, -200_000, 202_000, -202_000] {
            assert_eq!(jump(&first, &reading(2 * SECOND, off), period()), None, "{off}");
        }
        let forward = jump(&first, &reading(2 * SECOND, 300_000), period()).unwrap();
        assert!(forward > Duration::from_micros(90) && forward < Duration::from_micros(100));
        let back = jump(&first, &reading(2 * SECOND, -300_000), period()).unwrap();
        assert!(back < Duration::from_micros(-90) && back > Duration::from_micros(-100));
        // After an hour the rates explain more.
        assert_eq!(jump(&first, &reading(3_600 * SECOND, 700_000_000), period()), None);
        assert!(jump(&first, &reading(3_600 * SECOND, 1_000_000_000), period()).is_some());
    }

    #[test]
    fn a_jump_is_passed_on_and_told_once_it_is_confirmed() {
        let mut watch = Watch::default();
        let mut at = 0;
        let mut take = |watch: &mut Watch, offs: &[i128]| {
            at += SECOND;
            let mut left = offs.iter().enumerate();
            let outcome = watch.read(period(), || {
                let (index, off) = left.next().expect("read too often");
                Ok(reading(at + 10_000 * index as u64, *off))
            });
            assert_eq!(left.count(), 0, "not read often enough");
            outcome.map(|e| e.tb).map_err(|refused| refused.word)
        };
        take(&mut watch, &[0]).unwrap();
        take(&mut watch, &[0]).unwrap();
        assert_eq!(watch.remark(), None);
        // The clock is set a second ahead, and stays there.
        take(&mut watch, &[1_000_000_000, 1_000_000_000]).unwrap();
        take(&mut watch, &[1_000_000_000]).unwrap();
        let said = watch.remark().unwrap();
        assert!(said.contains("once, last by 999."), "{said}");
        // A single wild reading reaches nobody, and changes nothing.
        let wild = take(&mut watch, &[77_000_000_000, 1_000_000_000]);
        assert_eq!(wild, Err("wild-reading"));
        take(&mut watch, &[1_000_000_000]).unwrap();
        assert_eq!(watch.jumps(), 1);
        watch.restart();
        take(&mut watch, &[0]).unwrap();
        assert_eq!(watch.jumps(), 1);
    }

    #[test]
    fn an_error_of_the_second_reading_is_told_and_the_jump_is_not_forgotten() {
        let mut watch = Watch::default();
        watch.read(period(), || Ok(reading(SECOND, 0))).unwrap();
        let mut count = 0;
        let gone = watch.read(period(), || {
            count += 1;
            let problem = Err(Refused::new("no-device", "unplugged"));
            if count == 1 { Ok(reading(2 * SECOND, 5_000_000)) } else { problem }
        });
        assert_eq!(gone.unwrap_err().word, "no-device");
        watch.read(period(), || Ok(reading(3 * SECOND, 5_000_000))).unwrap();
        assert_eq!(watch.jumps(), 1);
    }
}
