//! Pseudo-random numbers that are the same on every machine and in every version: xoshiro256++
//! (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021), seeded by
//! splitmix64.
//!
//! Every purpose draws from a separate stream, identified by name. A scenario that adds bursts to
//! one link does not change any draw of an oscillator, so two scenarios with the same seed differ
//! only in what they state.
//!
//! What it does not do: provide security.

/// One stream of numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut mix = SplitMix(seed);
        Self { state: std::array::from_fn(|_| mix.next()) }
    }

    /// The stream for one purpose in the world of a seed; streams with different names are
    /// independent.
    #[must_use]
    pub fn stream(seed: u64, name: &str) -> Self {
        // FNV-1a, only to distinguish names; splitmix64 does the mixing.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::new(SplitMix(seed).next() ^ hash)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Uniform on [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns true with probability `p`; always draws exactly one number.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.uniform())
    }

    /// Normal with mean 0 and deviation 1 (Marsaglia's polar method; its second value is dropped,
    /// which keeps the stream stateless).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (u, v) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                return u * (-2.0 * libm::log(s) / s).sqrt();
            }
        }
    }

    /// Gamma with `shape` > 0 and scale 1: mean and variance are `shape` (Marsaglia and Tsang,
    /// 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = libm::pow(1.0 - self.uniform(), 1.0 / shape);
            return boost * self.gamma(shape + 1.0);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0
                && libm::log(1.0 - self.uniform()) < 0.5 * x * x + d * (1.0 - v + libm::log(v))
            {
                return d * v;
            }
        }
    }

    /// Pareto of the second kind (Lomax) with `shape` and scale 1: starts at 0, P(x > a) = (1 +
    /// a)^-shape, mean 1 / (shape - 1) for a shape above 1. Below 2 the variance is infinite.
    pub fn pareto(&mut self, shape: f64) -> f64 {
        libm::pow(1.0 - self.uniform(), -1.0 / shape) - 1.0
    }
}

/// Steele, Lea and Flood's generator, as its authors recommend for seeding.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sequences() {
        // splitmix64 of seed 1234567 and xoshiro256++ of state 1, 2, 3, 4: the authors' reference
        // programs.
        let mut mix = SplitMix(1_234_567);
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([mix.next(), mix.next(), mix.next()], expected);
        let mut random = Random { state: [1, 2, 3, 4] };
        let expected = [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386];
        assert_eq!(std::array::from_fn(|_| random.bits()), expected);
    }

    #[test]
    fn streams_differ_by_name_and_by_seed() {
        let first = |seed, name| Random::stream(seed, name).bits();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }

    /// Mean and variance of 200,000 draws.
    fn moments(mut draw: impl FnMut(&mut Random) -> f64) -> (f64, f64) {
        let mut random = Random::new(5);
        let n = 200_000;
        let (sum, squares) = (0..n).fold((0.0, 0.0), |(sum, squares), _| {
            let x = draw(&mut random);
            (sum + x, squares + x * x)
        });
        let mean = sum / f64::from(n);
        (mean, squares / f64::from(n) - mean * mean)
    }

    #[test]
    fn laws_have_their_moments() {
        // Four standard errors of the mean and about as much of the variance.
        let near = |(mean, variance): (f64, f64), m: f64, v: f64| {
            assert!((mean - m).abs() < 0.01 * v.sqrt().max(m), "mean {mean}, not {m}");
            assert!((variance / v - 1.0).abs() < 0.05, "variance {variance}, not {v}");
        };
        near(moments(Random::uniform), 0.5, 1.0 / 12.0);
        near(moments(Random::normal), 0.0, 1.0);
        near(moments(Random::exponential), 1.0, 1.0);
        near(moments(|r| r.gamma(3.0)), 3.0, 3.0);
        near(moments(|r| r.gamma(0.5)), 0.5, 0.5);
        // Lomax: mean 1 / (a - 1), variance a / ((a - 1)^2 (a - 2)).
        near(moments(|r| r.pareto(6.0)), 0.2, 6.0 / (25.0 * 4.0));
    }
}
