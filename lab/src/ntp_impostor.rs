//! An NTP server in a thread of the test, on the loopback interface: honest by default, and
//! otherwise as the test makes it behave.
//!
//! It serves this machine's CLOCK_REALTIME, as the lab's chronyds do, and like them it takes the
//! kernel's stamp of a request's arrival. (With a stamp of its own, taken when its thread wakes, the
//! two directions of the loopback exchange some 20 us of delay whenever the machine's load changes,
//! about once in 20 minutes of ten requests a second. To a client that is a clock that moved.) A
//! function turns the honest answer into what is sent; it may be replaced while the server runs.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use timevisor_linux::clock::realtime;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::udp_server::{Batch, UdpServer};
use timevisor_protocols::ntp::{LeapIndicator, Mode, NtpShort, NtpTimestamp, Packet};
use timevisor_time::Duration as Span;

/// Maps the honest answer to the datagrams to send.
type Behaviour = Box<dyn FnMut(Packet) -> Vec<Vec<u8>> + Send>;

struct Shared {
    behaviour: Mutex<Behaviour>,
    asked: AtomicU64,
    ended: AtomicBool,
}

/// A running server; dropping it stops it.
pub struct Impostor {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Impostor {
    /// A stratum 1 server that tells the truth.
    ///
    /// # Errors
    /// Without a loopback interface.
    pub fn honest() -> anyhow::Result<Self> {
        Self::new(|answer| vec![answer.to_bytes().to_vec()])
    }

    /// A server whose time is ahead of the truth by `offset`.
    ///
    /// # Errors
    /// As [`Self::honest`].
    pub fn ahead(offset: Span) -> anyhow::Result<Self> {
        let server = Self::honest()?;
        server.lie(offset);
        Ok(server)
    }

    /// A server that accepts requests and never answers.
    ///
    /// # Errors
    /// As [`Self::honest`].
    pub fn silent() -> anyhow::Result<Self> {
        Self::new(|_| Vec::new())
    }

    /// A server that sends what `behaviour` makes of the honest answer.
    ///
    /// # Errors
    /// As [`Self::honest`].
    pub fn new(
        behaviour: impl FnMut(Packet) -> Vec<Vec<u8>> + Send + 'static,
    ) -> anyhow::Result<Self> {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), behaviour)
    }

    /// The same at this address; port 0 is a free one.
    ///
    /// # Errors
    /// When the address is in use.
    pub fn at(
        address: SocketAddr,
        behaviour: impl FnMut(Packet) -> Vec<Vec<u8>> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let socket = UdpServer::bind(address).with_context(|| format!("cannot use {address}"))?;
        let address = socket.address();
        // A request may have no answer or several, so they do not go through a batch.
        let answers = UdpSocket::from(socket.as_fd().try_clone_to_owned()?);
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(Box::new(behaviour)),
            asked: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || serve(socket, &answers, &served));
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Its address, in the form that a reference's configuration needs.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes the behaviour from now on.
    pub fn become_one(&self, behaviour: impl FnMut(Packet) -> Vec<Vec<u8>> + Send + 'static) {
        *self.shared.behaviour.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(behaviour);
    }

    /// Makes its time run ahead of the truth by `offset` from now on.
    pub fn lie(&self, offset: Span) {
        self.become_one(move |answer| vec![shifted(answer, offset).to_bytes().to_vec()]);
    }

    /// Number of requests received.
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The answer of a server whose clock is ahead by `offset`.
#[must_use]
pub fn shifted(answer: Packet, offset: Span) -> Packet {
    let near = realtime();
    let move_on = |stamp: NtpTimestamp| NtpTimestamp::from_instant(stamp.to_instant(near) + offset);
    Packet { receive: move_on(answer.receive), transmit: move_on(answer.transmit), ..answer }
}

fn serve(mut socket: UdpServer, answers: &UdpSocket, shared: &Shared) {
    let mut batch = Batch::default();
    while !shared.ended.load(Ordering::Relaxed) {
        let mut ready = [PollFd::readable(socket.as_fd())];
        let _ = wait(&mut ready, Some(Duration::from_millis(50)));
        let received = socket.receive(&mut batch).unwrap_or(0);
        for request in (0..received).filter_map(|index| batch.request(index)) {
            let Ok((asked, _)) = Packet::parse(request.bytes) else { continue };
            shared.asked.fetch_add(1, Ordering::Relaxed);
            let receive = NtpTimestamp::from_instant(request.stamp.unwrap_or_else(realtime));
            let mut behaviour = shared.behaviour.lock().unwrap_or_else(PoisonError::into_inner);
            for datagram in behaviour(honest(&asked, receive)) {
                let _ = answers.send_to(&datagram, request.from);
            }
        }
    }
}

fn honest(asked: &Packet, receive: NtpTimestamp) -> Packet {
    Packet {
        leap: LeapIndicator::NoWarning,
        version: asked.version,
        mode: Mode::Server,
        stratum: 1,
        poll: asked.poll,
        precision: -24,
        root_delay: NtpShort::from_bits(0),
        root_dispersion: NtpShort::from_bits(0),
        reference_id: *b"LAB\0",
        reference: receive,
        origin: asked.transmit,
        receive,
        transmit: NtpTimestamp::from_instant(realtime()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_moves_both_stamps_alike() {
        let stamp = NtpTimestamp::from_instant(realtime());
        let answer = Packet {
            receive: stamp,
            transmit: stamp,
            ..Packet::request(NtpTimestamp::from_bits(1), 0)
        };
        let moved = shifted(answer, Span::from_secs(-1));
        assert_eq!(moved.receive, moved.transmit);
        assert_eq!(stamp.to_bits() - moved.receive.to_bits(), 1 << 32);
    }
}
