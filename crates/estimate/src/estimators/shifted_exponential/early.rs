//! Messages that arrive too early in only one direction, while the round trip is not shorter: a
//! clock stepped.

use super::bank::Bank;
use super::filter::Innovation;
use super::gaussian::{OFFSET, RATE};
use super::parameters::Parameters;

/// What to do about an exchange.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// Nothing special.
    Ordinary,
    /// Learn nothing from it: it is so far off that it must be an error or the beginning of a step.
    Hold,
    /// The offset has stepped by about this much, s; the filter's uncertainty has been increased
    /// accordingly.
    Step(f64),
}

/// Consecutive early messages.
#[derive(Clone, Copy, Debug)]
pub struct EarlyRun {
    /// +1 if the offset seems to have grown (answers are early), -1 if it seems to have shrunk
    /// (requests are early).
    sign: f64,
    length: u32,
    /// Time since the exchange before the run, s.
    duration_s: f64,
}

impl EarlyRun {
    /// No early messages.
    pub const NONE: Self = Self { sign: 0.0, length: 0, duration_s: 0.0 };

    /// Records which messages were `early`; `queueing_s` is the mean queueing per direction. When
    /// enough of them have occurred in a row, the last one increases the uncertainty of offset and
    /// rate: for a step s, the variance of the offset grows by 4 s^2 and that of the rate by
    /// (s / duration)^2. The part of s beyond the gross limit is added to the offset instead, and
    /// no rate beyond the initial one is expected: a variance that dwarfs the others would make
    /// them lose their digits.
    pub fn observe(
        &mut self,
        bank: &mut Bank,
        innovation: &Innovation,
        early: [bool; 2],
        queueing_s: [f64; 2],
        since_s: f64,
        parameters: &Parameters,
    ) -> Verdict {
        let (k, sign) = match early {
            [true, _] => (0, -1.0),
            [false, true] => (1, 1.0),
            [false, false] => {
                *self = Self::NONE;
                return Verdict::Ordinary;
            }
        };
        if self.sign != sign {
            *self = Self { sign, ..Self::NONE };
        }
        self.length += 1;
        self.duration_s += since_s;
        let step = innovation.residual_s[k].abs();
        let gross = parameters.changes.gross_queueing * queueing_s[k];
        if self.length < parameters.changes.step_exchanges {
            return if step > gross { Verdict::Hold } else { Verdict::Ordinary };
        }
        let rate = (step / self.duration_s).min(parameters.oscillator.initial_rate);
        *self = Self::NONE;
        bank.for_each(|state| {
            state.mean[OFFSET] += sign * (step - gross).max(0.0);
            state.covariance.add(OFFSET, OFFSET, 4.0 * step.min(gross).powi(2));
            state.covariance.add(RATE, RATE, rate * rate);
        });
        Verdict::Step(sign * step)
    }
}
