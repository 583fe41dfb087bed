//! Invariants of one association under random event sequences: lost, late, duplicated, reordered,
//! altered answers, kisses, garbage, late timers, restarts, and a random generator that repeats
//! itself.

use std::collections::BTreeSet;

use crate::server::{answer, kiss, stamps, utc};
use proptest::prelude::*;
use timevisor_protocols::ntp::{
    Client, Config, Exchange, KissCode, LeapIndicator, Outcome, Packet, Request, Status,
};
use timevisor_time::Duration;

#[derive(Clone, Debug)]
enum Event {
    Sleep(u32),
    SleepUntilDue,
    Timer(u64),
    Answer(usize),
    Altered(usize, u8),
    Flipped(usize, usize),
    Kiss(usize, [u8; 4], i8),
    Garbage(Vec<u8>),
    Restart,
    SetPoll(i64, u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0u32..40_000).prop_map(Event::Sleep),
        6 => Just(Event::SleepUntilDue),
        8 => (0u64..4).prop_map(Event::Timer),
        8 => (0usize..6).prop_map(Event::Answer),
        2 => (0usize..4, 0u8..4).prop_map(|(i, how)| Event::Altered(i, how)),
        2 => (0usize..4, 0usize..384).prop_map(|(i, bit)| Event::Flipped(i, bit)),
        1 => (0usize..3, prop::sample::select(vec![*b"RATE", *b"DENY", *b"RSTR", *b"INIT"]), any::<i8>())
            .prop_map(|(i, code, poll)| Event::Kiss(i, code, poll)),
        1 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Event::Garbage),
        1 => Just(Event::Restart),
        1 => (0i64..40, 0u32..5).prop_map(|(secs, burst)| Event::SetPoll(secs, burst)),
    ]
}

struct World {
    client: Client<u64>,
    now: Duration,
    /// Newest first, with the time of sending.
    sent: Vec<(Request, Duration)>,
    accepted: BTreeSet<u64>,
    /// The shortest gap to the next request that the server's last kiss permits.
    floor: Duration,
    /// A kiss has set the floor.
    kissed: bool,
    denied: bool,
}

impl World {
    fn deliver(&mut self, bytes: &[u8]) {
        match self.client.on_datagram(self.now, bytes, utc(self.now), stamps) {
            Outcome::Exchange(Exchange { ta, tf, response }) => {
                assert_eq!((ta, tf), stamps(response.request_id));
                let (request, sent) = self.sent.first().expect("an answer needs a request");
                assert_eq!(
                    response.request_id, request.id,
                    "only the last request can be answered"
                );
                assert!(self.accepted.insert(response.request_id), "accepted twice");
                assert!(
                    self.now - *sent < self.client.config().request_timeout,
                    "accepted after the timeout"
                );
                assert!(
                    response.te >= response.tb
                        && response.error_budget() <= self.client.config().max_distance
                );
                assert_eq!(self.client.status(), Status::Reachable);
                self.denied = false;
            }
            Outcome::KissOfDeath(KissCode::Rate) => {
                assert!(self.client.interval() >= self.floor, "a kiss never shortens the interval");
                // While denied the interval is the hour between attempts, which an accepted answer
                // lifts again.
                self.kissed = true;
                if !self.denied {
                    self.floor = self.client.interval();
                }
            }
            Outcome::KissOfDeath(KissCode::Deny | KissCode::Restrict) => self.denied = true,
            Outcome::Kept { .. } => panic!("nobody asked for the interleaved mode"),
            Outcome::KissOfDeath(KissCode::Other(_)) | Outcome::Rejected(_) => {}
        }
    }

    fn timer(&mut self, random: u64) {
        let Some(request) = self.client.on_timer(self.now, random) else { return };
        self.client.sent(request.id);
        if let Some((_, last)) = self.sent.first() {
            let gap = self.now - *last;
            assert!(
                gap >= self.floor,
                "{gap} after the last request, but the server permits {}",
                self.floor
            );
            assert!(
                !self.denied || gap >= Duration::from_secs(3600),
                "asked a server that denied us after {gap}"
            );
        }
        self.sent.insert(0, (request, self.now));
    }

