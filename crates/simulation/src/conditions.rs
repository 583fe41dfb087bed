//! The seven standard conditions of the recorded traces, from our own generators: the same
//! distributions with any seed, length and poll interval. They are for benches and tests that must
//! run without the recordings.
//!
//! | name | forward | backward | wander per sqrt(s) |
//! | --- | --- | --- | --- |
//! | `a_lan` | LAN | LAN | 1e-9 |
//! | `b_wan` | 10 ms + Exp(500 us) | same | 1e-9 |
//! | `c_wander` | LAN | LAN | 1e-8 |
//! | `d_burst` | LAN, + 1 ms while 300 s <= t mod 600 s <= 360 s | LAN | 1e-9 |
//! | `e_route` | LAN, + 300 us from half of the run on | LAN | 1e-9 |
//! | `f_vm` | LAN, with p = 0.05 + (2 ms + U(0, 8 ms)) | same | 1e-9 |
//! | `g_sine` | LAN | LAN | 1e-9, + 500 ppb * sin(2 pi t / 7200 s) |
//!
//! LAN is 30 us + Exp(20 us). The server is perfect, answers immediately and claims no error; the
//! frequency error is 20 ppm. In the recordings, half of the run is 12 hours. One seed gives the
//! same frequency path and the same delays in all conditions, unless the table states a difference.
//!
//! What it does not do: protocols. [`crate::world`] sends packets; this only makes exchanges.

use timevisor_estimate::Exchange;
use timevisor_time::{Duration, Instant, Tai};

use crate::host::{HostModel, Noise, Outliers};
use crate::link::{Burst, Direction, Link, Route};
use crate::oscillator::{Oscillator, OscillatorModel, Sine};
use crate::trace::{COUNTER_HZ, Row, Trace, Truth};

/// The traces' start, 2010-01-01 in Unix seconds; a trace treats its time base as TAI.
const START: i64 = 1_262_304_000;

/// One of the seven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// A quiet local network.
    Lan,
    /// 20 ms of round trip with much queueing.
    Wan,
    /// Ten times the wander.
    Wander,
    /// Congestion in one direction, a minute in ten.
    Burst,
    /// One direction becomes permanently longer.
    Route,
    /// A twentieth of the stamps are milliseconds off.
    Vm,
    /// The room's temperature.
    Sine,
}

impl Condition {
    /// All, in the order of their letters.
    pub const ALL: [Self; 7] =
        [Self::Lan, Self::Wan, Self::Wander, Self::Burst, Self::Route, Self::Vm, Self::Sine];

    /// The name of the recorded traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lan => "a_lan",
            Self::Wan => "b_wan",
            Self::Wander => "c_wander",
            Self::Burst => "d_burst",
            Self::Route => "e_route",
            Self::Vm => "f_vm",
            Self::Sine => "g_sine",
        }
    }

    /// How the client's oscillator behaves.
    #[must_use]
    pub fn oscillator(self) -> OscillatorModel {
        OscillatorModel {
            wander_ppb: if self == Self::Wander { 10.0 } else { 1.0 },
            temperature: (self == Self::Sine)
                .then_some(Sine { amplitude_ppb: 500.0, period_s: 7200.0 }),
            ..OscillatorModel::default()
        }
    }

    /// The path to the server, in a run of `length_s`.
    #[must_use]
    pub fn forward(self, length_s: f64) -> Direction {
        let mut law = self.backward();
        match self {
            Self::Burst => law.bursts.push(Burst {
                period_s: 600.0,
                from_s: 300.0,
                to_s: 360.0,
                extra_us: 1000.0,
            }),
            Self::Route => law.routes.push(Route { at_s: length_s / 2.0, extra_us: 300.0 }),
            _ => {}
        }
        law
    }

    /// The path back.
    #[must_use]
    pub fn backward(self) -> Direction {
        match self {
            Self::Wan => {
                Direction { minimum_us: 10_000.0, exponential_us: 500.0, ..Direction::default() }
            }
            _ => Direction::default(),
        }
    }

    fn host(self) -> HostModel {
        let outliers = Outliers { probability: 0.05, from_us: 2000.0, to_us: 10_000.0 };
        HostModel { outliers: (self == Self::Vm).then_some(outliers), ..HostModel::default() }
    }

    /// `length` of exchanges, one per `poll` from true time 0 on, and the counter at every whole
    /// true second.
    ///
    /// # Panics
    /// Never: every exchange carries its true times, which is all that placing the truth needs.
    #[must_use]
    pub fn generate(self, seed: u64, length: Duration, poll: Duration) -> Trace {
        let seconds = u64::try_from(length.to_bits() >> 64).unwrap_or(0);
        let steps = usize::try_from(seconds).unwrap_or(usize::MAX);
        let oscillator = Oscillator::new(&self.oscillator(), COUNTER_HZ, steps, seed);
        let mut forward = Link::new(self.forward(length.as_secs_f64()), seed, "forward 0");
        let mut backward = Link::new(self.backward(), seed, "backward 0");
        let mut noise = Noise::new(&self.host(), seed);
        let mut rows = Vec::new();
        let mut asked = Duration::ZERO;
        while asked <= length {
            let departs = asked + noise.stamp();
            let served = departs + forward.delay(departs);
            let stamped = served + backward.delay(served) + noise.stamp();
            let server = nanos(served);
            rows.push(Row {
                exchange: Exchange {
                    ta: oscillator.ticks(asked),
                    tb: server,
                    te: server,
                    tf: oscillator.ticks(stamped),
                    error: Duration::ZERO,
                },
                truth: Some([nanos(asked), nanos(stamped)]),
            });
            asked += poll;
        }
        let whole = (0..=seconds).map(|s| oscillator.ticks(Duration::from_secs(s.cast_signed())));
        let truth = Truth::new(0, whole.collect(), &rows)
            .unwrap_or_else(|error| unreachable!("a generated trace's own truth: {error}"));
        Trace { name: format!("{}_s{seed}", self.name()), rows, truth: Some(truth) }
    }
}

/// True time as stored in a trace: whole nanoseconds, rounded down like the counter.
fn nanos(t: Duration) -> Instant<Tai> {
    let start = Instant::from_unix_nanos(i128::from(START) * 1_000_000_000);
    start + Duration::from_nanos(t.floor_nanos())
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
