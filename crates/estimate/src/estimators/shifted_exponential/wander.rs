//! How an oscillator's rate wanders: a random walk, and a drift that is forgotten within hours.
//!
//! dy = d dt + q dW, dd = -d/tau dt + qd dW', d theta = y dt. All moments are exact for any span,
//! so a reference may be silent for days. With u = dt/tau and e = exp(-u), the drift's share of the
//! noise is
//!
//! ```text
//! (d, d)         qd^2 tau    (1 - e^2) / 2
//! (y, d)         qd^2 tau^2  (1 - e)^2 / 2
//! (y, y)         qd^2 tau^3  (u - 2 (1 - e) + (1 - e^2) / 2)
//! (theta, d)     qd^2 tau^3  ((1 - e^2) / 2 - u e)
//! (theta, y)     qd^2 tau^4  (u - 1 + e)^2 / 2
//! (theta, theta) qd^2 tau^5  (u^3/3 - u^2 + u - 2 u e + (1 - e^2) / 2)
//! ```
//!
//! and for small u, where these expressions cancel, dt, dt^2/2, dt^3/3, dt^3/6, dt^4/8, dt^5/20.

/// One hypothesis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wander {
    /// Random walk q of the rate, 1/sqrt(s).
    pub random_walk: f64,
    /// Random walk qd of the drift, 1/s per sqrt(s); 0 for a rate without drift.
    pub drift_walk: f64,
}

/// The effect of a span of time on offset and rate, given the drift d at its beginning:
/// theta += y dt + `to_offset` d, y += `to_rate` d, d *= `decay`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Transition {
    /// Span, s.
    pub dt: f64,
    /// tau (dt - `to_rate`), s^2.
    pub to_offset: f64,
    /// tau (1 - exp(-dt/tau)), s.
    pub to_rate: f64,
    /// exp(-dt/tau).
    pub decay: f64,
}

/// Covariance that a span of time adds; theta in s, y, and d in 1/s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Noise {
    /// (theta, theta)
    pub offset: f64,
    /// (theta, y)
    pub offset_rate: f64,
    /// (theta, d)
    pub offset_drift: f64,
    /// (y, y)
    pub rate: f64,
    /// (y, d)
    pub rate_drift: f64,
    /// (d, d)
    pub drift: f64,
}

/// Below this dt/tau the next terms of the series are below 2 %, and the exact forms begin to
/// cancel.
const SMALL: f64 = 0.02;

impl Transition {
    /// Over `dt` seconds, with a drift that is forgotten within `tau` seconds.
    pub fn new(dt: f64, tau: f64) -> Self {
        let decayed = -(-dt / tau).exp_m1();
        let to_rate = tau * decayed;
        let to_offset = if dt < SMALL * tau {
            dt * dt * (0.5 - dt / (6.0 * tau))
        } else {
            tau * (dt - to_rate)
        };
        Self { dt, to_offset, to_rate, decay: 1.0 - decayed }
    }

    /// Without drift.
    pub const fn without_drift(dt: f64) -> Self {
        Self { dt, to_offset: 0.0, to_rate: 0.0, decay: 1.0 }
    }
}

impl Wander {
    /// The effect of `dt` seconds.
    pub fn transition(&self, dt: f64, tau: f64) -> Transition {
        if self.drift_walk > 0.0 { Transition::new(dt, tau) } else { Transition::without_drift(dt) }
    }

    /// Covariance that `dt` seconds add.
    pub fn noise(&self, dt: f64, tau: f64) -> Noise {
        let q = self.random_walk * self.random_walk;
        let mut noise = if self.drift_walk > 0.0 {
            drift_noise(self.drift_walk * self.drift_walk, dt, tau)
        } else {
            drift_noise(0.0, 0.0, tau)
        };
        noise.offset += q * dt * dt * dt / 3.0;
        noise.offset_rate += q * dt * dt / 2.0;
        noise.rate += q * dt;
        noise
    }
}

fn drift_noise(qd: f64, dt: f64, tau: f64) -> Noise {
    let u = dt / tau;
    let (t2, t3) = (tau * tau, tau * tau * tau);
    if u < SMALL {
        let cubed = dt * dt * dt;
        return Noise {
            offset: qd * cubed * dt * dt / 20.0,
            offset_rate: qd * cubed * dt / 8.0,
            offset_drift: qd * cubed / 6.0,
            rate: qd * cubed / 3.0,
            rate_drift: qd * dt * dt / 2.0,
            drift: qd * dt,
        };
    }
    let e = (-u).exp();
    let (lost, lost_squared) = (1.0 - e, (1.0 - e * e) / 2.0);
    Noise {
        offset: qd * t2 * t3 * (u * u * u / 3.0 - u * u + u - 2.0 * u * e + lost_squared),
        offset_rate: qd * t2 * t2 * (u - lost).powi(2) / 2.0,
        offset_drift: qd * t3 * (lost_squared - u * e),
        rate: qd * t3 * (u - 2.0 * lost + lost_squared),
        rate_drift: qd * t2 * lost * lost / 2.0,
        drift: qd * tau * lost_squared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same moments by integrating the differential equations in small steps.
    fn integrated(wander: Wander, dt: f64, tau: f64) -> Noise {
        let steps = 200_000;
        let h = dt / f64::from(steps);
        let (q, qd) = (wander.random_walk.powi(2), wander.drift_walk.powi(2));
        let mut n = Noise {
            offset: 0.0,
            offset_rate: 0.0,
            offset_drift: 0.0,
            rate: 0.0,
            rate_drift: 0.0,
            drift: 0.0,
        };
        for _ in 0..steps {
            let m = n;
            n.offset += h * 2.0 * m.offset_rate;
            n.offset_rate += h * (m.rate + m.offset_drift);
            n.offset_drift += h * (m.rate_drift - m.offset_drift / tau);
            n.rate += h * (2.0 * m.rate_drift + q);
            n.rate_drift += h * (m.drift - m.rate_drift / tau);
            n.drift += h * (qd - 2.0 * m.drift / tau);
        }
        n
    }

    #[test]
    fn moments_match_the_differential_equations() {
        let wander = Wander { random_walk: 1e-12, drift_walk: 1e-11 };
        for dt in [16.0, 1024.0, 20_000.0] {
            let (exact, numeric) = (wander.noise(dt, 3000.0), integrated(wander, dt, 3000.0));
            let pairs = [
                (exact.offset, numeric.offset),
                (exact.offset_rate, numeric.offset_rate),
                (exact.offset_drift, numeric.offset_drift),
                (exact.rate, numeric.rate),
                (exact.rate_drift, numeric.rate_drift),
                (exact.drift, numeric.drift),
            ];
            for (i, (a, b)) in pairs.into_iter().enumerate() {
                assert!((a / b - 1.0).abs() < 6e-3, "dt {dt}, moment {i}: {a:e} {b:e}");
            }
        }
    }

    #[test]
    fn the_transition_is_continuous_where_the_series_takes_over() {
        for dt in [0.001, 59.9, 60.1, 9000.0] {
            let t = Transition::new(dt, 3000.0);
            let twice = Transition::new(dt / 2.0, 3000.0);
            // Two halves make a whole span.
            let to_rate = twice.to_rate * (1.0 + twice.decay);
            let to_offset = twice.to_offset * (1.0 + twice.decay) + twice.to_rate * dt / 2.0;
            assert!((t.to_rate / to_rate - 1.0).abs() < 1e-12);
            assert!((t.to_offset / to_offset - 1.0).abs() < 1e-4, "{dt}");
        }
    }
}
