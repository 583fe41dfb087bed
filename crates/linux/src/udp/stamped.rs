//! The counter around questions to a server, moved closer to the wire by the kernel's stamps as far
//! as the brackets around the exchange prove that.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use timevisor_clock_page::Counter;
use timevisor_time::{Instant, Period, RateError, Utc};

use super::{Sockets, UdpClient, UdpError};
use crate::clock::{Bracket, bracket};
use crate::stamps::{KERNEL_SLEW_LIMIT, StampMap};

/// Readings per bracket; the narrowest one is used.
pub const BRACKET_TRIES: usize = 3;

/// Our clocks when a request was sent: the counter before it, a bracket, and the kernel's time
/// stamp if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The counter, no later than the departure.
    pub ta: u64,
    /// Both clocks before that.
    pub before: Bracket,
    /// CLOCK_REALTIME when the request left.
    pub stamp: Option<Instant<Utc>>,
}

/// Our clocks when a datagram had arrived: the counter, a bracket, and the kernel's time stamp if
/// there is one.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The counter, no earlier than the arrival.
    pub tf: u64,
    /// Both clocks after that.
    pub after: Bracket,
    /// CLOCK_REALTIME when the datagram arrived.
    pub stamp: Option<Instant<Utc>>,
}

/// Ta and Tf of an exchange, narrowed by the kernel's time stamps where these exist. `calibration` is
/// the counter's period against CLOCK_MONOTONIC_RAW, and the error of that period.
#[must_use]
pub fn narrowed(sent: &Sent, arrival: &Arrival, calibration: (Period, RateError)) -> (u64, u64) {
    let Arrival { tf, after, stamp } = *arrival;
    if sent.stamp.is_none() && stamp.is_none() {
        return (sent.ta, tf);
    }
    let (period, error) = calibration;
    let Some(map) = StampMap::new(sent.before, after, period, KERNEL_SLEW_LIMIT.plus(error)) else {
        return (sent.ta, tf);
    };
    let send = sent.stamp.and_then(|stamp| map.send_bound(stamp)).unwrap_or(sent.ta);
    let receive = stamp.and_then(|stamp| map.receive_bound(stamp)).unwrap_or(tf);
    let (ta, earlier) = (sent.ta.max(send), tf.min(receive));
    if ta <= earlier { (ta, earlier) } else { (sent.ta, tf) }
}

/// A socket to one server, which is asked one question at a time.
#[derive(Debug)]
pub struct StampedClient {
    socket: UdpClient,
    sent: Option<Sent>,
}

/// A datagram of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamped {
    /// Bytes in the buffer.
    pub len: usize,
    /// The counter when it was read.
    pub counter: u64,
    /// The counter around the exchange if this is the answer to the last question: no later than
    /// that left, and no earlier than this arrived. `None` if nothing was asked.
    pub around: Option<(u64, u64)>,
}

impl StampedClient {
    /// Opens a socket to `peer`.
    ///
    /// # Errors
    /// As [`UdpClient::open`].
    pub fn open(peer: SocketAddr, sockets: Sockets) -> Result<Self, UdpError> {
        Ok(Self { socket: UdpClient::open(peer, sockets)?, sent: None })
    }

    /// The server.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.socket.peer()
    }

    /// Sends a question. Returns the counter, no later than it left.
    ///
    /// # Errors
    /// When it was not sent.
    pub fn send(&mut self, counter: &impl Counter, question: &[u8]) -> Result<u64, UdpError> {
        let before = bracket(counter, BRACKET_TRIES);
        let ta = counter.read_ordered();
        self.socket.send(question)?;
        let stamp = self.socket.recv_tx_stamp().ok().flatten();
        self.sent = Some(Sent { ta, before, stamp });
        Ok(ta)
    }

    /// Takes the next datagram, if one has arrived.
    ///
    /// # Errors
    /// As [`UdpClient::recv`]; nobody listening is one.
    pub fn recv(
        &mut self,
        counter: &impl Counter,
        calibration: (Period, RateError),
        buffer: &mut [u8],
    ) -> Result<Option<Stamped>, UdpError> {
        let stamp = self.socket.take_stamps().ok().flatten();
        if let Some(sent) = self.sent.as_mut().filter(|sent| sent.stamp.is_none()) {
            sent.stamp = stamp;
        }
        let Some(received) = self.socket.recv(buffer)? else { return Ok(None) };
        let tf = counter.read_ordered();
        let after = bracket(counter, BRACKET_TRIES);
        let arrival = Arrival { tf, after, stamp: received.stamp };
        let around = self.sent.map(|sent| narrowed(&sent, &arrival, calibration));
        Ok(Some(Stamped { len: received.len.min(buffer.len()), counter: tf, around }))
    }
}

impl AsFd for StampedClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::counter::MonotonicRaw;
    use crate::poll::{PollFd, wait};

    #[test]
    fn the_counter_is_read_around_the_exchange() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let calibration = (Period::from_hz(1_000_000_000).unwrap(), RateError::ZERO);
        let opened = StampedClient::open(server.local_addr().unwrap(), Sockets::Stamped);
        let mut client = opened.unwrap();
        let before = MonotonicRaw.read_ordered();
        let ta = client.send(&MonotonicRaw, b"what time is it?").unwrap();
        let mut buffer = [0; 64];
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        let between = MonotonicRaw.read_ordered();
        server.send_to(&buffer[..len], from).unwrap();
        let answer = loop {
            wait(&mut [PollFd::readable(client.as_fd())], None).unwrap();
            // The question's own stamp may wake us first.
            if let Some(answer) = client.recv(&MonotonicRaw, calibration, &mut buffer).unwrap() {
                break answer;
            }
        };
        let after = MonotonicRaw.read_ordered();
        let (narrower, tf) = answer.around.unwrap();
        assert!(before <= ta && ta <= narrower && narrower <= between, "{narrower}");
        assert!(between <= tf && tf <= answer.counter && answer.counter <= after, "{answer:?}");
        assert_eq!(answer.len, len);
    }

    #[test]
    fn without_stamps_the_counter_alone_counts() {
        let at =
            |counter| Bracket { before: counter, realtime: Instant::from_bits(0), after: counter };
        let sent = Sent { ta: 10, before: at(5), stamp: None };
        let arrival = Arrival { tf: 20, after: at(25), stamp: None };
        let calibration = (Period::from_hz(1_000_000_000).unwrap(), RateError::ZERO);
        assert_eq!(narrowed(&sent, &arrival, calibration), (10, 20));
    }
}
