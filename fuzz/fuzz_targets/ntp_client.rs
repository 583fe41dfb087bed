//! One association under arbitrary datagrams, many of which carry the right cookie: only the
//! request in flight can be answered, once, in time, by the bytes that echo its cookie; and the
//! books always balance.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, log_scaled, some_bytes};
use timevisor_protocols::ntp::format::log2_span;
use timevisor_protocols::ntp::packet::{ANSWER_VERSIONS, HEADER_LEN, VERSION};
use timevisor_protocols::ntp::precise::{Bounds, Errors, Name, Reply, Status};
use timevisor_protocols::ntp::{
    Client, Config, Datagram, Exchange, Mode, NtpTimestamp, Outcome, Packet, Response,
};
use timevisor_time::{Duration, Instant, Utc};

fuzz_target!(|data: &[u8]| decode(data, run));

fn run(u: &mut Unstructured) -> Result<()> {
    let config = Config {
        interleaved: u.arbitrary()?,
        allow_smear: u.arbitrary()?,
        precise: u.arbitrary()?,
        ..Config::default()
    };
    let mut world = World {
        client: Client::new(config, Duration::ZERO).expect("the default is valid"),
        now: Duration::ZERO,
        asked: Vec::new(),
        ended: 0,
    };
    world.client.set_own_ids(vec![u.arbitrary()?]);
    while !u.is_empty() {
        world.step(u)?;
        world.check_books();
    }
    Ok(())
}

/// The header with a field of precise bounds, which may say what the header says.
fn with_bounds(u: &mut Unstructured, header: &[u8; HEADER_LEN]) -> Result<Datagram> {
    const STATUSES: [Status; 4] =
        [Status::Synchronized, Status::FreeRunning, Status::Unreliable, Status::NoSuchTimeline];
    let (packet, _) = Packet::parse(header).expect("a header");
    let near = packet.root_dispersion.to_duration() + packet.root_delay.to_duration().half();
    let mut side = || -> Result<Duration> {
        let less = Duration::from_nanos(log_scaled(u)?);
        Ok((near - less).max(Duration::ZERO))
    };
    let receive = Errors { below: side()?, above: side()? };
    let transmit = Errors { below: side()?, above: side()? };
    let mut reply = Reply::no_such_timeline(Name::HOST);
    reply.bounds = Bounds { receive, transmit };
    reply.status = *u.choose(&STATUSES)?;
    let mut datagram = Datagram::new(&packet);
    reply.write(&mut datagram, 0);
    Ok(datagram)
}

/// A request as it was sent.
#[derive(Clone, Copy)]
struct Asked {
    id: u64,
    at: Duration,
    basic: NtpTimestamp,
    /// Zero in a basic request.
    interleaved: NtpTimestamp,
}

impl Asked {
    fn is_echoed_by(&self, packet: &Packet) -> bool {
        !packet.origin.is_zero()
            && (packet.origin == self.basic || packet.origin == self.interleaved)
    }
}

struct World {
    client: Client<u64>,
    now: Duration,
    asked: Vec<Asked>,
    /// The last request that an answer ended.
    ended: u64,
}

