//! References as the event loop drives them: when to act, which descriptor to wait for, and the
//! exchanges that they return.
//!
//! | file | reference |
//! | --- | --- |
//! | `system.rs` | this machine's CLOCK_REALTIME with the kernel's maxerror |
//! | `phc.rs` | a PTP hardware clock that another program or device synchronizes |
//! | `ptp.rs` | a clock that ptp4l steers, with ptp4l's own measurements |
//! | `jump.rs` | whether this machine's counter explains what a clock gained between two readings |
//! | `vmclock.rs` | the host's page, when this machine is a guest |
//! | `chrony.rs` | a running chronyd |
//! | `ntp.rs` | an NTP server |
//! | `path.rs` | the way to it: addresses, look-ups and the socket |
//! | `resolver.rs` | looks up a name in a thread |
//! | `background.rs` | threads for work that may hang |
//! | `pool.rs` | several NTP servers behind one name |
//! | `addresses.rs` | a pool's addresses: used, free or given up |
//! | `server.rs` | an NTP server's association with its poll controller |
//! | `nts/` | keys and authentication around NTP |
//! | `cluster.rs` | the hosts of a cluster that is one clock |
//! | `visits.rs` | a cluster that was asked once, and the answers kept in a file |
//! | `sources.rs` | whose word a reference's facts are |
//! | `sampled.rs` | references that are read immediately: a schedule around a reading |
//! | `tally.rs` | counts and problems for status output |
//! | `arrangement.rs` | which references stay when others are configured |

mod addresses;
mod arrangement;
pub mod asking;
mod background;
mod chrony;
mod cluster;
mod jump;
mod ntp;
mod nts;
mod path;
mod phc;
mod pool;
mod ptp;
mod resolver;
mod sampled;
mod server;
mod sources;
mod system;
mod tally;
#[cfg(test)]
pub mod testing;
mod visits;
mod vmclock;
#[cfg(test)]
mod witness_tests;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use timevisor_estimate::Exchange;
use timevisor_linux::clock::realtime;
use timevisor_linux::counter::HostCounter;
use timevisor_linux::udp::Sockets;
use timevisor_protocols::control::{ClusterClock, NtpData, NtsData, Reference as Report};
use timevisor_protocols::ntp::{self as protocol, Source};
use timevisor_protocols::nts::CertificateTime;
use timevisor_time::{Duration, Interval, Period, RateError};

use crate::clock::KnownTime;
use crate::config::{ReferenceConfig, ServerConfig, span};
use crate::leap::Leap;
use crate::parser::Parser;
use crate::references::sampled::Sampled;

/// What a reference needs from the host to act.
pub struct Surroundings<'a> {
    /// The host's counter.
    pub counter: &'a HostCounter,
    /// The counter's period against CLOCK_MONOTONIC_RAW, and the error of that period.
    pub calibration: (Period, RateError),
    /// The leap second table, for UTC references.
    pub leap: &'a Leap,
    /// What the clock knows of the present.
    pub known: Option<KnownTime>,
    /// Which sockets to open to servers.
    pub sockets: Sockets,
    /// Servers that other references ask: one server is one witness.
    pub taken: &'a [SocketAddr],
    /// This daemon's own NTP server, which no reference may follow.
    pub own_server: &'a ServerConfig,
    /// Where servers' answers are parsed.
    pub parser: &'a Parser,
}

impl Surroundings<'_> {
    /// The time at which a server's certificate is judged: the clock's own bounds where they may be
    /// relied on.
    pub fn certificate_time(&self) -> CertificateTime {
        let Some(known) = self.known.filter(KnownTime::is_reliable) else {
            return CertificateTime::of_machine(realtime());
        };
        // Without a leap second table, TAI - UTC is somewhere from today's 37 s to a minute or two.
        let offset = self.leap.offset_of_tai(known.middle()).ok();
        let (least, most) = offset.map_or((0, 120), |offset| (offset.into(), offset.into()));
        let earliest = known.interval.earliest() - Duration::from_secs(most);
        let latest = known.interval.latest() - Duration::from_secs(least);
        match Interval::new(earliest.relabel(), latest.relabel()) {
            Some(bounds) => CertificateTime::ours(bounds),
            None => CertificateTime::of_machine(realtime()),
        }
    }
}

