//! Checks which values make sense. Production code checks production configuration.

use timevisor_clock_page::ClockStatus;
use timevisor_protocols::ntp::Config;
use timevisor_time::Duration;

use super::Scenario;
use super::limits::NAMES;
use crate::link::Direction;
use crate::server::ServerModel;

/// The names that limits may use.
pub(crate) const STATUSES: [ClockStatus; 5] = [
    ClockStatus::Unknown,
    ClockStatus::Initializing,
    ClockStatus::Synchronized,
    ClockStatus::FreeRunning,
    ClockStatus::Unreliable,
];

/// How one association of this scenario is configured.
pub(crate) fn ntp_config(scenario: &Scenario, reference: usize) -> Config {
    let host = &scenario.host;
    let poll = scenario.references[reference].poll_s.unwrap_or(host.poll_s);
    let poll = Duration::from_secs_f64(poll);
    let spacing = Duration::from_secs_f64(host.burst_spacing_s);
    let default = Config::default();
    Config {
        poll_min: poll,
        poll_max: default.poll_max.max(poll),
        burst_count: host.burst,
        burst_spacing: spacing,
        // As the daemon does: at most one request is in flight.
        request_timeout: default.request_timeout.min(poll).min(spacing),
        ..default
    }
}

/// The first problem.
pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    let s = scenario;
    require(!s.description.is_empty(), "description is missing; say in one line what it is about")?;
    require(
        s.duration_s >= 60.0 && s.duration_s <= 1e6,
        "duration_s must be from 60 to 1,000,000 (11 days)",
    )?;
    require(
        s.warmup_s >= 0.0 && s.warmup_s < s.duration_s,
        "warmup_s must be less than duration_s, so that something is left to judge",
    )?;
    require(
        s.leap_at_s.is_none_or(|at| at > 0 && (at as f64) < s.duration_s),
        "leap_at_s must lie within the run",
    )?;
    require(
        s.leap_at_s.is_some() || !s.leap_deleted,
        "leap_deleted needs leap_at_s, the time of the leap second",
    )?;
    require(!s.references.is_empty(), "reference: at least one is needed")?;
    oscillator(s)?;
    host(s)?;
    for (index, reference) in s.references.iter().enumerate() {
        let at = |problem| format!("reference {}: {problem}", index + 1);
        direction(reference.forward()).map_err(at)?;
        direction(reference.backward()).map_err(at)?;
        server(&reference.server).map_err(at)?;
        ntp_config(s, index).validate().map_err(|e| at(e.to_string()))?;
    }
    s.estimate.parameters().validate().map_err(|e| format!("estimate: {e}"))?;
    limits(s)
}

