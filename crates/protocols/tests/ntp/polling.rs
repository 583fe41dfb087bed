//! The poll interval changed at run time, loops, and smearing servers.

use timevisor_protocols::ntp::{
    Client, Config, KissCode, NtpTimestamp, Outcome, Packet, RejectReason, Status, refid,
};
use timevisor_time::Duration;

use crate::server::{answer, kiss, secs, stamps, utc};

struct Bench {
    client: Client<u64>,
    now: Duration,
}

fn bench(config: Config) -> Bench {
    let mut bench =
        Bench { client: Client::new(config, Duration::ZERO).expect("valid"), now: Duration::ZERO };
    // Past the first burst.
    bench.gaps(9);
    bench
}

impl Bench {
    fn ask(&mut self) -> timevisor_protocols::ntp::Request {
        for _ in 0..3 {
            self.now = self.now.max(self.client.poll_at());
            let random = self.now.floor_nanos().unsigned_abs() + 1;
            if let Some(request) = self.client.on_timer(self.now, random) {
                self.client.sent(request.id);
                return request;
            }
        }
        panic!("no request");
    }

    fn exchange(&mut self, change: impl Fn(&mut Packet)) -> Outcome {
        let request = self.ask();
        let mut packet = answer(&request, self.now);
        change(&mut packet);
        self.client.on_datagram(self.now, &packet.to_bytes(), utc(self.now), stamps)
    }

    fn gaps(&mut self, n: usize) -> Vec<f64> {
        let mut times = vec![];
        for _ in 0..n {
            assert!(matches!(self.exchange(|_| {}), Outcome::Exchange(_)));
            times.push(self.now);
        }
        times.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect()
    }
}

#[test]
fn a_shorter_interval_takes_effect_at_once() {
    let mut b = bench(Config::default());
    let last = b.now;
    b.now += secs(1.0);
    b.client.set_poll(secs(4.0), 1).unwrap();
    b.exchange(|_| {});
    assert_eq!(b.now, last + secs(4.0));
    assert_eq!(b.gaps(3), [4.0, 4.0]);
    assert_eq!(b.client.interval(), secs(4.0));
}

#[test]
fn a_longer_interval_counts_from_the_last_poll_even_beyond_poll_max() {
    let mut b = bench(Config::default());
    let last = b.now;
    b.client.set_poll(secs(2048.0), 1).unwrap();
    b.exchange(|_| {});
    assert_eq!(b.now, last + secs(2048.0));
}

#[test]
fn an_interval_that_is_over_already_does_not_make_a_volley() {
    let mut b = bench(Config::default());
    b.now += secs(10.0);
    b.client.set_poll(secs(2.0), 1).unwrap();
    let asked = b.now;
    assert_eq!(b.gaps(3), [2.0, 2.0]);
    assert_eq!(b.now, asked + secs(4.0), "the first was due at once");
}

#[test]
fn several_requests_per_poll() {
    let mut b = bench(Config::default());
    b.client.set_poll(secs(32.0), 4).unwrap();
    b.exchange(|_| {});
    assert_eq!(b.gaps(9), [2.0, 2.0, 26.0, 2.0, 2.0, 2.0, 26.0, 2.0]);
    b.client.set_poll(secs(8.0), 1).unwrap();
    let gaps = b.gaps(4);
    assert!(gaps.ends_with(&[8.0, 8.0]), "{gaps:?}");
}

