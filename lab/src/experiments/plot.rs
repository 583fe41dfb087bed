//! The pictures, as SVG. The only place of the lab that knows the plotting crate.

use kuva::backend::svg::SvgBackend;
use kuva::plot::LinePlot;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use super::statistics::quantile;
use super::watch::{CLOCKS, Clock, Sample};

/// Distinguishable in print and by the colour-blind (Tol's bright scheme).
const COLORS: [&str; 6] = ["#4477aa", "#228833", "#ee6677", "#aa3377", "#ccbb44", "#66ccee"];

/// One line of a picture.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Any lines; `log_x` for values over several decades.
pub(crate) fn lines(title: &str, axes: [&str; 2], series: Vec<Series>, log_x: bool) -> String {
    let colored = series.into_iter().zip(COLORS.iter().cycle());
    let plots = colored.map(|(s, color)| line(s.points, color).with_legend(s.name)).collect();
    render(title, axes, plots, log_x)
}

fn line(points: Vec<(f64, f64)>, color: &str) -> LinePlot {
    LinePlot::new().with_data(points).with_color(color).with_stroke_width(1.2)
}

fn render(title: &str, axes: [&str; 2], plots: Vec<LinePlot>, log_x: bool) -> String {
    let plots: Vec<_> = plots.into_iter().map(Plot::Line).collect();
    let mut layout = Layout::auto_from_plots(&plots)
        .with_width(1000.0)
        .with_height(480.0)
        .with_title(title)
        .with_x_label(axes[0])
        .with_y_label(axes[1]);
    if log_x {
        layout = layout.with_log_x();
    }
    SvgBackend.render_scene(&render_multiple(plots, layout))
}

/// The share of samples with at most this |error|, for every clock (instead of the paper's
/// histograms, whose scales differ from clock to clock).
pub(super) fn distribution(title: &str, samples: &[Sample]) -> String {
    let series = CLOCKS.map(|clock| {
        let mut errors: Vec<f64> =
            // A logarithmic axis has no zero: 1 ns stands for it.
            of(samples, clock).map(|s| s.error_us.abs().max(0.001)).collect();
        errors.sort_unstable_by(f64::total_cmp);
        let count = errors.len().max(1) as f64;
        let points = errors.iter().enumerate().map(|(n, e)| (*e, (n + 1) as f64 / count)).collect();
        Series { name: clock.title().into(), points }
    });
    let axes = ["|error|, us", "share of samples with at most this"];
    lines(title, axes, series.into_iter().collect(), true)
}

/// One clock's error and bounds over time; dashed lines at `events`.
pub(super) fn bounds(title: &str, samples: &[Sample], clock: Clock, events: &[f64]) -> String {
    // Most of the bounds must be readable; what lies beyond is drawn at the edge.
    let far: Vec<f64> =
        of(samples, clock).map(|s| s.latest_us.abs().max(s.earliest_us.abs())).collect();
    let reach = (quantile(&far, 0.98) * 1.3).max(0.01);
    let draw = |value: fn(&Sample) -> f64| -> Vec<(f64, f64)> {
        of(samples, clock).map(|s| (s.at_s, value(s).clamp(-reach, reach))).collect()
    };
    let mut plots = vec![
        line(draw(|s| s.latest_us), "#999999").with_legend("latest"),
        line(draw(|s| s.earliest_us), "#999999").with_legend("earliest"),
        line(draw(|s| s.error_us), COLORS[0]).with_legend("error"),
    ];
    for at in events {
        plots.push(line(vec![(*at, -reach), (*at, reach)], "#000000").with_dashed());
    }
    let title = format!("{title}: {}", clock.title());
    render(&title, ["time, s", "offset from truth, us"], plots, false)
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
    fn one_wild_bound_does_not_hide_the_others() {
        let svg = bounds("title", &samples(), Clock::Guest, &[20.0]);
        assert!(svg.contains("para-virtual") && !svg.contains("NaN"));
        assert!(!svg.contains("1000000") && !svg.contains("1e6"), "{svg}");
        assert!(svg.contains("dasharray"), "no event line");
    }
}
