//! What is in each topic. Numbers that only count up are left out, so that a topic is new when
//! something has happened.

use serde_json::{Value, json};
use timevisor_protocols::control::{
    ClusterClock, IntrospectRow, Mark, Promise, ReserveRow, Source, TimelineReport, VmRow,
};

use super::TOPICS;
use crate::sample::{Sample, status_name};

pub fn all(sample: &Sample) -> [Value; TOPICS.len()] {
    let answers = &sample.answers;
    [
        clock(sample),
        daemon(sample),
        rows(answers.sources.as_deref(), reference),
        vms(sample),
        rows(answers.timelines.as_deref(), timeline),
        reservations(sample),
        rows(answers.introspections.as_deref(), introspection),
        rows(answers.clusters.as_deref(), cluster),
    ]
}

/// Null while timevisord does not answer: that is not the same as none.
fn rows<T>(rows: Option<&[T]>, of: fn(&T) -> Value) -> Value {
    rows.map_or(Value::Null, |rows| rows.iter().map(of).collect())
}

fn clock(sample: &Sample) -> Value {
    match &sample.clock {
        Err(problem) => json!({"at_ms": sample.taken_ms, "problem": problem}),
        Ok(clock) => json!({
            "at_ms": sample.taken_ms,
            "status": status_name(clock.status),
            // A browser's numbers have 53 bits: microseconds are exact for 285 years.
            "tai_us": clock.estimate_ns.map(|ns| ns / 1000),
            "tai_offset_s": clock.tai_offset,
            "below_ns": clock.below_ns,
            "above_ns": clock.above_ns,
            "estimated_error_ns": clock.estimated_error_ns,
            "disruption": clock.disruption_marker.to_string(),
        }),
    }
}

fn daemon(sample: &Sample) -> Value {
    let presence = &sample.presence;
    let mut value = json!({
        "problem": presence.problem,
        "since_ms": presence.since_ms,
        "refused": sample.answers.refused.iter().map(|(it, why)| format!("{}: {why}", it.name())).collect::<Vec<_>>(),
    });
    if let Some(status) = &sample.answers.status {
        value["version"] = json!(status.version);
        value["host_id"] = json!(status.host_id);
        value["started_ms"] = json!(rounded_start(sample.taken_ms, status.uptime_s));
        value["counter"] = json!(status.counter.name);
        value["counter_mhz"] = json!(status.counter.hz.map(|hz| (hz / 1e4).round() / 1e2));
        value["counter_problem"] = json!(status.counter.problem);
        value["reason"] = json!(status.clock.reason);
        value["contradictions"] = json!(status.clock.contradictions);
        value["assumption"] = json!(status.clock.assumption);
        value["leap_problem"] = json!(status.leap_table.problem);
        value["leap_warning"] = json!(status.leap_table.warning);
        value["oscillator_problem"] = json!(status.clock.oscillator_problem);
        value["discipline"] = json!(status.discipline.as_ref().map(|it| &it.state));
        value["server"] = json!(status.server.as_ref().map(|it| &it.listen));
    }
    if let Some(tracking) = &sample.answers.tracking {
        value["stratum"] = json!(tracking.stratum);
        value["reference"] = json!(tracking.reference);
        value["leap"] = json!(tracking.leap);
    }
    value
}

/// When timevisord started, rounded to ten seconds, so that the two clocks' jitter is no news.
const fn rounded_start(now_ms: u64, uptime_s: u64) -> u64 {
    now_ms.saturating_sub(uptime_s.saturating_mul(1000)).saturating_add(5_000) / 10_000 * 10_000
}

