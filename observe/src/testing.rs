//! A host with everything, for tests.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use timevisor_protocols::channel::{Achieved, Epoch, Requirement};
use timevisor_protocols::control::{
    ClockStatus, ClusterClock, ClusterHost, IntrospectReserved, IntrospectRow, IntrospectState,
    LateJobs, ReserveAudit, ReserveRow, Response, Source, Status, TimelineReport, Timelines,
    Tracking, VmList,
};

use crate::metrics::Scrape;
use crate::process::Process;
use crate::sample::{Answers, Clock, Presence, Sample};
use crate::sampler::Counts;
use crate::web::Served;

pub fn clock() -> Clock {
    Clock {
        status: ClockStatus::Synchronized,
        estimate_ns: Some(1_795_650_284_239_664_270),
        below_ns: Some(12_500),
        above_ns: Some(14_000),
        estimated_error_ns: Some(800),
        disruption_marker: 3,
        tai_offset: Some(37),
    }
}

fn status() -> Status {
    serde_json::from_value(json!({
        "version": "0.1.0", "pid": 4711, "uptime_s": 86_400, "host_id": "00112233445566778899aabbccddeeff",
        "counter": {"name": "x86-tsc", "hz": 2.5e9},
        "clock": {
            "status": "synchronized", "reason": null, "timescale": "tai", "half_width_ns": 13_250,
            "estimated_error_ns": 800, "rate_bound_ppb": 120.5, "since_update_s": 3.25, "contradictions": 1,
        },
        "references": [],
        "leap_table": {"expires_unix": 1_813_708_800, "tai_offset": 37, "problem": null},
        "discipline": {"state": "steering", "detail": "", "offset_ns": 12, "frequency_ppm": -11.5},
        "server": {
            "listen": ["0.0.0.0:123"], "requests": {"answered": 1000, "limited": 2},
            "nts": {"listen": ["0.0.0.0:4460"], "sessions": {"established": 7}, "problem": null},
        },
        "vms": 2,
    }))
    .unwrap()
}

fn source(name: &str, mark: &str, offset_ns: i64) -> Source {
    serde_json::from_value(json!({
        "name": name, "kind": "ntp", "status": "reachable", "detail": "", "stratum": 1, "offset_ns": offset_ns,
        "rtt_ns": 180_000, "accepted": 100, "rejected": {"stale": 2}, "reach": "077", "poll_s": 16.0,
        "selection": {"mark": mark, "weight": 0.5},
        "statistics": {
            "samples": 100, "last_sample_s": 2.5, "offset_ns": offset_ns, "estimated_error_ns": 900,
            "earliest_ns": offset_ns - 95_000, "latest_ns": offset_ns + 92_000, "frequency_ppm": 0.001,
            "skew_ppm": 0.05, "contradictions": 0,
        },
    }))
    .unwrap()
}

fn vms(count: usize) -> VmList {
    let row = |number| {
        json!({
            "name": format!("vm{number}"), "pid": 10_000 + number, "accelerator": "kvm", "delivery": "vmclock",
            "mapping": "kvm-debugfs", "status": "synchronized", "reason": null, "time_type": "tai",
            "pages_published": 86_400, "disruption_marker": 1,
            "migration": if number == 0 { json!("failed: the other end is gone") } else { json!(null) },
        })
    };
    let rows: Vec<_> = (0..count.max(1)).map(row).collect();
    serde_json::from_value(json!({"vms": rows, "not_served": ["qemu 99: two of one name"]}))
        .unwrap()
}

fn timelines() -> Vec<TimelineReport> {
    let achieved = Achieved {
        below_ns: Some(12_500),
        above_ns: Some(14_000),
        estimated_error_ns: Some(800),
        resolution_ns: Some(1),
    };
    let report = |name: &str, tenant: Option<&str>, required| TimelineReport {
        name: name.to_owned(),
        tenant: tenant.map(str::to_owned),
        epoch: Epoch::Utc,
        members: 2,
        unmet: 0,
        required,
        achieved: achieved.clone(),
    };
    let required = Some(Requirement::within_ns(1_000_000));
    vec![report("utc", None, required), report("plant", Some("vm:vm0"), None)]
}

fn reservation() -> ReserveRow {
    ReserveRow {
        vm: "vm0".to_owned(),
        vcpu: 0,
        tid: 10_001,
        promise: timevisor_protocols::control::Promise::Core,
        core: Some(3),
        budget_ns: 2_000_000,
        soft_ns: None,
        deadline_ns: 10_000_000,
        period_ns: 10_000_000,
        alone: true,
        followed: false,
        held_ns: 3_600_000_000_000,
        ran_ns: Some(360_000_000_000),
        waited_ns: Some(5_000_000),
        audit: Some(ReserveAudit {
            satisfied: 3000,
            exhausted: 500,
            broken: 2,
            unclear: 98,
            most_missing_ns: 40_000,
        }),
        late: Some(LateJobs { host_broke: 1, ..LateJobs::default() }),
        problem: None,
    }
}

