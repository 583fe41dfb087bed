//! Compares the output of `timevisord --csv` with the truth that a simulator logged.
//!
//! The simulator's log holds CLOCK_REALTIME - true time at every whole true second from 0 on. The
//! rate is constant in between, so linear interpolation gives the truth of a line from its first
//! column.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};

/// The simulated Unix time of true second 0: 2010-01-01, clknetsim's default.
const UNIX_START: i64 = 1_262_304_000;
/// The combined rounding of the log and the lines, in seconds.
const ROUNDING: f64 = 3e-9;

/// One line; times in seconds since the start of the simulation.
#[derive(Clone, Copy, Debug)]
struct Line {
    realtime: f64,
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    estimate: f64,
    earliest: f64,
    latest: f64,
}

/// The result over all lines.
#[derive(Clone, Debug)]
pub(super) struct Score {
    /// Lines, with and without an estimate.
    pub lines: usize,
    /// Lines without an estimate.
    pub unknown: usize,
    /// Lines whose bounds exclude the truth, and the first such line.
    pub outside: usize,
    pub first_outside: Option<String>,
    /// The shortest and the longest time between consecutive lines, in seconds.
    pub spacing: (f64, f64),
    /// Over the lines from `settled` on, in microseconds.
    pub rms_us: f64,
    pub max_us: f64,
    pub half_width_us: f64,
}

impl Score {
    /// Scores the lines in `csv` against the truth in `log`; errors count from true second
    /// `settled` on.
    ///
    /// # Errors
    /// When either file is missing or malformed.
    pub(super) fn of(csv: &Path, log: &Path, settled: f64) -> anyhow::Result<Self> {
        let offsets = offsets(log)?;
        let lines = lines(csv)?;
        ensure!(lines.len() > 1, "{} has {} line(s)", csv.display(), lines.len());
        let mut errors = Vec::new();
        let mut widths = Vec::new();
        let (mut outside, mut first_outside) = (0, None);
        for line in &lines {
            let (Some(known), Some(truth)) = (line.known, truth(line.realtime, &offsets)) else {
                continue;
            };
            if truth < known.earliest - ROUNDING || truth > known.latest + ROUNDING {
                outside += 1;
                first_outside.get_or_insert_with(|| {
                    let [early, late] = [known.earliest - truth, known.latest - truth];
                    format!("second {truth:.3}: bounds from {early:e} s to {late:e} s of the truth")
                });
            }
            if truth >= settled {
                errors.push((known.estimate - truth) * 1e6);
                widths.push((known.latest - known.earliest) / 2.0 * 1e6);
            }
        }
        ensure!(!errors.is_empty(), "no line after second {settled} has an estimate");
        let gaps = lines.windows(2).map(|pair| pair[1].realtime - pair[0].realtime);
        let spacing =
            gaps.fold((f64::MAX, f64::MIN), |(least, most), gap| (least.min(gap), most.max(gap)));
        widths.sort_by(f64::total_cmp);
        let square: f64 = errors.iter().map(|e| e * e).sum();
        Ok(Self {
            lines: lines.len(),
            unknown: lines.iter().filter(|line| line.known.is_none()).count(),
            outside,
            first_outside,
            spacing,
            rms_us: (square / f64::from(u32::try_from(errors.len())?)).sqrt(),
            max_us: errors.iter().fold(0.0, |most, error| error.abs().max(most)),
            half_width_us: widths[widths.len() / 2],
        })
    }

    /// A short summary.
    pub(super) fn text(&self) -> String {
        format!(
            "{} lines, {} unknown, {} outside; RMS {:.2} us, max {:.2} us, half-width {:.1} us",
            self.lines, self.unknown, self.outside, self.rms_us, self.max_us, self.half_width_us
        )
    }
}

