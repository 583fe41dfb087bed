//! lab-exchange: what this machine adds to an exchange with an NTP server: the round trip by its
//! own clock minus the time that the server says it held the request. Prints one line of JSON.
//!
//! `lab-exchange SERVER:PORT SECONDS MILLISECONDS` sends a request every MILLISECONDS. Each of the
//! two differences uses one clock only, so no two clocks are compared and neither must be right.
//! The timestamps are taken in user space, around send and receive.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

const SIZE: usize = 48;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, seconds, millis] = &arguments[..] else {
        bail!("usage: lab-exchange SERVER:PORT SECONDS MILLISECONDS")
    };
    let span = Duration::from_secs_f64(seconds.parse()?);
    let interval = Duration::from_millis(millis.parse()?);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(server.as_str()).with_context(|| format!("cannot reach {server}"))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let (mut found, mut asked) = (Vec::new(), 0u64);
    let began = Instant::now();
    while began.elapsed() < span {
        asked += 1;
        if let Some(us) = exchange(&socket, asked)? {
            found.push(us);
        }
        std::thread::sleep(interval);
    }
    ensure!(!found.is_empty(), "{server} answered none of {asked} requests");
    println!("{}", json!({"asked": asked, "host_us": found}));
    Ok(())
}

/// In us; `None` when no answer to this very request arrived.
fn exchange(socket: &UdpSocket, cookie: u64) -> Result<Option<f64>> {
    let mut request = [0; SIZE];
    request[0] = 4 << 3 | 3; // version 4, client
    request[40..].copy_from_slice(&cookie.to_be_bytes());
    let mut answer = [0; 128];
    let sent = Instant::now();
    socket.send(&request)?;
    loop {
        let Ok(size) = socket.recv(&mut answer) else { return Ok(None) };
        let round_trip = sent.elapsed();
        // The server returns the client's transmit timestamp, which holds the cookie.
        if size < SIZE || answer[24..32] != cookie.to_be_bytes() {
            continue;
        }
        let stamp = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&answer[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        // From its receive timestamp to its transmit timestamp, in units of 2^-32 s.
        let held = stamp(40).wrapping_sub(stamp(32)).cast_signed() as f64 / 2f64.powi(32);
        return Ok(Some((round_trip.as_secs_f64() - held) * 1e6));
    }
}
