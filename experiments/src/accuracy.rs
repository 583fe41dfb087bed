//! Figures 8 to 10: error and bounds of the host's page, the guest's page, and clocks synchronized
//! inside the guest.

use std::time::{Duration, Instant};

use anyhow::ensure;
use timevisor_lab::plot;
use timevisor_lab::scenario::Context;

use super::paper::ERRORS;
use super::pictures;
use super::report::{self, Accuracy};
use super::subject::{Options, Subject};
use super::watch::{CLOCKS, Clock, Sample, watch};

const NAME: &str = "quartzv-sync";

pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let mut subject = Subject::settled(ctx, Options::default())?;
    let samples = watch(&mut subject, Instant::now(), span)?;
    std::fs::write(ctx.path("samples.csv"), report::csv(&samples))?;

    let all = Accuracy::of_all(&samples);
    println!("\nerror against the truth, and bounds, us\n{}", Accuracy::HEAD);
    for accuracy in &all {
        println!("{}", accuracy.line());
    }
    let known = all.iter().map(|a| format!("{:.2}", a.uncertainty_us)).collect::<Vec<_>>();
    println!("truth known to (median, us): {}", known.join(", "));
    let [native, para, full] = ERRORS;
    println!(
        "paper, mean and sd: native {:.2} and {:.2}, para-virtual {:.2} and {:.2}, fully virtual {:.2} and {:.2}",
        native.0, native.1, para.0, para.1, full.0, full.1
    );
    let [host, guest, inside, chronyd] = [0, 1, 2, 3].map(|n| all[n].error.sd);
    println!(
        "sd over the host's: guest's page {:.2} (paper {:.2}), inside {:.1} and {:.1} (paper {:.1})",
        guest / host,
        para.1 / native.1,
        inside / host,
        chronyd / host,
        full.1 / native.1
    );
    plot::write(&format!("{NAME}-distribution"), &pictures::distribution(NAME, &samples))?;
    for clock in CLOCKS {
        let svg = pictures::bounds(NAME, &samples, clock, &[]);
        plot::write(&format!("{NAME}-{}", clock.id()), &svg)?;
    }
    report::write(NAME, all.iter().map(Accuracy::json).collect())
}

/// Runs the experiment for some seconds and judges what must hold on any machine.
///
/// # Errors
/// When a clock cannot be read, when a page's bounds do not contain the truth, or when host and
/// guest do not read the same clock.
pub fn smoke(ctx: &Context) -> anyhow::Result<String> {
    let mut subject = Subject::start(ctx, Options::default())?;
    let samples = watch(&mut subject, Instant::now(), Duration::from_secs(15))?;
    let all = Accuracy::of_all(&samples);
    for a in &all {
        ensure!(a.error.count >= 5, "only {} samples of {}", a.error.count, a.clock.title());
        // chronyd's bound is not Timevisor's responsibility.
        ensure!(
            a.held == a.error.count || a.clock == Clock::Chronyd,
            "the bounds of {} held the truth {} of {} times",
            a.clock.title(),
            a.held,
            a.error.count
        );
        ensure!(a.error.max < 20_000.0, "{} is {} us wrong", a.clock.title(), a.error.max);
    }
    // The two are read some ms apart, while the page is slewed; a wrong mapping would show an error
    // of full size.
    let of = |clock| samples.iter().filter(move |s: &&Sample| s.clock == clock);
    let apart = of(Clock::Host).zip(of(Clock::Guest)).map(|(h, g)| (h.error_us - g.error_us).abs());
    let apart = apart.fold(0.0, f64::max);
    ensure!(apart < 50.0, "the guest's page is {apart} us from the host's");
    Ok(format!(
        "{} samples of each; guest's page within {apart:.2} us of the host's; sd of the error {} us",
        all[0].error.count,
        all.iter().map(|a| format!("{:.1}", a.error.sd)).collect::<Vec<_>>().join(", ")
    ))
}
