//! The watch over the host's counter: looks about once a second, and says what an operator can do.
//! crates/host-clock's `counter_watch` decides.

use timevisor_clock_page::{Counter, CounterId};
use timevisor_host_clock::CounterWatch;
use timevisor_host_clock::counter_watch::{Change, Look, Trouble};
use timevisor_linux::counter::calibrate::best_bracket;
use timevisor_linux::counter::{Clocksources, HostCounter};
use timevisor_time::{Duration, Period};

use crate::config::CounterChoice;
use crate::grid;

/// The kernel's own measurement ends within a few seconds of boot.
const KERNEL_MEASURES: std::time::Duration = std::time::Duration::from_secs(10);

/// Waits until the kernel has measured its TSC: before that, the clock with which the counter is
/// calibrated may be off by more than any oscillator statement.
pub fn wait_for_the_kernels_frequency() {
    if !Clocksources::read().is_early() {
        return;
    }
    tracing::info!(
        "the kernel is still measuring the TSC (clocksource tsc-early); waiting, at most 10 s"
    );
    let start = std::time::Instant::now();
    while Clocksources::read().is_early() {
        if start.elapsed() > KERNEL_MEASURES {
            tracing::warn!(
                "the kernel has not measured the TSC (clocksource tsc-early); its rate may be off by more than \
                 oscillator.unmeasured_rate_ppm. Look for tsc in the kernel's log, or set that key to 2000"
            );
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// How often the counter is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// The watch, its schedule, and its words.
pub struct Watching {
    watch: CounterWatch,
    next: Duration,
    configured: CounterChoice,
    /// The kernel's clocksource when it dropped the counter.
    replacement: String,
}

impl Watching {
    pub fn new(nominal: Period, configured: CounterChoice) -> Self {
        let watch = CounterWatch::new(nominal);
        Self { watch, next: Duration::ZERO, configured, replacement: String::new() }
    }

    /// When the next look is due.
    pub fn poll_at(&self) -> Duration {
        self.next
    }

    /// Forgets the last look: the counter was disturbed for a known reason.
    pub fn start_over(&mut self) {
        self.watch.start_over();
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, now: Duration, counter: &HostCounter) -> Option<Look> {
        if now < self.next {
            return None;
        }
        self.next = grid::next(now, INTERVAL);
        let offered = match counter.id() {
            // The other counters are not taken off the list, so sysfs need not be read.
            CounterId::X86Tsc => {
                let sources = Clocksources::read();
                let offered = sources.offer(counter.id());
                self.replacement = sources.current;
                offered
            }
            _ => None,
        };
        let bracket = best_bracket(counter);
        Some(Look { before: bracket.before, raw_ns: bracket.raw_ns, after: bracket.after, offered })
    }

    /// Judges a look.
    pub fn judge(&mut self, look: Look) -> Option<Change> {
        self.watch.look(look)
    }

    /// Why the counter is not trusted, and the next step.
    pub fn problem(&self) -> Option<String> {
        let trouble = self.watch.trouble()?;
        let by_name = matches!(self.configured, CounterChoice::Tsc);
        Some(match trouble {
            Trouble::Dropped => {
                let now = match self.replacement.as_str() {
                    "" => String::new(),
                    current => format!(" and runs on {current}"),
                };
                let first = if by_name { "set counter = \"auto\" and " } else { "" };
                format!(
                    "the kernel no longer trusts the TSC{now} (see `dmesg | grep -i tsc`); {first}restart timevisord, \
                     which then counts CLOCK_MONOTONIC_RAW and serves no VMs"
                )
            }
            Trouble::Back | Trouble::Stopped | Trouble::Apart { .. } => format!(
                "{trouble}; it is trusted again when it has kept pace for some seconds; if this happens often, set \
                 counter = \"monotonic-raw\""
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_is_one_that_works() {
        for (configured, parts, absent) in [
            (CounterChoice::Auto, ["runs on hpet", "; restart timevisord"], "set counter"),
            (
                CounterChoice::Tsc,
                ["runs on hpet", "set counter = \"auto\" and restart"],
                "; restart",
            ),
        ] {
            let mut watching = Watching::new(Period::from_hz(1_000_000_000).unwrap(), configured);
            "hpet".clone_into(&mut watching.replacement);
            let look = Look { before: 1, raw_ns: 1, after: 2, offered: Some(true) };
            assert_eq!((watching.judge(look), watching.problem()), (None, None));
            let dropped = Look { offered: Some(false), ..look };
            assert_eq!(watching.judge(dropped), Some(Change::Dropped));
            let problem = watching.problem().unwrap();
            assert!(parts.iter().all(|part| problem.contains(part)), "{problem}");
            assert!(!problem.contains(absent), "{problem}");
        }
    }
}
