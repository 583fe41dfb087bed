//! `--set-clock`: keeps CLOCK_REALTIME in step with the page while the agent runs.
//!
//! The page sends no notification when it changes (a device whose page belongs to timevisord raises
//! no interrupt), so its marker is checked a hundred times a second; this costs a read of some 100
//! ns and a wake-up. The control law runs once a second, and immediately when the marker has
//! changed or the time has become known.

use timevisor_linux::adjust::{Declaration, LeapAction};
use timevisor_time::Duration;

use super::Options;
use super::beside::{Beside, Unusable};
use super::law::{Era, Law, Mode, Order, slew_time};
use super::saved_clock::SavedClock;
use super::view::{Pace, View};
use crate::span::of_std;

/// How often the marker is checked.
const LOOK: Duration = Duration::from_millis(10);
/// The control law is designed for approximately this interval.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait before retrying an unavailable page.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait before retrying when another program keeps the clock.
const YIELD: Duration = Duration::from_secs(60);
const INSTEAD: &str = "leave out --set-clock (--force begins anyway)";

/// Declares that the clock's accuracy is unknown.
const UNKNOWN: Declaration =
    Declaration { max_error: None, estimated_error: Duration::ZERO, leap: LeapAction::None };

enum State {
    Keeping(SavedClock),
    /// Another program keeps the clock, or the kernel refused.
    Yielded {
        again: Duration,
    },
}

struct Page {
    view: View,
    pace: Pace,
}

/// Keeps CLOCK_REALTIME in step with the page.
pub struct Keeper {
    mode: Mode,
    threshold: Duration,
    force: bool,
    law: Law,
    state: State,
    page: Option<Page>,
    era: Option<Era>,
    noticed: Duration,
    wake: Duration,
    next: Duration,
    last: Duration,
    /// The kernel runs at a rate that we set, but its accuracy is unknown.
    held: bool,
    slewing: bool,
    /// The last message, so that it is not logged again and again.
    told: String,
}

impl Keeper {
    /// Returns `None` unless requested. Fails if another program keeps the clock.
    pub fn start(options: &Options, now: Duration) -> anyhow::Result<Option<Self>> {
        let Some(mode) = options.set_clock else { return Ok(None) };
        let saved = SavedClock::take(options.force, INSTEAD)?;
        let threshold = of_std(options.step_threshold);
        Ok(Some(Self {
            mode,
            threshold,
            force: options.force,
            law: Law::new(mode, threshold),
            state: State::Keeping(saved),
            page: None,
            era: None,
            noticed: now,
            wake: now,
            next: now,
            last: now,
            held: true,
            slewing: false,
            told: String::new(),
        }))
    }

    /// When [`Self::on_timer`] next has something to do.
    pub fn poll_at(&self) -> Duration {
        self.wake
    }

    /// How fast CLOCK_REALTIME runs away from the page at most, ppb, while the page's rate is right; `None` while it may
    /// do anything. A step goes to the estimate, so that it only takes away of an error that was surely there.
    pub fn drift_ppb(&self) -> Option<u32> {
        let keeps = matches!(self.state, State::Keeping(_)) && !self.held;
        let measured = self.page.as_ref().is_some_and(|page| page.pace.is_measured());
        let parameters = timevisor_estimate::steering::Parameters::default();
        // The rate of this machine is known to a ppm.
        (keeps && measured).then(|| (parameters.fastest_drift_ppm() + 1).saturating_mul(1000))
    }

    /// Runs one step.
    pub fn on_timer(&mut self, now: Duration) {
        if now < self.wake {
            return;
        }
        self.wake = now + LOOK;
        if let State::Yielded { again } = self.state {
            if now < again {
                self.wake = again;
                return;
            }
            match SavedClock::take(self.force, INSTEAD) {
                Ok(saved) => {
                    tracing::info!("keeping CLOCK_REALTIME again");
                    self.law = Law::new(self.mode, self.threshold);
                    self.state = State::Keeping(saved);
                    self.next = now;
                }
                Err(error) => return self.yield_for(&format!("{error:#}"), now),
            }
        }
        self.find_page();
        let Some(page) = &mut self.page else {
            self.wake = now + RETRY;
            return;
        };
        let Some(era) = page.view.era() else { return };
        if self.era != Some(era) {
            self.era = Some(era);
            self.noticed = now;
            self.next = now;
            page.pace.restart(&page.view);
        }
        if now >= self.next {
            self.steer(now);
        }
    }

