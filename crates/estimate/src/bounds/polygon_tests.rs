use super::*;
use proptest::prelude::*;

fn square() -> Polygon {
    Polygon::from_box([-10.0, 10.0], [-100.0, 100.0])
}

fn contains(polygon: &Polygon, p: Point, slack: f64) -> bool {
    let n = polygon.len;
    (0..n).all(|i| {
        let (a, b) = (polygon.corners[i], polygon.corners[(i + 1) % n]);
        let e = minus(b, a);
        cross(e, minus(p, a)) >= -slack * (e[0].abs() + e[1].abs())
    })
}

fn is_convex(polygon: &Polygon) -> bool {
    let n = polygon.len;
    (0..n).all(|i| {
        let at = |k: usize| polygon.corners[(i + k) % n];
        let (a, b) = (minus(at(1), at(0)), minus(at(2), at(1)));
        cross(a, b) > -1e-6 - 1e-9 * ((a[0] * b[1]).abs() + (a[1] * b[0]).abs())
    })
}

#[test]
fn a_cut_leaves_its_half() {
    let mut p = square();
    p.cut(1.0, 0.0, 3.0);
    assert_eq!(p.theta_after(0.0), [-10.0, 3.0]);
    p.cut(-1.0, 0.0, -5.0);
    assert!(p.is_empty(), "3 < 5: {p:?}");
}

#[test]
fn growth_is_exact_along_both_axes() {
    // theta: 10 us + 16 s * 100 ppb (1.6 us) + w t^2/2; y: 100 ppb + w t.
    let mut p = square();
    p.propagate(16.0, 1.5);
    let (theta, y) = (p.theta_after(0.0), p.y());
    assert!((theta[1] - (10.0 + 1.6 + 1.5 * 16.0 * 16.0 / 2.0 * 1e-3)).abs() < 1e-9, "{theta:?}");
    assert!((theta[0] + theta[1]).abs() < 1e-9);
    assert!((y[1] - (100.0 + 1.5 * 16.0)).abs() < 1e-9, "{y:?}");
}

#[test]
fn a_rate_reaches_theta_after_a_while() {
    let p = Polygon::from_box([0.0, 0.0 + 1e-3], [50.0, 100.0]);
    let after = p.theta_after(1000.0);
    assert!((after[0] - 50.0).abs() < 1e-9 && (after[1] - 100.001).abs() < 1e-9, "{after:?}");
}

/// One thing that happens to a polygon.
#[derive(Clone, Debug)]
enum Event {
    /// Seconds, and what the rate does in the first and second half, in fractions of the bound.
    Time(f64, f64, f64),
    /// A half-plane's direction, and how far beyond the truth it lies.
    Fact(f64, f64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0.01f64..1000.0, -1.0f64..1.0, -1.0f64..1.0).prop_map(|(t, a, b)| Event::Time(t, a, b)),
        (prop::bool::ANY, 0.0f64..50.0)
            .prop_map(|(up, slack)| Event::Fact(if up { 1.0 } else { -1.0 }, slack)),
    ]
}

proptest! {
    /// Soundness: a clock whose rate changes within the bound never leaves the set, whatever
    /// happens to the set.
    #[test]
    fn the_truth_stays_inside(
        events in prop::collection::vec(event(), 1..120),
        wander in prop::sample::select(vec![0.05, 0.5, 1.5, 15.0, 200.0]),
    ) {
        let mut polygon = Polygon::from_box([-100.0, 100.0], [-15_000.0, 15_000.0]);
        let (mut theta, mut y) = (0.0f64, 0.0f64);
        for event in events {
            match event {
                Event::Time(span, first, second) => {
                    for change in [first * wander, second * wander] {
                        let half = span / 2.0;
                        theta += (y * half + change * half * half / 2.0) * 1e-3;
                        y += change * half;
                    }
                    polygon.propagate(span, wander);
                    let shift = theta;
                    polygon.shift(-shift);
                    theta -= shift;
                }
                Event::Fact(sign, slack) => polygon.cut(sign, 0.0, sign * theta + slack + 1e-6),
            }
            polygon.prune();
            prop_assert!(!polygon.is_empty());
            prop_assert!(polygon.len <= CORNERS);
            prop_assert!(is_convex(&polygon), "{:?}", polygon);
            prop_assert!(contains(&polygon, [theta, y], 1e-6), "{theta} {y} {:?}", polygon);
        }
    }

    /// A smaller bound on the wander never gives a larger set.
    #[test]
    fn less_wander_is_inside_more(spans in prop::collection::vec((1.0f64..100.0, 0.0f64..30.0, prop::bool::ANY), 1..60)) {
        let mut small = square();
        let mut large = square();
        for (span, slack, up) in spans {
            let sign = if up { 1.0 } else { -1.0 };
            for (polygon, wander) in [(&mut small, 0.5), (&mut large, 1.5)] {
                polygon.propagate(span, wander);
                polygon.cut(sign, 0.0, slack);
            }
            if small.is_empty() { break; }
            for corner in small.corners() {
                prop_assert!(contains(&large, *corner, 1e-6));
            }
            small.prune();
            large.prune();
        }
    }
}
