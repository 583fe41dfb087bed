//! Whether there are answers, and what observing costs.

use timevisor_protocols::control::Question;

use super::{In, Kind, Metric, count, one_if};

pub const METRICS: &[Metric] = &[
    Metric {
        name: "timevisor_up",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 if timevisord answers",
        labels: &[],
        samples: |s, put| put(&[], one_if(s.sample.presence.problem.is_none())),
    },
    Metric {
        name: "timevisor_presence_change_timestamp",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Since when timevisord has answered, or has not, as observed; Unix time",
        labels: &[],
        samples: |s, put| put(&[], count(s.sample.presence.since_ms) / 1e3),
    },
    Metric {
        name: "timevisor_page_up",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 if the host's page can be read",
        labels: &[],
        samples: |s, put| put(&[], one_if(s.clock.is_ok())),
    },
    Metric {
        name: "timevisor_build",
        kind: Kind::Info,
        unit: In::Nothing,
        help: "The version of timevisord, and the identity of this host",
        labels: &["version", "host_id"],
        samples: |s, put| {
            if let Some(status) = &s.sample.answers.status {
                put(&[&status.version, &status.host_id], 1.0);
            }
        },
    },
    Metric {
        name: "timevisor_daemon_uptime",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "How long timevisord has been running",
        labels: &[],
        samples: |s, put| {
            if let Some(status) = &s.sample.answers.status {
                put(&[], count(status.uptime_s));
            }
        },
    },
    Metric {
        name: "timevisor_daemon_cpu",
        kind: Kind::Counter,
        unit: In::Seconds,
        help: "Processor time of timevisord, where /proc shows it",
        labels: &[],
        samples: |s, put| {
            if let Some(process) = &s.daemon_process {
                put(&[], process.cpu_seconds);
            }
        },
    },
    Metric {
        name: "timevisor_daemon_resident_memory",
        kind: Kind::Gauge,
        unit: In::Bytes,
        help: "Resident memory of timevisord, where /proc shows it",
        labels: &[],
        samples: |s, put| {
            if let Some(process) = &s.daemon_process {
                put(&[], process.resident_bytes);
            }
        },
    },
    Metric {
        name: "timevisor_observe_build",
        kind: Kind::Info,
        unit: In::Nothing,
        help: "The version of timevisor-observe",
        labels: &["version"],
        samples: |_, put| put(&[env!("CARGO_PKG_VERSION")], 1.0),
    },
    Metric {
        name: "timevisor_observe_sample_age",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Age of what timevisord said; the clock's bounds are read at the scrape",
        labels: &[],
        samples: |s, put| put(&[], s.sample.taken.elapsed().as_secs_f64()),
    },
    Metric {
        name: "timevisor_observe_rounds",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "How often timevisord was asked everything",
        labels: &[],
        samples: |s, put| put(&[], count(s.counts.asked)),
    },
    Metric {
        name: "timevisor_observe_unanswered",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Questions to timevisord without an answer",
        labels: &["question"],
        samples: |s, put| {
            for question in Question::OBSERVED {
                put(&[question.name()], count(s.counts.unanswered[question as usize]));
            }
        },
    },
    Metric {
        name: "timevisor_observe_requests",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "HTTP requests by outcome: served, or refused for the named reason",
        labels: &["outcome"],
        samples: |s, put| {
            for (outcome, number) in s.served.outcomes() {
                put(&[outcome], count(number));
            }
        },
    },
    Metric {
        name: "timevisor_observe_viewers",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Browsers that get news now",
        labels: &[],
        samples: |s, put| put(&[], count(s.served.viewers)),
    },
    Metric {
        name: "process_cpu",
        kind: Kind::Counter,
        unit: In::Seconds,
        help: "Processor time of timevisor-observe",
        labels: &[],
        samples: |s, put| {
            if let Some(process) = &s.own_process {
                put(&[], process.cpu_seconds);
            }
        },
    },
    Metric {
        name: "process_resident_memory",
        kind: Kind::Gauge,
        unit: In::Bytes,
        help: "Resident memory of timevisor-observe",
        labels: &[],
        samples: |s, put| {
            if let Some(process) = &s.own_process {
                put(&[], process.resident_bytes);
            }
        },
    },
    Metric {
        name: "process_open_fds",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Open descriptors of timevisor-observe",
        labels: &[],
        samples: |s, put| {
            if let Some(open) = s.own_process.and_then(|process| process.open_descriptors) {
                put(&[], open);
            }
        },
    },
    Metric {
        name: "process_start_time",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "When timevisor-observe started, Unix time",
        labels: &[],
        samples: |s, put| {
            if let (Some(process), Some(boot)) = (&s.own_process, s.boot_time) {
                put(&[], boot + process.started_seconds);
            }
        },
    },
];
