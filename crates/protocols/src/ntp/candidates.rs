//! Which of the addresses of a server's name is asked, and when a lost answer calls for another
//! socket, another look-up or another address.
//!
//! The addresses are tried in the order of the resolver (RFC 6724), with the families in turn (RFC
//! 8305 section 4), so that a machine without working IPv6 loses one request, not a minute. An
//! address that has never answered gets one request; one that has answered gets several, because a
//! lost packet is no reason to leave a good server:
//!
//! | failed requests in a row | an address that has answered |
//! | --- | --- |
//! | 1 | is asked again at once ([`Step::AskSoon`]), and the name is looked up |
//! | 2 | is left if the name no longer has it |
//! | 3 | gets a new socket, hence another source address and port (a route that moved, NAT) |
//! | 6 | is left if there is another |
//!
//! What it does not do: look up names, open sockets, or judge answers.

use std::net::SocketAddr;

use timevisor_time::Duration;

/// Failed requests after which an address that has answered before gets a new socket.
const SOCKET_PATIENCE: u64 = 3;
/// Failed requests after which an address that has answered before is left.
const ADDRESS_PATIENCE: u64 = 6;
/// Failed requests after which an address that has never answered is left, once all were tried.
const ROUND_PATIENCE: u64 = 4;

/// What to do after a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing: the schedule asks again.
    Stay,
    /// Ask again soon, to tell a lost packet from a lost server.
    AskSoon,
    /// Close the socket and open another one to the same address.
    NewSocket,
    /// Close the socket and ask [`Candidates::choose`] for another address.
    NextAddress,
}

/// The addresses of one name.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    addresses: Vec<SocketAddr>,
    current: Option<SocketAddr>,
    /// The current address has answered since it was chosen.
    answered: bool,
    /// Requests to the current address that failed in a row.
    failed: u64,
    /// Addresses that did not answer, since one did.
    silent: Vec<SocketAddr>,
    /// Every address has been tried in vain.
    all_silent: bool,
    /// Servers that refused us, and when they may be asked again.
    denied: Vec<(SocketAddr, Duration)>,
}

impl Candidates {
    /// The only address there will ever be.
    #[must_use]
    pub fn literal(address: SocketAddr) -> Self {
        Self { addresses: vec![address], ..Self::default() }
    }

    /// Takes what the name resolves to now. An answer without addresses changes nothing: name
    /// servers fail too.
    pub fn learn(&mut self, found: &[SocketAddr]) {
        if !found.is_empty() {
            self.addresses = families_in_turn(found);
        }
    }

    /// The address that is asked.
    #[must_use]
    pub fn current(&self) -> Option<SocketAddr> {
        self.current
    }

    /// All known addresses, in the order in which they are tried.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// True if the name no longer has the address that is asked.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.current.is_some_and(|current| !self.addresses.contains(&current))
    }

    /// Chooses the address to ask from now on, and keeps the present one if it is the only one.
    /// `taken` are the addresses that other references ask: one server is one witness. `None` if
    /// there is no other address than those.
    pub fn choose(&mut self, now: Duration, taken: &[SocketAddr]) -> Option<SocketAddr> {
        self.denied.retain(|(_, until)| now < *until);
        let refuses = |a: &SocketAddr| self.denied.iter().any(|(denied, _)| denied == a);
        let free: Vec<SocketAddr> =
            self.addresses.iter().filter(|a| !taken.contains(a)).copied().collect();
        let fresh = |a: &&SocketAddr| !self.silent.contains(a) && !refuses(a);
        let chosen = free.iter().find(fresh).copied().or_else(|| {
            // Another round: first the one that has rested longest.
            self.all_silent = true;
            let rested = self.silent.iter().find(|a| free.contains(a) && !refuses(a)).copied();
            rested.or_else(|| free.first().copied())
        });
        if let Some(chosen) = chosen {
            self.silent.retain(|a| *a != chosen);
        }
        (self.answered, self.failed) = (false, 0);
        self.current = chosen;
        chosen
    }

    /// The current address gave a usable answer.
    pub fn answered(&mut self) {
        self.silent.clear();
        (self.answered, self.failed, self.all_silent) = (true, 0, false);
    }

    /// A request to the current address was lost, or its answer was of no use.
    pub fn failed(&mut self) -> Step {
        self.failed += 1;
        let others = self.current.is_some_and(|c| self.addresses.iter().any(|a| *a != c));
        let patience = match (self.answered, self.all_silent) {
            (true, _) if self.is_gone() => 2,
            (true, _) => ADDRESS_PATIENCE,
            (false, false) => 1,
            (false, true) => ROUND_PATIENCE,
        };
        if self.failed >= patience && others {
            return self.leave();
        }
        if self.answered && self.failed == 1 {
            return Step::AskSoon;
        }
        if self.failed.is_multiple_of(SOCKET_PATIENCE) { Step::NewSocket } else { Step::Stay }
    }

    /// The current server refuses us until `until`: it is left if there is another.
    pub fn denied(&mut self, until: Duration) -> Step {
        let Some(current) = self.current else { return Step::Stay };
        if !self.denied.iter().any(|(denied, _)| *denied == current) {
            self.denied.push((current, until));
        }
        if self.addresses.iter().any(|a| *a != current) { self.leave() } else { Step::Stay }
    }

    /// The current address cannot be asked at all (no route to it), or is not wanted any more.
    pub fn leave(&mut self) -> Step {
        if let Some(current) = self.current.take() {
            self.silent.retain(|a| *a != current);
            self.silent.push(current);
        }
        Step::NextAddress
    }

    /// What the failures so far mean after [`Self::learn`]: a server that fails and that the name no
    /// longer has is left.
    pub fn reconsider(&mut self) -> Step {
        let others = !self.addresses.is_empty();
        if self.is_gone() && self.failed >= 2 && others { self.leave() } else { Step::Stay }
    }

    /// True while requests fail, which is when a name is looked up again.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failed > 0 || self.current.is_none()
    }
}