    fn find_page(&mut self) {
        let State::Keeping(saved) = &self.state else { return };
        if self.page.is_some() {
            return;
        }
        match View::open("timevisor-guest") {
            Ok(view) => {
                let pace = Pace::new(&view, saved.found_rate());
                tracing::info!("keeping CLOCK_REALTIME with {}", view.path());
                self.page = Some(Page { view, pace });
            }
            Err(error) => self.tell(format!("CLOCK_REALTIME cannot be kept yet: {error:#}")),
        }
    }

    fn steer(&mut self, now: Duration) {
        let (State::Keeping(saved), Some(page)) = (&mut self.state, &mut self.page) else { return };
        let looked = page.view.look();
        if looked.is_err() {
            // Retry soon, to continue as soon as the time is known again.
            self.next = now + LOOK;
            if self.held {
                return self.say_unusable(looked.err());
            }
        } else {
            self.next = now + INTERVAL;
        }
        if saved.is_contested() {
            let text = "somebody else has changed its rate; find out who and stop it, or leave out --set-clock";
            return self.yield_for(text, now);
        }
        let base = page.pace.base(&page.view);
        let elapsed = now - self.last;
        self.last = now;
        let (order, declaration) = match &looked {
            Ok((era, beside)) => {
                let order = self.law.update(*era, beside, base, elapsed);
                (order, declare(beside, &order))
            }
            Err(_) => (self.law.hold(base), UNKNOWN),
        };
        self.held = looked.is_err();
        let stepped = order.step.map_or(Ok(()), |(by, _)| saved.step(by));
        let done = stepped.and_then(|()| saved.steer(order.rate, order.phase, &declaration));
        if let Err(error) = done {
            return self.yield_for(&format!("{error:#}"), now);
        }
        match looked {
            Ok(_) => self.say(&order, now),
            Err(unusable) => self.say_unusable(Some(unusable)),
        }
    }

    fn say(&mut self, order: &Order, now: Duration) {
        if let Some((by, why)) = order.step {
            let sign = if by.is_negative() { "" } else { "+" };
            let after = now - self.noticed;
            tracing::info!(
                "CLOCK_REALTIME was stepped by {sign}{by}: {why} ({after} after it was noticed)"
            );
        }
        let slewing = order.left.abs() > self.threshold;
        if slewing && !self.slewing {
            tracing::info!(
                "CLOCK_REALTIME is {} off and is slewed, which takes {} or more",
                order.left,
                slew_time(order.left)
            );
        } else if self.slewing && !slewing {
            tracing::info!("CLOCK_REALTIME is within {} of the page", self.threshold);
        }
        self.slewing = slewing;
        self.told.clear();
    }

    fn say_unusable(&mut self, unusable: Option<Unusable>) {
        // A momentary change is not worth a log line.
        if let Some(unusable) = unusable.filter(|u| *u != Unusable::Changing) {
            self.tell(format!("CLOCK_REALTIME is left alone: {unusable}"));
        }
    }

    /// Stops keeping the clock: restores the kernel's settings, or leaves them as another program
    /// set them.
    fn yield_for(&mut self, problem: &str, now: Duration) {
        let again = now + YIELD;
        self.wake = again;
        self.held = true;
        if let State::Keeping(saved) = std::mem::replace(&mut self.state, State::Yielded { again })
            && saved.is_contested()
        {
            saved.give_up();
        }
        self.tell(format!("CLOCK_REALTIME is not kept: {problem}"));
    }

    fn tell(&mut self, text: String) {
        if self.told != text {
            tracing::warn!("{text}");
            self.told = text;
        }
    }
}

/// The clock's accuracy once the order has been carried out.
pub fn declare(beside: &Beside, order: &Order) -> Declaration {
    let left = order.left.abs();
    Declaration {
        max_error: Some(beside.half_width() + left),
        estimated_error: beside.estimated_error + left,
        // The page does not announce leap seconds.
        leap: LeapAction::None,
    }
}
