//! `make soak-sync`: runs timevisord against a real chronyd in a network namespace, and compares
//! its page with that server's clock.
//!
//! The server serves this machine's CLOCK_REALTIME, so the true time can be read directly.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_linux::clock::bracket;

use crate::host::Host;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::{interrupt, programs};

/// Time between two readings of page and truth.
const INTERVAL: Duration = Duration::from_millis(100);
/// The convergence phase, which is excluded from the accuracy but not from the coverage.
const WARM_UP: Duration = Duration::from_secs(300);

/// One reading.
#[derive(Clone, Copy, Debug)]
struct Sample {
    error_ns: i64,
    half_width_ns: i64,
    /// Uncertainty of the true time itself, from the bracket.
    uncertainty_ns: i64,
    settled: bool,
}

/// Watches for `minutes`, prints a table and writes target/results/soak-sync.json.
///
/// # Errors
/// When anything fails, or the truth is outside the bounds even once.
pub fn run(ctx: &Context, minutes: u32, poll: &str) -> anyhow::Result<()> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::new(ctx)?;
    host.start(&format!(
        "[[reference]]\ntype = \"ntp\"\naddress = \"{}\"\npoll = \"{poll}\"\n[guests]\ndiscover = false\n",
        server.address().ip()
    ))?;
    host.wait_synchronized(1_000_000)?;
    let page = HostPage::open(host.directory())?;
    println!(
        "one reading every {} ms for {minutes} minutes, polls every {poll}",
        INTERVAL.as_millis()
    );
    let (start, end) = (Instant::now(), Duration::from_secs(u64::from(minutes) * 60));
    let mut samples: Vec<Sample> = Vec::new();
    let mut next_line = Duration::from_secs(300);
    while start.elapsed() < end {
        interrupt::check()?;
        std::thread::sleep(INTERVAL);
        samples.push(sample(&page, start.elapsed() > WARM_UP)?);
        if start.elapsed() > next_line {
            next_line += Duration::from_secs(300);
            println!("{:>3} min: {}", start.elapsed().as_secs() / 60, Figures::of(&samples, false));
        }
    }
    report(&host, &samples, minutes, poll)
}

fn sample(page: &HostPage, settled: bool) -> anyhow::Result<Sample> {
    // CLOCK_REALTIME was read at some moment between two counter values, so it must fit the bounds
    // at both.
    let moment = bracket(page.counter(), 5);
    let (before, after) = (page.convert(moment.before)?, page.convert(moment.after)?);
    let tai = i64::from(before.tai_offset().context("the page has no TAI offset")?) * 1_000_000_000;
    let truth = moment.realtime.floor_nanos() + tai;
    let (earliest, latest) = (before.earliest.floor_nanos(), after.latest.ceil_nanos());
    ensure!(
        earliest <= truth && truth <= latest + 1,
        "truth {truth} is not in {earliest}..{latest}: {} ns outside",
        (earliest - truth).max(truth - latest)
    );
    let (low, high) = (before.estimate.floor_nanos(), after.estimate.floor_nanos());
    Ok(Sample {
        error_ns: low + (high - low) / 2 - truth,
        half_width_ns: (latest - earliest) / 2,
        uncertainty_ns: (high - low) / 2,
        settled,
    })
}

struct Figures {
    count: usize,
    rms_us: f64,
    mean_us: f64,
    p99_us: f64,
    max_us: f64,
    half_width_us: f64,
    uncertainty_us: f64,
}

impl Figures {
    fn of(samples: &[Sample], settled_only: bool) -> Self {
        let chosen: Vec<_> = samples.iter().filter(|s| s.settled || !settled_only).collect();
        let count = chosen.len().max(1);
        let quantile = |of: fn(&Sample) -> i64, q: f64| {
            let mut values: Vec<i64> = chosen.iter().map(|s| of(s)).collect();
            values.sort_unstable();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
            let index = ((values.len().max(1) - 1) as f64 * q) as usize;
            values.get(index).map_or(0.0, |v| *v as f64 / 1000.0)
        };
        let us = |s: &Sample| s.error_ns as f64 / 1000.0;
        Self {
            count: chosen.len(),
            rms_us: (chosen.iter().map(|s| us(s).powi(2)).sum::<f64>() / count as f64).sqrt(),
            mean_us: chosen.iter().map(|s| us(s)).sum::<f64>() / count as f64,
            p99_us: quantile(|s| s.error_ns.abs(), 0.99),
            max_us: quantile(|s| s.error_ns.abs(), 1.0),
            half_width_us: quantile(|s| s.half_width_ns, 0.5),
            uncertainty_us: quantile(|s| s.uncertainty_ns, 0.5),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} readings, error rms {:.2} us, mean {:+.2}, p99 {:.2}, max {:.2}; half-width median {:.2} us; truth \
             known to {:.2} us; truth inside every time",
            self.count,
            self.rms_us,
            self.mean_us,
            self.p99_us,
            self.max_us,
            self.half_width_us,
            self.uncertainty_us
        )
    }
}

fn report(host: &Host, samples: &[Sample], minutes: u32, poll: &str) -> anyhow::Result<()> {
    let (all, settled) = (Figures::of(samples, false), Figures::of(samples, true));
    println!("\nfrom the start        {all}");
    println!("after {} minutes       {settled}", WARM_UP.as_secs() / 60);
    let status = host.json(&["status"])?;
    println!("status                {}", status["clock"]);
    let row = |name: &str, f: &Figures| {
        json!({"span": name, "minutes": minutes, "poll": poll, "readings": f.count, "rms_us": f.rms_us, "mean_us": f.mean_us, "p99_us": f.p99_us,
               "max_us": f.max_us, "halfwidth_median_us": f.half_width_us, "truth_uncertainty_us": f.uncertainty_us,
               "coverage": 1.0})
    };
    programs::write_result("soak-sync", &[row("all", &all), row("settled", &settled)])
}
