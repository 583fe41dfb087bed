//! The table of clients: what the rate limit and the interleaved mode remember about each address.
//!
//! The memory is fixed: sets of eight places. An address can be in one set only, and a new address
//! takes the least recently used place of its set. A keyed hash of the address (SipHash) chooses
//! the set, so that an attacker cannot aim at one.
//!
//! What it does not do: distinguish clients behind one address (they share the limit, and at most
//! one of them gets interleaved replies), or group the addresses of a network.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use timevisor_time::Duration;

use super::config::Config;
use crate::ntp::format::NtpTimestamp;
use crate::ntp::precise::Errors;

/// Places per set.
const WAYS: usize = 8;

/// The rate limit's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Answer; the client has this place in the table.
    Admitted(usize),
    /// Too often; send a kiss, once per time in which the whole burst is granted again.
    Kiss,
    /// Too often, and the kiss was sent.
    Limited,
}

/// The departure of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// The departure time to show to the client.
    pub at: NtpTimestamp,
    /// The errors of the departure time.
    pub errors: Errors,
}

/// What is known of one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its address.
    pub address: IpAddr,
    /// When its first request arrived that is counted here.
    pub first: Duration,
    /// When its last request arrived.
    pub last: Duration,
    /// Requests, up to the largest number.
    pub requests: u32,
    /// Those of them that came too often.
    pub limited: u32,
}

#[derive(Clone, Debug)]
struct Client {
    address: IpAddr,
    requests: u32,
    limited: u32,
    /// When the first of them arrived, ns: half the size of a span.
    first_ns: i64,
    seen: Duration,
    /// The token bucket as a virtual schedule: when the next request would be due if all came
    /// evenly. A request may come earlier than that by up to the whole burst.
    due: Duration,
    /// The next kiss comes no earlier than this.
    kissable: Duration,
    /// The receive stamp of the last reply whose departure is wanted; zero for none.
    name: NtpTimestamp,
    left: Option<Left>,
}

/// The table.
#[derive(Debug)]
pub struct Clients {
    places: Vec<Option<Client>>,
    interval: Duration,
    /// How much earlier than due a request may come.
    tolerance: Duration,
    key: u64,
}

impl Clients {
    /// Makes an empty table; `key` is secret.
    #[must_use]
    pub fn new(config: &Config, key: u64) -> Self {
        let places = config.clients.next_power_of_two().max(WAYS);
        let interval = config.rate_interval;
        let tolerance = (1..config.rate_burst).map(|_| interval).sum();
        Self { places: vec![None; places], interval, tolerance, key }
    }

    /// Finds or makes the place of `address` and applies the rate limit to its request.
    pub fn visit(&mut self, address: IpAddr, now: Duration) -> Verdict {
        let slot = self.place(address, now);
        let (interval, tolerance) = (self.interval, self.tolerance);
        let Some(client) = &mut self.places[slot] else { return Verdict::Limited };
        client.seen = now;
        client.requests = client.requests.saturating_add(1);
        if now >= client.due - tolerance {
            client.due = client.due.max(now) + interval;
            return Verdict::Admitted(slot);
        }
        client.limited = client.limited.saturating_add(1);
        if now >= client.kissable {
            client.kissable = now + tolerance + interval;
            return Verdict::Kiss;
        }
        Verdict::Limited
    }

    /// Returns the receive stamp `stamp`, incremented if the previous reply had it: names must
    /// differ.
    #[must_use]
    pub fn unique(&self, slot: usize, stamp: NtpTimestamp) -> NtpTimestamp {
        match &self.places[slot] {
            Some(client) if client.name == stamp => {
                NtpTimestamp::from_bits(stamp.to_bits().wrapping_add(2))
            }
            _ => stamp,
        }
    }

    /// Returns the departure of the reply called `name`, if known. Only once, so that no two
    /// replies tell it (RFC 9769).
    pub fn take_departure(&mut self, slot: usize, name: NtpTimestamp) -> Option<Left> {
        let client = self.places[slot].as_mut().filter(|client| client.name == name)?;
        client.left.take()
    }

    /// Records that a reply called `name` leaves, whose departure the client will ask for.
    pub fn expect_departure(&mut self, slot: usize, name: NtpTimestamp) {
        if let Some(client) = &mut self.places[slot] {
            (client.name, client.left) = (name, None);
        }
    }

    /// Stores the departure of the reply called `name`. Has no effect if a later reply was made in
    /// the meantime.
    pub fn departed(&mut self, slot: usize, name: NtpTimestamp, at: NtpTimestamp, errors: Errors) {
        if let Some(client) = self.places.get_mut(slot).and_then(Option::as_mut)
            && client.name == name
        {
            client.left = Some(Left { at, errors });
        }
    }