/// RFC 8305 section 4: the resolver's first address first, then the families in turn.
fn families_in_turn(found: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut distinct: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !distinct.contains(address) {
            distinct.push(*address);
        }
    }
    let Some(first) = distinct.first() else { return distinct };
    let is_v4 = first.is_ipv4();
    let (mut same, mut other): (Vec<SocketAddr>, Vec<SocketAddr>) =
        distinct.into_iter().partition(|a| a.is_ipv4() == is_v4);
    same.reverse();
    other.reverse();
    let mut turns = Vec::new();
    while !same.is_empty() || !other.is_empty() {
        turns.extend(same.pop());
        turns.extend(other.pop());
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn candidates(texts: &[&str]) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.learn(&texts.iter().map(|t| address(t)).collect::<Vec<_>>());
        candidates
    }

    #[test]
    fn the_second_family_is_tried_after_one_lost_request() {
        let mut c = candidates(&["[fd00::1]:123", "[fd00::2]:123", "10.0.0.1:123"]);
        assert_eq!(c.choose(NOW, &[]), Some(address("[fd00::1]:123")));
        assert_eq!(c.failed(), Step::NextAddress);
        assert_eq!(c.choose(NOW, &[]), Some(address("10.0.0.1:123")));
        assert_eq!(c.failed(), Step::NextAddress);
        assert_eq!(c.choose(NOW, &[]), Some(address("[fd00::2]:123")));
        // Another round, with more patience: the network itself may be down.
        assert_eq!(c.failed(), Step::NextAddress);
        assert_eq!(c.choose(NOW, &[]), Some(address("[fd00::1]:123")));
        assert_eq!([c.failed(), c.failed(), c.failed()], [Step::Stay, Step::Stay, Step::NewSocket]);
        assert_eq!(c.failed(), Step::NextAddress);
    }

    #[test]
    fn a_server_that_has_answered_is_left_late_and_only_for_another() {
        let mut c = candidates(&["10.0.0.1:123", "10.0.0.2:123"]);
        c.choose(NOW, &[]);
        c.answered();
        let steps: Vec<_> = (0..6).map(|_| c.failed()).collect();
        let wanted = [Step::AskSoon, Step::Stay, Step::NewSocket, Step::Stay, Step::Stay];
        assert_eq!((&steps[..5], steps[5]), (&wanted[..], Step::NextAddress));
        assert_eq!(c.choose(NOW, &[]), Some(address("10.0.0.2:123")));
        let mut alone = Candidates::literal(address("10.0.0.1:123"));
        alone.choose(NOW, &[]);
        alone.answered();
        let steps: Vec<_> = (0..100).map(|_| alone.failed()).collect();
        assert!(!steps.contains(&Step::NextAddress));
        assert_eq!(steps.iter().filter(|s| **s == Step::NewSocket).count(), 33);
    }

    #[test]
    fn a_server_that_moved_is_followed_at_the_second_loss() {
        let mut c = candidates(&["10.0.0.1:123"]);
        c.choose(NOW, &[]);
        c.answered();
        assert_eq!(c.failed(), Step::AskSoon);
        c.learn(&[address("10.0.0.9:123")]);
        assert!(c.is_gone() && c.is_failing());
        assert_eq!(c.failed(), Step::NextAddress);
        assert_eq!(c.choose(NOW, &[]), Some(address("10.0.0.9:123")));
        // A name server that answers with nothing takes nothing away.
        c.learn(&[]);
        assert!(!c.is_gone());
    }

    #[test]
    fn one_server_is_asked_once() {
        let mut c = candidates(&["10.0.0.1:123", "10.0.0.2:123"]);
        assert_eq!(c.choose(NOW, &[address("10.0.0.1:123")]), Some(address("10.0.0.2:123")));
        let both = [address("10.0.0.1:123"), address("10.0.0.2:123")];
        assert_eq!((c.choose(NOW, &both), c.current()), (None, None));
    }

    #[test]
    fn a_server_that_refuses_us_is_not_asked_while_there_is_another() {
        let mut c = candidates(&["10.0.0.1:123", "10.0.0.2:123"]);
        c.choose(NOW, &[]);
        assert_eq!(c.denied(NOW + NOW), Step::NextAddress);
        assert_eq!(c.choose(NOW, &[]), Some(address("10.0.0.2:123")));
        c.failed();
        assert_eq!(c.choose(NOW, &[]), Some(address("10.0.0.2:123")));
        c.leave();
        assert_eq!(c.choose(NOW + NOW, &[]), Some(address("10.0.0.1:123")));
    }

    proptest::proptest! {
        /// Whatever fails, every address gets its turn.
        #[test]
        fn nobody_is_forgotten(count in 1u8..6, answers in proptest::collection::vec(0u8..8, 0..40)) {
            let list: Vec<SocketAddr> =
                (0..count).map(|n| SocketAddr::from(([10, 0, 0, n], 123))).collect();
            let mut c = Candidates::default();
            c.learn(&list);
            c.choose(NOW, &[]);
            for answer in answers {
                if answer == 0 {
                    c.answered();
                } else if c.failed() == Step::NextAddress {
                    proptest::prop_assert!(c.choose(NOW, &[]).is_some());
                }
            }
            let mut seen = std::collections::BTreeSet::from_iter(c.current());
            for _ in 0..(6 + 4 * u32::from(count)) {
                if c.failed() == Step::NextAddress {
                    seen.extend(c.choose(NOW, &[]));
                }
            }
            proptest::prop_assert_eq!(seen.len(), usize::from(count));
        }
    }
}