    fn step(&mut self, event: Event) {
        let old = |i: usize| self.sent.get(i).map(|(r, _)| *r);
        match event {
            Event::Sleep(ms) => self.now += Duration::from_millis(i64::from(ms)),
            Event::SleepUntilDue => self.now = self.now.max(self.client.poll_at()),
            Event::Timer(random) => self.timer(random),
            Event::Restart => self.client.restart(self.now),
            // What does not fit is refused; a floor that a kiss has set stays.
            Event::SetPoll(secs, burst) => {
                let interval = Duration::from_secs(secs);
                let set = self.client.set_poll(interval, burst).is_ok();
                // A poll may be shorter than the spacing of the burst at the start.
                if set && !self.kissed {
                    self.floor = self.floor.min(interval);
                }
                assert!(self.client.interval() >= self.floor);
            }
            Event::Garbage(bytes) => self.deliver(&bytes),
            Event::Answer(i) => {
                if let Some(request) = old(i) {
                    self.deliver(&answer(&request, self.now).to_bytes());
                }
            }
            Event::Altered(i, how) => {
                if let Some(request) = old(i) {
                    let mut packet: Packet = answer(&request, self.now);
                    match how {
                        0 => packet.leap = LeapIndicator::Unsynchronized,
                        1 => packet.stratum = 16,
                        2 => std::mem::swap(&mut packet.receive, &mut packet.transmit),
                        _ => packet.precision = 100,
                    }
                    self.deliver(&packet.to_bytes());
                }
            }
            Event::Flipped(i, bit) => {
                if let Some(request) = old(i) {
                    let mut bytes = answer(&request, self.now).to_bytes();
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    self.deliver(&bytes);
                }
            }
            Event::Kiss(i, code, poll) => {
                if let Some(request) = old(i) {
                    self.deliver(&kiss(&request, code, poll).to_bytes());
                }
            }
        }
        self.check_books();
    }

    /// Every request ends exactly once, and the counters know how.
    fn check_books(&self) {
        let c = self.client.counters();
        let ended_by_content: u64 =
            c.rejected.iter().filter(|(r, _)| r.ends_request()).map(|(_, n)| n).sum();
        let ended = c.accepted + c.lost + c.kisses + ended_by_content;
        assert!(c.sent == ended || c.sent == ended + 1, "{c:?}");
        assert_eq!(c.accepted, self.accepted.len() as u64);
        assert_eq!(c.sent, self.sent.len() as u64);
        assert!(!self.client.status().describe(self.now).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn nothing_breaks_it(events in prop::collection::vec(event(), 0..200)) {
        let config = Config::default();
        let mut world = World {
            client: Client::new(config, Duration::ZERO).unwrap(),
            now: Duration::ZERO,
            sent: vec![],
            accepted: BTreeSet::new(),
            floor: config.burst_spacing,
            kissed: false,
            denied: false,
        };
        for event in events {
            world.step(event);
        }
        // Whatever happened, a caller that sleeps until poll_at() soon gets a request, and a good
        // answer to it is accepted.
        let before = world.sent.len();
        for random in 0..2 {
            if world.sent.len() == before {
                world.now = world.now.max(world.client.poll_at());
                world.timer(random);
            }
        }
        prop_assert_eq!(world.sent.len(), before + 1, "poll_at() leads to no request: {:?}", world.client);
        let (last, _) = world.sent[0];
        world.deliver(&answer(&last, world.now).to_bytes());
        prop_assert_eq!(world.client.status(), Status::Reachable);
    }

    #[test]
    fn any_bytes_at_any_time(
        bytes in prop::collection::vec(any::<u8>(), 0..150), now in any::<i128>(), approx in any::<i128>(),
    ) {
        let now = Duration::from_bits(now);
        let mut client = Client::new(Config::default(), now).unwrap();
        let _ = client.on_timer(now, 7);
        let _ = client.on_datagram(now, &bytes, timevisor_time::Instant::from_bits(approx), stamps);
        let _ = client.on_timer(now, 8);
        client.restart(now);
        let _ = (client.poll_at(), client.status().describe(now));
    }
}
