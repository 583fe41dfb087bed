//! Figure 3: a dependent clock that occasionally receives the time of a disciplined host clock and
//! extrapolates with its counter's nominal rate. It is compared with the page, which also provides
//! the rate, at the same counter values.
//!
//! Xen's guests received the time from Dom0's kernel, once a minute while that was synchronized
//! (`sync_xen_wallclock` of Xen's Linux 2.6, arch/x86 time-xen.c; the paper gives no interval), and
//! assumed that the Xen Clocksource ran at exactly 1 GHz. Here the host is a timevisord whose
//! counter is 40 ppm faster than stated (lab/oscillator; this machine's own TSC provides the
//! truth). A third clock receives time and rate once a minute: it shows which part of the sawtooth
//! is due to the rate.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_lab::chronyd::Chronyd;
use timevisor_lab::host::{Host, ntp_reference};
use timevisor_lab::interrupt;
use timevisor_lab::oscillator::{Oscillator, Parameters};
use timevisor_lab::plot::{self, Series};
use timevisor_lab::reader::HostPage;
use timevisor_lab::scenario::Context;
use timevisor_lab::truth::Truth;
use timevisor_linux::counter::Tsc;
use timevisor_linux::counter::calibrate::{best_bracket, from_brackets};

use super::paper;
use crate::report;
use crate::spread::Spread;
use crate::statistics::Summary;

const NAME: &str = "vebt-sawtooth";
/// The interval of Xen's kernel.
const UPDATE: Duration = Duration::from_secs(60);
/// Instants in whole ns, and an oscillator in doubles.
const ROUNDING_US: f64 = 0.1;
const INTERVAL: Duration = Duration::from_millis(250);
const WARM_UP: Duration = Duration::from_secs(60);
/// 40 ppm fast, with a wander of 20 ppb as in an office over a day, but within minutes.
const OSCILLATOR: Parameters =
    Parameters { ppb: 40_000, offset: 7_200_000_000_000, amplitude_ppb: 20.0, period: 6e11 };

/// The errors of all clocks at one moment (reading minus truth), us.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at_s: f64,
    without_rate_us: f64,
    with_rate_us: f64,
    page_us: f64,
    /// The page's bounds. The estimate need not be in their middle.
    page_earliest_us: f64,
    page_latest_us: f64,
    /// How far the truth itself may be off: on a busy machine a look at the clock takes long.
    truth_within_us: f64,
}

impl Sample {
    /// True if the page's bounds certainly did not contain the truth.
    fn is_outside(&self) -> bool {
        let unsure = self.truth_within_us + ROUNDING_US;
        self.page_earliest_us > unsure || self.page_latest_us < -unsure
    }

    fn half_width_us(&self) -> f64 {
        (self.page_latest_us - self.page_earliest_us) / 2.0
    }
}

/// The last information that a dependent clock received.
#[derive(Debug, Clone, Copy)]
struct Told {
    counter: u64,
    ns: i64,
    /// ns per tick.
    period: f64,
}

impl Told {
    fn at(&self, counter: u64) -> i64 {
        let ticks = counter.wrapping_sub(self.counter).cast_signed() as f64;
        #[expect(clippy::cast_possible_truncation, reason = "minutes in ns")]
        let since = (ticks * self.period).round() as i64;
        self.ns + since
    }
}

/// A host with another oscillator that follows a real server.
struct Setting {
    // Dropped in this order: the host before its server.
    page: HostPage,
    host: Host,
    oscillator: Oscillator,
    /// ns per tick, as the counter states it.
    nominal: f64,
    khz: u64,
    _server: Chronyd,
}

impl Setting {
    fn new(ctx: &Context, warm_up: Duration) -> anyhow::Result<Self> {
        let khz = nominal_khz()?;
        let server = ctx.chronyd("server")?;
        let oscillator = Oscillator::new(ctx, OSCILLATOR)?;
        let mut host = Host::with_oscillator(ctx, oscillator.clone())?;
        let reference = ntp_reference(&server.address().ip().to_string());
        host.start(&format!("[guests]\ndiscover = false\n{reference}"))?;
        host.wait_synchronized(500)?;
        interrupt::sleep(warm_up)?;
        let page = HostPage::open(host.directory())?;
        Ok(Self { page, host, oscillator, nominal: 1e6 / khz as f64, khz, _server: server })
    }

    /// UTC in ns, according to the page, at a value of the host's counter: earliest, estimate,
    /// latest. (This process reads the machine's counter.)
    fn page_at(&self, counter: u64) -> anyhow::Result<[i64; 3]> {
        let reading = self.page.convert(counter)?;
        ensure!(reading.has_estimate(), "the page knows no time");
        let tai = i64::from(reading.tai_offset().context("no TAI - UTC")?) * 1_000_000_000;
        let ns = |instant: timevisor_time::Instant<_>| instant.floor_nanos() - tai;
        Ok([reading.earliest, reading.estimate, reading.latest].map(ns))
    }

