//! Every estimator over every trace of a condition, seeds pooled.

use timevisor_simulation::trace::{
    Method, Quantiles, Reading, ReplayOptions, Score, Trace, half_widths, replay,
};
use timevisor_time::Duration;

use crate::clockbound;
use crate::days::Days;

/// The convergence that no table counts, s.
const SKIP_S: i64 = 7200;
/// From here on the route change of e_route is half an hour past.
const SETTLED_S: i64 = 43_200 + 1800;

/// What is replayed, with its name in the tables and what it is compared with.
pub(crate) const METHODS: [(Method, &str); 4] = [
    (Method::Default, OURS),
    (Method::Radclock, "RADclock good"),
    (Method::RadclockPoor, "RADclock poor"),
    (Method::LastSample, "last sample"),
];

/// Our rows' name.
pub(crate) const OURS: &str = "timevisor";

/// One estimator over all seeds of a condition.
pub(crate) struct Accuracy {
    pub(crate) estimator: &'static str,
    /// All seeds together.
    pub(crate) pooled: Score,
    /// The largest RMS error of a seed, us.
    pub(crate) worst_rms_us: f64,
}

/// Our bounds over all seeds of a condition.
pub(crate) struct Bounds {
    pub(crate) half_widths: Quantiles,
    pub(crate) coverage: f64,
    /// Contradictions and doubts while nothing was wrong, all seeds.
    pub(crate) contradictions: u64,
}

/// One condition, or a part of it.
pub(crate) struct Measured {
    pub(crate) condition: String,
    pub(crate) accuracy: Vec<Accuracy>,
    pub(crate) bounds: Bounds,
    pub(crate) clockbound: Option<Quantiles>,
}

/// One replay per seed.
struct Seeds {
    readings: Vec<Vec<Reading>>,
    contradictions: u64,
}

fn replayed(traces: &[Trace], method: Method) -> Seeds {
    let options =
        ReplayOptions { method, skip: Duration::from_secs(SKIP_S), ..ReplayOptions::default() };
    let mut seeds = Seeds { readings: Vec::new(), contradictions: 0 };
    for trace in traces {
        let replay = replay(trace, &options);
        seeds.contradictions += replay.contradictions;
        seeds.readings.push(replay.readings);
    }
    seeds
}

fn accuracy(estimator: &'static str, seeds: &[Vec<Reading>], from: i64) -> Option<Accuracy> {
    let of = |readings: &[Reading]| Score::of(readings.iter().filter(|r| r.second > from));
    let worst = seeds.iter().filter_map(|readings| Some(of(readings)?.rms_us)).fold(0.0, f64::max);
    let pooled = Score::of(seeds.iter().flatten().filter(|r| r.second > from))?;
    Some(Accuracy { estimator, pooled, worst_rms_us: worst })
}

fn part(
    name: String,
    days: &Days,
    methods: &[(&'static str, Seeds)],
    from: i64,
) -> Option<Measured> {
    let accuracy: Vec<Accuracy> =
        methods.iter().filter_map(|(name, seeds)| accuracy(name, &seeds.readings, from)).collect();
    let ours = &methods.first()?.1;
    let readings = || ours.readings.iter().flatten().filter(|r| r.second > from);
    let bounds = Bounds {
        half_widths: half_widths(readings())?,
        coverage: Score::of(readings())?.coverage,
        contradictions: ours.contradictions,
    };
    let skip = SKIP_S.max(from + 1);
    let widths = days.traces.iter().flat_map(|trace| clockbound::half_widths(trace, skip));
    let clockbound = Quantiles::of(widths.collect());
    Some(Measured { condition: name, accuracy, bounds, clockbound })
}

/// A condition, and for the route change also what is left of it once it should be forgotten.
pub(crate) fn measure(days: &Days) -> Vec<Measured> {
    let methods = METHODS.map(|(method, name)| (name, replayed(&days.traces, method)));
    let whole = part(days.condition.clone(), days, &methods, i64::MIN / 2);
    let settled = (days.condition == "e_route")
        .then(|| part("e_route_after".to_owned(), days, &methods, SETTLED_S));
    whole.into_iter().chain(settled.flatten()).collect()
}
