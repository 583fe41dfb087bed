//! References.

use timevisor_protocols::control::{Mark, Source, Statistics};

use super::{In, Kind, Metric, Put, Scrape, count, of_ppm, one_if, seconds};

const REFERENCE: &[&str] = &["reference"];

/// How the vote uses a reference.
const MARKS: [(Mark, &str); 5] = [
    (Mark::Selected, "selected"),
    (Mark::Combined, "combined"),
    (Mark::Rebuilding, "rebuilding"),
    (Mark::Falseticker, "falseticker"),
    (Mark::Unusable, "unusable"),
];

pub const METRICS: &[Metric] = &[
    Metric {
        name: "timevisor_reference",
        kind: Kind::Info,
        unit: In::Nothing,
        help: "A reference, its type, and its state in one word",
        labels: &["reference", "type", "state"],
        samples: |s, put| {
            each(s, |it| put(&[name(it), &it.reference.kind, &it.reference.status], 1.0));
        },
    },
    Metric {
        name: "timevisor_reference_selection",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 for how the vote uses the reference now",
        labels: &["reference", "selection"],
        samples: |s, put| {
            each(s, |it| {
                for (mark, word) in MARKS {
                    put(&[name(it), word], one_if(it.selection.mark == mark));
                }
            });
        },
    },
    Metric {
        name: "timevisor_reference_weight",
        kind: Kind::Gauge,
        unit: In::Ratio,
        help: "What the reference contributes to the estimate",
        labels: REFERENCE,
        samples: |s, put| {
            each(s, |it| {
                if let Some(weight) = it.selection.weight {
                    put(&[name(it)], weight);
                }
            });
        },
    },
    Metric {
        name: "timevisor_reference_offset",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The reference's estimate minus this host's",
        labels: REFERENCE,
        samples: |s, put| known(s, put, |it| Some(seconds(it.offset_ns))),
    },
    Metric {
        name: "timevisor_reference_earliest_offset",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The reference's earliest possible time minus this host's estimate",
        labels: REFERENCE,
        samples: |s, put| known(s, put, |it| Some(seconds(it.earliest_ns))),
    },
    Metric {
        name: "timevisor_reference_latest_offset",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The reference's latest possible time minus this host's estimate",
        labels: REFERENCE,
        samples: |s, put| known(s, put, |it| Some(seconds(it.latest_ns))),
    },
    Metric {
        name: "timevisor_reference_estimated_error",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "One sigma of the reference's estimate; not a bound",
        labels: REFERENCE,
        samples: |s, put| known(s, put, |it| Some(seconds(it.estimated_error_ns))),
    },
    Metric {
        name: "timevisor_reference_frequency",
        kind: Kind::Gauge,
        unit: In::Ratio,
        help: "The rate of the reference's time minus this host's",
        labels: REFERENCE,
        samples: |s, put| known(s, put, |it| Some(of_ppm(it.frequency_ppm))),
    },
    Metric {
        name: "timevisor_reference_last_sample_age",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Time since the last answer that was used",
        labels: REFERENCE,
        samples: |s, put| known(s, put, |it| Some(it.last_sample_s)),
    },
    Metric {
        name: "timevisor_reference_reach",
        kind: Kind::Gauge,
        unit: In::Ratio,
        help: "The share of the last eight requests that were answered",
        labels: REFERENCE,
        samples: |s, put| {
            each(s, |it| {
                // Octal, as chronyc and ntpq print it.
                if let Ok(reach) = u8::from_str_radix(&it.reference.reach, 8) {
                    put(&[name(it)], f64::from(reach.count_ones()) / 8.0);
                }
            });
        },
    },
    Metric {
        name: "timevisor_reference_delay",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Round trip of the last answer",
        labels: REFERENCE,
        samples: |s, put| {
            each(s, |it| {
                if let Some(ns) = it.reference.rtt_ns {
                    put(&[name(it)], seconds(ns));
                }
            });
        },
    },
    Metric {
        name: "timevisor_reference_stratum",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "NTP stratum of the last answer",
        labels: REFERENCE,
        samples: |s, put| {
            each(s, |it| {
                if let Some(stratum) = it.reference.stratum {
                    put(&[name(it)], f64::from(stratum));
                }
            });
        },
    },
    Metric {
        name: "timevisor_reference_poll_interval",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Interval between requests",
        labels: REFERENCE,
        samples: |s, put| each(s, |it| put(&[name(it)], it.reference.poll_s)),
    },
    Metric {
        name: "timevisor_reference_accepted",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Answers that were accepted",
        labels: REFERENCE,
        samples: |s, put| each(s, |it| put(&[name(it)], count(it.reference.accepted))),
    },
    Metric {
        name: "timevisor_reference_rejected",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Answers that were rejected, by reason",
        labels: &["reference", "reason"],
        samples: |s, put| {
            each(s, |it| {
                for (reason, number) in &it.reference.rejected {
                    put(&[name(it), reason], count(*number));
                }
            });
        },
    },
    Metric {
        name: "timevisor_reference_contradictions",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "How often the reference contradicted its own bounds",
        labels: REFERENCE,
        samples: |s, put| known(s, put, |it| Some(count(it.contradictions))),
    },
];

fn name(source: &Source) -> &str {
    &source.reference.name
}

fn each(scrape: &Scrape, work: impl FnMut(&Source)) {
    scrape.sample.answers.sources.iter().flatten().for_each(work);
}

/// One number of those references that have answered.
fn known(scrape: &Scrape, put: &mut Put<'_>, number: fn(&Statistics) -> Option<f64>) {
    each(scrape, |it| {
        if let Some(number) = it.statistics.as_ref().and_then(number) {
            put(&[name(it)], number);
        }
    });
}
