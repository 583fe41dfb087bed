//! `timevisor-guest set-clock`: sets CLOCK_REALTIME once, and exits when it is right. For boots
//! without the agent, and for scripts that run after a restore.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use timevisor_linux::clock::monotonic;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::signals::{Signal, Signals};
use timevisor_time::Duration as Span;

use super::beside::Beside;
use super::keeper::declare;
use super::law::{Era, Law, Mode, slew_time};
use super::saved_clock::SavedClock;
use super::view::{Pace, View};
use crate::span::{self, of_std};

/// How often the clocks are read.
const LOOK: Duration = Duration::from_millis(20);
/// The control law is designed for approximately this interval.
const INTERVAL: Span = Span::from_secs(1);
/// After this many steps we give up: another program keeps setting the clock.
const STEPS: u32 = 5;
const INSTEAD: &str = "leave the clock to it (--force sets it anyway)";

/// What is asked for.
#[derive(clap::Args)]
pub struct SetClock {
    /// Set it at once (the default)
    #[arg(long, conflicts_with = "slew")]
    step: bool,
    /// Slew it, at 500 ppm: it never goes back
    #[arg(long)]
    slew: bool,
    /// CLOCK_REALTIME is then surely this near to true time, the page's own bounds included
    #[arg(long, value_name = "SPAN", value_parser = span::parse, default_value = "1ms")]
    within: Duration,
    /// Fail when it has not come true by then
    #[arg(long, value_name = "SPAN", value_parser = span::parse, default_value = "1m")]
    timeout: Duration,
    /// Set it even though somebody else keeps it
    #[arg(long)]
    force: bool,
}

impl SetClock {
    /// Sets the clock, and returns a line that describes the outcome.
    pub fn run(&self) -> Result<String> {
        let until = Instant::now() + self.timeout;
        let view = View::wait_for("timevisor-guest set-clock", until)?;
        let mut signals = Signals::install()?;
        let mut work = Work::new(self.slew, self.force);
        let within = of_std(self.within);
        loop {
            let problem = match view.look() {
                Ok((_, beside)) if beside.at_most() <= within => {
                    let path = view.path();
                    return Ok(format!(
                        "{path}: CLOCK_REALTIME is within {} of true time; {}",
                        beside.at_most(),
                        work.done()
                    ));
                }
                Ok((_, beside)) if beside.half_width() > within => {
                    format!("the page itself is only good to {}", beside.half_width())
                }
                Ok((era, beside)) => {
                    work.go_on(&view, era, &beside, until)?;
                    format!("CLOCK_REALTIME is {} off", beside.offset())
                }
                Err(unusable) => unusable.to_string(),
            };
            if Instant::now() >= until {
                bail!("{}: {problem}, after {:?}", view.path(), self.timeout);
            }
            wait(&mut [PollFd::readable(signals.as_fd())], Some(LOOK))?;
            if signals.take() == Some(Signal::Terminate) {
                bail!("interrupted; the kernel's settings are put back");
            }
        }
    }
}

/// What has been done to the clock so far.
struct Work {
    slew: bool,
    force: bool,
    saved: Option<SavedClock>,
    slewing: Option<Slewing>,
    stepped: Option<Span>,
    steps: u32,
}

struct Slewing {
    law: Law,
    pace: Pace,
    from: Span,
    next: Span,
    last: Span,
}

impl Work {
    fn new(slew: bool, force: bool) -> Self {
        Self { slew, force, saved: None, slewing: None, stepped: None, steps: 0 }
    }

    fn go_on(&mut self, view: &View, era: Era, beside: &Beside, until: Instant) -> Result<()> {
        let saved = match &mut self.saved {
            Some(saved) => saved,
            empty => empty.insert(SavedClock::take(self.force, INSTEAD)?),
        };
        if !self.slew {
            if self.steps == STEPS {
                bail!(
                    "CLOCK_REALTIME is {} off again after {STEPS} steps; somebody else sets it: find out who and stop it",
                    beside.offset()
                );
            }
            saved.step(beside.offset())?;
            self.steps += 1;
            self.stepped = Some(self.stepped.unwrap_or(Span::ZERO) + beside.offset());
            return Ok(());
        }
        let now = monotonic();
        let slewing = match &mut self.slewing {
            Some(slewing) => slewing,
            empty => {
                let takes = slew_time(beside.offset());
                if takes > of_std(until.saturating_duration_since(Instant::now())) {
                    bail!(
                        "CLOCK_REALTIME is {} off, which takes {takes} to slew: more than --timeout; set it with --step, or \
                         give it the time",
                        beside.offset()
                    );
                }
                empty.insert(Slewing {
                    law: Law::new(Mode::Slew, Span::ZERO),
                    pace: Pace::new(view, saved.found_rate()),
                    from: beside.offset(),
                    next: now,
                    last: now,
                })
            }
        };
        if now < slewing.next {
            return Ok(());
        }
        if saved.is_contested() {
            if let Some(saved) = self.saved.take() {
                saved.give_up();
            }
            bail!("somebody else has changed CLOCK_REALTIME's rate; find out who and stop it");
        }
        let base = slewing.pace.base(view);
        let order = slewing.law.update(era, beside, base, now - slewing.last);
        (slewing.last, slewing.next) = (now, now + INTERVAL);
        saved.steer(order.rate, order.phase, &declare(beside, &order))
    }

    fn done(&self) -> String {
        let sign = |by: Span| if by.is_negative() { "" } else { "+" };
        match (self.stepped, &self.slewing) {
            (Some(by), _) => format!("stepped by {}{by}", sign(by)),
            (None, Some(slewing)) => {
                format!("slewed by {}{}", sign(slewing.from), slewing.from)
            }
            (None, None) => "nothing had to be done".to_owned(),
        }
    }
}
