//! Behaviour of one association against a scripted server.

use crate::server::{answer, kiss, secs, stamps, utc};
use timevisor_protocols::ntp::{
    Client, Config, KissCode, LeapIndicator, Mode, NtpShort, NtpTimestamp, Outcome, Packet,
    RejectReason, Request, Status,
};
use timevisor_time::Duration;

struct Bench {
    client: Client<u64>,
    now: Duration,
    random: u64,
}

impl Bench {
    fn new(config: Config) -> Self {
        Self {
            client: Client::new(config, Duration::ZERO).expect("a valid configuration"),
            now: Duration::ZERO,
            random: 0,
        }
    }

    /// Sleeps until the client asks, as the daemon does.
    fn ask(&mut self) -> Request {
        for _ in 0..3 {
            self.now = self.now.max(self.client.poll_at());
            self.random =
                self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            if let Some(request) = self.client.on_timer(self.now, self.random) {
                self.client.sent(request.id);
                return request;
            }
        }
        panic!("poll_at() leads to no request: {:?}", self.client);
    }

    fn deliver(&mut self, packet: &Packet) -> Outcome {
        self.deliver_bytes(&packet.to_bytes())
    }

    fn deliver_bytes(&mut self, bytes: &[u8]) -> Outcome {
        self.client.on_datagram(self.now, bytes, utc(self.now), stamps)
    }

    fn exchange(&mut self) -> Outcome {
        let request = self.ask();
        self.now += secs(0.001);
        self.deliver(&answer(&request, self.now))
    }

    /// Sends `n` requests with each answered (or none) and returns the gaps between them in
    /// seconds.
    #[expect(clippy::cast_possible_truncation, reason = "whole seconds in these scripts")]
    fn gaps(&mut self, n: usize, answered: bool) -> Vec<i64> {
        let mut times = vec![];
        for _ in 0..n {
            let request = self.ask();
            times.push(self.now);
            if answered {
                let accepted = self.deliver(&answer(&request, self.now));
                assert!(matches!(accepted, Outcome::Exchange(_)), "{accepted:?}");
            }
        }
        times.windows(2).map(|w| (w[1] - w[0]).as_secs_f64().round() as i64).collect()
    }
}

fn bench() -> Bench {
    Bench::new(Config::default())
}

#[test]
fn a_burst_then_steady_polls() {
    let mut b = bench();
    assert_eq!(b.client.status(), Status::Probing);
    assert_eq!(b.gaps(11, true), [2, 2, 2, 2, 2, 2, 2, 16, 16, 16]);
    assert_eq!(
        (b.client.status(), b.client.reach().to_string()),
        (Status::Reachable, "377".to_owned())
    );
    assert_eq!((b.client.counters().sent, b.client.counters().accepted), (11, 11));
}

#[test]
fn an_outage_is_named_and_ends_with_a_burst() {
    let mut b = bench();
    b.gaps(10, true);
    let last_answer = b.now;
    assert_eq!(b.gaps(8, false), [16; 7]);
    assert_eq!(b.client.status(), Status::Reachable, "the eighth request is still in flight");
    b.now = b.client.poll_at();
    assert_eq!(b.client.on_timer(b.now, 1), None);
    assert_eq!(b.client.status(), Status::Unreachable { since: last_answer });
    assert_eq!((b.client.counters().lost, b.client.reach().to_string()), (8, "0".to_owned()));
    assert_eq!(b.gaps(10, true), [2, 2, 2, 2, 2, 2, 2, 16, 16]);
    assert_eq!(b.client.status(), Status::Reachable);
}

#[test]
fn a_server_that_never_answers_becomes_unreachable() {
    let mut b = bench();
    assert_eq!(b.gaps(11, false), [2, 2, 2, 2, 2, 2, 2, 16, 16, 16]);
    assert_eq!(b.client.status(), Status::Unreachable { since: Duration::ZERO });
}

#[test]
fn a_late_timer_skips_polls() {
    let mut b = bench();
    b.gaps(8, true);
    b.now += secs(1000.0);
    b.ask();
    let again = b.client.on_timer(b.now, 9);
    assert_eq!(again, None);
    let sent = b.now;
    b.ask();
    assert_eq!(b.now, sent + secs(16.0));
}

#[test]
fn duplicates_and_late_answers_are_told_apart_from_forgeries() {
    let mut b = bench();
    let first = b.ask();
    let good = answer(&first, b.now);
    assert!(matches!(b.deliver(&good), Outcome::Exchange(x) if x.response.request_id == first.id));
    assert_eq!(b.deliver(&good), Outcome::Rejected(RejectReason::Duplicate));

    let second = b.ask();
    assert_eq!(
        b.deliver(&good),
        Outcome::Rejected(RejectReason::Duplicate),
        "a replay does not end the new request"
    );
    let forged = Packet { origin: NtpTimestamp::from_bits(12345), ..answer(&second, b.now) };
    assert_eq!(b.deliver(&forged), Outcome::Rejected(RejectReason::BogusOrigin));
    assert!(
        matches!(b.deliver(&answer(&second, b.now)), Outcome::Exchange(_)),
        "the true answer still counts"
    );

    let third = b.ask();
    b.now += secs(1.5);
    assert_eq!(b.deliver(&answer(&third, b.now)), Outcome::Rejected(RejectReason::Late));
    assert_eq!((b.client.counters().lost, b.client.counters().rejected_total()), (1, 4));
}

