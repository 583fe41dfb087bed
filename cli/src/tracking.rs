//! `timevisor tracking`: how well this host knows the time, and from whom.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use timevisor_protocols::control::{Request, Response, Tracking};
use timevisor_time::Duration;

use crate::bound::sides;
use crate::connection::{ask, unexpected};
use crate::exit::Found;

#[derive(Args)]
pub struct Options {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(directory: &Path, options: &Options) -> Result<Found> {
    let response = ask(directory, &Request::Tracking)?;
    let Response::Tracking(tracking) = &response else { return Err(unexpected(&response)) };
    if options.json {
        println!("{}", serde_json::to_string(tracking)?);
    } else {
        print!("{}", text(tracking));
    }
    Ok(Found::of_clock(tracking.status))
}

fn text(t: &Tracking) -> String {
    let span = Duration::from_nanos;
    let unknown = || "unknown".to_owned();
    let ns = |ns: Option<i64>| ns.map_or_else(unknown, |ns| span(ns).to_string());
    let ppm = |ppm: Option<f64>, sign: &str| match ppm {
        Some(ppm) if sign == "+" => format!("{ppm:+.4} ppm"),
        Some(ppm) => format!("within {ppm:.3} ppm"),
        None => unknown(),
    };
    let state = serde_json::to_value(t.status).ok();
    let state = state.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
    let why = t.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let id = t.reference_id.as_ref().map(|id| format!(" (reference id {id})")).unwrap_or_default();
    let reference = t.reference.as_ref().map_or_else(unknown, |name| format!("{name}{id}"));
    let ago = t.last_update_s.map_or_else(unknown, |age| format!("{age:.1} s ago"));
    let bound = t.below_ns.zip(t.above_ns);
    let bound = bound.map_or_else(unknown, |(below, above)| sides(span(below), span(above)));
    let system = match t.system_offset_ns {
        Some(offset) if offset < 0 => format!("{} behind our UTC", span(-offset)),
        Some(offset) => format!("{} ahead of our UTC", span(offset)),
        None => unknown(),
    };
    let tai = t.tai_offset.map_or_else(unknown, |offset| format!("{offset} s"));
    [
        ("clock", format!("{state}{why}")),
        ("reference", reference),
        ("stratum", t.stratum.map_or_else(unknown, |stratum| stratum.to_string())),
        ("last update", ago),
        ("CLOCK_REALTIME", system),
        ("bound", bound),
        ("sigma", ns(t.estimated_error_ns)),
        ("root distance", ns(t.root_distance_ns)),
        (
            "frequency",
            format!("{} of the counter against its nominal rate", ppm(t.frequency_ppm, "+")),
        ),
        ("skew", ppm(t.skew_ppm, "")),
        ("wander", format!("at most {:.1e} per second in the bounds", t.wander_per_s)),
        ("leap", t.leap.clone()),
        ("TAI - UTC", tai),
    ]
    .iter()
    .map(|(label, text)| format!("{label:<16} {text}\n"))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_protocols::control::ClockStatus;

    fn known() -> Tracking {
        Tracking {
            status: ClockStatus::Synchronized,
            reason: None,
            reference: Some("ntp.example".to_owned()),
            reference_id: Some("192.0.2.1".to_owned()),
            stratum: Some(3),
            reference_time_ns: Some(1),
            last_update_s: Some(1.25),
            system_offset_ns: Some(-1500),
            estimated_error_ns: Some(800),
            below_ns: Some(30_000),
            above_ns: Some(50_000),
            root_distance_ns: Some(50_000),
            frequency_ppm: Some(-12.34),
            skew_ppm: Some(1.5),
            wander_per_s: 3e-8,
            leap: "normal".to_owned(),
            tai_offset: Some(37),
        }
    }

    #[test]
    fn everything_has_its_line() {
        let said = text(&known());
        for wanted in [
            "clock            synchronized\n",
            "reference        ntp.example (reference id 192.0.2.1)\n",
            "CLOCK_REALTIME   1.500 us behind our UTC\n",
            "bound            -30.000 us +50.000 us\n",
            "frequency        -12.3400 ppm of the counter",
            "wander           at most 3.0e-8 per second",
        ] {
            assert!(said.contains(wanted), "{wanted:?} in\n{said}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let nothing = Tracking {
            status: ClockStatus::Initializing,
            reason: Some("no reference has answered yet".to_owned()),
            reference: None,
            reference_id: None,
            stratum: None,
            reference_time_ns: None,
            last_update_s: None,
            system_offset_ns: None,
            estimated_error_ns: None,
            below_ns: None,
            above_ns: None,
            root_distance_ns: None,
            frequency_ppm: None,
            skew_ppm: None,
            leap: "unknown".to_owned(),
            tai_offset: None,
            ..known()
        };
        let said = text(&nothing);
        assert_eq!(said.matches("unknown").count(), 11, "{said}");
        assert!(said.starts_with("clock            initializing: no reference"), "{said}");
    }
}
