//! Timelines and clusters.

use timevisor_protocols::control::{ClusterClock, TimelineReport};

use super::{In, Kind, Metric, Scrape, count, one_if, seconds};

/// Each tenant's own timelines may have the same names; `tenant` is empty for those of the
/// configuration.
const TIMELINE: &[&str] = &["timeline", "tenant"];
const CLUSTER: &[&str] = &["cluster", "timeline"];

const ROLES: [&str; 4] = ["root", "master", "member", "asking"];
const HOST_STATES: [&str; 3] = ["heard", "liar", "refused"];

pub const METRICS: &[Metric] = &[
    Metric {
        name: "timevisor_timeline_members",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Bindings to the timeline",
        labels: TIMELINE,
        samples: |s, put| each(s, |it| put(&labels(it), count(it.members))),
    },
    Metric {
        name: "timevisor_timeline_members_unmet",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Bindings whose requirement is not met now",
        labels: TIMELINE,
        samples: |s, put| each(s, |it| put(&labels(it), count(it.unmet))),
    },
    Metric {
        name: "timevisor_timeline_required_earliest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The tightest requirement: true time may be this far before the estimate",
        labels: TIMELINE,
        samples: |s, put| {
            each(s, |it| {
                if let Some(required) = &it.required {
                    put(&labels(it), seconds(required.below_ns));
                }
            });
        },
    },
    Metric {
        name: "timevisor_timeline_required_latest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The tightest requirement: true time may be this far after the estimate",
        labels: TIMELINE,
        samples: |s, put| {
            each(s, |it| {
                if let Some(required) = &it.required {
                    put(&labels(it), seconds(required.above_ns));
                }
            });
        },
    },
    Metric {
        name: "timevisor_timeline_achieved_earliest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "True time of the timeline is at most this far before the estimate",
        labels: TIMELINE,
        samples: |s, put| {
            each(s, |it| {
                if let Some(ns) = it.achieved.below_ns {
                    put(&labels(it), seconds(ns));
                }
            });
        },
    },
    Metric {
        name: "timevisor_timeline_achieved_latest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "True time of the timeline is at most this far after the estimate",
        labels: TIMELINE,
        samples: |s, put| {
            each(s, |it| {
                if let Some(ns) = it.achieved.above_ns {
                    put(&labels(it), seconds(ns));
                }
            });
        },
    },
    Metric {
        name: "timevisor_cluster_role",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "1 for this host's role in the cluster",
        labels: &["cluster", "timeline", "role"],
        samples: |s, put| {
            clusters(s, |it| {
                for role in ROLES {
                    put(&[&it.cluster, &it.timeline, role], one_if(it.role == role));
                }
            });
        },
    },
    Metric {
        name: "timevisor_cluster_level",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Servers between this host and the master; of UTC, the stratum of the nearest server",
        labels: CLUSTER,
        samples: |s, put| {
            clusters(s, |it| {
                if let Some(level) = it.level {
                    put(&[&it.cluster, &it.timeline], f64::from(level));
                }
            });
        },
    },
    Metric {
        name: "timevisor_cluster_earliest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The cluster's true time is at most this far before the estimate",
        labels: CLUSTER,
        samples: |s, put| {
            clusters(s, |it| {
                if let Some(ns) = it.below_ns {
                    put(&[&it.cluster, &it.timeline], seconds(ns));
                }
            });
        },
    },
    Metric {
        name: "timevisor_cluster_latest_distance",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "The cluster's true time is at most this far after the estimate",
        labels: CLUSTER,
        samples: |s, put| {
            clusters(s, |it| {
                if let Some(ns) = it.above_ns {
                    put(&[&it.cluster, &it.timeline], seconds(ns));
                }
            });
        },
    },
    Metric {
        name: "timevisor_cluster_master_heard_age",
        kind: Kind::Gauge,
        unit: In::Seconds,
        help: "Time since anybody heard the timeline's master",
        labels: CLUSTER,
        samples: |s, put| {
            clusters(s, |it| {
                if let Some(age) = it.master_heard_s {
                    put(&[&it.cluster, &it.timeline], age);
                }
            });
        },
    },
    Metric {
        name: "timevisor_cluster_questions",
        kind: Kind::Counter,
        unit: In::Nothing,
        help: "Questions that this host has asked",
        labels: CLUSTER,
        samples: |s, put| clusters(s, |it| put(&[&it.cluster, &it.timeline], count(it.questions))),
    },
    Metric {
        name: "timevisor_cluster_hosts",
        kind: Kind::Gauge,
        unit: In::Nothing,
        help: "Hosts of the cluster by what this host thinks of them",
        labels: &["cluster", "timeline", "state"],
        samples: |s, put| {
            clusters(s, |it| {
                for state in HOST_STATES {
                    let number = it.hosts.iter().filter(|host| host.status == state).count();
                    put(&[&it.cluster, &it.timeline, state], count(number as u64));
                }
            });
        },
    },
];

fn labels(timeline: &TimelineReport) -> [&str; 2] {
    [&timeline.name, timeline.tenant.as_deref().unwrap_or_default()]
}

fn each(scrape: &Scrape, work: impl FnMut(&TimelineReport)) {
    scrape.sample.answers.timelines.iter().flatten().for_each(work);
}

fn clusters(scrape: &Scrape, work: impl FnMut(&ClusterClock)) {
    scrape.sample.answers.clusters.iter().flatten().for_each(work);
}
