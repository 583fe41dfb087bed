//! Which member of a pool has which address, and which are free.
//!
//! Addresses that the name has now come before those that it had. An address that was given up is
//! not used again for an hour.
//!
//! What it does not do: look names up, or decide when an address is of no use (`pool.rs`).

use std::collections::VecDeque;
use std::net::SocketAddr;

use timevisor_time::Duration;

/// How long an address that was given up is not tried again.
const GIVEN_UP: Duration = Duration::from_secs(3600);
/// More addresses than this are not kept.
const MOST_FREE: usize = 32;

/// The addresses of one pool.
#[derive(Default)]
pub struct Addresses {
    free: VecDeque<SocketAddr>,
    used: Vec<SocketAddr>,
    given_up: Vec<(SocketAddr, Duration)>,
}

impl Addresses {
    /// Adds the addresses that the resolver's thread found.
    pub fn learn(&mut self, found: &[SocketAddr], now: Duration) {
        self.given_up.retain(|(_, until)| now < *until);
        // What the name no longer has is tried last, and soon no more.
        let (listed, gone): (VecDeque<_>, VecDeque<_>) =
            self.free.drain(..).partition(|address| found.contains(address));
        self.free = listed;
        let mut new = VecDeque::new();
        for address in found {
            let known = self.used.contains(address)
                || self.free.contains(address)
                || new.contains(address)
                || self.given_up.iter().any(|(gone, _)| gone == address);
            if !known {
                new.push_back(*address);
            }
        }
        new.append(&mut self.free);
        self.free = new;
        self.free.extend(gone);
        self.free.truncate(MOST_FREE);
    }

    /// The next free address that is not among `taken`.
    pub fn take(&mut self, taken: &[SocketAddr]) -> Option<SocketAddr> {
        let at = self.free.iter().position(|address| !taken.contains(address))?;
        let address = self.free.remove(at)?;
        self.used.push(address);
        Some(address)
    }

    /// An address that is not used after all; it is the last to be tried again.
    pub fn give_back(&mut self, address: SocketAddr) {
        self.used.retain(|used| *used != address);
        self.free.push_back(address);
    }

    /// An address whose server is of no use.
    pub fn give_up(&mut self, address: SocketAddr, now: Duration) {
        self.used.retain(|used| *used != address);
        self.given_up.push((address, now + GIVEN_UP));
    }

    /// An address in use, while no other is free.
    pub fn shared(&self) -> Option<SocketAddr> {
        self.used.first().copied().filter(|_| self.free.is_empty())
    }

    /// The addresses that rest.
    #[cfg(test)]
    pub fn given_up(&self) -> Vec<SocketAddr> {
        self.given_up.iter().map(|(address, _)| *address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 123))
    }

    #[test]
    fn what_the_name_has_now_comes_before_what_it_had() {
        let mut addresses = Addresses::default();
        addresses.learn(&[address(1), address(2)], SECOND);
        addresses.learn(&[address(3), address(2)], SECOND);
        let order: Vec<_> = (0..4).map(|_| addresses.take(&[])).collect();
        assert_eq!(order, [Some(address(3)), Some(address(2)), Some(address(1)), None]);
    }

    #[test]
    fn every_address_has_one_user_and_those_given_up_rest() {
        let (start, hour) = (Duration::ZERO, GIVEN_UP);
        let mut addresses = Addresses::default();
        addresses.learn(&[address(1), address(2), address(1)], start);
        assert_eq!(
            (addresses.take(&[]), addresses.take(&[])),
            (Some(address(1)), Some(address(2)))
        );
        assert_eq!(addresses.take(&[]), None);
        addresses.give_up(address(1), start);
        addresses.learn(&[address(1), address(2), address(3)], start);
        assert_eq!((addresses.take(&[]), addresses.take(&[])), (Some(address(3)), None));
        addresses.learn(&[address(1)], hour);
        assert_eq!(addresses.take(&[]), Some(address(1)));
    }

    #[test]
    fn an_address_is_shared_while_none_is_free() {
        let mut addresses = Addresses::default();
        assert_eq!(addresses.shared(), None);
        addresses.learn(&[address(1), address(2)], SECOND);
        addresses.take(&[]);
        assert_eq!(addresses.shared(), None, "the second is free");
        addresses.take(&[]);
        assert_eq!(addresses.shared(), Some(address(1)));
        addresses.give_back(address(1));
        assert_eq!(addresses.shared(), None);
    }
}
