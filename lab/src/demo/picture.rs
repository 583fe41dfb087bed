//! The demo's picture: the host's page and the guest's side by side, each with its bounds and the
//! server's clock.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use kuva::backend::png::PngBackend;
use kuva::backend::svg::SvgBackend;
use kuva::plot::{BandPlot, LinePlot, ScatterPlot};
use kuva::render::figure::Figure;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;

use crate::comparison::Nanos;

/// Distinguishable in print and for colour-blind readers (Tol's bright scheme).
const HOST: &str = "#4477aa";
const GUEST: &str = "#228833";
const SERVER: &str = "#ee6677";

/// One reading of both pages at the same counter value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    /// Time since the demo began.
    pub(super) at_s: f64,
    /// What the host's page says.
    pub(super) host: Nanos,
    /// What the guest's page says.
    pub(super) guest: Nanos,
    /// The server's clock minus the host's estimate, ns. The server runs on this machine, so its
    /// clock can be read directly.
    pub(super) server_ns: i64,
}

/// Writes `NAME.svg` and `NAME.png` into `folder`, and returns their paths.
pub(super) fn write(folder: &Path, name: &str, points: &[Point]) -> anyhow::Result<[PathBuf; 2]> {
    let scene = figure(points).render();
    let [svg, png] = ["svg", "png"].map(|extension| folder.join(format!("{name}.{extension}")));
    let save = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    save(&svg, SvgBackend.render_scene(&scene).as_bytes())?;
    let pixels = PngBackend::new().render_scene(&scene);
    save(&png, &pixels.map_err(|why| anyhow!("cannot draw the picture: {why}"))?)?;
    Ok([svg, png])
}

fn figure(points: &[Point]) -> Figure {
    let panels = [
        panel(points, "the host's page (shaded: earliest to latest)", HOST, |point| point.host),
        panel(points, "the guest's page (shaded: earliest to latest)", GUEST, |point| point.guest),
    ];
    let reach = points.iter().map(|p| p.host.half_width().max(p.guest.half_width())).max();
    let reach = reach.unwrap_or(0) as f64 / 1000.0 * 1.2 + 1.0;
    let layouts = panels.iter().zip(["On the host", "In the guest"]).map(|(plots, title)| {
        Layout::auto_from_plots(plots)
            .with_title(title)
            .with_x_label("time, s")
            .with_y_label("offset from the host's estimate, us")
            .with_y_axis_min(-reach)
            .with_y_axis_max(reach)
    });
    let layouts = layouts.collect();
    Figure::new(1, 2)
        .with_title("One clock: host and guest at the same counter values")
        .with_cell_size(620.0, 420.0)
        .with_plots(panels.into())
        .with_layouts(layouts)
}

/// One page: its bounds as a band, its estimate as a line, the server's clock as dots.
fn panel(points: &[Point], name: &str, color: &str, of: fn(&Point) -> Nanos) -> Vec<Plot> {
    let us = |ns: i64| ns as f64 / 1000.0;
    let at = || points.iter().map(|p| p.at_s);
    let series = |value: fn(&Nanos) -> i64| {
        points.iter().map(move |p| us(value(&of(p)) - p.host.estimate)).collect::<Vec<f64>>()
    };
    let band = BandPlot::new(at(), series(|n| n.earliest), series(|n| n.latest));
    let estimate = LinePlot::new().with_data(at().zip(series(|n| n.estimate)));
    let server = ScatterPlot::new().with_data(points.iter().map(|p| (p.at_s, us(p.server_ns))));
    vec![
        Plot::Band(band.with_color(color).with_opacity(0.25)),
        Plot::Line(estimate.with_color(color).with_stroke_width(1.5).with_legend(name)),
        Plot::Scatter(server.with_color(SERVER).with_size(3.0).with_legend("the server's clock")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_show_both_pages() {
        let points: Vec<Point> = (0..30)
            .map(|second| {
                let estimate = 1_000_000_000 * i64::from(second);
                let page =
                    Nanos { earliest: estimate - 40_000, estimate, latest: estimate + 45_000 };
                Point { at_s: f64::from(second), host: page, guest: page, server_ns: 1_500 }
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let [svg, png] = write(folder.path(), "demo", &points).unwrap();
        let text = fs::read_to_string(svg).unwrap();
        for word in ["On the host", "In the guest", "server", "earliest"] {
            assert!(text.contains(word), "no {word}");
        }
        assert!(!text.contains("NaN"));
        assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
    }
}
