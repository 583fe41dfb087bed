//! What must be reached, and what is not.

use crate::cost::Cost;
use crate::measure::{Measured, OURS};

/// RMS error of the worst seed, us, by condition.
const RMS_US: [(&str, f64); 7] = [
    ("a_lan", 2.0),
    ("b_wan", 15.0),
    ("c_wander", 4.8),
    ("d_burst", 2.0),
    ("e_route_after", 2.5),
    ("f_vm", 2.1),
    ("g_sine", 2.7),
];
/// Median half-width of the bounds, us, with an exchange every 16 s. Of these, 30 us and 10 ms are
/// the minimum one-way delays; most of the rest is what the operator's floor for the oscillator
/// costs between two exchanges (docs/decisions/0039).
const HALF_WIDTH_US: [(&str, f64); 2] = [("a_lan", 74.0), ("b_wan", 10_600.0)];
/// CPU time of one exchange, ns.
const EXCHANGE_NS: f64 = 25_000.0;
/// State of one reference, bytes.
const STATE_BYTES: f64 = 1_048_576.0;
/// Growth of the heap over the day once every window is full, bytes.
const GROWTH_BYTES: f64 = 0.0;

/// A figure against its limit, in words if it does not hold. What was not measured holds no limit.
fn exceeded(what: &str, found: Option<f64>, limit: f64, unit: &str) -> Option<String> {
    match found {
        Some(found) if found <= limit => None,
        Some(found) => {
            Some(format!("{what}: {found:.2} {unit}, at most {limit} {unit} is allowed"))
        }
        None => Some(format!("{what}: not measured, at most {limit} {unit} is allowed")),
    }
}

/// All limits that do not hold. `costs` are ours, one per condition: the dearest counts.
pub(crate) fn broken(measured: &[Measured], costs: &[Cost]) -> Vec<String> {
    let find = |name: &str| measured.iter().find(|m| m.condition == name);
    let rms = RMS_US.into_iter().filter_map(|(name, limit)| {
        let ours = find(name).and_then(|m| m.accuracy.iter().find(|a| a.estimator == OURS));
        exceeded(&format!("{name} RMS"), ours.map(|a| a.worst_rms_us), limit, "us")
    });
    let width = HALF_WIDTH_US.into_iter().filter_map(|(name, limit)| {
        let median = find(name).map(|m| m.bounds.half_widths.median);
        exceeded(&format!("{name} median half-width"), median, limit, "us")
    });
    let uncovered = measured.iter().filter(|m| m.bounds.coverage < 1.0);
    let coverage = uncovered.map(|m| {
        format!("{} coverage: {:.6}, exactly 1 is required", m.condition, m.bounds.coverage)
    });
    let largest = |of: fn(&Cost) -> f64| costs.iter().map(of).max_by(f64::total_cmp);
    let exchange = exceeded("CPU time of an exchange", largest(|c| c.mean_ns), EXCHANGE_NS, "ns");
    let state = exceeded("state of a reference", largest(|c| c.state_bytes), STATE_BYTES, "bytes");
    let growth =
        exceeded("growth over the day", largest(|c| c.growth_bytes), GROWTH_BYTES, "bytes");
    rms.chain(width).chain(coverage).chain(exchange).chain(state).chain(growth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Accuracy, Bounds};
    use timevisor_simulation::trace::{Quantiles, Score};

    fn condition(name: &str, rms_us: f64, median: f64, coverage: f64) -> Measured {
        let quantiles = Quantiles { median, p99: median, max: median };
        let pooled =
            Score { rms_us: 0.0, mean_abs_us: 0.0, abs_us: quantiles, coverage, seconds: 1 };
        let ours = Accuracy { estimator: OURS, pooled, worst_rms_us: rms_us };
        Measured {
            condition: name.to_owned(),
            accuracy: vec![ours],
            bounds: Bounds { half_widths: quantiles, coverage, contradictions: 0 },
            clockbound: None,
        }
    }

    #[test]
    fn limits_hold_at_the_limit_and_break_beyond_or_unmeasured() {
        let mut measured: Vec<Measured> = RMS_US
            .into_iter()
            .map(|(name, limit)| {
                let width = HALF_WIDTH_US.iter().find(|(n, _)| *n == name).map_or(1e9, |w| w.1);
                condition(name, limit, width, 1.0)
            })
            .collect();
        let cost = Cost {
            mean_ns: EXCHANGE_NS,
            p99_ns: 1e9,
            state_bytes: STATE_BYTES,
            growth_bytes: 0.0,
            allocations: 9.0,
        };
        assert_eq!(broken(&measured, &[cost]), Vec::<String>::new());
        let dear = Cost {
            mean_ns: EXCHANGE_NS + 1.0,
            state_bytes: STATE_BYTES + 1.0,
            growth_bytes: 8.0,
            ..cost
        };
        assert_eq!(broken(&measured, &[cost, dear, cost]).len(), 3);
        assert_eq!(broken(&measured, &[]).len(), 3, "nothing was measured");
        measured[0] = condition("a_lan", 2.01, 74.1, 0.999_999);
        let found = broken(&measured, &[cost]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "a_lan RMS: 2.01 us, at most 2 us is allowed");
        measured.remove(0);
        assert_eq!(broken(&measured, &[cost]).len(), 2, "RMS and half-width are not measured");
        // A condition that has no other limits must still be covered.
        measured.push(condition("my_site", 1e9, 1e9, 0.5));
        assert_eq!(broken(&measured, &[cost]).len(), 3);
    }
}
