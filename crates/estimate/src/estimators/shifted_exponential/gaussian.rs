//! A Gaussian over the five quantities that the estimator tracks, and its three operations: time
//! passes, a delay is learned, an assumption is dropped.
//!
//! State (docs/explanation/estimation.md): offset theta = true time - C, s; relative rate y = d
//! theta / dt; its slow drift d = dy/dt, 1/s; the minimum one-way delays m_f (us to the reference)
//! and m_b (back), s.
//!
//! The covariance is stored once per pair, so it is symmetric by construction. Every measurement
//! involves exactly two of the five quantities, so a measurement is a [`Pair`] instead of a row
//! vector.

use super::wander::{Transition, Wander};

/// Number of quantities.
pub const N: usize = 5;
/// Index of the offset theta, s.
pub const OFFSET: usize = 0;
/// Index of the relative rate y.
pub const RATE: usize = 1;
/// Index of the drift d, 1/s.
pub const DRIFT: usize = 2;
/// Indices of the minimum one-way delays, s: forward, backward.
pub const MINIMUM: [usize; 2] = [3, 4];

/// Lower limit of every variance (s^2 and smaller units): 1 fs, far below any stamp, and far above
/// rounding errors.
const SMALLEST_VARIANCE: f64 = 1e-30;

/// The linear form `x[plus] + sign * x[other]`.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    plus: usize,
    other: usize,
    sign: f64,
}

/// What the fastest possible message in each direction reveals: m_f + theta forward, m_b - theta
/// backward.
pub const ARRIVAL: [Pair; 2] = [
    Pair { plus: MINIMUM[0], other: OFFSET, sign: 1.0 },
    Pair { plus: MINIMUM[1], other: OFFSET, sign: -1.0 },
];
/// m_f + m_b: the only property of the path that a round trip reveals.
pub const ROUND_TRIP: Pair = Pair { plus: MINIMUM[0], other: MINIMUM[1], sign: 1.0 };
/// m_f - m_b: no round trip reveals it.
pub const ASYMMETRY: Pair = Pair { plus: MINIMUM[0], other: MINIMUM[1], sign: -1.0 };

/// Symmetric matrix, upper triangle row by row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Covariance([f64; N * (N + 1) / 2]);

const fn index(i: usize, j: usize) -> usize {
    let (i, j) = if i <= j { (i, j) } else { (j, i) };
    i * (2 * N - 1 - i) / 2 + j
}

impl Covariance {
    /// A covariance without any uncertainty.
    pub const ZERO: Self = Self([0.0; N * (N + 1) / 2]);

    /// Covariance of quantities `i` and `j`.
    pub fn get(&self, i: usize, j: usize) -> f64 {
        self.0[index(i, j)]
    }

    /// The upper triangle, row by row.
    pub const fn triangle(&self) -> &[f64; N * (N + 1) / 2] {
        &self.0
    }

    /// Creates it from the upper triangle, row by row.
    pub const fn from_triangle(triangle: [f64; N * (N + 1) / 2]) -> Self {
        Self(triangle)
    }

    /// Sets the covariance of quantities `i` and `j`.
    pub fn set(&mut self, i: usize, j: usize, value: f64) {
        self.0[index(i, j)] = value;
    }

    /// Adds to the covariance of quantities `i` and `j`.
    pub fn add(&mut self, i: usize, j: usize, value: f64) {
        self.0[index(i, j)] += value;
    }

    /// Adds `factor` * v v'.
    fn add_outer(&mut self, factor: f64, v: &[f64; N]) {
        let mut k = 0;
        for i in 0..N {
            let scaled = factor * v[i];
            for value in &v[i..] {
                self.0[k] += scaled * value;
                k += 1;
            }
        }
    }

    fn scale_and_add(&mut self, factor: f64, other_factor: f64, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a = factor * *a + other_factor * b;
        }
    }

    /// Subtracting nearly equal numbers may leave a negative variance or a correlation beyond one.
    /// Neither is meaningful, and the next update would amplify either.
    fn repair(&mut self) {
        for i in 0..N {
            self.0[index(i, i)] =
                self.0[index(i, i)].max(if i == DRIFT { 0.0 } else { SMALLEST_VARIANCE });
        }
        for i in 0..N {
            for j in i + 1..N {
                let limit = self.get(i, i) * self.get(j, j);
                let value = self.get(i, j);
                if value * value > limit {
                    self.set(i, j, limit.sqrt().copysign(value));
                }
            }
        }
    }
}

/// Mean and covariance.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gaussian {
    /// Means, by the index constants above.
    pub mean: [f64; N],
    /// Covariance.
    pub covariance: Covariance,
}

impl Gaussian {
    /// All values are exactly 0.
    pub const ZERO: Self = Self { mean: [0.0; N], covariance: Covariance::ZERO };

    /// Mean and variance of a linear form.
    pub fn project(&self, pair: Pair) -> (f64, f64) {
        let Pair { plus, other, sign } = pair;
        let p = &self.covariance;
        let variance = p.get(plus, plus) + p.get(other, other) + 2.0 * sign * p.get(plus, other);
        (self.mean[plus] + sign * self.mean[other], variance.max(SMALLEST_VARIANCE))
    }