#[test]
fn stray_packets_do_not_end_the_request() {
    let mut b = bench();
    let request = b.ask();
    let good = answer(&request, b.now);
    let strays = [
        (RejectReason::Version, Packet { version: 2, ..good }.to_bytes().to_vec()),
        (RejectReason::Mode, Packet { mode: Mode::Broadcast, ..good }.to_bytes().to_vec()),
        (RejectReason::Mode, request.bytes.to_vec()),
        (RejectReason::TooShort, good.to_bytes()[..47].to_vec()),
        (RejectReason::TooShort, vec![]),
        (RejectReason::MalformedTail, [&good.to_bytes()[..], &[0; 7]].concat()),
    ];
    for (reason, bytes) in strays {
        assert_eq!(b.deliver_bytes(&bytes), Outcome::Rejected(reason));
        assert!(!reason.ends_request());
    }
    let with_mac = [&good.to_bytes()[..], &[0; 20]].concat();
    assert!(matches!(b.deliver_bytes(&with_mac), Outcome::Exchange(_)));
}

#[test]
fn an_answer_in_version_3_is_taken() {
    let mut b = bench();
    let request = b.ask();
    let answered = b.deliver(&Packet { version: 3, ..answer(&request, b.now) });
    assert!(matches!(answered, Outcome::Exchange(_)), "{answered:?}");
}

/// What the operator reads must be what happens on the wire.
#[test]
fn what_arrives_instead_of_an_answer_is_said_until_an_answer_comes() {
    let mut b = bench();
    let wrong = |b: &Bench, request: &Request| Packet { version: 5, ..answer(request, b.now) };
    for _ in 0..9 {
        let request = b.ask();
        b.deliver(&wrong(&b, &request));
    }
    b.now = b.client.poll_at();
    let _ = b.client.on_timer(b.now, 7);
    let status = b.client.status();
    assert_eq!(status, Status::Unusable { reason: RejectReason::Version, distance: None });
    assert!(b.client.failed_in_a_row() >= 9);
    // Nothing arrives any more.
    for _ in 0..10 {
        let _ = b.ask();
    }
    assert!(matches!(b.client.status(), Status::Unreachable { .. }), "{:?}", b.client.status());
    b.client.on_stranger(b.now);
    let status = b.client.status();
    assert_eq!(status, Status::Unusable { reason: RejectReason::Source, distance: None });
    assert!(matches!(b.exchange(), Outcome::Exchange(_)));
    assert_eq!((b.client.status(), b.client.failed_in_a_row()), (Status::Reachable, 0));
}

#[test]
fn a_server_that_states_too_large_an_error_is_told_with_both_figures() {
    let mut b = bench();
    let request = b.ask();
    let far = NtpShort::from_duration_ceil(secs(7.9));
    b.deliver(&Packet { root_dispersion: far, ..answer(&request, b.now) });
    let said = b.client.status().describe(b.now);
    assert!(said.contains("states an error of 7.9"), "{said}");
    assert!(said.contains("max_distance is 1.500 s"), "{said}");
}

/// A link by relay: each answer takes longer than the poll interval.
#[test]
fn round_trips_of_many_seconds_work_and_the_next_request_waits() {
    let config = Config {
        request_timeout: secs(16.0),
        poll_min: secs(2.0),
        burst_count: 1,
        ..Config::default()
    };
    let mut b = Bench::new(config);
    for n in 1..6 {
        let request = b.ask();
        assert_eq!(request.id, n);
        b.now += secs(15.0);
        assert!(b.client.on_timer(b.now, 9).is_none(), "two requests in flight");
        let answered = b.deliver(&answer(&request, b.now));
        assert!(matches!(answered, Outcome::Exchange(_)), "{answered:?}");
        assert!(b.client.poll_at() <= b.now, "the next request is due");
    }
}

#[test]
fn an_unsynchronized_server_is_unusable_with_the_reason() {
    let mut b = bench();
    let request = b.ask();
    let unsynchronized = Packet { leap: LeapIndicator::Unsynchronized, ..answer(&request, b.now) };
    assert_eq!(b.deliver(&unsynchronized), Outcome::Rejected(RejectReason::Unsynchronized));
    let reason = RejectReason::Unsynchronized;
    assert_eq!(b.client.status(), Status::Unusable { reason, distance: None });
    assert_eq!(b.client.counters().lost, 0, "the answer came");
    assert!(matches!(b.exchange(), Outcome::Exchange(_)));
    assert_eq!(b.client.status(), Status::Reachable);
}

