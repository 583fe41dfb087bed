//! `--set-clock`: keeps CLOCK_REALTIME with the page for as long as the agent runs.
//!
//! The page tells nobody that it has changed (a device whose page is timevisord's raises no
//! interrupt), so its marker is looked at a hundred times a second: a read of some 100 ns, and a
//! wake-up. The law is asked once a second, and at once when the marker is another or the time has
//! become known.

use timevisor_linux::adjust::{Declaration, LeapAction};
use timevisor_time::Duration;

use super::Options;
use super::beside::{Beside, Unusable};
use super::law::{Era, Law, Mode, Order, slew_time};
use super::saved_clock::SavedClock;
use super::view::{Pace, View};
use crate::span::of_std;

/// How often the marker is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// The law is made for about this.
const INTERVAL: Duration = Duration::from_secs(1);
/// A page that is not there is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// Somebody else's clock is looked at again after this.
const YIELD: Duration = Duration::from_secs(60);
const INSTEAD: &str = "leave out --set-clock (--force begins anyway)";

/// Nobody vouches for the clock.
const UNKNOWN: Declaration =
    Declaration { max_error: None, estimated_error: Duration::ZERO, leap: LeapAction::None };

enum State {
    Keeping(SavedClock),
    /// To somebody else, or because the kernel refused.
    Yielded {
        again: Duration,
    },
}

struct Page {
    view: View,
    pace: Pace,
}

/// CLOCK_REALTIME's keeper.
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
    /// The kernel has a rate of ours that nobody vouches for.
    held: bool,
    slewing: bool,
    /// What was said last, so that the log is not filled with it.
    told: String,
}

impl Keeper {
    /// `None` unless asked for. Fails where somebody else keeps the clock.
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

    /// One look.
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
            // As soon as it is known again.
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
        // A moment of change says nothing worth a line.
        if let Some(unusable) = unusable.filter(|u| *u != Unusable::Changing) {
            self.tell(format!("CLOCK_REALTIME is left alone: {unusable}"));
        }
    }

    /// Whatever the kernel has is put back, or left as somebody else has set it.
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

/// How good the clock is, once this has been done.
pub fn declare(beside: &Beside, order: &Order) -> Declaration {
    let left = order.left.abs();
    Declaration {
        max_error: Some(beside.half_width() + left),
        estimated_error: beside.estimated_error + left,
        // The page does not tell of leap seconds to come.
        leap: LeapAction::None,
    }
}
