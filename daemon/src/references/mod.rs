//! References as the daemon sees them: what to wait for, when to act, which exchanges came of it.
//!
//! | file | reference |
//! | --- | --- |
//! | `system.rs` | this machine's CLOCK_REALTIME with the kernel's maxerror |
//! | `phc.rs` | a PTP hardware clock that somebody keeps right |
//! | `ptp.rs` | a clock that ptp4l keeps, with ptp4l's own measurements |
//! | `vmclock.rs` | the host's page, when this machine is a guest |
//! | `chrony.rs` | a running chronyd's knowledge |
//! | `ntp.rs` | an NTP server |
//! | `pool.rs` | several NTP servers behind one name |
//! | `server.rs` | an NTP server's association with its poll controller |
//! | `nts/` | keys and authentication around NTP |
//! | `sampled.rs` | what all have in common that need no answer: a schedule around a reading |
//! | `tally.rs` | what a reference remembers for status output |

mod chrony;
mod ntp;
mod nts;
mod phc;
mod pool;
mod ptp;
mod sampled;
mod server;
mod system;
mod tally;
mod vmclock;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use timevisor_estimate::Exchange;
use timevisor_linux::counter::HostCounter;
use timevisor_linux::udp::Sockets;
use timevisor_protocols::control::Reference as Report;
use timevisor_time::{Duration, Period, RateError};

use crate::config::{ReferenceConfig, ServerConfig, span};
use crate::leap::Leap;
use crate::references::sampled::Sampled;

/// What a reference needs from the host to act.
pub struct Surroundings<'a> {
    /// The host's counter.
    pub counter: &'a HostCounter,
    /// Its period against CLOCK_MONOTONIC_RAW and how well that is known.
    pub calibration: (Period, RateError),
    /// For UTC references.
    pub leap: &'a Leap,
    /// How to talk to servers.
    pub sockets: Sockets,
    /// The NTP server of this daemon, which no reference may follow.
    pub own_server: &'a ServerConfig,
}

/// One reference, whatever its kind: what the event loop calls. Nothing here blocks.
trait Driver {
    /// When [`Self::on_timer`] next has something to do.
    fn poll_at(&self) -> Duration;
    /// The socket to wait for.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Its time has come.
    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange>;
    /// Its socket is ready.
    fn on_ready(&mut self, _now: Duration, _around: &Surroundings<'_>) -> Vec<Exchange> {
        Vec::new()
    }
    /// The past has lost its meaning.
    fn restart(&mut self, now: Duration);
    /// True once after the counter's relation to time was broken: everybody's past has lost its meaning.
    fn take_disruption(&mut self) -> bool {
        false
    }
    /// True once after another server took the place of the one before: what that one said is to be forgotten.
    fn take_replacement(&mut self) -> bool {
        false
    }
    /// What the clock needs of this reference now.
    fn require(&mut self, _now: Duration, _need: &Need) {}
    /// The NTP server behind it, for those who follow us.
    fn upstream(&self) -> Option<Upstream> {
        None
    }
    /// For `timevisor status`.
    fn report(&self, now: Duration) -> Report;
}

/// An NTP server that the clock follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// Its own stratum.
    pub stratum: u8,
    /// The reference id of who is synchronized to it.
    pub id: [u8; 4],
}

/// What the clock needs of a reference, and what it thinks of it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Need {
    /// The tightest half-width that somebody requires.
    pub required: Option<Duration>,
    /// What is not known of the counter's rate, as a ratio.
    pub rate: Option<f64>,
    /// The others have outvoted it.
    pub falseticker: bool,
}

/// One configured reference.
pub struct Reference(Box<dyn Driver>);

impl Reference {
    /// All that are configured, in order; the members of a pool share its addresses.
    pub fn all(configs: &[ReferenceConfig], now: Duration) -> anyhow::Result<Vec<Self>> {
        let mut pools: BTreeMap<&str, pool::Shared> = BTreeMap::new();
        let mut all = Vec::new();
        for config in configs {
            all.push(match config.pool() {
                Some(name) => {
                    let pool = pools.entry(name).or_insert_with(|| pool::Pool::new(name, now));
                    Self(Box::new(pool::Member::new(config, pool.clone(), now)))
                }
                None => Self::new(config, now)?,
            });
        }
        Ok(all)
    }

    /// From its (already validated) configuration; nothing is contacted yet. A member of a pool is alone with it.
    pub fn new(config: &ReferenceConfig, now: Duration) -> anyhow::Result<Self> {
        let name = config.name();
        Ok(Self(match config {
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
            ReferenceConfig::Ptp(ptp) => Box::new(ptp::Ptp::new(ptp, name, now)),
            ReferenceConfig::Chrony(chrony) => Box::new(chrony::Chrony::new(chrony, now)?),
            ReferenceConfig::Ntp { address, .. } => match config.pool() {
                Some(pool) => Box::new(pool::Member::new(config, pool::Pool::new(pool, now), now)),
                None => Box::new(server::Server::new(config, address, now)?),
            },
        }))
    }

    /// When [`Self::on_timer`] next has something to do.
    pub fn poll_at(&self) -> Duration {
        self.0.poll_at()
    }

    /// The socket to wait for.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }

    /// Its time has come.
    pub fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        self.0.on_timer(now, around)
    }

    /// Its socket is ready.
    pub fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        self.0.on_ready(now, around)
    }

    /// Start over: the host was suspended, the past has lost its meaning.
    pub fn restart(&mut self, now: Duration) {
        self.0.restart(now);
    }

    /// True once after this machine's counter was disturbed, for instance by a migration.
    pub fn take_disruption(&mut self) -> bool {
        self.0.take_disruption()
    }

    /// True once after this reference became another server.
    pub fn take_replacement(&mut self) -> bool {
        self.0.take_replacement()
    }

    /// What the clock needs of it now; it polls accordingly.
    pub fn require(&mut self, now: Duration, need: &Need) {
        self.0.require(now, need);
    }

    /// The NTP server behind it, for those who follow us.
    pub fn upstream(&self) -> Option<Upstream> {
        self.0.upstream()
    }

    /// For `timevisor status`; the caller adds what the estimate knows.
    pub fn report(&self, now: Duration) -> Report {
        self.0.report(now)
    }
}

/// What an attacker off the path would have to guess.
fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // No randomness at all (never seen on Linux): the clock's low bits still make answers distinct.
        timevisor_linux::clock::realtime().to_words().1
    })
}