#[test]
fn rate_doubles_the_interval_up_to_the_maximum_for_good() {
    let mut b = Bench::new(Config { poll_max: secs(50.0), ..Config::default() });
    let mut intervals = vec![];
    for _ in 0..3 {
        let request = b.ask();
        assert_eq!(b.deliver(&kiss(&request, *b"RATE", 4)), Outcome::KissOfDeath(KissCode::Rate));
        intervals.push(b.client.interval());
        assert_eq!(b.client.status(), Status::RateLimited { poll: b.client.interval() });
    }
    assert_eq!(intervals, [secs(32.0), secs(50.0), secs(50.0)]);
    assert_eq!(b.gaps(3, true), [50, 50]);
    b.client.restart(b.now);
    assert_eq!(b.gaps(3, true), [50, 50], "a restart does not forget what the server asked");
}

#[test]
fn rate_never_polls_faster_than_the_server_asks_within_an_hour() {
    for (poll, interval) in
        [(11, secs(2048.0)), (17, secs(3600.0)), (127, secs(32.0)), (-1, secs(32.0))]
    {
        let mut b = bench();
        let request = b.ask();
        b.deliver(&kiss(&request, *b"RATE", poll));
        assert_eq!(b.client.interval(), interval);
        let kissed = b.now;
        b.ask();
        assert_eq!(b.now, kissed + interval);
    }
}

#[test]
fn deny_and_restrict_leave_one_attempt_per_hour() {
    for (code, letters) in [(KissCode::Deny, *b"DENY"), (KissCode::Restrict, *b"RSTR")] {
        let mut b = bench();
        let request = b.ask();
        assert_eq!(b.deliver(&kiss(&request, letters, 4)), Outcome::KissOfDeath(code));
        assert_eq!(b.client.status(), Status::Denied { code, retry_at: secs(3600.0) });
        b.client.restart(b.now);
        assert_eq!(b.gaps(3, false), [3600, 3600]);
        assert!(
            matches!(b.client.status(), Status::Denied { .. }),
            "silence does not lift a denial"
        );
        assert!(matches!(b.exchange(), Outcome::Exchange(_)));
        assert_eq!(b.client.status(), Status::Reachable);
        assert_eq!(b.client.interval(), secs(16.0));
        let accepted = b.now;
        assert_eq!(b.gaps(3, true), [16, 16], "back to normal, without a burst");
        assert!(b.now - accepted <= secs(48.0), "at once");
    }
}

#[test]
fn a_denied_slow_poller_does_not_ask_faster_than_before() {
    let slow = secs(7200.0);
    let mut b = Bench::new(Config { poll_min: slow, poll_max: slow, ..Config::default() });
    let request = b.ask();
    b.deliver(&kiss(&request, *b"DENY", 4));
    assert_eq!(b.gaps(2, false), [7200]);
}

#[test]
fn other_kiss_codes_change_nothing_but_the_status() {
    let mut b = bench();
    let request = b.ask();
    assert_eq!(
        b.deliver(&kiss(&request, *b"INIT", 17)),
        Outcome::KissOfDeath(KissCode::Other(*b"INIT"))
    );
    assert_eq!(b.client.status(), Status::Declined { code: KissCode::Other(*b"INIT") });
    assert_eq!(b.client.poll_at(), secs(2.0));
    assert_eq!(b.client.interval(), secs(16.0));
}

#[test]
fn a_kiss_without_the_cookie_is_only_counted() {
    let mut b = bench();
    let request = b.ask();
    let forged = Packet { origin: NtpTimestamp::ZERO, ..kiss(&request, *b"DENY", 4) };
    assert_eq!(b.deliver(&forged), Outcome::Rejected(RejectReason::BogusOrigin));
    assert_eq!((b.client.counters().kisses, b.client.status()), (0, Status::Probing));
}

#[test]
fn restart_bursts_but_keeps_the_spacing() {
    let mut b = bench();
    b.gaps(12, true);
    b.now += secs(0.5);
    b.client.restart(b.now);
    let sent = b.now - secs(0.5);
    let abandoned = b.ask();
    assert_eq!(b.now, sent + secs(2.0));
    b.client.restart(b.now);
    assert_eq!(b.deliver(&answer(&abandoned, b.now)), Outcome::Rejected(RejectReason::Late));
    assert_eq!(b.gaps(9, true), [2, 2, 2, 2, 2, 2, 2, 16]);
}

#[test]
fn a_broken_random_generator_cannot_make_an_old_answer_fit() {
    let mut b = bench();
    let first = b.client.on_timer(b.now, 0).unwrap();
    b.client.sent(first.id);
    assert_ne!(first.bytes[40..], [0; 8], "zero would mean no time");
    let old = answer(&first, b.now);
    assert!(matches!(b.deliver(&old), Outcome::Exchange(_)));
    b.now = b.client.poll_at();
    let second = b.client.on_timer(b.now, 0).unwrap();
    b.client.sent(second.id);
    assert_ne!(first.bytes, second.bytes);
    assert_eq!(b.deliver(&old), Outcome::Rejected(RejectReason::Duplicate));
    assert!(matches!(b.deliver(&answer(&second, b.now)), Outcome::Exchange(_)));
}

#[test]
fn only_the_cookie_differs_between_requests() {
    let mut b = bench();
    let (first, second) = (b.ask(), b.ask());
    assert_eq!(first.bytes[..40], second.bytes[..40]);
    assert_ne!(first.bytes[40..], second.bytes[40..]);
}
