//! Waiting on a timeline: for a moment, for every period, for an action's time, for a change.
//!
//! | module | owns |
//! | --- | --- |
//! | `machine` | the sans-IO machine behind every wait; waits for one moment |
//! | `driver` | sleeping for a machine: poll(2), or a descriptor for an event loop |
//! | [`periodic`] | [`Periodic`]: every period |
//! | [`at`] | [`AtOutcome`]: an action at its time or not at all |
//! | [`watch`] | [`Watch`]: when the clock stops being good enough |
//!
//! Every wait rereads the clock before it reports that its time has come, and computes its lateness
//! from that same reading. A wait ends with [`WaitError::Disrupted`] when the clock may have
//! stepped: only the caller knows whether the awaited time is still the right one.
//!
//! What it does not do: guarantee to be on time. That depends on the scheduler; the reported
//! lateness tells how late it was.

pub mod at;
mod driver;
pub(crate) mod machine;
pub mod periodic;
pub mod watch;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use timevisor_linux::event_fd::EventFd;

use self::at::{At, AtFd, AtOutcome};
use self::driver::Driver;
use self::machine::Single;
use self::periodic::{MissedTicks, Periodic};
use self::watch::Watch;
use crate::error::WaitError;
use crate::reading::Reading;
use crate::timeline::Timeline;

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The estimate has reached this, ns since the timescale's epoch.
    Until(i64),
    /// This has surely passed: earliest is after it (Spanner's commit-wait).
    Past(i64),
    /// `lead` before the last moment that is surely before `t_ns`: latest + lead has reached it,
    /// and latest has not.
    SurelyBefore {
        /// ns since the timescale's epoch.
        t_ns: i64,
        /// The time that the program needs for waking up (50 to 100 us) and for its work; above
        /// zero.
        lead: Duration,
    },
    /// This long on the timeline, counted from the estimate at the beginning of the wait.
    For(Duration),
    /// The time is known and meets the handle's requirement; disruptions do not end this wait.
    Met,
}

/// A wait that ended because its time had come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waited {
    /// How far `reading` is beyond the awaited time, ns, never below 0: its estimate (for
    /// [`When::Past`]: its earliest; for [`When::SurelyBefore`]: its latest + lead) minus that
    /// time. 0 for [`When::Met`].
    pub lateness_ns: i64,
    /// The reading that ended the wait.
    pub reading: Reading,
}

/// How to wait.
#[derive(Clone, Debug, Default)]
pub struct WaitOptions {
    /// Read the clock in a loop instead of sleeping this close to the end. This occupies a
    /// processor, but saves the wake-up latency of about 50 us. Zero (the default) always sleeps.
    pub spin: Duration,
    /// Give up after this long, on this machine's own clock. `None` (the default): never.
    pub timeout: Option<Duration>,
    /// Lets another thread end the wait.
    pub cancel: Option<Cancel>,
}

impl WaitOptions {
    /// Spins this close to the end.
    #[must_use]
    pub fn spin(mut self, window: Duration) -> Self {
        self.spin = window;
        self
    }

    /// Gives up after this long.
    #[must_use]
    pub fn timeout(mut self, after: Duration) -> Self {
        self.timeout = Some(after);
        self
    }

    /// Ends when this is cancelled.
    #[must_use]
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }
}

/// Ends waits from another thread. Clones share their state; once cancelled, it stays cancelled,
/// for later waits as well.
///
/// ```
/// use timevisor::{Cancel, WaitError, WaitOptions, When, manual::Clock};
/// let cancel = Cancel::new()?;
/// let options = WaitOptions::default().cancel(&cancel);
/// let timeline = Clock::new(0).timeline();
/// let waiter = std::thread::spawn(move || timeline.wait(When::Until(1_000), &options));
/// cancel.cancel();
/// assert!(matches!(waiter.join().expect("no panic"), Err(WaitError::Cancelled)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cancel(Arc<EventFd>);

impl Cancel {
    /// Creates one that is not cancelled yet.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> std::io::Result<Self> {
        EventFd::new().map(|flag| Self(Arc::new(flag)))
    }

    /// Ends all waits that have this in their options. Allowed in a signal handler.
    pub fn cancel(&self) {
        // Cannot fail (see EventFd::set).
        let _ = self.0.set();
    }
}

impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Timeline {
    /// Waits until the estimate has reached `t_ns`.
    ///
    /// # Errors
    /// When there is a disruption, the time is unknown, or the page cannot be read.
    pub fn wait_until(&self, t_ns: i64) -> Result<Waited, WaitError> {
        self.wait(When::Until(t_ns), &WaitOptions::default())
    }

    /// Waits until `t_ns` has surely passed on every correct clock: earliest > t (Spanner's
    /// commit-wait). The wait takes as long as the distance from the earliest bound to `t_ns`.
    ///
    /// # Errors
    /// As [`Self::wait_until`], and [`WaitError::Unreliable`] while the bounds must not be relied
    /// on.
    pub fn wait_past(&self, t_ns: i64) -> Result<Waited, WaitError> {
        self.wait(When::Past(t_ns), &WaitOptions::default())
    }

    /// Waits until `lead` before the last moment that is surely before `t_ns` on every correct
    /// clock, that is, until latest + lead >= t. Use it for work that must be done before `t_ns`.
    /// The reading that it returns has latest < t. `lead` covers the wake-up (50 to 100 us) and the
    /// work; a caller that needs to know whether the work was done in time calls
    /// [`Self::is_surely_before`] after it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use timevisor::{WaitError, manual::Clock};
    /// let clock = Clock::new(0);
    /// clock.set_error(Duration::from_micros(50));
    /// let timeline = clock.timeline();
    /// let waiter = std::thread::spawn(move || timeline.wait_surely_before(1_000_000, Duration::from_micros(200)));
    /// clock.advance(Duration::from_micros(760)); // latest: 810 us
    /// assert_eq!(waiter.join().expect("no panic")?.lateness_ns, 10_000);
    /// clock.advance(Duration::from_micros(191)); // latest: 1001 us
    /// let late = clock.timeline().wait_surely_before(1_000_000, Duration::from_micros(200));
    /// assert!(matches!(late, Err(WaitError::TooLate { by_ns: 1_000, .. })));
    /// # Ok::<(), WaitError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::wait_past`]; [`WaitError::TooLate`] when it is no longer surely before `t_ns`, at
    /// the call or at the wake-up; also when the lead is zero.
    pub fn wait_surely_before(&self, t_ns: i64, lead: Duration) -> Result<Waited, WaitError> {
        self.wait(When::SurelyBefore { t_ns, lead }, &WaitOptions::default())
    }

    /// Sleeps for this long on this timeline.
    ///
    /// # Errors
    /// As [`Self::wait_until`].
    pub fn sleep(&self, span: Duration) -> Result<Waited, WaitError> {
        self.wait(When::For(span), &WaitOptions::default())
    }

    /// Waits until the time is known and meets the handle's requirement: after a start, a
    /// disruption, or a violation.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], or a page that cannot be read.
    pub fn wait_met(&self, timeout: Duration) -> Result<Waited, WaitError> {
        self.wait(When::Met, &WaitOptions::default().timeout(timeout))
    }

    /// Waits, with all options.
    ///
    /// # Errors
    /// As the short forms, and those that the options add.
    pub fn wait(&self, when: When, options: &WaitOptions) -> Result<Waited, WaitError> {
        Driver::new(self, Single::new(when, options.spin))?.block(options)
    }

    /// The same wait as a descriptor for an event loop.
    ///
    /// # Errors
    /// As [`Self::wait`]; also immediately when the wait cannot even start.
    pub fn wait_fd(&self, when: When, spin: Duration) -> Result<WaitFd, WaitError> {
        let driver = Driver::new(self, Single::new(when, spin))?;
        driver.fire()?;
        Ok(WaitFd { driver, over: false })
    }

    /// Every `period` of the timeline, at `phase_ns` and multiples of the period before and after
    /// it.
    ///
    /// # Errors
    /// When the period is zero or longer than 292 years.
    pub fn periodic(
        &self,
        period: Duration,
        phase_ns: i64,
        missed: MissedTicks,
    ) -> Result<Periodic, WaitError> {
        Periodic::new(self, period, phase_ns, missed)
    }

    /// Waits until the estimate has reached `t_ns`, provided that the clock is then within
    /// `max_error` and it is not yet later than `latest_ns`; both are also checked immediately.
    ///
    /// # Errors
    /// As [`Self::wait_until`], but a disruption is an outcome here.
    pub fn at(
        &self,
        t_ns: i64,
        max_error: Option<Duration>,
        latest_ns: i64,
    ) -> Result<AtOutcome, WaitError> {
        self.at_with(t_ns, max_error, latest_ns, &WaitOptions::default())
    }

    /// As [`Self::at`], with all options.
    ///
    /// # Errors
    /// As [`Self::at`], and those that the options add.
    pub fn at_with(
        &self,
        t_ns: i64,
        max_error: Option<Duration>,
        latest_ns: i64,
        options: &WaitOptions,
    ) -> Result<AtOutcome, WaitError> {
        let machine = At::new(t_ns, max_error, latest_ns, options.spin)?;
        Driver::new(self, machine)?.block(options)
    }

    /// As [`Self::at`], as a descriptor for an event loop.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn at_fd(
        &self,
        t_ns: i64,
        max_error: Option<Duration>,
        latest_ns: i64,
        spin: Duration,
    ) -> Result<AtFd, WaitError> {
        let driver = Driver::new(self, At::new(t_ns, max_error, latest_ns, spin)?)?;
        driver.fire()?;
        Ok(AtFd { driver, over: false })
    }

    /// Watches what happens to the timeline and to its requirement from now on.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn watch(&self) -> Result<Watch, WaitError> {
        Watch::new(self)
    }
}

/// A wait for an event loop: when the descriptor is readable, call [`Self::on_ready`]. Dropping it
/// cancels the wait.
///
/// Works with everything that polls descriptors for reading: poll, epoll, io_uring, an async
/// runtime's `AsyncFd` (`loop { fd.readable().await?.clear_ready(); if let Some(waited) =
/// fd.get_mut().on_ready()? { break waited } }`).
///
/// ```
/// use std::time::Duration;
/// use timevisor::{When, manual::Clock};
/// let clock = Clock::new(0);
/// let mut wait = clock.timeline().wait_fd(When::Until(1_000), Duration::ZERO)?;
/// assert!(wait.on_ready()?.is_none());
/// clock.advance(Duration::from_nanos(1_001));
/// assert_eq!(wait.on_ready()?.map(|waited| waited.lateness_ns), Some(1));
/// # Ok::<(), timevisor::WaitError>(())
/// ```
pub struct WaitFd {
    driver: Driver<Single>,
    over: bool,
}

impl WaitFd {
    /// Checks whether the time has come. `None` means not yet, poll again; it is also returned
    /// after the wait has ended. May be called at any time.
    ///
    /// # Errors
    /// As [`Timeline::wait`]; the wait has then ended.
    pub fn on_ready(&mut self) -> Result<Option<Waited>, WaitError> {
        if self.over {
            self.driver.rest()?;
            return Ok(None);
        }
        let outcome = self.driver.step();
        self.over = !matches!(outcome, Ok(None));
        outcome
    }
}

impl AsFd for WaitFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}

#[cfg(test)]
mod tests;
