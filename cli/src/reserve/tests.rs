use super::plan::{Plan, Question, make};
use super::{file, text};

/// The tasks of "Real-Time Virtual Machines", figure 1.
const EXAMPLE: &str = r#"
policy = "rate-monotonic"
[[task]]
name = "tau1"
cost = "30ms"
period = "150ms"
[[task]]
name = "tau2"
cost = "50ms"
period = "200ms"
"#;

fn question() -> Question {
    Question {
        period: Some(50_000_000),
        budget: None,
        alone: false,
        tick: 4_000_000,
        switch: 50_000,
    }
}

#[test]
fn a_plan_says_what_and_why() {
    let set = file::parse(EXAMPLE).unwrap();
    let plan = make(&set, &question()).unwrap();
    assert!(plan.fits());
    let words = text::words(&set, &plan);
    for said in [
        "2 tasks want 45.0 % of a processor",
        "least budget  32 ms in 50 ms (64.0 %)",
        "with less, tau2 would be done after its deadline of 200 ms",
    ] {
        assert!(words.contains(said), "{words}");
    }
    let json = text::json(&set, &plan);
    assert_eq!(json["least"]["budget_ns"], 32_000_000);
    assert!(json["recommended"]["budget_ns"].as_u64().unwrap() >= 32_960_000, "{json}");
    let worst = json["tasks"][1]["worst_response_ns"].as_u64().unwrap();
    assert!(worst < 200_000_000, "{json}");
}

#[test]
fn a_budget_is_judged() {
    let set = file::parse(EXAMPLE).unwrap();
    let judged = |ms: u64, alone| {
        let question = Question { budget: Some(ms * 1_000_000), alone, ..question() };
        make(&set, &question).unwrap()
    };
    assert!(judged(28, true).fits() && !judged(28, false).fits());
    let words = text::words(&set, &judged(28, false));
    assert!(words.contains("verdict       tau2 would be done after"), "{words}");
    assert!(make(&set, &Question { budget: Some(60_000_000), ..question() }).is_err());
}

#[test]
fn edf_needs_less_and_any_period_at_most_as_much() {
    let set = file::parse(&EXAMPLE.replace("rate-monotonic", "edf")).unwrap();
    let least = |period| match make(&set, &Question { period, ..question() }).unwrap() {
        Plan::Found(found) => found.least,
        other => panic!("{other:?}"),
    };
    assert_eq!(least(Some(50_000_000)).budget(), 26_000_000);
    let best = least(None);
    assert!(best.bandwidth() < 0.52 && best.budget() >= 12_000_000, "three ticks: {best:?}");
    let words = text::words(&set, &make(&set, &question()).unwrap());
    assert!(words.contains("of work can be due within"), "{words}");
}

#[test]
fn what_cannot_be_is_said() {
    let too_much = EXAMPLE.replace("\"50ms\"", "\"190ms\"");
    let set = file::parse(&too_much).unwrap();
    let plan = make(&set, &question()).unwrap();
    assert!(!plan.fits() && text::words(&set, &plan).contains("not possible"));
    for (bad, said) in [
        ("cost = \"30ms\"", "30 ms"),
        ("policy = \"rate-monotonic\"", "policy = \"fast\""),
        ("name = \"tau1\"", "colour = \"red\""),
    ] {
        assert!(file::parse(&EXAMPLE.replace(bad, said)).is_err(), "{said}");
    }
    let order = file::parse(&EXAMPLE.replace("30ms", "160ms")).unwrap_err();
    assert!(order.to_string().contains("task tau1"), "{order:#}");
}
