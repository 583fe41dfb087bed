//! The cold start as HPGC was published, beside ours.

use serde_json::{Value, json};
use timevisor_simulation::cluster::published::{self, Published, Serving};
use timevisor_simulation::cluster::{Link, quantile};
use timevisor_time::{Duration, RateError};

use super::{Options, curve, thinned};
use crate::plot::Line;

const ALL: [Serving; 3] = [Serving::Root, Serving::TwoLevels, Serving::Everybody];

pub const HEAD: &str = "HPGC as published: it states no bounds, so these are errors
    nodes  who serves       last     median   messages  unsettled | level  nodes       error
                              ms         ms median/p99             |              median/p99, at the end us";

/// One cluster for each of who serves.
pub fn start(options: &Options, nodes: u32) -> Vec<(Serving, Published)> {
    let link = Link { loss: options.loss, ..options.link.link() };
    let rate = RateError::from_ppm(u32::from(options.rate));
    let until = Duration::from_secs(i64::from(options.span));
    let service = 1_000_000_000 / options.server_rate;
    let run = |serving| published::start(nodes, link, serving, service, rate, until, options.seed);
    ALL.into_iter().map(|serving| (serving, run(serving))).collect()
}

fn name(serving: Serving) -> &'static str {
    match serving {
        Serving::Root => "the root",
        Serving::TwoLevels => "two levels",
        Serving::Everybody => "everybody",
    }
}

pub fn lines(nodes: u32, serving: Serving, found: &Published) -> String {
    let ms = |permille| quantile(&found.done_ns, permille) * 1e-6;
    let mut out = format!(
        "{nodes:>9}  {:<10} {:>10.1} {:>10.1} {:>6.0}/{:<6.0} {:>6}",
        name(serving),
        ms(1000),
        ms(500),
        quantile(&found.messages, 500),
        quantile(&found.messages, 990),
        found.unsettled,
    );
    let indent = out.chars().count();
    for (index, (level, errors)) in found.levels.iter().enumerate() {
        if index > 0 {
            out += &" ".repeat(indent);
        }
        let us = |values: &[f64], permille| quantile(values, permille) * 1e-3;
        out += &format!(
            " | {level:>5} {:>6} {:>8.2}/{:.2}, {:.0}/{:.0}\n",
            errors.done.len(),
            us(&errors.done, 500),
            us(&errors.done, 990),
            us(&errors.at_end, 500),
            us(&errors.at_end, 990),
        );
    }
    out
}

/// One object for each level.
pub fn objects(nodes: u32, serving: Serving, found: &Published) -> Vec<Value> {
    let object = |(level, errors): (&u32, &published::Errors)| {
        json!({
            "algorithm": "published",
            "serves": name(serving),
            "nodes": nodes,
            "done_last_ms": quantile(&found.done_ns, 1000) * 1e-6,
            "done_median_ms": quantile(&found.done_ns, 500) * 1e-6,
            "messages_median": quantile(&found.messages, 500),
            "messages_p99": quantile(&found.messages, 990),
            "unsettled": found.unsettled,
            "level": level,
            "level_nodes": errors.done.len(),
            "error_median_us": quantile(&errors.done, 500) * 1e-3,
            "error_p99_us": quantile(&errors.done, 990) * 1e-3,
            "error_at_end_median_us": quantile(&errors.at_end, 500) * 1e-3,
            "error_at_end_p99_us": quantile(&errors.at_end, 990) * 1e-3,
        })
    };
    found.levels.iter().map(object).collect()
}

fn color(serving: Serving) -> &'static str {
    match serving {
        Serving::Root => "steelblue",
        Serving::TwoLevels => "seagreen",
        Serving::Everybody => "darkorange",
    }
}

pub fn curve_of(nodes: u32, serving: Serving, found: &Published) -> Line {
    let name = format!("published, {nodes} nodes: {}", name(serving));
    curve(&found.done_ns, color(serving), name)
}

/// Figure 5 of the paper: what it computes at 1 ms a node, as far as the other curves go.
pub fn as_published(others: &[Line]) -> Vec<Line> {
    let ends = others.iter().filter_map(|line| line.points.last());
    let most = ends.map(|(_, done)| *done).fold(0.0, f64::max);
    let line = |serving: Serving| {
        let at = |ms: u32| (f64::from(ms).log10(), serving.as_published(ms).log10());
        let points = (1..10_000_000).map(at).take_while(|(_, done)| *done <= most);
        let name = format!("figure 5 of the paper: {}", name(serving));
        Line { points: thinned(points), color: color(serving), width: 1.0, dashed: true, name }
    };
    ALL.into_iter().map(line).collect()
}
