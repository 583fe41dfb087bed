//! An NTP server: real packet bytes in and out, with a clock that is right, wrong, or about to
//! become wrong.
//!
//! A server's stamps are true UTC plus the sum of its faults; the error that it claims is set
//! separately, so that a scenario decides whether the server is honest. Times are true seconds
//! since the start.
//!
//! What it does not do: limit rates, support interleaved mode, or authenticate. It answers every
//! client packet.

use serde::Deserialize;
use timevisor_protocols::ntp::{LeapIndicator, Mode, NtpShort, NtpTimestamp, Packet};
use timevisor_time::{Duration, Instant, Utc};

use crate::calendar::Calendar;
use crate::link::{Window, micros};
use crate::random::Random;

/// How a server behaves. The default is a perfect primary server.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerModel {
    /// Claimed stratum.
    pub stratum: u8,
    /// Claimed root delay, us.
    pub root_delay_us: f64,
    /// Claimed root dispersion, us.
    pub root_dispersion_us: f64,
    /// Claimed precision, log2 s.
    pub precision: i8,
    /// Time between a request's arrival and the answer's departure, us.
    pub residence_us: f64,
    /// Mean of the exponential error of both stamps (late when receiving, early when sending), us.
    pub stamp_noise_us: f64,
    /// Sudden changes of its clock: a false offset, or a step. Each adds to the earlier ones.
    pub steps: Vec<Step>,
    /// Rate errors in ppm, each in force until the next. A rate of 0 ends a drift and keeps the
    /// offset.
    pub rates: Vec<Rate>,
    /// A slow sine of its clock, as caused by an upstream of limited quality.
    pub wobble: Option<Wobble>,
    /// Smears a leap second linearly over this many seconds, half of it before and half after.
    pub smear_s: Option<f64>,
    /// Windows in which it does not answer.
    pub silent: Vec<Window>,
    /// Windows in which it states that it is not synchronized.
    pub unsynchronized: Vec<Window>,
    /// Windows in which it answers with kiss-o'-death packets.
    pub kisses: Vec<Kiss>,
}

/// The clock changes by `by_us` at `at_s`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The time of the change, s.
    pub at_s: f64,
    /// By how much, us.
    pub by_us: f64,
}

/// From `at_s` on the clock gains `ppm`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// From when on, s.
    pub at_s: f64,
    /// Gain, ppm.
    pub ppm: f64,
}

/// A sine of the clock's offset.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wobble {
    /// Largest offset, us.
    pub amplitude_us: f64,
    /// Length of a cycle, s.
    pub period_s: f64,
}

/// Kiss-o'-death answers in a window.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kiss {
    /// Start, s.
    pub from_s: f64,
    /// End, s.
    pub to_s: f64,
    /// Four letters: RATE, DENY, RSTR ...
    pub code: String,
}

impl Default for ServerModel {
    fn default() -> Self {
        Self {
            stratum: 1,
            root_delay_us: 0.0,
            root_dispersion_us: 0.0,
            precision: -25,
            residence_us: 0.0,
            stamp_noise_us: 0.0,
            steps: Vec::new(),
            rates: Vec::new(),
            wobble: None,
            smear_s: None,
            silent: Vec::new(),
            unsynchronized: Vec::new(),
            kisses: Vec::new(),
        }
    }
}

impl ServerModel {
    /// How far its clock is ahead of true UTC at `t_s`, s, without a smear.
    #[must_use]
    pub fn offset_s(&self, t_s: f64) -> f64 {
        let steps: f64 = self.steps.iter().filter(|s| s.at_s <= t_s).map(|s| s.by_us * 1e-6).sum();
        let ends = self.rates.iter().skip(1).map(|r| r.at_s).chain([f64::INFINITY]);
        let drifts = self.rates.iter().zip(ends);
        let drift: f64 =
            drifts.map(|(r, end)| (t_s.min(end) - r.at_s).max(0.0) * r.ppm * 1e-6).sum();
        let wobble = self.wobble.map_or(0.0, |w| {
            w.amplitude_us * 1e-6 * libm::sin(std::f64::consts::TAU * t_s / w.period_s)
        });
        steps + drift + wobble
    }
}

