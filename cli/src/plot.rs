//! Lines and marks as an SVG: the only place that knows the plotting crate.

use kuva::backend::svg::SvgBackend;
use kuva::plot::{LinePlot, ScatterPlot};
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

/// One of them.
pub struct Line {
    pub points: Vec<(f64, f64)>,
    pub color: &'static str,
    pub width: f64,
    pub dashed: bool,
    pub name: String,
}

/// Points that are not joined.
pub struct Marks {
    pub points: Vec<(f64, f64)>,
    pub color: &'static str,
    pub name: String,
}

/// With the names of both axes.
pub fn svg(title: &str, x: &str, y: &str, lines: Vec<Line>) -> String {
    svg_with_marks(title, x, y, lines, Vec::new())
}

/// The same, with marks on the lines.
pub fn svg_with_marks(
    title: &str,
    x: &str,
    y: &str,
    lines: Vec<Line>,
    marks: Vec<Marks>,
) -> String {
    let drawn = |line: Line| {
        let plot = LinePlot::new().with_data(line.points).with_color(line.color);
        let plot = plot.with_stroke_width(line.width).with_legend(&line.name);
        Plot::Line(if line.dashed { plot.with_dashed() } else { plot })
    };
    let marked = |marks: Marks| {
        let plot = ScatterPlot::new().with_data(marks.points).with_color(marks.color);
        Plot::Scatter(plot.with_size(4.0).with_legend(marks.name))
    };
    let plots: Vec<_> = lines.into_iter().map(drawn).chain(marks.into_iter().map(marked)).collect();
    let layout = Layout::auto_from_plots(&plots)
        .with_width(1000.0)
        .with_height(480.0)
        .with_title(title)
        .with_x_label(x)
        .with_y_label(y);
    SvgBackend.render_scene(&render_multiple(plots, layout))
}