fn require(good: bool, otherwise: &str) -> Result<(), String> {
    if good { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn oscillator(s: &Scenario) -> Result<(), String> {
    let o = &s.oscillator;
    require(o.frequency_ppm.abs() <= 1000.0, "oscillator.frequency_ppm must be within 1000")?;
    let levels =
        [("white_ppb", o.white_ppb), ("flicker_ppb", o.flicker_ppb), ("wander_ppb", o.wander_ppb)];
    for (name, level) in levels {
        require((0.0..=1e5).contains(&level), &format!("oscillator.{name} must be 0 to 100,000"))?;
    }
    require(
        o.wander_changes.is_sorted_by(|a, b| a.at_s < b.at_s),
        "oscillator.wander_changes must be in order of at_s: each is in force until the next",
    )?;
    require(
        o.ramps.iter().all(|r| r.time_constant_s > 0.0),
        "oscillator.ramps: time_constant_s must be above 0; what happens at once is in steps",
    )?;
    require(
        o.hvac.is_none_or(|h| h.half_period_s >= 1.0 && h.time_constant_s >= 0.0),
        "oscillator.hvac: half_period_s must be 1 or more and time_constant_s not negative",
    )?;
    let sine = o.temperature.is_none_or(|t| t.period_s > 1.0);
    require(sine, "oscillator.temperature.period_s must be above 1")
}

fn host(s: &Scenario) -> Result<(), String> {
    let h = &s.host;
    require(
        (2_000_000..=4_000_000_000).contains(&h.counter_hz),
        "host.counter_hz must be 2 MHz to 4 GHz",
    )?;
    require(
        h.outliers
            .is_none_or(|o| is_share(o.probability) && o.from_us <= o.to_us && o.from_us >= 0.0),
        "host.outliers: probability must be 0 to 1 and from_us not above to_us",
    )?;
    let delays = [h.timer_latency_us, h.stamp_noise_us, h.calibration_error_ppm];
    require(
        delays.iter().all(|d| (0.0..=1e6).contains(d)),
        "host: latencies, noises and errors must not be negative",
    )?;
    let ends = h.restarts.iter().map(|r| (r.at_s, r.at_s + r.down_s));
    let apart = ends.clone().zip(ends.skip(1)).all(|((_, up), (down, _))| up < down);
    require(apart, "host.restarts must be in order and not overlap")?;
    require(h.restarts.iter().all(|r| r.down_s > 0.0), "host.restarts: down_s must be above 0")
}

fn is_share(p: f64) -> bool {
    (0.0..=1.0).contains(&p)
}

fn direction(d: &Direction) -> Result<(), String> {
    require(is_share(d.loss), "link.loss is a probability, 0 to 1")?;
    require(is_share(d.duplicate), "link.duplicate is a probability, 0 to 1")?;
    require(
        d.reorder.is_none_or(|r| is_share(r.probability) && r.extra_us >= 0.0),
        "link.reorder: probability must be 0 to 1 and extra_us not negative",
    )?;
    let floor = d.routes.iter().scan(d.minimum_us, |us, r| {
        *us += r.extra_us;
        Some(*us)
    });
    let swing = d.wave.map_or(0.0, |wave| wave.amplitude_us.abs());
    require(
        d.minimum_us >= swing && floor.min_by(f64::total_cmp).is_none_or(|us| us >= swing),
        "link: no packet arrives before it left; minimum_us, routes and wave must not go below 0",
    )?;
    require(d.wave.is_none_or(|w| w.period_s > 1.0), "link.wave: period_s must be above 1")?;
    require(d.exponential_us >= 0.0, "link.exponential_us must not be negative")?;
    require(
        d.gamma.is_none_or(|g| g.shape > 0.0 && g.scale_us >= 0.0),
        "link.gamma: shape must be above 0 and scale_us not negative",
    )?;
    require(
        d.pareto.is_none_or(|p| p.shape > 0.0 && p.scale_us >= 0.0 && is_share(p.probability)),
        "link.pareto: shape must be above 0, scale_us not negative, probability 0 to 1",
    )?;
    require(
        d.bursts.iter().all(|b| b.period_s > 0.0 && b.from_s <= b.to_s && b.to_s <= b.period_s),
        "link.bursts: from_s and to_s must lie in order within period_s",
    )
}

fn server(s: &ServerModel) -> Result<(), String> {
    require((1..=16).contains(&s.stratum), "server.stratum must be 1 to 16")?;
    require(
        s.rates.is_sorted_by(|a, b| a.at_s < b.at_s),
        "server.rates must be in order of at_s: each is in force until the next",
    )?;
    require(
        s.kisses.iter().all(|k| k.code.len() == 4 && k.code.is_ascii()),
        "server.kisses: code must be four letters, such as RATE",
    )?;
    let spans = [s.residence_us, s.stamp_noise_us, s.root_delay_us, s.root_dispersion_us];
    require(spans.iter().all(|us| *us >= 0.0), "server: delays and claims must not be negative")?;
    require(s.smear_s.is_none_or(|l| l >= 1.0), "server.smear_s must be 1 or more")
}

fn limits(s: &Scenario) -> Result<(), String> {
    let l = &s.limits;
    let known = |name: &String| STATUSES.iter().any(|status| status.name() == name);
    let named = l.see.iter().chain(&l.never).chain(&l.at_end);
    if let Some(unknown) = named.clone().find(|name| !known(name)) {
        let names: Vec<_> = STATUSES.iter().map(|status| status.name()).collect();
        return Err(format!("limits: {unknown} is no status; they are {}", names.join(", ")));
    }
    require(is_share(l.coverage), "limits.coverage is a share, 0 to 1")?;
    for (name, share) in &l.share {
        let problem = |what: &str| format!("limits.share.{name}: {what}");
        if !NAMES.contains(&name.as_str()) {
            return Err(problem(&format!(
                "there is no limit of this name; they are {}",
                NAMES.join(", ")
            )));
        }
        require(share.of > 0.0 && share.of < 1.0, &problem("of must be above 0 and below 1"))?;
        require(!share.why.is_empty(), &problem("why is empty; say why no more can be asked"))?;
    }
    require(
        (l.detected.is_none() && l.detected_within_s.is_none()) || s.fault_at_s.is_some(),
        "limits.detected needs fault_at_s: when does the fault begin?",
    )?;
    for window in &l.windows {
        let to = window.to_s.unwrap_or(s.duration_s);
        require(
            window.from_s >= 0.0 && window.from_s < to && to <= s.duration_s,
            "limits.window: from_s must be before to_s, and both within the run",
        )?;
    }
    let excused = s.known_failure.iter().flat_map(|k| &k.limits);
    if let Some(name) = excused.into_iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(format!("known_failure: {name} is no limit; they are {}", NAMES.join(", ")));
    }
    let names = s.reference_names();
    let stranger = l.falsetickers.iter().flatten().find(|name| !names.contains(name));
    stranger
        .map_or(Ok(()), |name| Err(format!("limits.falsetickers: no reference is called {name}")))
}
