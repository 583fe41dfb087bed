//! How far ages and CLOCK_MONOTONIC_RAW are apart.
//!
//! A thread of the daemon's stays on one core for a second, then goes to the next one. So each
//! second is about one core's counter, and a core whose frequency changed unreported is found when
//! its turn comes. What it does not do: repair an age. Once they have parted nobody knows which
//! ages are wrong by how much.

use super::LIMIT_PPM;

/// An age, and CLOCK_MONOTONIC_RAW around the reading.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub age_ns: u64,
    pub raw_ns: u64,
    /// How long the reading took: the error of the comparison.
    pub width_ns: u64,
}

/// The comparison so far.
#[derive(Debug, Default)]
pub struct Comparison {
    first: Option<Sample>,
    begun: Option<Sample>,
    pub since_start_ppm: Option<f64>,
    pub last_ppm: Option<f64>,
    pub worst_ppm: Option<f64>,
}

/// They are further apart than the limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parted {
    pub ppm: f64,
    /// The time over which that was seen.
    pub over_ns: u64,
}

impl Comparison {
    /// A second on one core begins.
    pub fn begin(&mut self, sample: Sample) {
        self.first.get_or_insert(sample);
        self.begun = Some(sample);
    }

    /// It ends. A second whose beginning was not seen says nothing of a core.
    pub fn end(&mut self, sample: Sample) -> Result<(), Parted> {
        let last = self.begun.take().map(|begun| apart(begun, sample)).transpose()?.flatten();
        let since = self.first.map(|first| apart(first, sample)).transpose()?.flatten();
        self.last_ppm = last;
        self.since_start_ppm = since.or(self.since_start_ppm);
        let worse = |worst: f64, ppm: f64| if ppm.abs() > worst.abs() { ppm } else { worst };
        self.worst_ppm =
            last.map(|ppm| worse(self.worst_ppm.unwrap_or(0.0), ppm)).or(self.worst_ppm);
        Ok(())
    }
}

/// By how many parts per million the age went faster; nothing if no time has passed.
fn apart(from: Sample, to: Sample) -> Result<Option<f64>, Parted> {
    let raw = to.raw_ns.saturating_sub(from.raw_ns);
    if raw == 0 {
        return Ok(None);
    }
    let age = to.age_ns.saturating_sub(from.age_ns);
    let ppm = |ns: f64| ns / raw as f64 * 1e6;
    let ahead = age as f64 - raw as f64;
    let error = (from.width_ns + to.width_ns) as f64;
    if ppm(ahead.abs() - error) > LIMIT_PPM {
        return Err(Parted { ppm: ppm(ahead), over_ns: raw });
    }
    Ok(Some(ppm(ahead)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn sample(age_ns: u64, raw_ns: u64) -> Sample {
        Sample { age_ns, raw_ns, width_ns: 1_000 }
    }

    #[test]
    fn small_differences_are_told_and_large_ones_part() {
        let mut seen = Comparison::default();
        seen.begin(sample(0, 5 * S));
        seen.end(sample(S + 4_000, 6 * S)).unwrap();
        assert_eq!((seen.last_ppm, seen.since_start_ppm), (Some(4.0), Some(4.0)));
        seen.begin(sample(S + 4_000, 6 * S));
        seen.end(sample(2 * S, 7 * S)).unwrap();
        assert_eq!((seen.last_ppm, seen.since_start_ppm), (Some(-4.0), Some(0.0)));
        assert_eq!(seen.worst_ppm, Some(4.0));
        // A frequency that is 2 % off.
        seen.begin(sample(2 * S, 7 * S));
        let parted = seen.end(sample(3 * S + S / 50, 8 * S)).unwrap_err();
        assert_eq!((parted.ppm, parted.over_ns), (20_000.0, S));
    }

    #[test]
    fn what_a_slow_reading_explains_parts_nothing() {
        let mut seen = Comparison::default();
        let slow = Sample { age_ns: 0, raw_ns: 0, width_ns: S / 10 };
        seen.begin(slow);
        seen.end(sample(S + S / 20, S)).unwrap();
        seen.begin(sample(0, 0));
        assert!(seen.end(sample(S + S / 20, S)).is_err());
    }

    #[test]
    fn a_second_without_a_beginning_counts_since_the_start_alone() {
        let mut seen = Comparison::default();
        seen.end(sample(S, S)).unwrap();
        assert_eq!((seen.last_ppm, seen.since_start_ppm), (None, None));
        seen.begin(sample(S, S));
        seen.end(sample(2 * S, 2 * S)).unwrap();
        seen.end(sample(3 * S, 3 * S)).unwrap();
        assert_eq!((seen.last_ppm, seen.since_start_ppm), (None, Some(0.0)));
        seen.end(sample(3 * S, 3 * S)).unwrap();
    }
}
