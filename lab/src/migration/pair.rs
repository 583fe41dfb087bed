//! Two hosts on one machine: two independent daemons, each with its own server and, on request, its
//! own oscillator.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::chronyd::Chronyd;
use crate::host::{Host, ntp_reference};
use crate::oscillator::{Oscillator, Parameters};
use crate::scenario::Context;
use crate::truth::Truth;

/// How the two hosts' counters differ from the machine's: their rates are 75 ppm apart, they
/// started an hour and a month ago at 2 GHz, and they wander as much as in an office over a day,
/// but within minutes (at most 0.4 ppb/s).
const OSCILLATORS: [Parameters; 2] = [
    Parameters { ppb: 40_000, offset: 7_200_000_000_000, amplitude_ppb: 20.0, period: 6e11 },
    Parameters { ppb: -35_000, offset: 5_184_000_000_000_000, amplitude_ppb: 20.0, period: 5e11 },
];

/// The two hosts.
#[derive(Debug)]
pub struct Hosts {
    /// Each follows its server.
    pub hosts: [Host; 2],
    pub(crate) servers: [Chronyd; 2],
}

impl Hosts {
    /// Both use the machine's TSC.
    ///
    /// # Errors
    /// When a server or a daemon does not start.
    pub fn new(ctx: &Context) -> anyhow::Result<Self> {
        Self::of(ctx, [Host::further(ctx, "a")?, Host::further(ctx, "b")?])
    }

    /// Each uses its own oscillator.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn apart(ctx: &Context) -> anyhow::Result<Self> {
        let host = |name: &str, parameters| {
            let ctx = ctx.further(name)?;
            Host::with_oscillator(&ctx, Oscillator::new(&ctx, parameters)?)
        };
        Self::of(ctx, [host("a", OSCILLATORS[0])?, host("b", OSCILLATORS[1])?])
    }

    fn of(ctx: &Context, mut hosts: [Host; 2]) -> anyhow::Result<Self> {
        let servers = [ctx.chronyd("server-a")?, ctx.chronyd("server-b")?];
        for (host, server) in hosts.iter_mut().zip(&servers) {
            host.start(&lines(&server.address().ip().to_string()))?;
            host.wait_synchronized(500)?;
        }
        Ok(Self { hosts, servers })
    }
}

/// The configuration of a host that follows this server. It must not discover QEMUs, because it
/// would take all of this machine's QEMUs for its own.
pub(crate) fn lines(server: &str) -> String {
    format!("[guests]\ndiscover = false\n{}", ntp_reference(server))
}

/// The error of one reading by a guest, us.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Error {
    pub(crate) error_us: f64,
    pub(crate) half_width_us: f64,
}

/// Checks that a guest's reading contained the true time on its host at its counter value; `offset`
/// leads from the guest's counter to the host's.
pub(crate) fn check(
    host: &Host,
    truth: &Truth,
    offset: i64,
    reading: &Value,
) -> anyhow::Result<Error> {
    let whole =
        |name: &str| reading[name].as_i64().with_context(|| format!("no {name}: {reading}"));
    let guest = reading["counter"].as_u64().context("no counter")?;
    let counter = guest.wrapping_add_signed(-offset);
    let tsc = host.oscillator().map_or(counter, |oscillator| oscillator.tsc(counter));
    let true_time = truth.at(tsc) + whole("tai_offset")? * 1_000_000_000;
    let (earliest, latest) = (whole("earliest_ns")?, whole("latest_ns")?);
    let slack = truth.uncertainty_ns();
    ensure!(
        earliest <= true_time + slack && true_time - slack <= latest,
        "true was {true_time}, [{}, {}] from there: {reading}",
        earliest - true_time,
        latest - true_time
    );
    let error = (whole("estimate_ns")? - true_time).abs();
    Ok(Error { error_us: error as f64 / 1e3, half_width_us: (latest - earliest) as f64 / 2e3 })
}
