//! VMs, and the introspection of their tasks.

use timevisor_protocols::control::{IntrospectRow, IntrospectState, TimeType, VmRow};

use super::{In, Kind, Metric, Scrape, count, one_if, seconds};
use crate::sample::STATUSES;

const VM: &[&str] = &["vm"];

pub const METRICS: &[Metric] = &[
    Metric {
        name: "timevisor_vms",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "VMs that are served",
        labels: &[],
        samples: |s, put| {
            if let Some(list) = &s.sample.answers.vms {
                put(&[], count(list.vms.len() as u64));
            }
        },
    },
    Metric {
        name: "timevisor_vms_not_served",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Processes that look like VMs and are not served; timevisor vm list says why",
        labels: &[],
        samples: |s, put| {
            if let Some(list) = &s.sample.answers.vms {
                put(&[], count(list.not_served.len() as u64));
            }
        },
    },
    Metric {
        name: "timevisor_vm",
        kind: Kind::Info,
        unit: In::Nothing,
        help: "A VM, how its page reaches the guest, and how the guest's counter is computed",
        labels: &["vm", "accelerator", "delivery", "mapping", "timescale"],
        samples: |s, put| {
            each(s, |it| {
                let timescale = match it.time_type {
                    TimeType::Tai => "tai",
                    TimeType::Utc => "utc",
                };
                put(&[&it.name, &it.accelerator, &it.delivery, &it.mapping, timescale], 1.0);
            });
        },
    },
    Metric {
        name: "timevisor_vm_status",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 for the status that the guest sees now; none: it sees none",
        labels: &["vm", "status"],
        samples: |s, put| {
            each(s, |it| {
                let sees = STATUSES.map(|(_, name)| it.status == name);
                for ((_, name), is_it) in STATUSES.into_iter().zip(sees) {
                    put(&[&it.name, name], one_if(is_it));
                }
                put(&[&it.name, "none"], one_if(!sees.contains(&true)));
            });
        },
    },
    Metric {
        name: "timevisor_vm_pages_published",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "How often the VM's page was written",
        labels: VM,
        samples: |s, put| each(s, |it| put(&[&it.name], count(it.pages_published))),
    },
    Metric {
        name: "timevisor_vm_disruption_marker",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Changes when the guest's time was disrupted",
        labels: VM,
        samples: |s, put| each(s, |it| put(&[&it.name], count(it.disruption_marker))),
    },
    Metric {
        name: "timevisor_vm_migration",
        kind: Kind::Info,
        unit: In::Nothing,
        help: "The VM is draining, incoming, leaving, has left, or its migration failed",
        labels: &["vm", "state"],
        samples: |s, put| {
            each(s, |it| {
                if let Some(state) = &it.migration {
                    // The reason of a failure would make a new series each time.
                    put(&[&it.name, state.split(':').next().unwrap_or_default()], 1.0);
                }
            });
        },
    },
    Metric {
        name: "timevisor_introspection_attached",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 while all trap points of the VM's introspection are in place",
        labels: VM,
        samples: |s, put| {
            observed(s, |it| put(&[&it.vm], one_if(it.state == IntrospectState::Attached)));
        },
    },
    Metric {
        name: "timevisor_introspection_tasks",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Real-time tasks that the VM's introspection knows",
        labels: VM,
        samples: |s, put| observed(s, |it| put(&[&it.vm], count(it.tasks.len() as u64))),
    },
    Metric {
        name: "timevisor_introspection_events",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Events of the VM's introspection",
        labels: VM,
        samples: |s, put| observed(s, |it| put(&[&it.vm], count(it.events))),
    },
    Metric {
        name: "timevisor_introspection_events_dropped",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Events that were lost, because there were too many",
        labels: VM,
        samples: |s, put| observed(s, |it| put(&[&it.vm], count(it.dropped))),
    },
    Metric {
        name: "timevisor_introspection_events_malformed",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Events without a meaning",
        labels: VM,
        samples: |s, put| observed(s, |it| put(&[&it.vm], count(it.senseless))),
    },
    Metric {
        name: "timevisor_introspection_reserved_budget",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Processor time in every period that follows from the observed tasks",
        labels: VM,
        samples: |s, put| {
            observed(s, |it| {
                if let Some(reserved) = &it.reserved {
                    put(&[&it.vm], seconds(reserved.budget_ns));
                }
            });
        },
    },
];

fn each(scrape: &Scrape, work: impl FnMut(&VmRow)) {
    scrape.sample.answers.vms.iter().flat_map(|list| &list.vms).for_each(work);
}

fn observed(scrape: &Scrape, work: impl FnMut(&IntrospectRow)) {
    scrape.sample.answers.introspections.iter().flatten().for_each(work);
}
