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
/// More addresses of one name are ignored.
const MOST: usize = 16;

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
            self.silent.retain(|silent| self.addresses.contains(silent));
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
    /// there is no other address than those and the ones that refuse us.
    pub fn choose(&mut self, now: Duration, taken: &[SocketAddr]) -> Option<SocketAddr> {
        self.denied.retain(|(_, until)| now < *until);
        let refuses = |a: &SocketAddr| self.denied.iter().any(|(denied, _)| denied == a);
        let free: Vec<SocketAddr> =
            self.addresses.iter().filter(|a| !taken.contains(a) && !refuses(a)).copied().collect();
        let fresh = free.iter().find(|a| !self.silent.contains(a)).copied();
        let chosen = fresh.or_else(|| {
            // Another round: first the one that has rested longest.
            self.all_silent = true;
            let rested = self.silent.iter().find(|a| free.contains(a)).copied();
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

    /// The current server refuses us until `until`: it is left if there is another that does not.
    pub fn denied(&mut self, now: Duration, until: Duration) -> Step {
        let Some(current) = self.current else { return Step::Stay };
        self.denied.retain(|(denied, until)| *denied != current && now < *until);
        self.denied.push((current, until));
        let refuses = |a: &SocketAddr| self.denied.iter().any(|(denied, _)| denied == a);
        if self.addresses.iter().any(|a| !refuses(a)) { self.leave() } else { Step::Stay }
    }

    /// A server of this name refused us lately.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.addresses.iter().any(|a| self.denied.iter().any(|(denied, _)| denied == a))
    }

    /// Every address was tried in vain, since one answered last.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.all_silent
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
        let denied = self.denied.iter().any(|(denied, _)| Some(*denied) == self.current);
        let useless = self.failed >= 2 || denied;
        if self.is_gone() && useless { self.leave() } else { Step::Stay }
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
    turns.truncate(MOST);
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
        assert_eq!(c.denied(NOW, NOW + NOW), Step::NextAddress);
        assert_eq!(c.choose(NOW, &[]), Some(address("10.0.0.2:123")));
        c.failed();
        assert_eq!(c.choose(NOW, &[]), Some(address("10.0.0.2:123")));
        c.leave();
        assert_eq!(c.choose(NOW + NOW, &[]), Some(address("10.0.0.1:123")));
    }

    #[test]
    fn where_all_refuse_nobody_is_asked_before_its_time() {
        let [one, two] = ["10.0.0.1:123", "10.0.0.2:123"].map(address);
        let mut c = candidates(&["10.0.0.1:123", "10.0.0.2:123"]);
        c.choose(NOW, &[]);
        let hour = Duration::from_secs(3600);
        assert_eq!(c.denied(NOW, NOW + hour), Step::NextAddress);
        assert_eq!(c.choose(NOW, &[]), Some(two));
        assert_eq!(c.denied(NOW, NOW + hour), Step::Stay, "the other one refuses us, too");
        // The schedule of the second goes on: one attempt an hour.
        assert_eq!(c.denied(NOW + hour, NOW + hour + hour), Step::NextAddress);
        assert_eq!(c.choose(NOW + hour, &[]), Some(one));
        // Another reference asks the only other one.
        let mut c = candidates(&["10.0.0.1:123", "10.0.0.2:123"]);
        c.choose(NOW, &[two]);
        assert_eq!(c.denied(NOW, NOW + hour), Step::NextAddress);
        assert_eq!((c.choose(NOW, &[two]), c.is_refused()), (None, true));
        assert_eq!(c.choose(NOW + hour, &[two]), Some(one));
    }

    #[test]
    fn a_server_that_refuses_us_is_left_when_its_name_moves() {
        let mut c = candidates(&["10.0.0.1:123"]);
        c.choose(NOW, &[]);
        assert_eq!(c.denied(NOW, NOW + NOW), Step::Stay);
        c.learn(&[address("10.0.0.2:123")]);
        assert_eq!(c.reconsider(), Step::NextAddress);
    }

    #[test]
    fn so_many_addresses_are_enough() {
        let all: Vec<SocketAddr> =
            (0..2000u16).map(|n| SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, n], 123))).collect();
        let mut c = Candidates::default();
        for part in all.chunks(100) {
            c.learn(part);
            assert_eq!(c.addresses().len(), MOST);
            for _ in 0..40 {
                c.choose(NOW, &[]);
                c.leave();
            }
        }
        assert!(c.silent.len() <= MOST);
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
