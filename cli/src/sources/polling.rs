//! A reference's poll in words.

use timevisor_protocols::control::Polling;
use timevisor_time::Duration;

/// Which poll is in force, why, and which one the required bound takes.
pub fn polls(poll_s: f64, polling: &Polling) -> String {
    let mut out = format!("polls every {poll_s} s: {}", polling.reason.replace('-', " "));
    if let Some(required) = polling.required_ns {
        out += &format!("; {} is required", Duration::from_nanos(required));
        if let (Some(needed), None) = (polling.needed_s, &polling.problem) {
            out += &format!(" and takes a poll of {needed:.1} s");
        }
    }
    if let Some(problem) = &polling.problem {
        out += &format!(": {problem}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_poll_in_force_is_explained() {
        let mut polling = Polling {
            reason: "own-server".to_owned(),
            required_ns: None,
            needed_s: None,
            problem: None,
        };
        assert_eq!(polls(4.0, &polling), "polls every 4 s: own server");
        polling.reason = "requirement".to_owned();
        polling.required_ns = Some(100_000);
        polling.needed_s = Some(12.61);
        let said = polls(12.5, &polling);
        assert!(said.ends_with("100.000 us is required and takes a poll of 12.6 s"), "{said}");
        polling.problem = Some("it takes a poll of 0.1 s; set poll_min".to_owned());
        let said = polls(2.0, &polling);
        assert!(said.ends_with("is required: it takes a poll of 0.1 s; set poll_min"), "{said}");
    }
}
