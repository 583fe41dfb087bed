//! The host's clock, its counter, the leap table, and the NTP server.

use timevisor_protocols::control::Status;

use super::{In, Kind, Metric, Put, Scrape, count, of_ppm, one_if, seconds};
use crate::sample::STATUSES;

pub const METRICS: &[Metric] = &[
    Metric {
        name: "timevisor_clock_status",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 for the clock's status now; the bounds hold in all but unreliable and unknown",
        labels: &["status"],
        samples: |s, put| {
            if let Ok(clock) = &s.clock {
                for (status, name) in STATUSES {
                    put(&[name], one_if(clock.status == status));
                }
            }
        },
    },
    Metric {
        name: "timevisor_clock_earliest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "True time is at most this far before the estimate",
        labels: &[],
        samples: |s, put| optional(s.clock.as_ref().ok().and_then(|it| it.below_ns), put),
    },
    Metric {
        name: "timevisor_clock_latest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "True time is at most this far after the estimate",
        labels: &[],
        samples: |s, put| optional(s.clock.as_ref().ok().and_then(|it| it.above_ns), put),
    },
    Metric {
        name: "timevisor_clock_estimated_error",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "One sigma of the estimate; not a bound",
        labels: &[],
        samples: |s, put| optional(s.clock.as_ref().ok().and_then(|it| it.estimated_error_ns), put),
    },
    Metric {
        name: "timevisor_clock_disruption_marker",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Changes when time may have stepped",
        labels: &[],
        samples: |s, put| {
            if let Ok(clock) = &s.clock {
                put(&[], count(clock.disruption_marker));
            }
        },
    },
    Metric {
        name: "timevisor_clock_last_update_age",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Time since a reference last narrowed the bounds",
        labels: &[],
        samples: |s, put| {
            if let Some(age) = status(s).and_then(|it| it.clock.since_update_s) {
                put(&[], age);
            }
        },
    },
    Metric {
        name: "timevisor_clock_contradictions",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "How often evidence contradicted the assumptions behind the bounds",
        labels: &[],
        samples: |s, put| {
            if let Some(status) = status(s) {
                put(&[], count(status.clock.contradictions));
            }
        },
    },
    Metric {
        name: "timevisor_clock_rate_bound",
        kind: Kind::Gauge,
        unit: In::Ratio,
        help: "Bound on the rate error of the clock",
        labels: &[],
        samples: |s, put| {
            if let Some(ppb) = status(s).and_then(|it| it.clock.rate_bound_ppb) {
                put(&[], ppb * 1e-9);
            }
        },
    },
    Metric {
        name: "timevisor_clock_root_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The largest error that an NTP client of this host has to assume",
        labels: &[],
        samples: |s, put| {
            if let Some(ns) = s.sample.answers.tracking.as_ref().and_then(|it| it.root_distance_ns)
            {
                put(&[], seconds(ns));
            }
        },
    },
    Metric {
        name: "timevisor_clock_stratum",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "NTP stratum of this host's clock",
        labels: &[],
        samples: |s, put| {
            if let Some(stratum) = s.sample.answers.tracking.as_ref().and_then(|it| it.stratum) {
                put(&[], f64::from(stratum));
            }
        },
    },
    Metric {
        name: "timevisor_system_clock_offset",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "CLOCK_REALTIME minus the estimate of UTC",
        labels: &[],
        samples: |s, put| {
            if let Some(ns) = s.sample.answers.tracking.as_ref().and_then(|it| it.system_offset_ns)
            {
                put(&[], seconds(ns));
            }
        },
    },
    Metric {
        name: "timevisor_clocksource",
        kind: Kind::Info,
        unit: In::Nothing,
        help: "The hardware counter behind the clock",
        labels: &["counter"],
        samples: |s, put| {
            if let Some(status) = status(s) {
                put(&[&status.counter.name], 1.0);
            }
        },
    },
    Metric {
        name: "timevisor_clocksource_frequency",
        kind: Kind::Gauge,
        unit: In::Hertz,
        help: "Measured frequency of the counter",
        labels: &[],
        samples: |s, put| {
            if let Some(hz) = status(s).and_then(|it| it.counter.hz) {
                put(&[], hz);
            }
        },
    },
    Metric {
        name: "timevisor_clocksource_trusted",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "0 while the counter is in doubt; timevisor status says why",
        labels: &[],
        samples: |s, put| {
            if let Some(status) = status(s) {
                put(&[], one_if(status.counter.problem.is_none()));
            }
        },
    },
    Metric {
        name: "timevisor_leap_table_expiry_timestamp",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "When the leap second table expires, Unix time",
        labels: &[],
        samples: |s, put| {
            if let Some(at) = status(s).and_then(|it| it.leap_table.expires_unix) {
                put(&[], seconds(i128::from(at) * 1_000_000_000));
            }
        },
    },
    Metric {
        name: "timevisor_tai_offset",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "TAI minus UTC",
        labels: &[],
        samples: |s, put| {
            if let Some(offset) = status(s).and_then(|it| it.leap_table.tai_offset) {
                put(&[], f64::from(offset));
            }
        },
    },
    Metric {
        name: "timevisor_discipline_active",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 while timevisord steers CLOCK_REALTIME; absent if it is not to",
        labels: &[],
        samples: |s, put| {
            if let Some(discipline) = status(s).and_then(|it| it.discipline.as_ref()) {
                put(&[], one_if(discipline.state == "steering"));
            }
        },
    },
    Metric {
        name: "timevisor_discipline_frequency",
        kind: Kind::Gauge,
        unit: In::Ratio,
        help: "The rate correction of CLOCK_REALTIME in force",
        labels: &[],
        samples: |s, put| {
            if let Some(discipline) = status(s).and_then(|it| it.discipline.as_ref()) {
                put(&[], of_ppm(discipline.frequency_ppm));
            }
        },
    },
    Metric {
        name: "timevisor_ntp_server_requests",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Requests to this host's NTP server by outcome",
        labels: &["outcome"],
        samples: |s, put| {
            let server = status(s).and_then(|it| it.server.as_ref());
            for (outcome, number) in server.into_iter().flat_map(|it| &it.requests) {
                put(&[outcome], count(*number));
            }
        },
    },
    Metric {
        name: "timevisor_nts_sessions",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Key establishments of this host's NTS server by outcome",
        labels: &["outcome"],
        samples: |s, put| {
            let nts = status(s).and_then(|it| it.server.as_ref()?.nts.as_ref());
            for (outcome, number) in nts.into_iter().flat_map(|it| &it.sessions) {
                put(&[outcome], count(*number));
            }
        },
    },
];

fn status(scrape: &Scrape) -> Option<&Status> {
    scrape.sample.answers.status.as_ref()
}

fn optional(ns: Option<u64>, put: &mut Put<'_>) {
    if let Some(ns) = ns {
        put(&[], seconds(ns));
    }
}
