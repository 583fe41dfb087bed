//! `timevisor replay`: recorded exchanges through the production clock, scored against the truth.

mod plot;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use timevisor_simulation::trace::{
    Method, Quantiles, Reading, Replay, ReplayOptions, Score, Trace, half_widths, replay,
    truth_path,
};
use timevisor_time::Duration;

use crate::spans::span;

#[derive(Args)]
pub struct Options {
    /// The exchanges, NAME.csv or NAME.csv.gz
    trace: PathBuf,
    /// The counter at every true second; NAME.truth.csv[.gz] beside the trace unless given
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// default, shifted-exponential, radclock, radclock-excellent, radclock-poor or last-sample
    #[arg(long, value_name = "NAME", default_value = "default")]
    estimator: Method,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Convergence that does not count: seconds, or a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "2h", value_parser = seconds)]
    skip: Duration,
    /// Write every reading here: counter, estimate, bounds and truth
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw offsets and bounds into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// design.md, "Results are machine-readable". Without a truth the fields that need one are null.
#[derive(Serialize)]
struct Json<'a> {
    trace: &'a str,
    estimator: &'static str,
    rms_us: Option<f64>,
    mean_abs_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    halfwidth_median_us: f64,
    halfwidth_p99_us: f64,
    coverage: Option<f64>,
    seconds: usize,
    contradictions: u64,
}

pub fn run(options: &Options) -> Result<()> {
    let truth = options.truth.clone().or_else(|| truth_path(&options.trace));
    let trace = Trace::load(&options.trace, truth.as_deref())?;
    let replay_options =
        ReplayOptions { method: options.estimator, skip: options.skip, ..ReplayOptions::default() };
    let replayed = replay(&trace, &replay_options);
    let Some(widths) = half_widths(&replayed.readings) else {
        bail!(
            "no second is left to read: {} exchanges were used, and the first {} are skipped; \
             give a longer trace or a smaller --skip",
            replayed.used,
            options.skip
        );
    };
    if let Some(path) = &options.csv {
        write_csv(path, &replayed.readings)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &options.plot {
        std::fs::write(path, plot::svg(&trace, &replayed.readings))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let score = Score::of(&replayed.readings);
    if options.json {
        let json = json(&trace.name, options.estimator, &replayed, score.as_ref(), &widths);
        println!("{}", serde_json::to_string(&json)?);
    } else {
        print!("{}", text(&trace.name, options.estimator, &replayed, score.as_ref(), &widths));
    }
    Ok(())
}

/// A span; a number without a unit is seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let std = if is_number { span(&format!("{text}s")) } else { span(text) }?;
    let ns = i64::try_from(std.as_nanos()).map_err(|_| format!("{text:?} is too long"))?;
    Ok(Duration::from_nanos(ns))
}

fn json<'a>(
    trace: &'a str,
    method: Method,
    replayed: &Replay,
    score: Option<&Score>,
    widths: &Quantiles,
) -> Json<'a> {
    Json {
        trace,
        estimator: method.name(),
        rms_us: score.map(|s| s.rms_us),
        mean_abs_us: score.map(|s| s.mean_abs_us),
        p99_us: score.map(|s| s.abs_us.p99),
        max_us: score.map(|s| s.abs_us.max),
        halfwidth_median_us: widths.median,
        halfwidth_p99_us: widths.p99,
        coverage: score.map(|s| s.coverage),
        seconds: replayed.readings.len(),
        contradictions: replayed.contradictions,
    }
}

fn text(
    trace: &str,
    method: Method,
    replayed: &Replay,
    score: Option<&Score>,
    widths: &Quantiles,
) -> String {
    let mut out = format!("trace         {trace}\nestimator     {method}\n");
    out += &format!("exchanges     {} used", replayed.used);
    for (reason, n) in &replayed.discarded {
        out += &format!(", {} {n}", reason.name());
    }
    out += &format!("\nreadings      {}, one a second", replayed.readings.len());
    if replayed.unread > 0 {
        out += &format!("; {} more before the first exchange not counted", replayed.unread);
    }
    out += "\n";
    match score {
        Some(s) => {
            let Quantiles { median, p99, max } = s.abs_us;
            out += &format!(
                "error         rms {:.3} us, mean {:.3}, median {median:.3}, p99 {p99:.3}, max {max:.3}\n",
                s.rms_us, s.mean_abs_us
            );
        }
        None => out += "error         not known: there is no truth file; --truth names one\n",
    }
    let Quantiles { median, p99, max } = widths;
    out += &format!("half-width    median {median:.3} us, p99 {p99:.3}, max {max:.3}\n");
    match score {
        Some(s) => out += &format!("coverage      {:.6}\n", s.coverage),
        None => out += "coverage      not known: there is no truth file\n",
    }
    let distrusted = replayed.readings.iter().filter(|reading| !reading.trusted).count();
    out += &format!("contradictions {}, {distrusted} s unreliable\n", replayed.contradictions);
    out
}

/// Whole nanoseconds since 1970 as the trace counts them; bounds are rounded outwards.
fn write_csv(path: &Path, readings: &[Reading]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "t_s,counter,earliest_ns,estimate_ns,latest_ns,true_ns,trusted")?;
    for r in readings {
        let truth = r.truth.map(|t| t.floor_nanos().to_string()).unwrap_or_default();
        writeln!(
            file,
            "{},{},{},{},{},{truth},{}",
            r.second,
            r.counter,
            r.interval.earliest().floor_nanos(),
            r.estimate.floor_nanos(),
            r.interval.latest().ceil_nanos(),
            u8::from(r.trusted)
        )?;
    }
    file.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_alone_is_seconds() {
        assert_eq!(seconds("7200"), Ok(Duration::from_secs(7200)));
        assert_eq!(seconds("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(seconds("1.5 h"), Ok(Duration::from_secs(5400)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert!(seconds("2w").unwrap_err().contains("unknown"));
        assert!(seconds("-1").is_err() && seconds("h").is_err());
    }

    #[test]
    fn json_has_the_documented_fields_in_order() {
        let replayed = Replay {
            readings: Vec::new(),
            unread: 0,
            used: 0,
            discarded: std::collections::BTreeMap::new(),
            contradictions: 3,
        };
        let widths = Quantiles { median: 40.0, p99: 50.0, max: 60.0 };
        let json = json("x", Method::Default, &replayed, None, &widths);
        assert_eq!(
            serde_json::to_string(&json).unwrap(),
            "{\"trace\":\"x\",\"estimator\":\"default\",\"rms_us\":null,\"mean_abs_us\":null,\"p99_us\":null,\
             \"max_us\":null,\"halfwidth_median_us\":40.0,\"halfwidth_p99_us\":50.0,\"coverage\":null,\"seconds\":0,\
             \"contradictions\":3}"
        );
    }
}