    /// Advances by `dt` seconds: P = F P F' + Q, see [`super::wander`]. A negative `dt` looks back
    /// (which does not reduce the uncertainty).
    pub fn predict(&mut self, dt: f64, wander: Wander, drift_decay_s: f64) {
        let Transition { dt, to_offset: b, to_rate: a, decay: e } =
            wander.transition(dt, drift_decay_s);
        let noise = wander.noise(dt.abs(), drift_decay_s);
        let x = &mut self.mean;
        x[OFFSET] += dt * x[RATE] + b * x[DRIFT];
        x[RATE] += a * x[DRIFT];
        x[DRIFT] *= e;

        let p = &mut self.covariance;
        for m in MINIMUM {
            let (rate, drift) = (p.get(RATE, m), p.get(DRIFT, m));
            p.add(OFFSET, m, dt * rate + b * drift);
            p.add(RATE, m, a * drift);
            p.set(DRIFT, m, e * drift);
        }
        let (ty, td) = (p.get(OFFSET, RATE), p.get(OFFSET, DRIFT));
        let (yy, yd, dd) = (p.get(RATE, RATE), p.get(RATE, DRIFT), p.get(DRIFT, DRIFT));
        let offset = 2.0 * (dt * ty + b * td) + dt * dt * yy + 2.0 * dt * b * yd + b * b * dd;
        p.add(OFFSET, OFFSET, offset + noise.offset);
        p.add(OFFSET, RATE, a * td + dt * yy + (a * dt + b) * yd + a * b * dd + noise.offset_rate);
        p.set(OFFSET, DRIFT, e * (td + dt * yd + b * dd) + noise.offset_drift);
        p.add(RATE, RATE, 2.0 * a * yd + a * a * dd + noise.rate);
        p.set(RATE, DRIFT, e * (yd + a * dd) + noise.rate_drift);
        p.set(DRIFT, DRIFT, e * e * dd + noise.drift);
    }

    /// Learns that a measurement of `pair`, with prior predictive variance `total` (state and
    /// Gaussian noise), was off by `innovation`. A delay of variance `unexplained` remains
    /// possible. The moments are matched:
    ///
    /// ```text
    /// g = P h;   x += g innovation / total;   P -= g g' (1 - unexplained / total) / total
    /// ```
    ///
    /// With `unexplained` = 0 this is the ordinary Kalman update.
    pub fn condition(&mut self, pair: Pair, innovation: f64, total: f64, unexplained: f64) {
        let Pair { plus, other, sign } = pair;
        let mut gain = [0.0; N];
        for (i, g) in gain.iter_mut().enumerate() {
            *g = self.covariance.get(i, plus) + sign * self.covariance.get(i, other);
        }
        let step = innovation / total;
        for (x, g) in self.mean.iter_mut().zip(&gain) {
            *x += g * step;
        }
        self.covariance.add_outer(-(1.0 - unexplained / total) / total, &gain);
        self.covariance.repair();
    }

    /// Moves the offset by `by_s`, and both minimum delays such that no arrival moves.
    pub fn shift_asymmetry(&mut self, by_s: f64) {
        self.mean[OFFSET] += by_s;
        self.mean[MINIMUM[0]] -= by_s;
        self.mean[MINIMUM[1]] += by_s;
    }

    /// Sets the drift to exactly 0, without uncertainty.
    pub fn without_drift(&mut self) {
        self.mean[DRIFT] = 0.0;
        for i in 0..N {
            self.covariance.set(i, DRIFT, 0.0);
        }
    }

    /// Moves towards `other`, as in an interacting multiple-model bank: computes the moments of the
    /// mixture of this Gaussian with weight `keep` and `other` with weight 1 - `keep`, where
    /// `other` already contains this one.
    ///
    /// delta = x - other; x = other + keep delta; P = (1 - keep) P_other + keep (P + (1 - keep)
    /// delta delta').
    pub fn blend(&mut self, keep: f64, other: &Self) {
        let delta = self.minus(other);
        for (i, x) in self.mean.iter_mut().enumerate() {
            *x = other.mean[i] + keep * delta[i];
        }
        self.covariance.scale_and_add(keep, 1.0 - keep, &other.covariance);
        self.covariance.add_outer(keep * (1.0 - keep), &delta);
    }

    /// Difference of the means.
    fn minus(&self, other: &Self) -> [f64; N] {
        core::array::from_fn(|i| self.mean[i] - other.mean[i])
    }

    /// Whether all values are finite.
    pub fn is_finite(&self) -> bool {
        self.mean.iter().chain(&self.covariance.0).all(|v| v.is_finite())
    }

    /// Mean and covariance of a mixture; `weights` sum to 1.
    pub fn mixture(parts: &[Self], weights: &[f64]) -> Self {
        let mut sum = Self::ZERO;
        for (part, w) in parts.iter().zip(weights) {
            for i in 0..N {
                sum.mean[i] += w * part.mean[i];
            }
        }
        for (part, w) in parts.iter().zip(weights) {
            let delta = part.minus(&sum);
            sum.covariance.scale_and_add(1.0, *w, &part.covariance);
            sum.covariance.add_outer(*w, &delta);
        }
        sum
    }
}

#[cfg(test)]
#[path = "gaussian_tests.rs"]
mod tests;
