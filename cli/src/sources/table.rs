//! All references, one line each.

use timevisor_protocols::control::Source;
use timevisor_time::Duration;

use crate::bound::sides;

pub const LEGEND: &str =
    "marks: * weighs most, + counts, - rebuilds its bounds, x is outvoted, ? says nothing usable\n";

pub fn text(sources: &[Source]) -> String {
    let widest = sources.iter().map(|source| source.reference.name.len()).max().unwrap_or(0);
    let width = widest.clamp(9, 40);
    let mut out = format!(
        "  {:<width$} {:<6} {:>2} {:>7} {:>5} {:>7} {:>12} {:>12}  {}\n",
        "reference", "kind", "st", "poll", "reach", "last", "offset", "sigma", "bounds beside ours"
    );
    for source in sources {
        out += &row(source, width);
    }
    out += LEGEND;
    out
}

fn row(source: &Source, width: usize) -> String {
    let reference = &source.reference;
    let stratum = reference.stratum.map_or_else(|| "-".to_owned(), |stratum| stratum.to_string());
    let mut out = format!(
        "{} {:<width$} {:<6} {:>2} {:>7} {:>5}",
        source.selection.mark.character(),
        reference.name,
        reference.kind,
        stratum,
        seconds(reference.poll_s),
        reference.reach,
    );
    out += &match &source.statistics {
        None => format!(" {:>7} {:>12} {:>12}  -\n", "-", "-", "-"),
        Some(said) => format!(
            " {:>7} {:>12} {:>12}  {}\n",
            seconds(said.last_sample_s),
            nanoseconds(said.offset_ns),
            nanoseconds(said.estimated_error_ns),
            beside_ours(said.earliest_ns, said.latest_ns)
        ),
    };
    if !matches!(reference.status.as_str(), "selected" | "reachable") {
        out += &format!("    {}: {}\n", reference.status, reference.detail);
    }
    if !reference.shares_vote_with.is_empty() {
        out += &format!("    {}\n", shared(&reference.shares_vote_with));
    }
    out
}

/// Who has one vote together with this reference.
pub fn shared(names: &[String]) -> String {
    format!("has one vote together with {}: one source of time", names.join(", "))
}

/// Bounds beside our clock: `-below +above` where it is inside them.
pub fn beside_ours(earliest_ns: i64, latest_ns: i64) -> String {
    let span = Duration::from_nanos;
    if earliest_ns <= 0 && latest_ns >= 0 {
        return sides(span(-earliest_ns), span(latest_ns));
    }
    format!("{} to {}", nanoseconds(earliest_ns), nanoseconds(latest_ns))
}

pub fn nanoseconds(ns: i64) -> String {
    Duration::from_nanos(ns).to_string()
}

/// A span that fits into a column.
pub fn seconds(span: f64) -> String {
    match span {
        ..10.0 => format!("{span:.1}s"),
        ..10_000.0 => format!("{span:.0}s"),
        ..1_000_000.0 => format!("{:.0}h", span / 3600.0),
        _ => format!("{:.0}d", span / 86_400.0),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A source as the daemon sends it.
    pub fn source(fields: &str) -> Source {
        let json = format!(
            r#"{{"name":"ntp.example","kind":"ntp","status":"reachable","detail":"fine","stratum":2,"offset_ns":120,
            "rtt_ns":40000,"accepted":12,"rejected":{{}},"reach":"377","poll_s":4.0{fields}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    pub const SELECTION: &str = r#","selection":{"mark":"selected","weight":0.75}"#;
    pub const STATISTICS: &str = r#","statistics":{"samples":12,"last_sample_s":1.26,"offset_ns":-1500,
        "estimated_error_ns":800,"earliest_ns":-21000,"latest_ns":25500,"frequency_ppm":-0.012,"skew_ppm":1.5,
        "contradictions":0}"#;

    #[test]
    fn a_line_has_what_chronyc_users_look_for() {
        let said = text(&[source(&(SELECTION.to_owned() + STATISTICS))]);
        let line = said.lines().nth(1).unwrap();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>().join(" "),
            "* ntp.example ntp 2 4.0s 377 1.3s -1.500 us 800 ns -21.000 us +25.500 us"
        );
    }

    #[test]
    fn trouble_and_shared_votes_have_lines_of_their_own() {
        let fields = r#","selection":{"mark":"unusable"},"shares_vote_with":["a","b"]"#;
        let mut silent = source(fields);
        silent.reference.status = "unreachable".to_owned();
        let said = text(&[silent]);
        assert!(said.contains("\n? ntp.example"), "{said}");
        assert!(said.contains("\n    unreachable: fine\n"), "{said}");
        assert!(said.contains("one vote together with a, b"), "{said}");
    }

    #[test]
    fn bounds_that_do_not_contain_our_clock_are_shown_as_they_are() {
        assert_eq!(beside_ours(-5, 7), "-5 ns +7 ns");
        assert_eq!(beside_ours(2_000, 3_000), "2.000 us to 3.000 us");
        let columns = [0.26, 64.0, 7_200.0, 90_000.0, 2_000_000.0].map(seconds);
        assert_eq!(columns, ["0.3s", "64s", "7200s", "25h", "23d"]);
    }
}