    /// The page's current period, ns per tick.
    fn rate_at(&self, counter: u64) -> anyhow::Result<f64> {
        let ticks = self.khz * 1000;
        let [_, from, _] = self.page_at(counter)?;
        let [_, to, _] = self.page_at(counter.wrapping_add(ticks))?;
        Ok((to - from) as f64 / ticks as f64)
    }

    fn watch(&mut self, span: Duration, update: Duration) -> anyhow::Result<Vec<Sample>> {
        let began = Instant::now();
        let mut told: Option<(Duration, Told, Told)> = None;
        let mut samples = Vec::new();
        while began.elapsed() < span {
            self.host.check_alive()?;
            let (at, truth) = Truth::around(&Tsc::unchecked(), || Ok(began.elapsed()))?;
            let counter = self.oscillator.counter(truth.end());
            let true_ns = truth.at(truth.end());
            let [earliest_ns, page_ns, latest_ns] = self.page_at(counter)?;
            let (_, bare, rated) = match told {
                Some(told) if at < told.0 + update => told,
                _ => {
                    // The time of the host's clock, including its own error.
                    let bare = Told { counter, ns: page_ns, period: self.nominal };
                    let rated = Told { period: self.rate_at(counter)?, ..bare };
                    *told.insert((at, bare, rated))
                }
            };
            let us = |ns: i64| (ns - true_ns) as f64 / 1e3;
            samples.push(Sample {
                at_s: at.as_secs_f64(),
                without_rate_us: us(bare.at(counter)),
                with_rate_us: us(rated.at(counter)),
                page_us: us(page_ns),
                page_earliest_us: us(earliest_ns),
                page_latest_us: us(latest_ns),
                truth_within_us: truth.uncertainty_ns() as f64 / 1e3,
            });
            interrupt::sleep(INTERVAL)?;
        }
        Ok(samples)
    }
}

/// The rate stated by the machine's kernel: its TSC in whole kHz, measured over 2 s.
fn nominal_khz() -> anyhow::Result<u64> {
    let tsc = Tsc::unchecked();
    let first = best_bracket(&tsc);
    interrupt::sleep(Duration::from_secs(2))?;
    let period = from_brackets(first, best_bracket(&tsc))?.period;
    Ok((period.ticks_in(timevisor_time::Duration::from_millis(1000)) + 500) / 1000)
}

/// A clock's name and its error.
type Clock = (&'static str, fn(&Sample) -> f64);

const CLOCKS: [Clock; 3] = [
    ("time once a minute, nominal rate", |s| s.without_rate_us),
    ("time and rate once a minute", |s| s.with_rate_us),
    ("page", |s| s.page_us),
];

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    println!(
        "  the host's counter is {} ppm faster than it states, wandering by 20 ppb; its timevisord asks a chronyd once a second;\n  \
         {} s of warm-up, a look every {} ms",
        OSCILLATOR.ppb / 1000,
        WARM_UP.as_secs(),
        INTERVAL.as_millis()
    );
    let mut setting = Setting::new(ctx, WARM_UP)?;
    println!("  nominal rate: {} kHz", setting.khz);
    let samples = setting.watch(span, UPDATE)?;
    std::fs::write(ctx.path("samples.csv"), csv(&samples))?;
    println!(
        "\nerror against the truth, us                   n      mean        sd    median       IQR  p99 of |e|   max |e|"
    );
    let mut rows = Vec::new();
    for (name, of) in CLOCKS {
        let values: Vec<f64> = samples.iter().map(of).collect();
        let (summary, spread) = (Summary::of(&values), Spread::of(&values));
        println!(
            "{name:<40} {:>7} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>11.2} {:>9.2}",
            summary.count,
            summary.mean,
            summary.sd,
            summary.median,
            spread.iqr(),
            summary.p99,
            summary.max
        );
        rows.push(json!({"clock": name, "error": summary.json(), "spread_us": spread.json()}));
    }
    let widest = samples.iter().map(Sample::half_width_us).fold(0.0, f64::max);
    let held = samples.iter().filter(|s| !s.is_outside()).count();
    println!(
        "page: half-width at most {widest:.1} us, held the truth {held} of {} times",
        samples.len()
    );
    println!("paper: {}", paper::SAWTOOTH);
    rows.push(json!({"row": "setting", "update_s": UPDATE.as_secs(), "ppb": OSCILLATOR.ppb, "nominal_khz": setting.khz,
                     "page_half_width_max_us": widest, "page_held": held, "paper": paper::SAWTOOTH}));
    for (name, svg) in pictures(&samples) {
        plot::write(&name, &svg)?;
    }
    report::write(NAME, rows)
}

