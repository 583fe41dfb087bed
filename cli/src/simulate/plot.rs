//! The SVG of one run: estimate and bounds against truth, over true time.

use timevisor_simulation::Scenario;
use timevisor_simulation::checks::{Point, vouches};

use crate::plot::{self, Line};

/// A day at one point per second is more than a screen can show: each column keeps its extremes.
const COLUMNS: usize = 1000;

/// The axis reaches this much beyond what the bounds mostly are: the convergence at the start would
/// dwarf the rest.
const MARGIN: f64 = 1.5;

/// Offsets in us from truth (the dashed line at 0) over hours.
pub fn svg(scenario: &Scenario, points: &[Point]) -> String {
    let reach = reach(points, scenario.warmup_s);
    let column = points.len().div_ceil(COLUMNS).max(1);
    let draw = |value: fn(&Point) -> f64, keep: fn(&Point) -> bool| -> Vec<(f64, f64)> {
        points.chunks(column).flat_map(|chunk| extremes(chunk, value, keep, reach)).collect()
    };
    let ends = [points.first(), points.last()].into_iter().flatten();
    let truth: Vec<_> = ends.map(|p| (p.t_s / 3600.0, 0.0)).collect();
    let line = |points, color, name: &str| {
        let (name, width) = (name.to_owned(), 1.0);
        Line { points, color, width, dashed: false, name }
    };
    let always: fn(&Point) -> bool = |_| true;
    let mut lines = vec![
        line(draw(|p| p.latest_us, always), "#999999", "latest"),
        line(draw(|p| p.earliest_us, always), "#999999", "earliest"),
        line(draw(|p| p.offset_us, always), "#4477aa", "estimate"),
        Line { dashed: true, ..line(truth, "#000000", "truth") },
    ];
    let unvouched = draw(|p| p.offset_us, |p| !vouches(p.status));
    if !unvouched.is_empty() {
        let wide = Line { width: 2.0, ..line(unvouched, "#cc3311", "estimate, unreliable") };
        lines.push(wide);
    }
    let title = format!("{}, seed {}", scenario.name, scenario.seed);
    plot::svg(&title, "true time, h", "offset from truth, us", lines)
}

/// What the axis shows, us either way: most of the bounds after the warm-up.
fn reach(points: &[Point], warmup_s: f64) -> f64 {
    let settled = points.iter().filter(|p| p.t_s >= warmup_s);
    let mut far: Vec<_> = settled.map(|p| p.latest_us.abs().max(p.earliest_us.abs())).collect();
    far.sort_unstable_by(f64::total_cmp);
    far.get(far.len() * 99 / 100).map_or(1.0, |us| us * MARGIN)
}

/// The least and the largest value of a column, in the order of time.
fn extremes(
    chunk: &[Point],
    value: fn(&Point) -> f64,
    keep: fn(&Point) -> bool,
    reach: f64,
) -> Vec<(f64, f64)> {
    let place = |p: &Point| (p.t_s / 3600.0, value(p).clamp(-reach, reach));
    let by = |a: &&Point, b: &&Point| value(a).total_cmp(&value(b));
    let least = chunk.iter().filter(|p| keep(p)).min_by(by).map(place);
    let most = chunk.iter().filter(|p| keep(p)).max_by(by).map(place);
    let mut both: Vec<_> = [least, most].into_iter().flatten().collect();
    both.sort_by(|a, b| a.0.total_cmp(&b.0));
    both.dedup();
    both
}

#[cfg(test)]
mod tests {
    use timevisor_clock_page::ClockStatus;

    use super::*;

    #[test]
    fn a_day_is_drawn_with_its_extremes() {
        let point = |s: u32| Point {
            t_s: f64::from(s),
            offset_us: if s == 50_000 { 7.0 } else { 0.5 },
            earliest_us: -40.0,
            latest_us: 40.0,
            sigma_us: 1.0,
            status: if s > 80_000 { ClockStatus::Unreliable } else { ClockStatus::Synchronized },
        };
        let points: Vec<_> = (1..86_400).map(point).collect();
        assert_eq!(reach(&points, 0.0), 60.0);
        let column = extremes(&points[49_990..50_010], |p| p.offset_us, |_| true, 60.0);
        assert!(column.iter().any(|(_, us)| *us == 7.0) && column.len() == 2, "{column:?}");
        let svg = svg(&Scenario::default(), &points);
        assert!(svg.contains("unreliable") && svg.len() < 300_000, "{}", svg.len());
    }
}
