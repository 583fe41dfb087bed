//! Figure 3: consecutive readings with pauses: whether each is later than the one before, and how
//! far their difference is from that of CLOCK_MONOTONIC.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::PageReader;

/// The pause and the number of readings (in the paper, ten times a hundred each).
const PAUSES: [(Duration, usize); 4] = [
    (Duration::ZERO, 1000),
    (Duration::from_millis(1), 1000),
    (Duration::from_millis(10), 1000),
    (Duration::from_secs(1), 20),
];

pub(crate) fn steps(page: &PageReader) -> Result<Value> {
    let mut rows = Vec::new();
    for (pause, count) in PAUSES {
        let mut readings = Vec::with_capacity(count);
        for _ in 0..count {
            let before = Instant::now();
            let age = page.read_estimate()?.context("the elapsed clock is not known")?;
            readings.push((age, before));
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        let not_later = readings.windows(2).filter(|pair| pair[1].0 <= pair[0].0).count();
        let us = |pair: &[(timevisor_time::Instant<_>, Instant)]| {
            let age = (pair[1].0 - pair[0].0).to_bits() as f64 / 2f64.powi(64) * 1e6;
            (age, age - (pair[1].1 - pair[0].1).as_secs_f64() * 1e6)
        };
        let found: Vec<(f64, f64)> = readings.windows(2).map(us).collect();
        let steps: Vec<f64> = found.iter().map(|f| f.0).collect();
        let apart: Vec<f64> = found.iter().map(|f| f.1).collect();
        rows.push(json!({"pause_us": pause.as_micros(), "readings": count, "not_later": not_later, "steps_us": steps, "apart_us": apart}));
    }
    Ok(json!({"rows": rows}))
}
