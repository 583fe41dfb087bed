//! Pictures of the clocks: the distribution of their errors, and errors and bounds over time.

use timevisor_lab::plot::{COLORS, Line, Series, lines, render};

use super::statistics::quantile;
use super::watch::{CLOCKS, Clock, Sample};

/// The share of samples whose |error| is at most this large, for every clock (instead of the
/// paper's histograms, whose scales differ between clocks).
pub(super) fn distribution(title: &str, samples: &[Sample]) -> String {
    let series = CLOCKS.map(|clock| {
        let mut errors: Vec<f64> =
            // A logarithmic axis has no zero, so 1 ns stands for it.
            of(samples, clock).map(|s| s.error_us.abs().max(0.001)).collect();
        errors.sort_unstable_by(f64::total_cmp);
        let count = errors.len().max(1) as f64;
        let points = errors.iter().enumerate().map(|(n, e)| (*e, (n + 1) as f64 / count)).collect();
        Series { name: clock.title().into(), points }
    });
    let axes = ["|error|, us", "share of samples with at most this"];
    lines(title, axes, series.into_iter().collect(), true)
}

/// The share of values that are at most this large, without the longest percent, for several sets.
pub(super) fn shares(title: &str, axis: &str, sets: &[(String, &[f64])]) -> String {
    let series = sets.iter().map(|(name, values)| {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len().max(1) as f64;
        // A logarithmic axis has no zero.
        let points = sorted.iter().enumerate().map(|(n, v)| (v.max(0.1), (n + 1) as f64 / count));
        Series { name: name.clone(), points: points.filter(|point| point.1 <= 0.99).collect() }
    });
    lines(title, [axis, "share within this"], series.collect(), true)
}

/// One clock's error and bounds over time, with dashed lines at `events`.
pub(super) fn bounds(title: &str, samples: &[Sample], clock: Clock, events: &[f64]) -> String {
    // Most bounds must be readable; values beyond the range are drawn at the edge.
    let far: Vec<f64> =
        of(samples, clock).map(|s| s.latest_us.abs().max(s.earliest_us.abs())).collect();
    let reach = (quantile(&far, 0.98) * 1.3).max(0.01);
    let draw = |value: fn(&Sample) -> f64| -> Vec<(f64, f64)> {
        of(samples, clock).map(|s| (s.at_s, value(s).clamp(-reach, reach))).collect()
    };
    let line = |name: &str, color, points| Line { name: name.into(), points, color, dashed: false };
    let mut all = vec![
        line("latest", "#999999", draw(|s| s.latest_us)),
        line("earliest", "#999999", draw(|s| s.earliest_us)),
        line("error", COLORS[0], draw(|s| s.error_us)),
    ];
    for at in events {
        let event = line("", "#000000", vec![(*at, -reach), (*at, reach)]);
        all.push(Line { dashed: true, ..event });
    }
    let title = format!("{title}: {}", clock.title());
    render(&title, ["time, s", "offset from truth, us"], all, false)
}

fn of(samples: &[Sample], clock: Clock) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(move |s| s.clock == clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Sample> {
        let clocks = (0..100).flat_map(|n| CLOCKS.map(|clock| (n, clock)));
        let one = |(n, clock)| Sample {
            clock,
            at_s: f64::from(n),
            error_us: 0.0,
            earliest_us: -5.0,
            latest_us: if n == 50 { 1e6 } else { 5.0 },
            uncertainty_us: 0.1,
        };
        clocks.map(one).collect()
    }

    #[test]
    fn every_clock_is_in_the_distribution() {
        let svg = distribution("title", &samples());
        assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{svg}");
        assert!(CLOCKS.iter().all(|clock| svg.contains(clock.title())), "{svg}");
    }

    #[test]
    fn every_set_is_in_the_shares() {
        let svg = shares("title", "us", &[("a".into(), &[0.0, 2.0]), ("b".into(), &[3.0, 1.0])]);
        assert!(svg.contains(">a<") && svg.contains(">b<") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn one_wild_bound_does_not_hide_the_others() {
        let svg = bounds("title", &samples(), Clock::Guest, &[20.0]);
        assert!(svg.contains("para-virtual") && !svg.contains("NaN"));
        assert!(!svg.contains("1000000") && !svg.contains("1e6"), "{svg}");
        assert!(svg.contains("dasharray"), "no event line");
    }
}