/// A server with its random stream.
#[derive(Clone, Debug)]
pub struct Server {
    model: ServerModel,
    noise: Random,
}

/// An answer on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// True time of its departure.
    pub departs: Duration,
    /// The datagram.
    pub bytes: Vec<u8>,
}

impl Server {
    /// `name` distinguishes the world's servers.
    #[must_use]
    pub fn new(model: ServerModel, seed: u64, name: &str) -> Self {
        Self { model, noise: Random::stream(seed, &format!("{name} server")) }
    }

    /// Answers a datagram that arrives at true time `arrives`; `None` when silent or when the
    /// datagram is not a client's.
    pub fn answer(
        &mut self,
        datagram: &[u8],
        arrives: Duration,
        calendar: &Calendar,
    ) -> Option<Answer> {
        let (request, _) = Packet::parse(datagram).ok()?;
        let t_s = arrives.as_secs_f64();
        if request.mode != Mode::Client || self.model.silent.iter().any(|w| w.contains(t_s)) {
            return None;
        }
        let departs = arrives + micros(self.model.residence_us);
        let (late, early) = (self.noise.exponential(), self.noise.exponential());
        let received =
            arrives + micros(self.model.stamp_noise_us * late).min(micros(self.model.residence_us));
        let sent = departs - micros(self.model.stamp_noise_us * early).min(departs - received);
        let mut packet = Packet {
            leap: self.leap(arrives, calendar),
            mode: Mode::Server,
            stratum: self.model.stratum,
            poll: request.poll,
            precision: self.model.precision,
            root_delay: NtpShort::from_duration_ceil(micros(self.model.root_delay_us)),
            root_dispersion: NtpShort::from_duration_ceil(micros(self.model.root_dispersion_us)),
            reference_id: *b"SIM\0",
            reference: NtpTimestamp::from_instant(
                self.clock(arrives, calendar) - Duration::from_secs(1),
            ),
            origin: request.transmit,
            receive: NtpTimestamp::from_instant(self.clock(received, calendar)),
            transmit: NtpTimestamp::from_instant(self.clock(sent, calendar)),
            ..request
        };
        if let Some(kiss) = self.model.kisses.iter().find(|k| k.from_s <= t_s && t_s < k.to_s) {
            packet.leap = LeapIndicator::Unsynchronized;
            packet.stratum = 0;
            packet
                .reference_id
                .copy_from_slice(kiss.code.as_bytes().first_chunk().unwrap_or(b"RATE"));
        }
        Some(Answer { departs, bytes: packet.to_bytes().to_vec() })
    }

    /// What its clock shows at a true time.
    fn clock(&self, t: Duration, calendar: &Calendar) -> Instant<Utc> {
        let offset = Duration::from_secs_f64(self.model.offset_s(t.as_secs_f64()));
        match self.model.smear_s {
            Some(length) => calendar.smeared(t, length) + offset,
            None => calendar.utc(t) + offset,
        }
    }

    fn leap(&self, t: Duration, calendar: &Calendar) -> LeapIndicator {
        let t_s = t.as_secs_f64();
        if self.model.unsynchronized.iter().any(|w| w.contains(t_s)) {
            LeapIndicator::Unsynchronized
        } else if calendar.is_announced(t) && self.model.smear_s.is_none() {
            if calendar.is_deleted() { LeapIndicator::Delete } else { LeapIndicator::Insert }
        } else {
            // A smearing server hides the leap second from its clients.
            LeapIndicator::NoWarning
        }
    }
}

#[cfg(test)]
mod tests {
    use timevisor_protocols::ntp::{Client, Config, KissCode, Outcome, RejectReason, Response};

    use super::*;

    /// The production client's outcome for the answer to a request that arrives at `t_s`.
    fn ask(model: &ServerModel, t_s: f64) -> Option<Outcome> {
        let calendar = Calendar::new(None, false).unwrap();
        let mut client = Client::new(Config::default(), Duration::ZERO).unwrap();
        let request = client.on_timer(Duration::ZERO, 77).unwrap();
        client.sent(1);
        let mut server = Server::new(model.clone(), 1, "test");
        let answer = server.answer(&request.bytes, Duration::from_secs_f64(t_s), &calendar)?;
        assert_eq!(answer.departs, Duration::from_secs_f64(t_s) + micros(model.residence_us));
        Some(client.on_datagram(
            Duration::from_millis(1),
            &answer.bytes,
            calendar.utc(Duration::ZERO),
            |ta| (ta, 2),
        ))
    }