    /// The clients that are remembered, in no order.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.places.iter().flatten().map(|client| Row {
            address: client.address,
            first: Duration::from_nanos(client.first_ns),
            last: client.seen,
            requests: client.requests,
            limited: client.limited,
        })
    }

    /// How many clients are remembered at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Returns the place of `address`, made if needed.
    fn place(&mut self, address: IpAddr, now: Duration) -> usize {
        let first = self.set_of(address);
        let set = &self.places[first..first + WAYS];
        let known = set.iter().position(|p| p.as_ref().is_some_and(|c| c.address == address));
        if let Some(way) = known {
            return first + way;
        }
        let oldest = set.iter().enumerate().min_by_key(|(_, p)| p.as_ref().map(|c| c.seen));
        let slot = first + oldest.map_or(0, |(way, _)| way);
        self.places[slot] = Some(Client {
            address,
            requests: 0,
            limited: 0,
            first_ns: now.floor_nanos(),
            seen: now,
            due: now,
            kissable: now,
            name: NtpTimestamp::ZERO,
            left: None,
        });
        slot
    }

    /// Returns the first place of an address's set.
    fn set_of(&self, address: IpAddr) -> usize {
        let mut hasher = DefaultHasher::new();
        self.key.hash(&mut hasher);
        address.hash(&mut hasher);
        let sets = self.places.len() / WAYS;
        // Truncating a hash to usize loses nothing that matters.
        usize::try_from(hasher.finish() & 0xffff_ffff).unwrap_or(0) % sets * WAYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(clients: usize, interval_ms: i64, burst: u32) -> Clients {
        let rate_interval = Duration::from_millis(interval_ms);
        Clients::new(&Config { clients, rate_interval, rate_burst: burst, ..Config::default() }, 7)
    }

    fn address(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    fn at(ms: i64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_then_one_per_interval() {
        let mut clients = table(64, 1000, 3);
        let mut admitted = |ms| matches!(clients.visit(address(1), at(ms)), Verdict::Admitted(_));
        assert!((0..3).all(|_| admitted(0)));
        assert!(!admitted(0) && !admitted(999));
        assert!(admitted(1000) && !admitted(1500));
        assert!(admitted(2000));
        assert!(admitted(4000) && admitted(4000) && !admitted(4000), "two have been saved up");
        assert!((0..3).all(|_| admitted(60_000)) && !admitted(60_000), "but never more than three");
    }

    #[test]
    fn one_kiss_per_burst_time_then_silence() {
        let mut clients = table(64, 1000, 4);
        let said: Vec<_> = (0..60).map(|n| clients.visit(address(1), at(n * 100))).collect();
        let kisses: Vec<_> =
            (0..60).filter(|n| said[*n] == Verdict::Kiss).map(|n| n * 100).collect();
        assert_eq!(kisses, [400, 4400]);
        let admitted = said.iter().filter(|v| matches!(v, Verdict::Admitted(_))).count();
        assert_eq!(admitted, 4 + 5, "in 5.9 s");
    }

    #[test]
    fn no_limit_is_no_limit_and_others_are_not_affected() {
        let mut open = table(64, 0, 1);
        assert!((0..1000).all(|_| matches!(open.visit(address(1), at(0)), Verdict::Admitted(_))));
        let mut clients = table(64, 1000, 1);
        let _ = clients.visit(address(1), at(0));
        assert_eq!(clients.visit(address(1), at(0)), Verdict::Kiss);
        assert!(matches!(clients.visit(address(2), at(0)), Verdict::Admitted(_)));
    }

    #[test]
    fn memory_is_fixed_and_the_silent_are_forgotten_first() {
        // The rate is one request per 1000 s, so a second admission means that the client was
        // forgotten.
        let mut clients = table(16, 1_000_000, 1);
        let mut new =
            |n: u32, ms| matches!(clients.visit(address(n), at(ms)), Verdict::Admitted(_));
        assert!(new(0, 0) && new(1, 0));
        for n in 2..10_000 {
            assert!(new(n, i64::from(n)));
            assert!(!new(0, i64::from(n)), "never silent for long: {n}");
        }
        assert!(new(1, 10_000), "silent for long");
        assert_eq!(clients.places.len(), 16);
    }

    #[test]
    fn what_is_known_of_each_client_is_listed() {
        let mut clients = table(64, 1000, 1);
        for (n, ms) in [(1, 0), (2, 10), (1, 20), (1, 3000)] {
            let _ = clients.visit(address(n), at(ms));
        }
        let mut rows: Vec<Row> = clients.rows().collect();
        rows.sort_by_key(|row| row.address);
        let row = |n, first, last, requests, limited| Row {
            address: address(n),
            first: Duration::from_nanos(at(first).floor_nanos()),
            last: at(last),
            requests,
            limited,
        };
        assert_eq!(rows, [row(1, 0, 3000, 3, 1), row(2, 10, 10, 1, 0)]);
    }

    #[test]
    fn a_place_is_as_small_as_documented() {
        assert!(size_of::<Option<Client>>() <= 160, "{}", size_of::<Option<Client>>());
    }

    #[test]
    fn a_departure_is_told_once_and_only_by_its_name() {
        let mut clients = table(64, 0, 1);
        let Verdict::Admitted(slot) = clients.visit(address(1), at(0)) else { panic!() };
        let [name, other, stamp] = [11, 13, 20].map(NtpTimestamp::from_bits);
        let errors = Errors { below: at(1), above: at(2) };
        clients.departed(slot, name, stamp, errors);
        assert_eq!(clients.take_departure(slot, name), None, "nobody was told to expect it");
        clients.expect_departure(slot, name);
        assert_eq!(clients.take_departure(slot, name), None, "not known yet");
        clients.departed(slot, other, stamp, errors);
        assert_eq!(clients.take_departure(slot, name), None);
        clients.departed(slot, name, stamp, errors);
        assert_eq!(clients.take_departure(slot, other), None);
        assert_eq!(clients.take_departure(slot, name), Some(Left { at: stamp, errors }));
        assert_eq!(clients.take_departure(slot, name), None);
        assert_eq!(clients.unique(slot, name).to_bits(), 13);
        assert_eq!(clients.unique(slot, other), other);
        clients.departed(usize::MAX, name, stamp, errors);
    }
}
