//! Samples in Prometheus' text formats.
//!
//! | file | metrics of |
//! | --- | --- |
//! | this one | the shape of a metric, and the encoding |
//! | `own.rs` | this process, timevisord's process, whether questions are answered |
//! | `clock.rs` | the host's clock, counter, leap table, NTP server |
//! | `references.rs` | references |
//! | `vms.rs` | VMs and their introspection |
//! | `timelines.rs` | timelines and clusters |
//! | `reservations.rs` | reservations of processor time |
//! | `reference_page.rs` | docs/reference/metrics.md, made from these tables (tests) |
//!
//! A metric is a row of a table, so that documentation and code cannot differ. Names and units follow
//! <https://prometheus.io/docs/practices/naming/>: base units, `_total` for counters, `_info`. What
//! is not known has no sample.

mod clock;
mod own;
#[cfg(test)]
mod reference_page;
mod references;
mod reservations;
mod timelines;
mod vms;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::process::Process;
use crate::sample::{Clock, Sample};
use crate::sampler::Counts;
use crate::web::Served;

/// What a scrape is made of.
#[derive(Debug)]
pub struct Scrape {
    pub sample: Arc<Sample>,
    /// The page at the scrape: the sample may be a second old.
    pub clock: Result<Clock, String>,
    pub counts: Counts,
    pub served: Served,
    pub own_process: Option<Process>,
    pub daemon_process: Option<Process>,
    pub boot_time: Option<f64>,
}

/// What kind of metric it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Gauge,
    Counter,
    /// Always 1; the labels say it.
    Info,
}

/// A metric's unit, which its name ends with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum In {
    Nothing,
    Seconds,
    Bytes,
    /// A share: 1 is all.
    Ratio,
    Hertz,
}

impl In {
    fn unit(self) -> Option<Unit> {
        match self {
            Self::Nothing => None,
            Self::Seconds => Some(Unit::Seconds),
            Self::Bytes => Some(Unit::Bytes),
            Self::Ratio => Some(Unit::Other("ratio".to_owned())),
            Self::Hertz => Some(Unit::Other("hertz".to_owned())),
        }
    }
}

/// Takes the samples of a metric: the labels' values and the number.
pub type Put<'a> = dyn FnMut(&[&str], f64) + 'a;

/// A metric.
pub struct Metric {
    /// Without the unit and `_total` or `_info`.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: In,
    /// One sentence, without the full stop.
    pub help: &'static str,
    pub labels: &'static [&'static str],
    pub samples: fn(&Scrape, &mut Put<'_>),
}

/// All metrics, by group.
pub const GROUPS: [(&str, &[Metric]); 6] = [
    ("Observation", own::METRICS),
    ("The clock", clock::METRICS),
    ("References", references::METRICS),
    ("VMs", vms::METRICS),
    ("Timelines and clusters", timelines::METRICS),
    ("Reservations", reservations::METRICS),
];

/// Which format, by the scraper's Accept header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    pub fn accepted(accept: &str) -> Self {
        let wants = |part: &str| part.trim_start().starts_with("application/openmetrics-text");
        if accept.split(',').any(wants) { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A scrape as text.
///
/// # Errors
/// Never: writing to memory does not fail.
pub fn encode(scrape: Scrape, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut page = String::with_capacity(64 << 10);
    match format {
        Format::Prometheus => prometheus_text::encode(&mut page, &registry)?,
        Format::OpenMetrics => text::encode(&mut page, &registry)?,
    }
    Ok(page)
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in GROUPS.iter().flat_map(|(_, metrics)| *metrics) {
            metric.encode(self, &mut encoder)?;
        }
        Ok(())
    }
}

impl Metric {
    /// A metric without samples is left out, with its HELP: a page of a host without VMs is short.
    fn encode(&self, scrape: &Scrape, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples: Vec<(Vec<String>, f64)> = Vec::new();
        (self.samples)(scrape, &mut |values, number| {
            samples.push((values.iter().map(|value| (*value).to_owned()).collect(), number));
        });
        if samples.is_empty() {
            return Ok(());
        }
        let unit = self.unit.unit();
        let kind = match self.kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Info => MetricType::Info,
        };
        let mut family = encoder.encode_descriptor(self.name, self.help, unit.as_ref(), kind)?;
        for (values, number) in &samples {
            let labels: Vec<(&str, &str)> =
                self.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            let labels = labels.as_slice();
            match self.kind {
                Kind::Info => family.encode_info(&labels)?,
                _ if labels.is_empty() => encode_number(self.kind, &mut family, *number)?,
                kind => encode_number(kind, &mut family.encode_family(&labels)?, *number)?,
            }
        }
        Ok(())
    }
}

fn encode_number(kind: Kind, encoder: &mut MetricEncoder<'_>, number: f64) -> fmt::Result {
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&number, None),
        Kind::Gauge | Kind::Info => encoder.encode_gauge(&number),
    }
}