fn introspection() -> IntrospectRow {
    IntrospectRow {
        vm: "vm0".to_owned(),
        backend: "kvm".to_owned(),
        state: IntrospectState::Attached,
        events: 1000,
        tasks: vec![json!({"name": "control"})],
        reserved: Some(IntrospectReserved {
            budget_ns: 2_000_000,
            ..IntrospectReserved::default()
        }),
        ..IntrospectRow::default()
    }
}

fn cluster() -> ClusterClock {
    let host = |address: &str, status: &str| ClusterHost {
        address: address.to_owned(),
        status: status.to_owned(),
        level: Some(1),
        width_ns: Some(40_000),
        reason: None,
    };
    ClusterClock {
        cluster: "hall".to_owned(),
        timeline: "line".to_owned(),
        role: "member".to_owned(),
        level: Some(1),
        below_ns: Some(20_000),
        above_ns: Some(21_000),
        master_heard_s: Some(0.5),
        questions: 300,
        hosts: vec![host("192.0.2.1:123", "heard"), host("192.0.2.2:123", "liar")],
        ..ClusterClock::default()
    }
}

fn tracking() -> Tracking {
    serde_json::from_value(json!({
        "status": "synchronized", "reason": null, "reference": "a.example", "reference_id": null, "stratum": 2,
        "reference_time_ns": null, "last_update_s": 3.25, "system_offset_ns": 1500, "estimated_error_ns": 800,
        "below_ns": 12_500, "above_ns": 14_000, "root_distance_ns": 14_100, "frequency_ppm": -11.4, "skew_ppm": 0.1,
        "wander_per_s": 1e-10, "leap": "normal", "tai_offset": 37,
    }))
    .unwrap()
}

pub fn answers(vms_served: usize) -> Answers {
    Answers {
        status: Some(status()),
        sources: Some(vec![
            source("a.example", "selected", -2_500),
            source("b.example", "combined", 8_000),
        ]),
        tracking: Some(tracking()),
        clusters: Some(vec![cluster()]),
        timelines: Some(timelines()),
        vms: Some(vms(vms_served)),
        reservations: Some(vec![reservation()]),
        introspections: Some(vec![introspection()]),
        refused: Vec::new(),
    }
}

pub fn sample(vms_served: usize) -> Sample {
    Sample {
        taken: Instant::now(),
        taken_ms: 1_795_650_247_239,
        clock: Ok(clock()),
        presence: Presence { problem: None, since_ms: 1_795_600_000_000 },
        answers: answers(vms_served),
        used: vec![Some(0.05)],
    }
}

pub fn scrape(vms_served: usize) -> Scrape {
    let process = Process {
        cpu_seconds: 1.5,
        resident_bytes: 9e6,
        open_descriptors: Some(12.0),
        started_seconds: 100.0,
    };
    Scrape {
        sample: Arc::new(sample(vms_served)),
        clock: Ok(clock()),
        counts: Counts::default(),
        served: Served::default(),
        own_process: Some(process),
        daemon_process: Some(process),
        boot_time: Some(1.7e9),
    }
}

pub fn scrape_without_daemon() -> Scrape {
    let presence = Presence { problem: Some("timevisord is not running".to_owned()), since_ms: 1 };
    let sample = Sample { presence, answers: Answers::default(), used: Vec::new(), ..sample(0) };
    Scrape { sample: Arc::new(sample), daemon_process: None, ..scrape(0) }
}

/// timevisord's answers as they come over the socket, for an impostor.
pub fn responses(vms_served: usize) -> Vec<Response> {
    let answers = answers(vms_served);
    let missing = "the tests' host has everything";
    vec![
        Response::Status(Box::new(answers.status.expect(missing))),
        Response::Sources(timevisor_protocols::control::Sources {
            sources: answers.sources.expect(missing),
        }),
        Response::Tracking(Box::new(answers.tracking.expect(missing))),
        Response::Clusters(timevisor_protocols::control::Clusters {
            clusters: answers.clusters.expect(missing),
        }),
        Response::Timelines(Timelines { timelines: answers.timelines.expect(missing) }),
        Response::VmList(answers.vms.expect(missing)),
        Response::Reservations(timevisor_protocols::control::Reservations {
            reservations: answers.reservations.expect(missing),
            ..Default::default()
        }),
        Response::Introspections(timevisor_protocols::control::Introspections {
            vms: answers.introspections.expect(missing),
        }),
    ]
}
