use super::schedule::{Counts, run};

#[test]
fn thousands_of_schedules_end_as_they_began_wherever_the_daemon_died() {
    let mut counts = Counts::default();
    let mut wrong = Vec::new();
    for seed in 0..3000 {
        match run(seed) {
            Ok(more) => counts += more,
            Err(why) => wrong.push(why),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    // The schedules reach what they are for.
    let Counts { granted, refused, deaths, continued, without_daemon, slept } = counts;
    for (what, count) in [
        ("granted", granted),
        ("refused", refused),
        ("deaths", deaths),
        ("continued", continued),
        ("without a daemon", without_daemon),
        ("slept", slept),
    ] {
        assert!(count > 500, "{what}: {count} of {counts:?}");
    }
}