/// One reference of any kind, as the event loop calls it. Nothing here blocks.
trait Driver {
    /// When [`Self::on_timer`] next has something to do.
    fn poll_at(&self) -> Duration;
    /// The sockets to wait for.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    /// Acts because its time has come.
    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange>;
    /// Reads because its socket is ready.
    fn on_ready(&mut self, _now: Duration, _around: &Surroundings<'_>) -> Vec<Exchange> {
        Vec::new()
    }
    /// Routes or addresses of this machine changed.
    fn network_changed(&mut self, _now: Duration) {}
    /// The server that this reference asks.
    fn witness(&self) -> Option<SocketAddr> {
        None
    }
    /// The servers that this reference asks or tries: no other reference may ask them, too.
    fn asked(&self) -> Vec<SocketAddr> {
        self.witness().into_iter().collect()
    }
    /// What its servers said of their own sources of time, as far as their facts count.
    fn sources(&self) -> Vec<Source> {
        Vec::new()
    }
    /// Takes over whose word the facts are that it keeps from `before`, which it replaces.
    fn inherit(&mut self, _before: &dyn Driver, _now: Duration) {}
    /// The certificates, DER, that the party which authenticates its answers has shown lately.
    fn certificates(&self) -> Vec<&[u8]> {
        Vec::new()
    }
    /// The server that another reference asks already, for which this one is idle.
    fn duplicate(&self) -> Option<SocketAddr> {
        None
    }
    /// The cluster whose hosts it asks, as this one knows it at this value of the counter.
    fn cluster(&self, _counter: u64) -> Option<ClusterClock> {
        None
    }
    /// Starts over because older exchanges have lost their meaning.
    fn restart(&mut self, now: Duration);
    /// Returns true once after the counter's relation to time was broken, which voids what every
    /// reference has said.
    fn take_disruption(&mut self) -> bool {
        false
    }
    /// Returns true once after another server replaced one that was outvoted, whose exchanges must
    /// be forgotten. What a server said that merely became silent stays true.
    fn take_replacement(&mut self) -> bool {
        false
    }
    /// Receives what the clock needs of this reference now.
    fn require(&mut self, _now: Duration, _need: &Need) {}
    /// Returns the NTP server behind this reference, for our own server's answers.
    fn upstream(&self) -> Option<Upstream> {
        None
    }
    /// Asks now, an NTP server several times.
    fn burst(&mut self, now: Duration) {
        self.restart(now);
    }
    /// The pool to which it belongs.
    fn pool(&self) -> Option<pool::Shared> {
        None
    }
    /// Returns the state for `timevisor status`.
    fn report(&self, now: Duration) -> Report;
    /// Returns what `timevisor sources NAME` tells beyond that.
    fn details(&self, _now: Duration) -> Details {
        Details::default()
    }
}

/// What an NTP server said last.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Details {
    pub ntp: Option<NtpData>,
    pub nts: Option<NtsData>,
}

/// An NTP server that the clock follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// The server's own stratum.
    pub stratum: u8,
    /// The reference id that a host synchronized to this server shows.
    pub id: [u8; 4],
}

/// What the clock needs of a reference, and the clock's opinion of it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Need {
    /// The tightest half-width that any timeline requires.
    pub required: Option<Duration>,
    /// The error of the counter's rate, as a ratio.
    pub rate: Option<f64>,
    /// How fast that error grows, per second.
    pub wander: f64,
    /// The other references outvote this one.
    pub falseticker: bool,
    /// Without an exchange for this long the clock is said to run free.
    pub stale_after: Option<Duration>,
}

/// One configured reference.
pub struct Reference {
    driver: Box<dyn Driver>,
    /// It is not asked until somebody says that it is online.
    offline: bool,
    /// The clock of this machine that it reads.
    local_clock: Option<PathBuf>,
}

impl Reference {
    /// Makes all configured references, in order. The members of a pool share its addresses.
    pub fn all(configs: &[ReferenceConfig], now: Duration) -> anyhow::Result<Vec<Self>> {
        let arranged = Self::arrange(&[], &mut Vec::new(), configs, now)?;
        Ok(arranged.into_iter().map(|(reference, _)| reference).collect())
    }

    /// Makes the references of `configs` from those of `before`: see `arrangement.rs`.
    pub fn arrange(
        before: &[ReferenceConfig],
        references: &mut Vec<Self>,
        configs: &[ReferenceConfig],
        now: Duration,
    ) -> anyhow::Result<Vec<(Self, Option<usize>)>> {
        arrangement::arrange(before, references, configs, now)
    }

    /// Makes a reference from its validated configuration and contacts nothing yet. A pool's member
    /// gets a pool without other members.
    pub fn new(config: &ReferenceConfig, now: Duration) -> anyhow::Result<Self> {
        let name = config.name();
        let driver: Box<dyn Driver> = match config {
            ReferenceConfig::System { assumed_max_error, poll } => {
                let source = system::System::new(assumed_max_error.map(span));
                Box::new(Sampled::new(source, name, span(*poll), now))
            }
            ReferenceConfig::Phc(phc) => {
                Box::new(Sampled::new(phc::PhcSource::new(phc), name, span(phc.poll), now))
            }
            ReferenceConfig::Vmclock(vmclock) => {
                let source = vmclock::VmclockSource::new(vmclock);
                Box::new(Sampled::new(source, name, span(vmclock.poll), now))
            }
            ReferenceConfig::Visits(visits) => Box::new(visits::VisitsFile::new(visits, name, now)),
            ReferenceConfig::Ptp(ptp) => Box::new(ptp::Ptp::new(ptp, name, now)),
            ReferenceConfig::Chrony(chrony) => Box::new(chrony::Chrony::new(chrony, now)?),
            ReferenceConfig::Cluster(cluster) => {
                Box::new(cluster::Cluster::new(cluster, name, now)?)
            }
            ReferenceConfig::Ntp { address, .. } => match config.pool() {
                Some(pool) => Box::new(pool::Member::new(config, pool::Pool::new(pool)?, now)),
                None => Box::new(server::Server::new(config, address, now)?),
            },
        };
        Ok(Self::driven(driver, config))
    }