/// A run of some seconds with an update every five seconds.
///
/// # Errors
/// When the samples, the sawtooth or the pictures are not as they must be on any machine.
pub fn smoke(ctx: &Context) -> anyhow::Result<String> {
    const UPDATE: Duration = Duration::from_secs(5);
    let mut setting = Setting::new(ctx, Duration::from_secs(15))?;
    let samples = setting.watch(4 * UPDATE, UPDATE)?;
    std::fs::write(ctx.path("samples.csv"), csv(&samples))?;
    ensure!(samples.len() >= 20, "only {} samples", samples.len());
    let outside: Vec<&Sample> = samples.iter().filter(|s| s.is_outside()).collect();
    ensure!(outside.is_empty(), "the page's bounds excluded the truth: {outside:?}");
    // The height of the teeth: 40 ppm of the longest time since an update.
    let own = |s: &Sample| (s.without_rate_us - s.page_us).abs();
    let most = samples.iter().map(own).fold(0.0, f64::max);
    let tooth = OSCILLATOR.ppb as f64 / 1e3 * UPDATE.as_secs_f64();
    ensure!(most > tooth * 0.5, "teeth of {most} us, {tooth} are expected");
    ensure!(most < tooth * 1.5, "teeth of {most} us, {tooth} are expected");
    let pictures = pictures(&samples);
    ensure!(pictures.iter().all(|(_, svg)| svg.starts_with("<svg")), "no pictures");
    ensure!(csv(&samples).lines().count() == samples.len() + 1, "lines are missing");
    Ok(format!(
        "{} samples, teeth of {most:.0} us, the page's bounds held the truth",
        samples.len()
    ))
}

fn pictures(samples: &[Sample]) -> [(String, String); 2] {
    let axes = ["time, s", "offset from truth, us"];
    let series = |clocks: &[Clock]| {
        let of = |(name, of): &Clock| Series {
            name: (*name).to_owned(),
            points: samples.iter().map(|s| (s.at_s, of(s))).collect(),
        };
        clocks.iter().map(of).collect::<Vec<_>>()
    };
    let [all, page] =
        [&CLOCKS[..], &CLOCKS[2..]].map(|c| plot::lines(NAME, axes, series(c), false));
    [(NAME.to_owned(), all), (format!("{NAME}-page"), page)]
}

fn csv(samples: &[Sample]) -> String {
    let mut text =
        "at_s,without_rate_us,with_rate_us,page_earliest_us,page_us,page_latest_us\n".to_owned();
    for s in samples {
        text += &format!(
            "{:.3},{:.3},{:.3},{:.3},{:.3},{:.3}\n",
            s.at_s,
            s.without_rate_us,
            s.with_rate_us,
            s.page_earliest_us,
            s.page_us,
            s.page_latest_us
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_runs_on_at_the_rate_that_it_was_told() {
        let told = Told { counter: 1000, ns: 5_000_000, period: 0.5 };
        assert_eq!(told.at(1000), 5_000_000);
        assert_eq!(told.at(3000), 5_001_000);
        assert_eq!(told.at(0), 4_999_500);
    }

    fn sample(at_s: f64) -> Sample {
        Sample {
            at_s,
            without_rate_us: -40.0 * at_s,
            with_rate_us: 0.1,
            page_us: 0.0,
            page_earliest_us: -8.0,
            page_latest_us: 8.0,
            truth_within_us: 0.1,
        }
    }

    #[test]
    fn bounds_are_judged_whether_or_not_the_estimate_is_in_their_middle() {
        let judge = |page_earliest_us, page_us, page_latest_us| {
            Sample { page_earliest_us, page_us, page_latest_us, ..sample(1.0) }.is_outside()
        };
        assert!(!judge(-8.0, 0.0, 8.0));
        // Once taken for wrong: 19.4 us of error, and a half-width of 18.9 us.
        assert!(!judge(-30.0, -19.4, 7.8));
        // Once taken for right: 3 us of error, and a half-width of 5 us.
        assert!(judge(1.0, 3.0, 11.0));
        assert!(judge(-11.0, -3.0, -1.0));
        assert!(!judge(0.15, 3.0, 11.0), "the truth itself may be that far off");
    }

    #[test]
    fn both_pictures_show_the_page() {
        let samples: Vec<Sample> = (0..60).map(f64::from).map(sample).collect();
        let [all, page] = pictures(&samples);
        assert!(all.1.contains("nominal rate") && all.1.contains("page"));
        assert!(page.1.contains("page") && !page.1.contains("nominal rate"));
    }
}