    fn accepted(model: &ServerModel, t_s: f64) -> Response {
        match ask(model, t_s) {
            Some(Outcome::Exchange(exchange)) => exchange.response,
            other => panic!("not accepted at {t_s}: {other:?}"),
        }
    }

    #[test]
    fn a_perfect_server_tells_the_truth_to_the_stamps_resolution() {
        let model = ServerModel { residence_us: 100.0, ..ServerModel::default() };
        let response = accepted(&model, 1000.0);
        let truth = Calendar::new(None, false).unwrap().utc(Duration::from_secs(1000));
        assert!((response.tb - truth).abs() <= NtpTimestamp::RESOLUTION);
        assert!(
            (response.te - truth - Duration::from_micros(100)).abs() <= NtpTimestamp::RESOLUTION
        );
        assert_eq!(response.stratum, 1);
    }

    #[test]
    fn offsets_are_what_was_asked_for() {
        let model = ServerModel {
            steps: vec![Step { at_s: 10.0, by_us: 1000.0 }, Step { at_s: 20.0, by_us: -500.0 }],
            rates: vec![Rate { at_s: 100.0, ppm: 1.0 }, Rate { at_s: 200.0, ppm: 0.0 }],
            ..ServerModel::default()
        };
        for (t, us) in [(9.0, 0.0), (10.0, 1000.0), (50.0, 500.0), (150.0, 550.0), (1000.0, 600.0)]
        {
            assert!((model.offset_s(t) * 1e6 - us).abs() < 1e-6, "{t}: {}", model.offset_s(t));
            let response = accepted(&model, t);
            let truth = Calendar::new(None, false).unwrap().utc(Duration::from_secs_f64(t));
            assert!(((response.tb - truth).as_secs_f64() * 1e6 - us).abs() < 1e-3);
        }
    }

    #[test]
    fn stamps_stay_inside_the_residence() {
        let model =
            ServerModel { residence_us: 20.0, stamp_noise_us: 50.0, ..ServerModel::default() };
        for t in 0..200 {
            let r = accepted(&model, f64::from(t));
            let truth = Calendar::new(None, false).unwrap().utc(Duration::from_secs(i64::from(t)));
            assert!(
                r.tb - truth >= -NtpTimestamp::RESOLUTION
                    && r.te - truth <= Duration::from_micros(20)
            );
        }
    }

    #[test]
    fn silence_refusal_and_kisses() {
        let window = |from_s, to_s| vec![Window { from_s, to_s }];
        let model = ServerModel {
            silent: window(0.0, 10.0),
            unsynchronized: window(10.0, 20.0),
            kisses: vec![Kiss { from_s: 20.0, to_s: 30.0, code: "DENY".to_owned() }],
            ..ServerModel::default()
        };
        assert_eq!(ask(&model, 5.0), None);
        assert_eq!(ask(&model, 15.0), Some(Outcome::Rejected(RejectReason::Unsynchronized)));
        assert_eq!(ask(&model, 25.0), Some(Outcome::KissOfDeath(KissCode::Deny)));
        assert!(matches!(ask(&model, 30.0), Some(Outcome::Exchange(_))));
        let answer = Server::new(model, 1, "test").answer(
            b"short",
            Duration::from_secs(40),
            &Calendar::new(None, false).unwrap(),
        );
        assert_eq!(answer, None);
    }

    #[test]
    fn only_clients_are_answered() {
        let calendar = Calendar::new(None, false).unwrap();
        let mut server = Server::new(ServerModel::default(), 1, "test");
        let request = Packet::request(NtpTimestamp::from_bits(7), 4);
        let mut answered = |mode| {
            let bytes = Packet { mode, ..request }.to_bytes();
            server.answer(&bytes, Duration::from_secs(1), &calendar).is_some()
        };
        assert!(answered(Mode::Client));
        assert!(!answered(Mode::Server) && !answered(Mode::Control));
    }
}
