//! `--csv`: a clock for a single process, printed once a second, and nothing else.
//!
//! It queries the configured references as the daemon does, through the same [`HostClock`], but
//! serves nobody: no page file, no control socket, no VMs, no journal, no notification to systemd.
//! It needs no privileges and no directory, and makes only the calls that a network simulator in
//! LD_PRELOAD replaces: clock_gettime, socket, sendto, recvfrom, and poll on those sockets alone.
//! It starts no thread. Signals keep their default action, because every line has already been
//! flushed.
//!
//! Because CLOCK_BOOTTIME is not among those calls, it does not notice when the machine is
//! suspended.
//!
//! A line is `time,estimate,earliest,latest` in seconds since 1970 on UTC, with nine decimals:
//! CLOCK_REALTIME, and the clock's reading at the same moment. The last three fields are empty
//! while the clock knows nothing. There is no header.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::net::ToSocketAddrs;

use anyhow::{Context, Result, bail};
use timevisor_linux::clock::{Bracket, bracket, monotonic};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::udp::Sockets;
use timevisor_time::{Duration, Instant, NANOS_PER_SEC, Tai, Utc};

use crate::clock::HostClock;
use crate::config::{Config, ReferenceConfig};
use crate::parser::Parser;
use crate::references::{Reference, Surroundings};

/// One line per second.
const INTERVAL: Duration = Duration::from_secs(1);
/// Delay of the first request: clknetsim advances its clocks at every read until the process has
/// waited for 100 ms, and then sets them back.
const SETTLE: Duration = Duration::from_millis(200);
/// CLOCK_REALTIME is read between two counter reads; the narrowest of this many pairs is used.
const BRACKET_TRIES: usize = 3;
/// In units of 2^-64 s.
const HALF_NANOSECOND: Duration = Duration::from_bits((1 << 63) / NANOS_PER_SEC);

/// Prints lines to `out` until it is closed or a signal ends the process.
pub fn run(config: &Config, out: &mut impl Write) -> Result<()> {
    let mut client = Client::start(config)?;
    loop {
        let ready = client.wait()?;
        client.take_answers(&ready);
        client.on_time();
        let Some(line) = client.line_if_due() else { continue };
        match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("cannot write to standard output")?,
        }
    }
}

struct Client {
    parser: Parser,
    clock: HostClock,
    references: Vec<Reference>,
    next_line: Duration,
}

impl Client {
    fn start(config: &Config) -> Result<Self> {
        let names = config.references.iter().map(ReferenceConfig::name).collect();
        let clock = HostClock::private(config, names)?;
        let now = monotonic();
        let references = config
            .references
            .iter()
            .map(|reference| Reference::new(&resolved(reference)?, now + SETTLE))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { clock, references, next_line: now, parser: Parser::without_thread() })
    }

    /// Sleeps until a reference's socket is readable or something is due; returns the references
    /// with readable sockets.
    fn wait(&self) -> Result<Vec<usize>> {
        let due = self.references.iter().map(Reference::poll_at).chain([self.next_line]);
        let left = due.min().unwrap_or(self.next_line) - monotonic();
        let timeout =
            std::time::Duration::from_nanos(u64::try_from(left.ceil_nanos()).unwrap_or(0));
        let (owners, mut fds): (Vec<usize>, Vec<PollFd<'_>>) = self
            .references
            .iter()
            .enumerate()
            .flat_map(|(index, reference)| {
                reference.fds().into_iter().map(move |fd| (index, PollFd::readable(fd)))
            })
            .unzip();
        if fds.is_empty() && timeout.is_zero() {
            // A simulator may treat a poll that waits for nothing as an error.
            return Ok(Vec::new());
        }
        wait(&mut fds, Some(timeout)).context("poll failed")?;
        let is_ready = |fd: &PollFd<'_>| fd.ready().readable || fd.ready().error;
        let ready = fds.iter().zip(owners).filter(|(fd, _)| is_ready(fd));
        Ok(ready.map(|(_, owner)| owner).collect())
    }

    fn take_answers(&mut self, ready: &[usize]) {
        for &index in ready {
            let around = surroundings(&self.clock, &self.parser);
            let exchanges = self.references[index].on_ready(monotonic(), &around);
            for exchange in &exchanges {
                self.clock.observe(index, exchange);
            }
            if !exchanges.is_empty() {
                self.clock.publish();
            }
        }
    }

    fn on_time(&mut self) {
        for (index, reference) in self.references.iter_mut().enumerate() {
            let now = monotonic();
            if now >= reference.poll_at()
                && let Some(exchange) =
                    reference.on_timer(now, &surroundings(&self.clock, &self.parser))
            {
                self.clock.observe(index, &exchange);
            }
        }
    }

    /// The line for this second. If the process slept through a second, its line is skipped.
    fn line_if_due(&mut self) -> Option<String> {
        let now = monotonic();
        if now < self.next_line {
            return None;
        }
        while self.next_line <= now {
            self.next_line += INTERVAL;
        }
        // The bounds are narrowest when they are computed from the knowledge at this moment.
        self.clock.publish();
        let reading = bracket(&self.clock.counter, BRACKET_TRIES);
        Some(line(&reading, known(&self.clock, &reading)))
    }
}