/// The true time when CLOCK_REALTIME was `realtime`; `None` outside the log.
fn truth(realtime: f64, offsets: &[f64]) -> Option<f64> {
    let at = |second: usize| Some(f64::from(u32::try_from(second).ok()?) + offsets.get(second)?);
    let mut second = first_guess(realtime - offsets.first()?)?;
    while at(second)? > realtime {
        second = second.checked_sub(1)?;
    }
    while at(second + 1)? <= realtime {
        second += 1;
    }
    let (start, end) = (at(second)?, at(second + 1)?);
    Some(f64::from(u32::try_from(second).ok()?) + (realtime - start) / (end - start))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a simulated day has few seconds; a wrong guess is corrected"
)]
fn first_guess(seconds: f64) -> Option<usize> {
    (seconds >= 0.0).then_some(seconds as usize)
}

/// Reads the last column of each line: the client is the last node.
fn offsets(log: &Path) -> anyhow::Result<Vec<f64>> {
    let text = std::fs::read_to_string(log).with_context(|| format!("no {}", log.display()))?;
    text.lines()
        .map(|line| {
            let last = line.split_whitespace().next_back().unwrap_or_default();
            last.parse().with_context(|| format!("{}: {line:?}", log.display()))
        })
        .collect()
}

fn lines(csv: &Path) -> anyhow::Result<Vec<Line>> {
    let text = std::fs::read_to_string(csv).with_context(|| format!("no {}", csv.display()))?;
    text.lines().map(|line| parse(line).with_context(|| format!("line {line:?}"))).collect()
}

fn parse(line: &str) -> anyhow::Result<Line> {
    let fields: Vec<&str> = line.split(',').collect();
    let [realtime, estimate, earliest, latest] = fields[..] else {
        bail!("{} fields instead of 4", fields.len())
    };
    let known = if [estimate, earliest, latest] == [""; 3] {
        None
    } else {
        Some(Known {
            estimate: seconds(estimate)?,
            earliest: seconds(earliest)?,
            latest: seconds(latest)?,
        })
    };
    Ok(Line { realtime: seconds(realtime)?, known })
}

/// Seconds since the start; the full Unix time would not fit into a double.
fn seconds(text: &str) -> anyhow::Result<f64> {
    let (whole, fraction) = text.split_once('.').context("no decimal point")?;
    ensure!(fraction.len() == 9, "{} decimals instead of 9", fraction.len());
    let whole: i64 = whole.parse()?;
    let nanos: u32 = fraction.parse()?;
    let since = i32::try_from(whole - UNIX_START).context("not in the simulation's time")?;
    Ok(f64::from(since) + f64::from(nanos) * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(csv: &str, log: &str) -> anyhow::Result<Score> {
        let dir = tempfile::tempdir()?;
        let [csv_path, log_path] = ["csv", "log"].map(|name| dir.path().join(name));
        std::fs::write(&csv_path, csv)?;
        std::fs::write(&log_path, log)?;
        Score::of(&csv_path, &log_path, 0.0)
    }

    // The clock gains 1 us in the first second and 3 us in the second.
    const LOG: &str = "0\t0.010000\n0\t0.010001\n0\t0.010004\n";

    #[test]
    fn errors_and_bounds_are_against_the_interpolated_truth() {
        let csv = "1262304000.010000000,,,\n\
                   1262304000.510000500,1262304000.500002000,1262304000.499999000,1262304000.500003000\n\
                   1262304001.510002500,1262304001.500000000,1262304001.500001000,1262304001.500003000\n";
        let found = score(csv, LOG).unwrap();
        assert_eq!((found.lines, found.unknown, found.outside), (3, 1, 1));
        assert!(found.first_outside.as_ref().unwrap().contains("second 1.500"), "{found:?}");
        assert!((found.max_us - 2.0).abs() < 1e-3, "{found:?}");
        assert!((found.rms_us - 2f64.sqrt()).abs() < 1e-3, "{found:?}");
        assert!((found.half_width_us - 2.0).abs() < 1e-3, "{found:?}");
        assert!((found.spacing.1 - 1.000_002).abs() < 1e-8, "{found:?}");
    }

    #[test]
    fn what_is_not_in_the_format_is_refused() {
        let good = "1262304000.010000000,,,\n";
        for bad in ["1262304001.01,,,", "1262304001.010000000,,", "1262304001.010000000,1.5,,"] {
            assert!(score(&format!("{good}{bad}\n"), LOG).is_err(), "{bad}");
        }
        assert!(score(&good.repeat(2), "x\n").is_err());
    }
}