impl World {
    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        match u.int_in_range(0..=9)? {
            0 => self.now += Duration::from_millis(log_scaled(u)?),
            1..=3 => {
                self.now = self.now.max(self.client.poll_at());
                self.timer(u.arbitrary()?);
            }
            4 => self.deliver(some_bytes(u)?, u.arbitrary()?),
            5..=7 => {
                let datagram = self.answer(u)?;
                self.deliver(&datagram, u.arbitrary()?);
                // Whatever it was, it is not an answer a second time.
                self.deliver(&datagram, 0);
            }
            8 => self.client.restart(self.now),
            _ => {
                let interval = Duration::from_millis(log_scaled(u)?);
                let _refused = self.client.set_poll(interval, u.arbitrary()?);
            }
        }
        Ok(())
    }

    fn timer(&mut self, random: u64) {
        let Some(request) = self.client.on_timer(self.now, random) else { return };
        let (packet, _) = Packet::parse(&request.bytes).expect("a request is a packet");
        let interleaved = if packet.origin.is_zero() { NtpTimestamp::ZERO } else { packet.receive };
        let (id, basic) = (request.id, packet.transmit);
        assert!(!basic.is_zero() && basic != interleaved && packet.mode == Mode::Client);
        self.asked.push(Asked { id, at: self.now, basic, interleaved });
        self.client.sent(id);
    }

    /// Arbitrary but for what a server's answer to a recent request must have; perhaps the answer
    /// itself.
    fn answer(&self, u: &mut Unstructured) -> Result<Vec<u8>> {
        let mut header: [u8; HEADER_LEN] = u.arbitrary()?;
        header[0] = header[0] & 0xc0 | VERSION << 3 | 4;
        let back = usize::from(u.arbitrary::<u8>()? % 4);
        if let Some(asked) = self.asked.iter().rev().nth(back) {
            let cookie = if u.arbitrary()? { asked.interleaved } else { asked.basic };
            header[24..32].copy_from_slice(&cookie.to_bits().to_be_bytes());
        }
        if u.arbitrary()? {
            // Within the budget: a root delay and dispersion of less than half a second, both
            // stamps of one moment.
            header[4..6].fill(0);
            header[8..10].fill(0);
            header.copy_within(32..36, 40);
        }
        if u.ratio(1, 4)? {
            return Ok(with_bounds(u, &header)?.to_vec());
        }
        let mut datagram = header.to_vec();
        datagram.extend(some_bytes(u)?);
        Ok(datagram)
    }

    fn deliver(&mut self, datagram: &[u8], about: i128) {
        let about = Instant::<Utc>::from_bits(about);
        let waiting = self.asked.last().copied().filter(|asked| asked.id > self.ended);
        let timeout = self.client.config().request_timeout;
        let stamps = |id: u64| (id, !id);
        let ends = match self.client.on_datagram(self.now, datagram, about, stamps) {
            Outcome::Exchange(Exchange { ta, tf, response }) => {
                assert_eq!((ta, tf), stamps(response.request_id), "somebody else's stamps");
                self.check_response(&response, &waiting.expect("an answer to a request"), datagram);
                true
            }
            Outcome::Kept { answered } => {
                let asked = waiting.expect("an answer to a request");
                assert!(self.client.config().interleaved && answered == asked.id);
                true
            }
            Outcome::KissOfDeath(_) => true,
            Outcome::Rejected(reason) => reason.ends_request(),
        };
        if ends {
            let asked = waiting.expect("nothing ends but a request");
            let (packet, _) = Packet::parse(datagram).expect("only a packet ends a request");
            assert!(asked.is_echoed_by(&packet), "a stranger ended the request");
            assert!(packet.mode == Mode::Server && ANSWER_VERSIONS.contains(&packet.version));
            assert!(self.now - asked.at < timeout, "too late");
            self.ended = asked.id;
        }
    }

    fn check_response(&self, response: &Response, asked: &Asked, datagram: &[u8]) {
        let (packet, _) = Packet::parse(datagram).expect("only a packet is accepted");
        assert_eq!(response.answered, asked.id);
        assert!(response.request_id <= asked.id);
        assert_eq!(response.is_interleaved(), packet.origin == asked.interleaved);
        assert!(response.tb <= response.te);
        assert!((1..=15).contains(&response.stratum));
        let budget = response.error_budget();
        if response.precise.is_some() {
            assert!(self.client.config().precise, "nobody asked");
            assert!(budget <= response.stated_error() + log2_span(response.precision));
        }
        assert!(budget >= Duration::ZERO && budget <= self.client.config().max_distance);
    }

    /// Every request ends exactly once, and the counters know how.
    fn check_books(&self) {
        let counters = self.client.counters();
        let by_content = counters.rejected.iter().filter(|(reason, _)| reason.ends_request());
        let rejected: u64 = by_content.map(|(_, count)| count).sum();
        let ended = counters.accepted + counters.lost + counters.kisses + rejected;
        assert!(counters.sent == ended || counters.sent == ended + 1, "{counters:?}");
        assert_eq!(counters.sent, self.asked.len() as u64);
        assert!(!self.client.status().describe(self.now).is_empty());
    }
}
