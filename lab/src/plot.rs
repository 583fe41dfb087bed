//! Line charts as SVG, for experiments and soaks.

use std::fs;

use anyhow::Context as _;
use kuva::backend::svg::SvgBackend;
use kuva::plot::LinePlot;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use crate::programs;

/// Distinguishable in print and for colour-blind readers (Tol's bright scheme).
pub const COLORS: [&str; 6] = ["#4477aa", "#228833", "#ee6677", "#aa3377", "#ccbb44", "#66ccee"];

/// One line of a chart, in the next of [`COLORS`].
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// x and y, in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// One line of a chart, with its style.
#[derive(Debug, Clone)]
pub struct Line {
    /// Name in the legend, unless empty.
    pub name: String,
    /// x and y, in the units of the axes.
    pub points: Vec<(f64, f64)>,
    /// As `#rrggbb`.
    pub color: &'static str,
    /// Whether the line is dashed.
    pub dashed: bool,
}

/// A chart of series, each in its own color; `log_x` is for values that span several decades.
#[must_use]
pub fn lines(title: &str, axes: [&str; 2], series: Vec<Series>, log_x: bool) -> String {
    let colored = series.into_iter().zip(COLORS.iter().cycle());
    let line = |(s, color): (Series, &&'static str)| Line {
        name: s.name,
        points: s.points,
        color,
        dashed: false,
    };
    render(title, axes, colored.map(line), log_x)
}

/// A chart of any lines; `log_x` is for values that span several decades.
#[must_use]
pub fn render(
    title: &str,
    axes: [&str; 2],
    lines: impl IntoIterator<Item = Line>,
    log_x: bool,
) -> String {
    let plots: Vec<_> = lines.into_iter().map(|line| Plot::Line(plot(line))).collect();
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

fn plot(line: Line) -> LinePlot {
    let mut plot =
        LinePlot::new().with_data(line.points).with_color(line.color).with_stroke_width(1.2);
    if !line.name.is_empty() {
        plot = plot.with_legend(line.name);
    }
    if line.dashed { plot.with_dashed() } else { plot }
}

/// Writes target/results/NAME.svg, and prints the path.
///
/// # Errors
/// When it cannot be written.
pub fn write(name: &str, svg: &str) -> anyhow::Result<()> {
    let folder = programs::workspace()?.join("target/results");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.svg"));
    fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written: {}", path.display());
    Ok(())
}
