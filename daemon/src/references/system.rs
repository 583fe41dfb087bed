//! CLOCK_REALTIME as a reference: read between two counter reads, with the kernel's own maximum
//! error.
//!
//! The bound is as good as the kernel's `maxerror`. The program that disciplines the clock declares
//! it (chronyd: root distance), and the kernel lets it grow by 500 ppm. While the kernel reports an
//! undisciplined clock (STA_UNSYNC), there is no exchange, because the error is unknown.
//! `assumed_max_error` overrides both on the operator's responsibility.

use timevisor_estimate::Exchange;
use timevisor_linux::clock::{KernelClock, bracket, kernel_clock};
use timevisor_time::Duration;

use super::Surroundings;
use super::sampled::Source;
use super::tally::Refused;

/// adjtimex counts whole microseconds, clock_gettime whole nanoseconds.
const GRANULARITY: Duration = Duration::from_nanos(1001);

pub struct System {
    assumed_max_error: Option<Duration>,
}

impl System {
    pub fn new(assumed_max_error: Option<Duration>) -> Self {
        Self { assumed_max_error }
    }

    fn max_error(&self) -> Result<Duration, Refused> {
        if let Some(error) = self.assumed_max_error {
            return Ok(error);
        }
        let kernel = kernel_clock().map_err(|e| {
            Refused::new("adjtimex", format!("the kernel's clock state cannot be read: {e}"))
        })?;
        judge(&kernel)
    }
}

impl Source for System {
    fn kind(&self) -> &'static str {
        "system"
    }

    fn detail(&self) -> String {
        match self.assumed_max_error {
            Some(error) => format!("CLOCK_REALTIME, assumed right to {error}"),
            None => "CLOCK_REALTIME with the kernel's maxerror".to_owned(),
        }
    }

    fn sample(&mut self, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let before = self.max_error()?;
        let reading = bracket(around.counter, 4);
        let after = self.max_error()?;
        let time =
            around.leap.to_tai(reading.realtime).map_err(|e| Refused::new("leap-table", e))?;
        let error = before.max(after) + GRANULARITY;
        Ok(Exchange { ta: reading.before, tb: time, te: time, tf: reading.after, error })
    }
}

fn judge(kernel: &KernelClock) -> Result<Duration, Refused> {
    if kernel.unsynchronized {
        let text = "the kernel says that nobody keeps CLOCK_REALTIME (STA_UNSYNC); run chronyd, or configure an ntp \
                    reference, or state an assumed_max_error";
        return Err(Refused::new("unsynchronized", text));
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
        assert_eq!(judge(&kernel).unwrap_err().word, "unsynchronized");
        kernel.unsynchronized = false;
        kernel.maxerror_us = 1500;
        assert_eq!(judge(&kernel), Ok(Duration::from_micros(1500)));
    }
}
