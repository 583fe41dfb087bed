//! Requirements at their limits, and the combined needs of many.

use proptest::prelude::*;

use timevisor_protocols::channel::confidence::probability_within;

use super::*;

fn requirement(below_ns: u64, above_ns: u64, confidence: Confidence) -> Requirement {
    Requirement { below_ns, above_ns, resolution_ns: None, confidence }
}

proptest! {
    #[test]
    fn a_sigma_that_meets_keeps_the_error_within_both_sides(
        below in 1u64..1 << 40, above in 1u64..1 << 40, p in 0.5..0.999_999, sigma in 1u64..1 << 40,
    ) {
        let needs = Needs::of(&requirement(below, above, Confidence::Probability(p))).unwrap();
        let achieved = Achieved { estimated_error_ns: Some(sigma), ..Achieved::default() };
        if needs.met_by(&achieved) {
            prop_assert!(probability_within(below as f64 / sigma as f64, above as f64 / sigma as f64) >= p);
        }
    }

    #[test]
    fn a_larger_quality_never_stops_meeting(
        below in 1u64..1000, above in 1u64..1000, p in proptest::option::of(0.5..1.0),
        achieved in [1u64..1000, 1u64..1000, 1u64..1000], better in [0u64..1000, 0u64..1000, 0u64..1000],
    ) {
        let confidence = p.map_or(Confidence::WorstCase, Confidence::Probability);
        let needs = Needs::of(&requirement(below, above, confidence)).unwrap();
        let with = |by: [u64; 3]| {
            let value = |i: usize| Some(achieved[i].saturating_sub(by[i]));
            needs.met_by(&Achieved {
                below_ns: value(0),
                above_ns: value(1),
                estimated_error_ns: value(2),
                resolution_ns: None,
            })
        };
        prop_assert!(!with([0; 3]) || with(better));
    }

    #[test]
    fn meeting_the_demand_meets_everybody(
        all in proptest::collection::vec(
            (1u64..1000, 1u64..1000, proptest::option::of(0.5..1.0)), 1..20),
    ) {
        let needs: Vec<Needs> = all.iter().map(|(below, above, p)| {
            let confidence = p.map_or(Confidence::WorstCase, Confidence::Probability);
            Needs::of(&requirement(*below, *above, confidence)).unwrap()
        }).collect();
        let demand = Demand::tightest(needs.iter().copied()).unwrap();
        let just = Achieved {
            below_ns: demand.half_width_ns,
            above_ns: demand.half_width_ns,
            estimated_error_ns: demand.sigma_ns,
            resolution_ns: None,
        };
        prop_assert!(needs.iter().all(|needs| needs.met_by(&just)));
        // With one ns less accuracy, one of them is not satisfied.
        let worse = Achieved {
            below_ns: just.below_ns.map(|ns| ns + 1),
            above_ns: just.above_ns.map(|ns| ns + 1),
            ..just.clone()
        };
        prop_assert!(demand.half_width_ns.is_none() || needs.iter().any(|needs| !needs.met_by(&worse)));
        let worse = Achieved { estimated_error_ns: just.estimated_error_ns.map(|ns| ns + 1), ..just };
        prop_assert!(demand.sigma_ns.is_none() || needs.iter().any(|needs| !needs.met_by(&worse)));
    }
}

#[test]
fn each_side_and_the_resolution_count() {
    let needs = Needs::of(&Requirement {
        resolution_ns: Some(5),
        ..requirement(100, 200, Confidence::WorstCase)
    })
    .unwrap();
    let edge = Achieved {
        below_ns: Some(100),
        above_ns: Some(200),
        estimated_error_ns: None,
        resolution_ns: Some(5),
    };
    assert!(needs.met_by(&edge));
    assert!(!needs.met_by(&Achieved { below_ns: Some(101), ..edge.clone() }));
    assert!(!needs.met_by(&Achieved { above_ns: Some(201), ..edge.clone() }));
    assert!(!needs.met_by(&Achieved { resolution_ns: Some(6), ..edge.clone() }));
    assert!(!needs.met_by(&Achieved { below_ns: None, ..edge.clone() }));
    assert!(!needs.met_by(&Achieved { above_ns: None, ..edge.clone() }));
    assert!(!needs.met_by(&Achieved { resolution_ns: None, ..edge }));
    assert_eq!(needs.half_width_ns(), Some(100));
}

#[test]
fn a_probability_needs_a_known_sigma_and_no_bounds() {
    // 1000 / 1.2 / 3.182446 is 261.8.
    let needs = Needs::of(&requirement(1000, 1000, Confidence::Probability(0.95))).unwrap();
    assert_eq!(needs.sigma_ns(), Some(261));
    let sigma = |ns| Achieved { estimated_error_ns: ns, ..Achieved::default() };
    assert!(needs.met_by(&sigma(Some(261))));
    assert!(!needs.met_by(&sigma(Some(262))));
    assert!(!needs.met_by(&sigma(None)));
}

#[test]
fn what_means_nothing_is_refused() {
    let refused = |confidence| Needs::of(&requirement(1, 1, confidence)).is_err();
    assert!(refused(Confidence::Probability(1.0)));
    assert!(refused(Confidence::Probability(f64::NAN)));
    assert!(Needs::of(&requirement(0, 1, Confidence::WorstCase)).is_err());
    assert_eq!(Demand::tightest([]), None);
}

#[test]
fn a_sufficient_half_width_keeps_both() {
    let demand = |half_width_ns, sigma_ns| Demand { half_width_ns, sigma_ns };
    let ns = |demand: Demand| demand.sufficient_half_width().map(Duration::ceil_nanos);
    assert_eq!(ns(demand(Some(7), Some(5))), Some(5));
    assert_eq!(ns(demand(Some(7), None)), Some(7));
    assert_eq!(ns(demand(Some(u64::MAX), None)), Some(i64::MAX));
    assert_eq!(ns(demand(None, None)), None);
}