#[test]
fn after_a_poll_of_several_requests_a_shorter_interval_keeps_their_spacing() {
    let mut b = bench(Config::default());
    b.client.set_poll(secs(32.0), 4).unwrap();
    b.gaps(4);
    let last = b.now;
    b.client.set_poll(secs(2.0), 1).unwrap();
    b.exchange(|_| {});
    assert_eq!(b.now, last + secs(2.0));
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let mut b = bench(Config::default());
    for (interval, burst, word) in [
        (secs(0.0), 1, "poll_min"),
        (secs(4.0), 3, "3 requests per poll"),
        (secs(64.0), 17, "burst_count"),
        (secs(64.0), 0, "burst_count"),
        (secs(1e9), 1, "poll_min"),
    ] {
        let error = b.client.set_poll(interval, burst).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(b.gaps(3), [16.0, 16.0]);
}

#[test]
fn a_rate_kiss_wins_over_every_controller() {
    let mut b = bench(Config::default());
    let request = b.ask();
    b.now += secs(0.5);
    b.client.on_datagram(b.now, &kiss(&request, *b"RATE", 0).to_bytes(), utc(b.now), stamps);
    let kissed = b.now;
    b.client.set_poll(secs(2.0), 1).unwrap();
    assert_eq!(b.client.interval(), secs(32.0));
    b.client.set_poll(secs(16.0), 4).unwrap();
    assert_eq!(b.client.status(), Status::RateLimited { poll: secs(32.0) });
    b.exchange(|_| {});
    assert_eq!(b.now, kissed + secs(32.0));
    assert_eq!(b.gaps(3), [32.0, 32.0], "single requests");
    b.client.set_poll(secs(64.0), 1).unwrap();
    assert_eq!(b.gaps(3), [64.0, 64.0], "longer is always possible");
}

#[test]
fn a_denial_wins_as_well() {
    let mut b = bench(Config::default());
    let request = b.ask();
    b.now += secs(0.5);
    b.client.on_datagram(b.now, &kiss(&request, *b"DENY", 0).to_bytes(), utc(b.now), stamps);
    let denied = b.now;
    b.client.set_poll(secs(2.0), 1).unwrap();
    b.ask();
    assert_eq!(b.now, denied + secs(3600.0));
    assert!(matches!(b.client.status(), Status::Denied { code: KissCode::Deny, .. }));
}

#[test]
fn a_poll_set_in_the_first_burst_begins_after_it() {
    let mut b = Bench {
        client: Client::new(Config::default(), Duration::ZERO).unwrap(),
        now: Duration::ZERO,
    };
    b.exchange(|_| {});
    b.client.set_poll(secs(4.0), 1).unwrap();
    assert_eq!(b.gaps(9), [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0]);
}

#[test]
fn smearing_servers_are_refused_with_advice() {
    for (stratum, id) in [(2, [127, 127, 1, 255]), (2, [254, 0x80, 0, 1]), (1, *b"GOOG")] {
        let mut b = bench(Config::default());
        let smear = |packet: &mut Packet| (packet.stratum, packet.reference_id) = (stratum, id);
        assert_eq!(b.exchange(smear), Outcome::Rejected(RejectReason::LeapSmear));
        let Status::Unusable { reason, .. } = b.client.status() else { panic!() };
        assert!(reason.to_string().contains("allow_smear"), "{reason}");
        let mut b = bench(Config { allow_smear: true, ..Config::default() });
        assert!(matches!(b.exchange(smear), Outcome::Exchange(_)));
    }
}

#[test]
fn a_server_that_follows_us_is_a_loop() {
    let mut b = bench(Config::default());
    let ours = ["192.0.2.9", "2001:db8::9"].map(|ip| refid::of_address(ip.parse().unwrap()));
    b.client.set_own_ids(ours.to_vec());
    for id in ours {
        assert_eq!(b.exchange(|p| p.reference_id = id), Outcome::Rejected(RejectReason::Loop));
    }
    assert!(matches!(b.exchange(|_| {}), Outcome::Exchange(_)));
    assert_eq!(b.client.counters().rejected_for(RejectReason::Loop), 2);
}

#[test]
fn extension_fields_of_any_kind_are_ignored_safely() {
    let mut b = bench(Config::default());
    for kind in [0x0104u16, 0x0002, 0xffff] {
        let request = b.ask();
        let mut bytes = answer(&request, b.now).to_bytes().to_vec();
        bytes.extend([&kind.to_be_bytes()[..], &32u16.to_be_bytes(), &[0xab; 28]].concat());
        let outcome = b.client.on_datagram(b.now, &bytes, utc(b.now), stamps);
        assert!(matches!(outcome, Outcome::Exchange(_)), "{kind:#x}: {outcome:?}");
    }
    // The content behind the header never becomes the content of the header.
    let request = b.ask();
    let plain = answer(&request, b.now);
    let mut bytes = plain.to_bytes().to_vec();
    bytes.extend([0; 28]);
    let outcome = b.client.on_datagram(b.now, &bytes, utc(b.now), stamps);
    assert_eq!(outcome, Outcome::Rejected(RejectReason::MalformedTail));
    assert_ne!(plain.transmit, NtpTimestamp::ZERO);
}