/// The clock's values while CLOCK_REALTIME was read: estimate, earliest, latest.
fn known(clock: &HostClock, reading: &Bracket) -> Option<[Instant<Utc>; 3]> {
    let lines = clock.writer().in_force()?.shifted::<Tai>(Duration::ZERO);
    let (first, last) = (lines.at(reading.before), lines.at(reading.after));
    let estimate = lines.at(reading.before.midpoint(reading.after)).estimate;
    let offset = Duration::from_secs(i64::from(clock.leap.offset_of_tai(estimate).ok()?));
    Some([estimate, first.earliest, last.latest].map(|tai| (tai - offset).relabel()))
}

fn line(reading: &Bracket, known: Option<[Instant<Utc>; 3]>) -> String {
    let mut line = seconds(nearest(reading.realtime));
    match known {
        // Bounds are rounded outward.
        Some([estimate, earliest, latest]) => {
            let nanos = [nearest(estimate), earliest.floor_nanos(), latest.ceil_nanos()];
            for nanos in nanos {
                let _ = write!(line, ",{}", seconds(nanos));
            }
        }
        None => line.push_str(",,,"),
    }
    line.push('\n');
    line
}

/// Rounds to the nearest nanosecond: whole nanoseconds are not exact in units of 2^-64 s.
fn nearest(time: Instant<Utc>) -> i64 {
    (time + HALF_NANOSECOND).floor_nanos()
}

/// Formats nanoseconds since 1970 as seconds with nine decimals.
fn seconds(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = u128::from(nanos.unsigned_abs());
    let second = NANOS_PER_SEC.unsigned_abs();
    format!("{sign}{}.{:09}", nanos / second, nanos % second)
}

/// Resolves names before the first line. The daemon uses a thread for this, because it serves
/// others meanwhile; here, the first line may wait.
fn resolved(reference: &ReferenceConfig) -> Result<ReferenceConfig> {
    let mut reference = reference.clone();
    // An authenticated server keeps its name, because its certificate must contain it; its keys are
    // fetched in a thread in any case.
    if let ReferenceConfig::Ntp { pool: Some(pool), .. } = &reference {
        bail!("--csv cannot use the pool {pool}; name its servers with --server");
    }
    if let ReferenceConfig::Ntp { address, nts: false, .. } = &mut reference {
        *address = literal(address)?;
    }
    Ok(reference)
}

fn literal(name: &str) -> Result<String> {
    if name.parse::<std::net::SocketAddr>().is_ok() || name.parse::<std::net::IpAddr>().is_ok() {
        return Ok(name.to_owned());
    }
    let target = if name.contains(':') { name.to_owned() } else { format!("{name}:123") };
    let mut found = target
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {name}; check the name and DNS"))?;
    Ok(found.next().with_context(|| format!("{name} has no address"))?.to_string())
}

fn surroundings<'a>(clock: &'a HostClock, parser: &'a Parser) -> Surroundings<'a> {
    Surroundings {
        counter: &clock.counter,
        calibration: (clock.calibration.period, clock.calibration.error),
        leap: &clock.leap,
        known: clock.known(),
        sockets: Sockets::Plain,
        taken: &[],
        own_server: clock.own_server(),
        parser,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> Bracket {
        let realtime = Instant::from_unix_nanos(1_262_304_000_010_000_007);
        Bracket { before: 5, realtime, after: 6 }
    }

    #[test]
    fn a_line_keeps_every_nanosecond_and_rounds_bounds_outward() {
        // A double would lose the last two digits of each value.
        let a_bit = Duration::from_bits(1 << 20);
        let at = |nanos| Instant::<Utc>::from_unix_nanos(nanos) + a_bit;
        let known = [
            at(1_262_304_000_000_000_003),
            at(1_262_304_000_000_000_001),
            at(1_262_304_000_000_000_005),
        ];
        let line = line(&reading(), Some(known));
        let wanted =
            "1262304000.010000007,1262304000.000000003,1262304000.000000001,1262304000.000000006\n";
        assert_eq!(line, wanted);
    }

    #[test]
    fn what_is_not_known_is_empty() {
        assert_eq!(line(&reading(), None), "1262304000.010000007,,,\n");
    }

    #[test]
    fn times_before_1970_keep_their_sign() {
        assert_eq!(seconds(-1_500_000_000), "-1.500000000");
    }

    #[test]
    fn literal_addresses_are_not_resolved() {
        for address in ["192.0.2.1", "192.0.2.1:1123", "2001:db8::1", "[2001:db8::1]:123"] {
            assert_eq!(literal(address).unwrap(), address);
        }
    }
}
