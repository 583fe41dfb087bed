//! Which servers are one witness: servers with one source of time err together, so a vote among them
//! is one vote.
//!
//! A server of stratum 2 or more names its source in its reference id (RFC 5905 section 7.3). Two
//! servers with the same source, or of which one is the other's source, are one witness; and so are
//! the daemon that keeps this machine's clock, by its commands and as a server. Ids of reference clocks (127.127.t.u), of smearing servers and empty ones name no server.
//!
//! What it does not do: prove independence. A server may lie about its source and share the vote of
//! an honest one, which makes witnesses fewer: the estimate's vote allows for that
//! (crates/estimate, `ensemble.rs`).

use std::net::IpAddr;

use super::refid;

/// How this machine's own NTP daemon is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// As a server, at a loopback address. Two of those may be two daemons.
    Ntp,
    /// By the commands of the daemon that keeps CLOCK_REALTIME.
    Command,
}

/// What is known of a server's source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The id that servers show which are synchronized to this one.
    pub own: [u8; 4],
    /// The id of the server that this one is synchronized to; `None` where it names none.
    pub upstream: Option<[u8; 4]>,
    /// Whether it is this machine's own daemon, and how that was asked.
    pub local: Option<Port>,
}

impl Source {
    /// From an answer of the server at `address`.
    #[must_use]
    pub fn new(address: IpAddr, stratum: u8, reference_id: [u8; 4]) -> Self {
        let names_a_server = stratum > 1
            && reference_id != [0; 4]
            && reference_id[0] != 127
            && !refid::declares_smear(reference_id, stratum);
        let upstream = names_a_server.then_some(reference_id);
        Self { own: refid::of_address(address), upstream, local: None }
    }

    /// The same, of this machine's own daemon.
    #[must_use]
    pub const fn on_this_machine(self, by: Port) -> Self {
        Self { local: Some(by), ..self }
    }

    fn is_one_with(&self, other: &Self) -> bool {
        let same = self.upstream.is_some() && self.upstream == other.upstream;
        same || matches!((self.local, other.local), (Some(one), Some(other)) if one != other)
            || self.upstream == Some(other.own)
            || other.upstream == Some(self.own)
    }
}

/// The witness of each reference: the lowest index among those that are one witness with it. A
/// reference has every source whose facts still count, or none that is known; then it counts for
/// itself.
#[must_use]
pub fn witnesses(sources: &[Vec<Source>]) -> Vec<usize> {
    let mut witness: Vec<usize> = (0..sources.len()).collect();
    for (index, own) in sources.iter().enumerate() {
        for (before, others) in sources[..index].iter().enumerate() {
            let is_one = |source: &Source| others.iter().any(|other| source.is_one_with(other));
            if own.iter().any(is_one) {
                let (from, to) = (witness[index], witness[before]);
                let (from, to) = (from.max(to), from.min(to));
                witness.iter_mut().filter(|w| **w == from).for_each(|w| *w = to);
            }
        }
    }
    witness
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8, stratum: u8, reference_id: [u8; 4]) -> Vec<Source> {
        vec![Source::new(IpAddr::from([10, 0, 0, last]), stratum, reference_id)]
    }

    fn local(last: u8, by: Port) -> Vec<Source> {
        vec![Source::new(IpAddr::from([127, 0, 0, last]), 1, *b"GPS\0").on_this_machine(by)]
    }

    #[test]
    fn servers_with_one_source_are_one_witness() {
        let gps = *b"GPS\0";
        for (sources, wanted) in [
            (vec![source(1, 2, [9, 9, 9, 9]), source(2, 2, [9, 9, 9, 9])], vec![0, 0]),
            // The second is the first one's source.
            (vec![source(1, 2, [10, 0, 0, 2]), source(2, 1, gps)], vec![0, 0]),
            (vec![source(2, 1, gps), source(1, 2, [10, 0, 0, 2])], vec![0, 0]),
            // Reference clocks and local clocks name no server.
            (vec![source(1, 1, gps), source(2, 1, gps)], vec![0, 1]),
            (vec![source(1, 10, [127, 127, 1, 1]), source(2, 10, [127, 127, 1, 1])], vec![0, 1]),
            (vec![source(1, 3, [0; 4]), source(2, 3, [0; 4])], vec![0, 1]),
            (vec![vec![], source(1, 2, [9, 9, 9, 9]), vec![]], vec![0, 1, 2]),
            // This machine's chronyd with a reference clock, by its command port and by NTP.
            (vec![local(1, Port::Ntp), source(1, 1, gps), local(1, Port::Command)], vec![0, 1, 0]),
            // Two servers at loopback addresses.
            (vec![local(1, Port::Ntp), local(2, Port::Ntp)], vec![0, 1]),
            // The first had another server before, whose facts still count.
            (
                vec![
                    [source(1, 2, [8, 8, 8, 8]), source(2, 2, [9, 9, 9, 9])].concat(),
                    source(3, 2, [8, 8, 8, 8]),
                ],
                vec![0, 0],
            ),
            // A chain: the third links the other two.
            (
                vec![
                    source(1, 2, [9, 9, 9, 9]),
                    source(2, 1, gps),
                    source(3, 2, [10, 0, 0, 2]),
                    source(4, 2, [9, 9, 9, 9]),
                ],
                vec![0, 1, 1, 0],
            ),
            (
                vec![
                    source(1, 2, [9, 9, 9, 9]),
                    source(2, 3, [10, 0, 0, 3]),
                    source(3, 2, [9, 9, 9, 9]),
                ],
                vec![0, 0, 0],
            ),
        ] {
            assert_eq!(witnesses(&sources), wanted, "{sources:?}");
        }
    }
}
