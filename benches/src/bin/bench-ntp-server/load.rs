//! The client: as many requests as the server takes, with a fixed number in flight, so that none is
//! lost for want of room. Requests and answers move in batches (sendmmsg(2), recvmmsg(2)), so that
//! the client is faster than the servers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use timevisor_protocols::ntp::Packet;

use crate::check::{Checker, EVERY};
use crate::requests::{Kind, MAX_LEN, Requests};

/// Requests in flight: enough to keep a server busy, and few enough for every socket buffer.
pub(crate) const WINDOW: u64 = 128;
const BATCH: usize = 32;
/// The same for the system calls.
const COUNT: libc::c_uint = 32;
const _: () = assert!(COUNT as usize == BATCH);
/// After this long without an answer, what is in flight is lost.
const SILENCE: Duration = Duration::from_millis(200);

/// What a turn brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) answers: u64,
    pub(crate) lost: u64,
    pub(crate) wall: Duration,
}

pub(crate) struct Client<'a> {
    socket: UdpSocket,
    requests: Requests<'a>,
    /// Whether the server knows the field of precise bounds.
    is_ours: bool,
    /// The requests that are sent at once.
    sent: [[u8; MAX_LEN]; BATCH],
    answers: [[u8; MAX_LEN]; BATCH],
}

impl<'a> Client<'a> {
    pub(crate) fn connect(server: SocketAddr, kind: Kind<'a>, is_ours: bool) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        socket.set_nonblocking(true)?;
        let requests = Requests::new(kind)?;
        let buffers = [[0; MAX_LEN]; BATCH];
        Ok(Self { socket, requests, is_ours, sent: buffers, answers: buffers })
    }

    /// Loads the server for `span`.
    pub(crate) fn run(
        &mut self,
        span: Duration,
        mut checker: Option<&mut Checker>,
    ) -> Result<Done> {
        let started = Instant::now();
        let (mut answers, mut lost, mut in_flight) = (0, 0, 0);
        let mut heard = started;
        while started.elapsed() < span {
            if in_flight + BATCH as u64 <= WINDOW {
                if let Some(checker) = &mut checker {
                    checker.sending()?;
                }
                in_flight += self.send()?;
            }
            let lengths = self.receive()?;
            for (answer, length) in self.answers.iter().zip(&lengths) {
                let answer = &answer[..*length];
                let (packet, _) = Packet::parse(answer)?;
                self.requests.check(&packet)?;
                answers += 1;
                if answers % EVERY == 0 {
                    let field = self.requests.check_fields(answer, self.is_ours)?;
                    if let Some(checker) = &mut checker {
                        checker.check(&packet, field.as_ref())?;
                    }
                }
            }
            in_flight = in_flight.saturating_sub(lengths.len() as u64);
            if !lengths.is_empty() {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE {
                lost += in_flight;
                in_flight = 0;
                heard = Instant::now();
            }
        }
        let wall = started.elapsed();
        // What is still in flight must not be taken for the next turn's answers.
        let end = Instant::now() + SILENCE;
        while in_flight > 0 && Instant::now() < end {
            in_flight = in_flight.saturating_sub(self.receive()?.len() as u64);
        }
        Ok(Done { answers, lost: lost + in_flight, wall })
    }

    fn send(&mut self) -> Result<u64> {
        let mut lengths = [0; BATCH];
        for (place, length) in self.sent.iter_mut().zip(&mut lengths) {
            let request = self.requests.next();
            place[..request.len()].copy_from_slice(request);
            *length = request.len();
        }
        let mut parts = self.sent.each_mut().map(part);
        for (part, length) in parts.iter_mut().zip(lengths) {
            part.iov_len = length;
        }
        let mut headers = messages(&mut parts);
        let fd = self.socket.as_raw_fd();
        // SAFETY: the headers point to live parts, and those to live requests with their true
        // lengths or less.
        let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), COUNT, 0) };
        Ok(accepted(sent)? as u64)
    }

    /// The lengths of the answers that have come.
    fn receive(&mut self) -> Result<Vec<usize>> {
        let mut parts = self.answers.each_mut().map(part);
        let mut headers = messages(&mut parts);
        let fd = self.socket.as_raw_fd();
        // SAFETY: the headers point to live parts, and those to live buffers with their true
        // lengths; the socket does not block, so that no timeout is needed.
        let received =
            unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), COUNT, 0, core::ptr::null_mut()) };
        let received = accepted(received)?;
        Ok(headers[..received].iter().map(|header| header.msg_len as usize).collect())
    }
}

fn part<const N: usize>(bytes: &mut [u8; N]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: N }
}

fn messages(parts: &mut [libc::iovec; BATCH]) -> [libc::mmsghdr; BATCH] {
    parts.each_mut().map(|part| {
        // SAFETY: plain data; zero is "absent" for every pointer and length.
        let mut header: libc::mmsghdr = unsafe { core::mem::zeroed() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        header
    })
}

/// How many messages the kernel took or gave; none is no error.
fn accepted(result: libc::c_int) -> Result<usize> {
    match usize::try_from(result) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            error => Err(error.into()),
        },
    }
}
