//! A controller that opens a valve at a planned instant, together with others that have the same
//! plan, or keeps it safely shut: never at a time that it is not sure of.
//!
//! `controller STREAM`; STREAM is `-` or a virtio-serial port. It takes lines
//! `act TIMESTAMP_NS MAX_ERROR_NS LATEST_NS` (TAI) and answers each, when it is decided, with a
//! line of JSON: `outcome` fired, too_late, qot_violated, disrupted or no_time; `mode` normal or
//! degraded.

mod lines;

use std::error::Error;
use std::time::Duration;

use serde_json::{Value, json};
use timevisor::{AtOutcome, BindOptions, Binding, Client, Requirement, WaitError, WaitOptions};

/// What it normally needs: the host asks its servers as often as that takes. Every command has its
/// own limit, too.
const WITHIN: Duration = Duration::from_millis(1);

/// A plan for later than this is a mistake.
const HORIZON: Duration = Duration::from_secs(60);

struct Controller {
    tai: Binding,
    valve_open: bool,
    degraded: bool,
}

impl Controller {
    fn new() -> Result<Self, Box<dyn Error>> {
        // A controller also starts while the clock is bad; it is degraded then.
        let options = BindOptions {
            requirement: Some(Requirement::within(WITHIN)),
            best_effort: true,
            ..BindOptions::default()
        };
        let tai = Client::connect()?.bind_with("tai", &options)?;
        Ok(Self { tai, valve_open: false, degraded: true })
    }

    fn answer(&mut self, line: &str) -> Result<Value, Box<dyn Error>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["act", t_ns, max_error_ns, latest_ns] = words[..] else {
            return Err("act TIMESTAMP_NS MAX_ERROR_NS LATEST_NS".into());
        };
        let max_error = Duration::from_nanos(max_error_ns.parse()?);
        Ok(self.act(t_ns.parse()?, max_error, latest_ns.parse()?))
    }

    fn act(&mut self, t_ns: i64, max_error: Duration, latest_ns: i64) -> Value {
        let options = WaitOptions::default().timeout(HORIZON);
        let outcome = self.tai.at_with(t_ns, Some(max_error), latest_ns, &options);
        // Act first, report afterwards.
        self.degraded = !matches!(outcome, Ok(AtOutcome::Fired { .. }));
        self.valve_open = !self.degraded;
        let mut said = outcome.map_or_else(|error| unknown(&error), |outcome| told(&outcome));
        said["mode"] = json!(if self.degraded { "degraded" } else { "normal" });
        said["valve"] = json!(if self.valve_open { "open" } else { "shut" });
        said
    }
}

fn told(outcome: &AtOutcome) -> Value {
    match outcome {
        AtOutcome::Fired { actual_ns, error_ns, reading } => json!({
            "outcome": "fired", "actual_ns": actual_ns, "error_ns": error_ns, "counter": reading.counter(),
        }),
        AtOutcome::TooLate { by_ns, .. } => json!({ "outcome": "too_late", "by_ns": by_ns }),
        AtOutcome::QotViolated { half_width_ns, reading } => json!({
            "outcome": "qot_violated", "half_width_ns": half_width_ns, "status": reading.status().name(),
        }),
        AtOutcome::Disrupted { .. } => json!({ "outcome": "disrupted" }),
    }
}

/// The clock says nothing at all, or the plan makes no sense.
fn unknown(error: &WaitError) -> Value {
    json!({ "outcome": "no_time", "why": error.to_string() })
}

fn main() -> Result<(), Box<dyn Error>> {
    let stream = std::env::args().nth(1).ok_or("controller STREAM")?;
    let mut controller = Controller::new()?;
    Ok(lines::serve(&stream, |line| controller.answer(line))?)
}
