//! CLOCK_REALTIME as a reference: read between two counter reads, with the kernel's own maximum error.
//!
//! The bound is as good as the kernel's `maxerror`, which whoever disciplines the clock declares (chronyd: root distance)
//! and which the kernel lets grow by 500 ppm. While the kernel says that nobody disciplines the clock (STA_UNSYNC), there
//! is no exchange: an unknown error is not a large one. `assumed_max_error` overrides both, on the operator's word.

use std::collections::BTreeMap;

use timevisor_estimate::Exchange;
use timevisor_linux::clock::{KernelClock, bracket, kernel_clock};
use timevisor_protocols::control::Reference as Report;
use timevisor_time::Duration;

use super::Surroundings;

/// adjtimex counts whole microseconds, clock_gettime whole nanoseconds.
const GRANULARITY: Duration = Duration::from_nanos(1001);

pub struct System {
    assumed_max_error: Option<Duration>,
    poll: Duration,
    next: Duration,
    accepted: u64,
    refused: BTreeMap<String, u64>,
    problem: Option<(&'static str, String)>,
}

impl System {
    pub fn new(assumed_max_error: Option<Duration>, poll: Duration, now: Duration) -> Self {
        Self {
            assumed_max_error,
            poll,
            next: now,
            accepted: 0,
            refused: BTreeMap::new(),
            problem: None,
        }
    }

    pub fn poll_at(&self) -> Duration {
        self.next
    }

    pub fn restart(&mut self, now: Duration) {
        self.next = now;
    }

    pub fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if now < self.next {
            return None;
        }
        self.next = now + self.poll;
        match self.sample(around) {
            Ok(exchange) => {
                self.accepted += 1;
                self.problem = None;
                Some(exchange)
            }
            Err((kind, text)) => {
                *self.refused.entry(kind.to_owned()).or_default() += 1;
                if self.problem.as_ref().is_none_or(|(known, _)| *known != kind) {
                    tracing::warn!("reference system: {text}");
                }
                self.problem = Some((kind, text));
                None
            }
        }
    }

    fn sample(&self, around: &Surroundings<'_>) -> Result<Exchange, (&'static str, String)> {
        let before = self.max_error()?;
        let reading = bracket(around.counter, 4);
        let after = self.max_error()?;
        let time = around.leap.to_tai(reading.realtime).map_err(|e| ("leap-table", e))?;
        let error = before.max(after) + GRANULARITY;
        Ok(Exchange { ta: reading.before, tb: time, te: time, tf: reading.after, error })
    }

    fn max_error(&self) -> Result<Duration, (&'static str, String)> {
        if let Some(error) = self.assumed_max_error {
            return Ok(error);
        }
        let kernel = kernel_clock()
            .map_err(|e| ("adjtimex", format!("the kernel's clock state cannot be read: {e}")))?;
        judge(&kernel)
    }

    pub fn report(&self) -> Report {
        let (status, detail) = match &self.problem {
            Some((kind, text)) => ((*kind).to_owned(), text.clone()),
            None if self.accepted == 0 => ("probing".to_owned(), "not read yet".to_owned()),
            None => {
                ("reachable".to_owned(), "CLOCK_REALTIME with the kernel's maxerror".to_owned())
            }
        };
        Report {
            name: "system".to_owned(),
            kind: "system".to_owned(),
            status,
            detail,
            stratum: None,
            offset_ns: None,
            rtt_ns: None,
            accepted: self.accepted,
            rejected: self.refused.clone(),
            reach: if self.problem.is_none() && self.accepted > 0 {
                "377".to_owned()
            } else {
                "0".to_owned()
            },
            poll_s: self.poll.as_secs_f64(),
        }
    }
}

fn judge(kernel: &KernelClock) -> Result<Duration, (&'static str, String)> {
    if kernel.unsynchronized {
        let text = "the kernel says that nobody keeps CLOCK_REALTIME (STA_UNSYNC); run chronyd, or configure an ntp \
                    reference, or state an assumed_max_error";
        return Err(("unsynchronized", text.to_owned()));
    }
    Ok(Duration::from_micros(kernel.maxerror_us.max(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undisciplined_kernel_clock_is_no_reference() {
        let mut kernel = KernelClock {
            status: 0x40,
            maxerror_us: 16_000_000,
            esterror_us: 0,
            tai_offset: 0,
            unsynchronized: true,
            nano: true,
            frequency_scaled_ppm: 0,
        };
        assert_eq!(judge(&kernel).unwrap_err().0, "unsynchronized");
        kernel.unsynchronized = false;
        kernel.maxerror_us = 1500;
        assert_eq!(judge(&kernel), Ok(Duration::from_micros(1500)));
    }
}
