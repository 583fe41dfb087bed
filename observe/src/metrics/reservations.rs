//! Reservations of processor time.

use timevisor_protocols::control::{Promise, ReserveRow};

use super::{In, Kind, Metric, Put, Scrape, count, one_if, seconds};

const VCPU: &[&str] = &["vm", "vcpu"];

pub const METRICS: &[Metric] = &[
    Metric {
        name: "timevisor_reservation",
        kind: Kind::Info,
        unit: In::Nothing,
        help: "A reservation, its guarantee, and its core if it has one",
        labels: &["vm", "vcpu", "promise", "core"],
        samples: |s, put| {
            each(s, |it, vcpu| {
                let promise = match it.promise {
                    Promise::Core => "core",
                    Promise::Global => "global",
                    Promise::Fifo => "fifo",
                    Promise::Limit => "limit",
                };
                let core = it.core.map(|core| core.to_string()).unwrap_or_default();
                put(&[&it.vm, vcpu, promise, &core], 1.0);
            });
        },
    },
    Metric {
        name: "timevisor_reservation_kept",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "0 while the guarantee does not hold; timevisor reserve list says why",
        labels: VCPU,
        samples: |s, put| each(s, |it, vcpu| put(&[&it.vm, vcpu], one_if(it.problem.is_none()))),
    },
    Metric {
        name: "timevisor_reservation_budget",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Reserved processor time in every period",
        labels: VCPU,
        samples: |s, put| number(s, put, |it| Some(it.budget_ns)),
    },
    Metric {
        name: "timevisor_reservation_period",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Length of the period",
        labels: VCPU,
        samples: |s, put| number(s, put, |it| Some(it.period_ns)),
    },
    Metric {
        name: "timevisor_reservation_deadline",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Deadline of the budget after the start of a period",
        labels: VCPU,
        samples: |s, put| number(s, put, |it| Some(it.deadline_ns)),
    },
    Metric {
        name: "timevisor_reservation_held",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "How long the reservation has existed",
        labels: VCPU,
        samples: |s, put| number(s, put, |it| Some(it.held_ns)),
    },
    Metric {
        name: "timevisor_reservation_run",
        kind: Kind::Counter,
        unit: In::Seconds,
        help: "Processor time that the vCPU used since the reservation was made",
        labels: VCPU,
        samples: |s, put| number(s, put, |it| it.ran_ns),
    },
    Metric {
        name: "timevisor_reservation_wait",
        kind: Kind::Counter,
        unit: In::Seconds,
        help: "How long the vCPU was runnable without running: out of budget, or behind others",
        labels: VCPU,
        samples: |s, put| number(s, put, |it| it.waited_ns),
    },
    Metric {
        name: "timevisor_reservation_intervals",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Seconds of the audit by result; broken: the host gave less than was reserved",
        labels: &["vm", "vcpu", "result"],
        samples: |s, put| {
            each(s, |it, vcpu| {
                let Some(audit) = &it.audit else { return };
                for (result, number) in [
                    ("satisfied", audit.satisfied),
                    ("exhausted", audit.exhausted),
                    ("broken", audit.broken),
                    ("unclear", audit.unclear),
                ] {
                    put(&[&it.vm, vcpu, result], count(number));
                }
            });
        },
    },
    Metric {
        name: "timevisor_reservation_most_missing",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The greatest shortfall from the guarantee in one second of the audit",
        labels: VCPU,
        samples: |s, put| number(s, put, |it| it.audit.as_ref().map(|it| it.most_missing_ns)),
    },
    Metric {
        name: "timevisor_reservation_late_jobs",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Jobs of introspected tasks that missed their deadline, by cause",
        labels: &["vm", "vcpu", "cause"],
        samples: |s, put| {
            each(s, |it, vcpu| {
                let Some(late) = &it.late else { return };
                for (cause, number) in [
                    ("host_broke", late.host_broke),
                    ("guest_under_declared", late.guest_under_declared),
                    ("guest_policy", late.guest_policy),
                    ("unclear", late.unclear),
                ] {
                    put(&[&it.vm, vcpu, cause], count(number));
                }
            });
        },
    },
];

fn each(scrape: &Scrape, mut work: impl FnMut(&ReserveRow, &str)) {
    for row in scrape.sample.answers.reservations.iter().flatten() {
        work(row, &row.vcpu.to_string());
    }
}

fn number(scrape: &Scrape, put: &mut Put<'_>, ns: fn(&ReserveRow) -> Option<u64>) {
    each(scrape, |it, vcpu| {
        if let Some(ns) = ns(it) {
            put(&[&it.vm, vcpu], seconds(ns));
        }
    });
}