fn reference(source: &Source) -> Value {
    let reference = &source.reference;
    let mark = match source.selection.mark {
        Mark::Selected => "selected",
        Mark::Combined => "combined",
        Mark::Rebuilding => "rebuilding",
        Mark::Falseticker => "falseticker",
        Mark::Unusable => "unusable",
    };
    let statistics = source.statistics.as_ref();
    json!({
        "name": reference.name,
        "kind": reference.kind,
        "state": reference.status,
        "detail": reference.detail,
        "mark": mark,
        "weight": source.selection.weight,
        "stratum": reference.stratum,
        "reach": reference.reach,
        "poll_s": reference.poll_s,
        "delay_ns": reference.rtt_ns,
        "authenticated": source.nts.is_some(),
        "offset_ns": statistics.map(|it| it.offset_ns),
        "earliest_ns": statistics.map(|it| it.earliest_ns),
        "latest_ns": statistics.map(|it| it.latest_ns),
        "estimated_error_ns": statistics.map(|it| it.estimated_error_ns),
        "rejected": reference.rejected.values().sum::<u64>(),
        "shares_vote_with": reference.shares_vote_with,
    })
}

fn vms(sample: &Sample) -> Value {
    let Some(list) = &sample.answers.vms else { return Value::Null };
    let row = |it: &VmRow| {
        json!({
            "name": it.name,
            "pid": it.pid,
            "accelerator": it.accelerator,
            "delivery": it.delivery,
            "mapping": it.mapping,
            "status": it.status,
            "reason": it.reason,
            "timescale": it.time_type,
            "disruption": it.disruption_marker.to_string(),
            "notice": it.notice,
            "migration": it.migration,
        })
    };
    json!({"served": list.vms.iter().map(row).collect::<Vec<_>>(), "not_served": list.not_served})
}

fn timeline(timeline: &TimelineReport) -> Value {
    json!({
        "name": timeline.name,
        "tenant": timeline.tenant,
        "epoch": timeline.epoch,
        "members": timeline.members,
        "unmet": timeline.unmet,
        "required": timeline.required,
        "below_ns": timeline.achieved.below_ns,
        "above_ns": timeline.achieved.above_ns,
    })
}

fn reservations(sample: &Sample) -> Value {
    let Some(rows) = &sample.answers.reservations else { return Value::Null };
    let used = sample.used.iter().copied().chain(std::iter::repeat(None));
    rows.iter().zip(used).map(|(row, used)| reservation(row, used)).collect()
}

fn reservation(row: &ReserveRow, used: Option<f64>) -> Value {
    let promise = match row.promise {
        Promise::Core => "core",
        Promise::Global => "global",
        Promise::Fifo => "fifo",
        Promise::Limit => "limit",
    };
    json!({
        "vm": row.vm,
        "vcpu": row.vcpu,
        "promise": promise,
        "core": row.core,
        "budget_ns": row.budget_ns,
        "period_ns": row.period_ns,
        "used": used.map(|share| (share * 1e4).round() / 1e4),
        "broken": row.audit.as_ref().map(|it| it.broken),
        "exhausted": row.audit.as_ref().map(|it| it.exhausted),
        "late": row.late.as_ref().map(timevisor_protocols::control::LateJobs::count),
        "problem": row.problem,
        "followed": row.followed,
    })
}

fn introspection(row: &IntrospectRow) -> Value {
    json!({
        "vm": row.vm,
        "backend": row.backend,
        "state": row.state,
        "problem": row.problem,
        "guest": row.guest,
        "tasks": row.tasks.len(),
        "dropped": row.dropped,
    })
}

fn cluster(clock: &ClusterClock) -> Value {
    let host = |it: &timevisor_protocols::control::ClusterHost| {
        json!({
            "address": it.address, "status": it.status, "level": it.level,
            "width_ns": it.width_ns, "reason": it.reason,
        })
    };
    json!({
        "cluster": clock.cluster,
        "timeline": clock.timeline,
        "role": clock.role,
        "level": clock.level,
        "below_ns": clock.below_ns,
        "above_ns": clock.above_ns,
        "serves": clock.serves,
        "hosts": clock.hosts.iter().map(host).collect::<Vec<_>>(),
    })
}
