//! docs/reference/metrics.md is made from the tables. `TIMEVISOR_WRITE_DOCS=1 cargo test -p
//! timevisor-observe` writes it; without the variable the test compares.

use std::fmt::Write as _;
use std::path::Path;

use super::{GROUPS, In, Kind, Metric};

fn full_name(metric: &Metric) -> String {
    let unit = match metric.unit {
        In::Nothing => "",
        In::Seconds => "_seconds",
        In::Bytes => "_bytes",
        In::Ratio => "_ratio",
        In::Hertz => "_hertz",
    };
    let kind = match metric.kind {
        Kind::Gauge => "",
        Kind::Counter => "_total",
        Kind::Info => "_info",
    };
    format!("{}{unit}{kind}", metric.name)
}

fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         What `timevisor-observe` serves at /metrics, in Prometheus' text format or, for scrapers that accept it, OpenMetrics.\n\
         [Observe](../how-to/observe.md) sets it up; [alerts](../../packaging/observe/alerts.yml) and a\n\
         [Grafana dashboard](../../packaging/observe/grafana.json) are examples. This page is made from the code.\n\n\
         What is not known has no sample. What timevisord says is up to a second old; the clock's bounds are read from the page\n\
         at the scrape. While timevisord does not answer, `timevisor_up` is 0, and only the metrics of the page and of\n\
         timevisor-observe are there.\n",
    );
    for (group, metrics) in GROUPS {
        let _ = write!(
            page,
            "\n## {group}\n\n| metric | type | labels | |\n| --- | --- | --- | --- |\n"
        );
        for metric in metrics {
            let kind = match metric.kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
                Kind::Info => "info",
            };
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, labels) = (full_name(metric), labels.join(", "));
            let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {} |", metric.help);
        }
    }
    page
}

#[test]
fn the_reference_page_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    if std::env::var_os("TIMEVISOR_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page(), "run TIMEVISOR_WRITE_DOCS=1 cargo test -p timevisor-observe");
}

#[test]
fn the_names_on_the_page_are_those_of_a_scrape() {
    let scrape = super::encode(crate::testing::scrape(1), super::Format::Prometheus).unwrap();
    for metric in GROUPS.iter().flat_map(|(_, metrics)| *metrics) {
        let name = full_name(metric);
        assert!(scrape.contains(&format!("# HELP {name} ")), "{name}");
    }
}

#[test]
fn examples_name_metrics_that_exist() {
    let known: Vec<_> = GROUPS.iter().flat_map(|(_, metrics)| *metrics).map(full_name).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/observe");
    for file in ["alerts.yml", "alerts-test.yml", "grafana.json"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        if file.ends_with("json") {
            let _: serde_json::Value = serde_json::from_str(&text).unwrap();
        }
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metrics = words.filter(|word| word.starts_with("timevisor_"));
        let mut count = 0;
        for metric in metrics {
            assert!(known.iter().any(|it| it == metric), "{file}: {metric} does not exist");
            count += 1;
        }
        assert!(count > 10, "{file} names {count} metrics");
    }
}