    fn driven(driver: Box<dyn Driver>, config: &ReferenceConfig) -> Self {
        Self { driver, offline: false, local_clock: config.local_clock() }
    }

    /// The cluster whose hosts it asks, if it does that.
    pub fn cluster(&self, counter: u64) -> Option<ClusterClock> {
        self.driver.cluster(counter)
    }

    /// Returns when [`Self::on_timer`] next has something to do.
    pub fn poll_at(&self) -> Duration {
        if self.offline { Duration::MAX } else { self.driver.poll_at() }
    }

    /// Asks it no more, or asks it again at once. Returns false if that is so already.
    pub fn set_offline(&mut self, now: Duration, offline: bool) -> bool {
        let changed = std::mem::replace(&mut self.offline, offline) != offline;
        if changed && !offline {
            self.driver.restart(now);
        }
        changed
    }

    /// Asks it now, an NTP server several times.
    pub fn burst(&mut self, now: Duration) {
        self.driver.burst(now);
    }

    /// Returns what `timevisor sources NAME` tells beyond [`Self::report`].
    pub fn details(&self, now: Duration) -> Details {
        self.driver.details(now)
    }

    /// Returns the sockets to wait for.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.driver.fds()
    }

    /// Routes or addresses of this machine changed.
    pub fn network_changed(&mut self, now: Duration) {
        self.driver.network_changed(now);
    }

    /// The servers that this reference asks or tries.
    pub fn asked(&self) -> Vec<SocketAddr> {
        self.driver.asked()
    }

    /// Which references are one witness: those with the same number, because they have one source
    /// of time or would be the same server.
    pub fn witnesses(all: &[Self]) -> Vec<usize> {
        let sources: Vec<Vec<Source>> = all.iter().map(|r| r.driver.sources()).collect();
        let mut witnesses = protocol::witnesses(&sources);
        for (index, reference) in all.iter().enumerate() {
            let first = all[..index].iter().position(|other| reference.is_one_with(other));
            if let Some(first) = first {
                join(&mut witnesses, index, first);
            }
            let Some(server) = all[index].driver.duplicate() else { continue };
            if let Some(first) = all.iter().position(|r| r.driver.witness() == Some(server)) {
                join(&mut witnesses, index, first);
            }
        }
        witnesses
    }

    /// They read the same clock, or are authenticated as the same party.
    fn is_one_with(&self, other: &Self) -> bool {
        let clock = self.local_clock.is_some() && self.local_clock == other.local_clock;
        let parties = other.driver.certificates();
        clock || self.driver.certificates().iter().any(|party| parties.contains(party))
    }

    /// Acts because its time has come.
    pub fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        self.driver.on_timer(now, around)
    }

    /// Reads because its socket is ready.
    pub fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        self.driver.on_ready(now, around)
    }

    /// Starts over: the host was suspended and older exchanges have lost their meaning.
    pub fn restart(&mut self, now: Duration) {
        self.driver.restart(now);
    }

    /// Returns true once after this machine's counter was disturbed, for instance by a migration.
    pub fn take_disruption(&mut self) -> bool {
        self.driver.take_disruption()
    }

    /// Returns true once after another server took this reference's place.
    pub fn take_replacement(&mut self) -> bool {
        self.driver.take_replacement()
    }

    /// Receives what the clock needs of it now, and adapts the poll interval.
    pub fn require(&mut self, now: Duration, need: &Need) {
        self.driver.require(now, need);
    }

    /// Returns the NTP server behind this reference, for our own server's answers.
    pub fn upstream(&self) -> Option<Upstream> {
        self.driver.upstream()
    }

    /// Returns the state for `timevisor status`; the caller adds what the estimate knows.
    pub fn report(&self, now: Duration) -> Report {
        let report = self.driver.report(now);
        if !self.offline {
            return report;
        }
        let detail = format!(
            "not asked until `timevisor sources online {}`; what it said stays true",
            report.name
        );
        Report { status: "offline".to_owned(), detail, ..report }
    }
}

/// Makes the witnesses of two references one.
fn join(witnesses: &mut [usize], one: usize, other: usize) {
    let (from, to) = (witnesses[one].max(witnesses[other]), witnesses[one].min(witnesses[other]));
    witnesses.iter_mut().filter(|witness| **witness == from).for_each(|witness| *witness = to);
}

/// Returns a number that an off-path attacker would have to guess.
pub fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // Without any randomness (never seen on Linux), the clock's low bits still make requests
        // distinct.
        realtime().to_words().1
    })
}
