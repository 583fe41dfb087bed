//! The SVG of one replay: bounds, exchanges and truth, all as offsets from the estimate.

use timevisor_simulation::trace::{COUNTER_HZ, Reading, Row, Trace};

use crate::plot::{Line, Marks, svg_with_marks};

/// A day at one point a second is more than a screen can show.
const COLUMNS: usize = 1000;
/// The axis reaches this much beyond what the bounds mostly are.
const MARGIN: f64 = 2.0;

/// Offsets in us from the estimate (the dashed line at 0) over seconds.
pub fn svg(trace: &Trace, readings: &[Reading]) -> String {
    let reach = reach(readings);
    let clamp = |us: f64| us.clamp(-reach, reach);
    let first = readings.first().map_or(0, |reading| reading.counter);
    let column = readings.len().div_ceil(COLUMNS).max(1);
    // Of each column the widest, so that no bound looks narrower than it was.
    let widest = |chunk: &[Reading], side: fn(&Reading) -> f64| {
        let at = chunk.first().map_or(0.0, |reading| seconds(first, reading.counter));
        let far = chunk.iter().map(side).max_by(|a, b| a.abs().total_cmp(&b.abs()));
        (at, clamp(far.unwrap_or(0.0)))
    };
    let draw = |side: fn(&Reading) -> f64| -> Vec<(f64, f64)> {
        readings.chunks(column).map(|chunk| widest(chunk, side)).collect()
    };
    let line = |points, color, name: &str| {
        let (name, width) = (name.to_owned(), 1.0);
        Line { points, color, width, dashed: false, name }
    };
    let end = readings.last().map_or(0.0, |reading| seconds(first, reading.counter));
    let zero = vec![(0.0, 0.0), (end, 0.0)];
    let mut lines = vec![
        line(draw(latest), "#999999", "latest"),
        line(draw(earliest), "#999999", "earliest"),
        Line { dashed: true, ..line(zero, "#000000", "estimate") },
    ];
    if readings.iter().all(|reading| reading.truth.is_some()) {
        lines.push(line(draw(truth), "#4477aa", "truth"));
    }
    let points: Vec<(f64, f64)> =
        trace.rows.iter().filter_map(|row| offset(row, readings, first)).collect();
    // An exchange far away from the bounds is at the edge, not left out.
    let every = points.len().div_ceil(COLUMNS).max(1);
    let points = points.into_iter().step_by(every).map(|(at, us)| (at, clamp(us))).collect();
    let marks = Marks { points, color: "#ee7733", name: "exchanges".to_owned() };
    svg_with_marks(&trace.name, "time, s", "offset from the estimate, us", lines, vec![marks])
}

fn latest(reading: &Reading) -> f64 {
    (reading.interval.latest() - reading.estimate).as_secs_f64() * 1e6
}

fn earliest(reading: &Reading) -> f64 {
    (reading.interval.earliest() - reading.estimate).as_secs_f64() * 1e6
}

fn truth(reading: &Reading) -> f64 {
    reading.truth.map_or(0.0, |truth| (truth - reading.estimate).as_secs_f64() * 1e6)
}

/// What the axis shows, us either way.
fn reach(readings: &[Reading]) -> f64 {
    let mut far: Vec<f64> =
        readings.iter().map(|reading| latest(reading).max(-earliest(reading))).collect();
    far.sort_unstable_by(f64::total_cmp);
    far.get(far.len() * 99 / 100).map_or(1.0, |us| us.max(0.001) * MARGIN)
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
fn seconds(first: u64, counter: u64) -> f64 {
    counter.wrapping_sub(first).cast_signed() as f64 / COUNTER_HZ as f64
}

/// Where an exchange is, and how far its middle is from the estimate, us; `None` outside of the readings.
fn offset(row: &Row, readings: &[Reading], first: u64) -> Option<(f64, f64)> {
    let exchange = &row.exchange;
    let counter = exchange.ta.wrapping_add(exchange.tf.wrapping_sub(exchange.ta) / 2);
    let after = readings.partition_point(|reading| reading.counter <= counter);
    let (before, after) = (readings.get(after.checked_sub(1)?)?, readings.get(after)?);
    let share = seconds(before.counter, counter) / seconds(before.counter, after.counter);
    let ours = (after.estimate - before.estimate).as_secs_f64() * share;
    let middle = exchange.tb + (exchange.te - exchange.tb).half();
    let theirs = (middle - before.estimate).as_secs_f64();
    Some((seconds(first, counter), (theirs - ours) * 1e6))
}
