//! How long a guest runs after each resume until its page vouches for the time again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use timevisor_clock_page::Counter as _;

use crate::GuestReader;

/// Reads without pause until the page's marker has changed `count` times, and no longer than `longest`.
///
/// A guest that did not run finds its counter far ahead, as under KVM it goes on. So the longest step of the
/// counter between two readings, of those between the last reading with one marker and the first with the
/// next, is the resume.
pub(crate) fn resumes(reader: &GuestReader, count: usize, longest: Duration) -> Value {
    let (began, first) = (Instant::now(), reader.counter().read_ordered());
    let (mut reads, mut unknown, mut outside, mut backward, mut errors) =
        (0_u64, 0_u64, 0, 0, 0_u64);
    let (mut after_resume, mut paused) = (Vec::new(), Vec::new());
    let mut last = None;
    // The longest step, and the counter after it.
    let (mut step, mut previous) = ((0, first), first);
    while after_resume.len() < count && (reads % 1000 != 0 || began.elapsed() < longest) {
        let before = reader.counter().read_ordered();
        step = step.max((before.wrapping_sub(previous), before));
        previous = before;
        reads += 1;
        let Ok(now) = reader.read() else {
            errors += 1;
            continue;
        };
        if !now.has_estimate() {
            unknown += 1;
            continue;
        }
        outside += u64::from(now.estimate < now.earliest || now.estimate > now.latest);
        if let Some((estimate, disruption)) = last {
            backward += u64::from(now.estimate < estimate);
            if now.disruption != disruption {
                after_resume.push(reader.counter().read_ordered().wrapping_sub(step.1));
                paused.push(step.0);
            }
        }
        last = Some((now.estimate, now.disruption));
        step = (0, before);
    }
    let ticks = reader.counter().read_ordered().wrapping_sub(first);
    let per_us = ticks as f64 / began.elapsed().as_secs_f64() / 1e6;
    let us = |all: Vec<u64>| all.iter().map(|ticks| *ticks as f64 / per_us).collect::<Vec<_>>();
    json!({"reads": reads, "unknown": unknown, "outside": outside, "backward": backward, "errors": errors,
           "us": us(after_resume), "paused_us": us(paused)})
}
