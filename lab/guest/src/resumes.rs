//! How long a guest runs after each resume until its page vouches for the time again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use timevisor_clock_page::Counter as _;

use crate::GuestReader;

/// A guest that did not run for longer was stopped.
const PAUSE: Duration = Duration::from_millis(1);

/// Reads without pause until the page's marker has changed `count` times over a pause, and no longer than
/// `longest`.
///
/// Under KVM the counter goes on while the guest does not run. So the longest step of the counter between two
/// readings, of those between the last reading with one marker and the first with the next, is the pause. A
/// pause in the middle of a reading cannot be told from a reading that waits for the page's writer: such
/// resumes are counted, not measured.
pub(crate) fn resumes(reader: &GuestReader, count: usize, longest: Duration) -> Value {
    let (began, first) = (Instant::now(), reader.counter().read_ordered());
    let (mut reads, mut unknown, mut outside, mut backward, mut errors) =
        (0_u64, 0_u64, 0, 0, 0_u64);
    let (mut after_resume, mut inside) = (Vec::new(), 0_usize);
    let mut last = None;
    // The longest step, and the counter after it.
    let (mut step, mut previous) = ((0, first), first);
    while after_resume.len() + inside < count && (reads % 1000 != 0 || began.elapsed() < longest) {
        let before = reader.counter().read_ordered();
        step = step.max((before.wrapping_sub(previous), before));
        reads += 1;
        let Ok(now) = reader.read() else {
            errors += 1;
            continue;
        };
        let after = reader.counter().read_ordered();
        previous = after;
        if !now.has_estimate() {
            unknown += 1;
            continue;
        }
        outside += u64::from(now.estimate < now.earliest || now.estimate > now.latest);
        if let Some((estimate, disruption)) = last {
            backward += u64::from(now.estimate < estimate);
            if now.disruption != disruption {
                let elapsed = began.elapsed().as_nanos().max(1);
                let ticks = u128::from(after.wrapping_sub(first));
                let pause = u64::try_from(ticks * PAUSE.as_nanos() / elapsed).unwrap_or(u64::MAX);
                if step.0 >= pause {
                    after_resume.push(after.wrapping_sub(step.1));
                } else if after.wrapping_sub(before) >= pause {
                    inside += 1;
                }
            }
        }
        last = Some((now.estimate, now.disruption));
        step = (0, after);
    }
    let ticks = reader.counter().read_ordered().wrapping_sub(first);
    let per_us = ticks as f64 / began.elapsed().as_secs_f64() / 1e6;
    let us: Vec<f64> = after_resume.iter().map(|ticks| *ticks as f64 / per_us).collect();
    json!({"reads": reads, "unknown": unknown, "outside": outside, "backward": backward, "errors": errors,
           "us": us, "inside": inside})
}
