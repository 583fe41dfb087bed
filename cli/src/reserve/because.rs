//! [`Because`]: which of the things that a host takes makes a plan fail, and what would help.

use serde_json::{Value, json};
use timevisor_schedule::synthesis::last_that_fits;
use timevisor_schedule::{Overheads, Reservation};

use super::asked::Asked;
use super::overheads::Share;
use super::text::{ms, span};

/// Why something fits in theory and not on this host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Because {
    /// Each of these is the cause: if it were less, the tasks would fit.
    pub causes: Vec<Cause>,
    /// None of them is by itself, but all together are.
    pub all_together: bool,
    /// With another period the tasks fit here.
    pub instead: Option<Reservation>,
}

/// One of a host's overheads; ns, or parts per million.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause {
    pub what: What,
    /// What it is.
    pub is: u64,
    /// The most with which the tasks would fit, the others unchanged.
    pub enough: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Tick,
    Latency,
    Interference,
    Burst,
}

const ALL: [What; 4] = [What::Tick, What::Latency, What::Interference, What::Burst];
/// The tick of kernels with CONFIG_HZ=1000.
const FINE_TICK: u64 = 1_000_000;

impl What {
    fn of(self, overheads: &Overheads) -> u64 {
        match self {
            Self::Tick => overheads.tick,
            Self::Latency => overheads.latency,
            Self::Interference => overheads.interference_ppm.into(),
            Self::Burst => overheads.burst,
        }
    }

    fn set(self, overheads: Overheads, to: u64) -> Overheads {
        match self {
            Self::Tick => Overheads { tick: to, ..overheads },
            Self::Latency => Overheads { latency: to, ..overheads },
            Self::Interference => {
                let interference_ppm = u32::try_from(to).unwrap_or(overheads.interference_ppm);
                Overheads { interference_ppm, ..overheads }
            }
            Self::Burst => Overheads { burst: to, ..overheads },
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tick => "tick",
            Self::Latency => "latency",
            Self::Interference => "interference",
            Self::Burst => "burst",
        }
    }
}

impl Because {
    /// `fits` says whether the tasks would fit; they do in theory, and not with these overheads.
    pub fn of(theory: &Asked, overheads: Overheads, fits: impl Fn(&Asked) -> bool) -> Self {
        let with = |what: What, to| fits(&theory.on_host(what.set(overheads, to)));
        let causes: Vec<Cause> = ALL
            .into_iter()
            .filter(|what| what.of(&overheads) > 0 && with(*what, 0))
            .map(|what| {
                let is = what.of(&overheads);
                Cause { what, is, enough: last_that_fits(0, is, |to| with(what, to)) }
            })
            .collect();
        Self { all_together: causes.is_empty(), causes, instead: None }
    }

    /// For people: each a line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.causes.iter().map(|cause| format!("because       {}", words(cause))).collect();
        if self.all_together {
            lines.push("because       of all that this host takes, together: measure it (`timevisor reserve measure`), or use a kernel with a finer tick and timers that are less late (CONFIG_HZ=1000, PREEMPT_RT)".to_owned());
        }
        if let Some(of) = &self.instead {
            lines.push(format!(
                "instead       --period {}: {} ms of it are enough here",
                span(of.period()),
                ms(of.budget())
            ));
        }
        lines
    }

    /// In one sentence, for a message; empty where nothing is known.
    pub fn sentence(&self) -> String {
        let lines = self.lines();
        let parts: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.split_once(' '))
            .map(|(_, rest)| rest.trim())
            .collect();
        parts.join("; ")
    }

    pub fn json(&self) -> Value {
        let causes = self.causes.iter().map(
            |cause| json!({"overhead": cause.what.name(), "is": cause.is, "enough": cause.enough}),
        );
        Value::Array(causes.collect())
    }
}

fn words(cause: &Cause) -> String {
    let Cause { what, is, enough } = *cause;
    match what {
        What::Tick => {
            let how = if enough >= FINE_TICK && is > FINE_TICK {
                "a kernel with CONFIG_HZ=1000, or one that ends budgets by a timer (HRTICK_DL)"
            } else {
                "a kernel that ends budgets by a timer (HRTICK_DL in /sys/kernel/debug/sched/features)"
            };
            format!(
                "budgets end at a tick of {} ms, and at most {} ms would do: {how}; or a longer period",
                ms(is),
                ms(enough)
            )
        }
        What::Latency => format!(
            "timers are late by {} ms, and at most {} ms would do: measure this host (`timevisor reserve measure`), a kernel with PREEMPT_RT, idle states off",
            ms(is),
            ms(enough)
        ),
        What::Interference => format!(
            "interrupts may take {}, and at most {} would do: measure this host (`timevisor reserve measure`), keep interrupts off the core",
            share(is),
            share(enough)
        ),
        What::Burst => format!(
            "interrupts may take {} ms at once, and at most {} ms would do: measure this host (`timevisor reserve measure`), keep interrupts off the core",
            ms(is),
            ms(enough)
        ),
    }
}

fn share(ppm: u64) -> String {
    String::from(Share(u32::try_from(ppm).unwrap_or(u32::MAX)))
}