/// Nanoseconds in Prometheus' base unit.
#[expect(clippy::cast_precision_loss, reason = "for display: 53 bits of nanoseconds are 104 days")]
fn seconds(ns: impl Into<i128>) -> f64 {
    ns.into() as f64 / 1e9
}

/// A count. Prometheus keeps all numbers as doubles.
#[expect(clippy::cast_precision_loss, reason = "Prometheus keeps doubles")]
const fn count(number: u64) -> f64 {
    number as f64
}

/// Parts per million as a ratio.
const fn of_ppm(ppm: f64) -> f64 {
    ppm * 1e-6
}

fn one_if(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::collections::BTreeSet;

    fn page(format: Format) -> String {
        encode(testing::scrape(3), format).unwrap()
    }

    #[test]
    fn names_follow_the_conventions_and_are_there_once() {
        let mut names = BTreeSet::new();
        for metric in GROUPS.iter().flat_map(|(_, metrics)| *metrics) {
            let name = metric.name;
            assert!(names.insert(name), "{name} is there twice");
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(plain), "{name}");
            assert!(name.starts_with("timevisor_") || name.starts_with("process_"), "{name}");
            for ending in ["_total", "_info", "_seconds", "_bytes", "_ratio", "_milliseconds"] {
                assert!(!name.ends_with(ending), "{name}: its kind or unit says that");
            }
            assert!(!metric.help.ends_with('.') && metric.help.len() > 10, "{name}");
        }
    }

    #[test]
    fn every_metric_has_samples_for_a_host_with_everything() {
        let page = page(Format::Prometheus);
        for metric in GROUPS.iter().flat_map(|(_, metrics)| *metrics) {
            assert!(page.contains(&format!("# HELP {}", metric.name)), "{}", metric.name);
        }
    }

    #[test]
    fn values_are_those_of_the_sample_in_base_units() {
        let page = page(Format::Prometheus);
        for line in [
            "timevisor_up 1.0\n",
            "timevisor_clock_earliest_distance_seconds 0.0000125\n",
            "timevisor_clock_status{status=\"synchronized\"} 1.0\n",
            "timevisor_clock_status{status=\"unreliable\"} 0.0\n",
            "timevisor_reference_offset_seconds{reference=\"a.example\"} -0.0000025\n",
            "timevisor_reference_reach_ratio{reference=\"a.example\"} 0.75\n",
            "timevisor_vm_status{vm=\"vm1\",status=\"synchronized\"} 1.0\n",
            "timevisor_timeline_required_earliest_distance_seconds{timeline=\"utc\",tenant=\"\"} 0.001\n",
            "timevisor_reservation_budget_seconds{vm=\"vm0\",vcpu=\"0\"} 0.002\n",
            "timevisor_reservation_intervals_total{vm=\"vm0\",vcpu=\"0\",result=\"broken\"} 2.0\n",
            "timevisor_observe_unanswered_total{question=\"status\"} 0.0\n",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn without_a_daemon_there_is_no_number_of_the_daemons() {
        let page = encode(testing::scrape_without_daemon(), Format::Prometheus).unwrap();
        assert!(page.contains("timevisor_up 0.0\n"));
        assert!(!page.contains("timevisor_vm") && !page.contains("timevisor_reference_"));
        assert!(page.contains("timevisor_clock_status"), "the page is still there");
    }

    #[test]
    fn open_metrics_ends_as_it_must_and_counters_are_named_right() {
        let page = page(Format::OpenMetrics);
        assert!(page.ends_with("# EOF\n"));
        assert!(page.contains("# TYPE timevisor_vm_pages_published counter\n"));
        assert!(page.contains("timevisor_vm_pages_published_total{vm=\"vm0\"}"));
        assert!(page.contains("timevisor_build_info{version="));
        let accepted = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;q=0.5";
        assert_eq!(Format::accepted(accepted), Format::OpenMetrics);
        assert_eq!(Format::accepted("text/plain"), Format::Prometheus);
    }

    #[test]
    fn a_strange_name_stays_one_label() {
        let mut scrape = testing::scrape(1);
        let sample = Arc::get_mut(&mut scrape.sample).unwrap();
        sample.answers.vms.as_mut().unwrap().vms[0].name = "a\"} 1\nfake 1\\".to_owned();
        let page = encode(scrape, Format::Prometheus).unwrap();
        assert!(page.contains("vm=\"a\\\"} 1\\nfake 1\\\\\""), "{page}");
        assert!(!page.contains("\nfake"));
    }

    /// The bound is 20 ms in a released program; here the work is counted instead: the page
    /// grows with the number of VMs, and with nothing else.
    #[test]
    fn a_scrape_of_200_vms_is_linear() {
        let size = |vms| encode(testing::scrape(vms), Format::Prometheus).unwrap().len();
        let each = (size(200) - size(100)) / 100;
        assert!(each < 3_000, "{each} bytes a VM");
        assert!(size(200) < size(0) + 201 * each + 1_000);
    }
}
