//! `timevisor oscillator`: surveys this machine's oscillator over hours, and suggests what to state
//! of it in `[oscillator]`, with the evidence.

use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, Instant as StdInstant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use timevisor_clock_page::ClockStatus;
use timevisor_estimate::survey::{RESERVE, Sample, Survey};
use timevisor_estimate::{CRYSTAL_WANDER, OCXO_WANDER, TCXO_WANDER};

use crate::now;
use crate::plot::{self, Line};

#[derive(Args)]
pub struct Options {
    /// How long to watch; the steepest hours of the day should be among them
    #[arg(long, value_name = "HOURS", default_value_t = 2.0)]
    hours: f64,
    /// Interval between samples, s
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    every: f64,
    /// Samples of an earlier survey instead of new ones
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hours", "csv"])]
    from: Option<PathBuf>,
    /// Write the samples, one a line: counter and phase in seconds, one sigma
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Plot the rate over time as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    ensure!(options.every > 0.0 && options.hours > 0.0, "--every and --hours must be above 0");
    let pieces = match &options.from {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            parse(&text).with_context(|| format!("{}", file.display()))?
        }
        None => watch(directory, options)?,
    };
    if let Some(file) = &options.csv {
        std::fs::write(file, csv(&pieces))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = &options.plot {
        std::fs::write(file, rates(&pieces))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let survey = Survey::of(&pieces, interval(&pieces));
    ensure!(
        !survey.windows.is_empty(),
        "too few samples for any window: watch longer, or check that the clock is synchronized (timevisor status)"
    );
    if options.json {
        println!("{}", json(&survey));
    } else {
        print!("{}", text(&survey));
    }
    Ok(())
}

/// One reading of the page: the counter, the estimate since the first reading, and its sigma, s.
type Raw = (u64, f64, f64);

/// Samples the page; a new piece begins where the clock was disrupted or not synchronized.
fn watch(directory: &Path, options: &Options) -> Result<Vec<Vec<Sample>>> {
    let reader = now::reader(directory, None)?;
    let begun = StdInstant::now();
    let whole = StdDuration::try_from_secs_f64(options.hours * 3600.0)?;
    let interval = StdDuration::try_from_secs_f64(options.every)?;
    let mut pieces: Vec<Vec<Raw>> = vec![Vec::new()];
    let (mut first, mut disruption, mut told) = (None, None, StdDuration::ZERO);
    for n in 0_u32.. {
        let due = interval * n;
        if due > whole {
            break;
        }
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let reading = reader.read()?;
        let known = reading.has_estimate() && reading.status() == ClockStatus::Synchronized;
        if !known || disruption != Some(reading.disruption) {
            if pieces.last().is_some_and(|piece| !piece.is_empty()) {
                pieces.push(Vec::new());
            }
            disruption = Some(reading.disruption);
        }
        if known {
            let begin = *first.get_or_insert(reading.estimate);
            let error_s = reading.estimated_error().as_secs_f64();
            let raw = (reading.counter, (reading.estimate - begin).as_secs_f64(), error_s);
            pieces.last_mut().context("no piece")?.push(raw);
        }
        if begun.elapsed() >= told {
            let samples: usize = pieces.iter().map(Vec::len).sum();
            eprintln!(
                "{:.0} of {:.0} minutes, {samples} samples, clock {}",
                begun.elapsed().as_secs_f64() / 60.0,
                whole.as_secs_f64() / 60.0,
                reading.status().name()
            );
            told = begun.elapsed() + (whole / 20).max(StdDuration::from_secs(5));
        }
    }
    Ok(pieces.iter().map(|piece| samples(piece)).collect())
}

/// Against the mean rate of the piece.
fn samples(piece: &[Raw]) -> Vec<Sample> {
    let (Some(first), Some(last)) = (piece.first(), piece.last()) else { return Vec::new() };
    let ticks = |raw: &Raw| raw.0.wrapping_sub(first.0) as f64;
    let tick_s = if ticks(last) > 0.0 { (last.1 - first.1) / ticks(last) } else { 0.0 };
    let sample = |raw: &Raw| {
        let counter_s = ticks(raw) * tick_s;
        Sample { counter_s, phase_s: raw.1 - first.1 - counter_s, error_s: raw.2 }
    };
    piece.iter().map(sample).collect()
}

/// The interval between two samples, s: the median.
fn interval(pieces: &[Vec<Sample>]) -> f64 {
    let spans = pieces.iter().flat_map(|piece| piece.windows(2));
    let mut spans: Vec<f64> = spans.map(|two| two[1].counter_s - two[0].counter_s).collect();
    spans.sort_by(f64::total_cmp);
    spans.get(spans.len() / 2).copied().unwrap_or(1.0)
}

fn csv(pieces: &[Vec<Sample>]) -> String {
    let mut out = "counter_s,phase_s,error_s\n".to_owned();
    for (n, piece) in pieces.iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        for sample in piece {
            out += &format!("{},{:e},{:e}\n", sample.counter_s, sample.phase_s, sample.error_s);
        }
    }
    out
}

/// What [`csv`] wrote: an empty line separates pieces.
fn parse(text: &str) -> Result<Vec<Vec<Sample>>> {
    let mut pieces = vec![Vec::new()];
    for (number, line) in text.lines().enumerate().skip(1) {
        if line.is_empty() {
            pieces.push(Vec::new());
            continue;
        }
        let fields: Vec<f64> = line.split(',').filter_map(|field| field.parse().ok()).collect();
        let [counter_s, phase_s, error_s] = fields[..] else {
            anyhow::bail!("line {}: three numbers are expected, as --csv writes them", number + 1);
        };
        pieces.last_mut().context("no piece")?.push(Sample { counter_s, phase_s, error_s });
    }
    Ok(pieces)
}

/// The rate between samples 64 s or more apart, ppb.
fn rates(pieces: &[Vec<Sample>]) -> String {
    let mut lines = Vec::new();
    for piece in pieces {
        let mut points = Vec::new();
        let mut last: Option<&Sample> = None;
        for sample in piece {
            match last {
                Some(before) if sample.counter_s - before.counter_s >= 64.0 => {
                    let span = sample.counter_s - before.counter_s;
                    let rate = (sample.phase_s - before.phase_s) / span * 1e9;
                    points.push(((before.counter_s + span / 2.0) / 3600.0, rate));
                    last = Some(sample);
                }
                None => last = Some(sample),
                Some(_) => {}
            }
        }
        lines.push(Line {
            points,
            color: "#1f77b4",
            width: 1.5,
            dashed: false,
            name: "rate over 64 s".to_owned(),
        });
    }
    plot::svg("This machine's oscillator", "hours", "rate, ppb against the first", lines)
}

fn text(survey: &Survey) -> String {
    let mut out = "window s  Allan deviation  steepest change   error of it\n".to_owned();
    for w in &survey.windows {
        out += &format!(
            "{:8.0}  {:15.1e}  {:13.1e}/s  {:.1e}/s{}\n",
            w.window_s,
            w.allan_deviation,
            w.steepest,
            w.noise,
            if w.is_significant() { "" } else { "  (error only)" }
        );
    }
    out += &match survey.steepest() {
        Some((slope, window)) => {
            format!("the rate changed by {slope:.1e} per second over {window:.0} s\n")
        }
        None => {
            "no change of the rate stands out from the estimate's error, which counts instead\n"
                .to_owned()
        }
    };
    if let Some(wander) = survey.suggestion() {
        out += &format!("with {RESERVE} times that as a margin: {}\n", advice(wander));
    }
    out
}

/// What to write into the configuration, in words.
fn advice(wander: f64) -> String {
    let presets = [("ocxo", OCXO_WANDER), ("tcxo", TCXO_WANDER), ("crystal", CRYSTAL_WANDER)];
    let keeps =
        "the worst day counts, not this one: do not go below what the oscillator's maker states";
    match presets.into_iter().find(|(_, preset)| wander <= *preset) {
        Some((name, preset)) => {
            format!("[oscillator] wander = \"{name}\" ({preset:e}) covers {wander:.1e}; {keeps}")
        }
        None => format!(
            "[oscillator] wander = {wander:.1e}: this oscillator changes faster than a server's crystal should"
        ),
    }
}

fn json(survey: &Survey) -> String {
    let windows: Vec<_> = survey
        .windows
        .iter()
        .map(|w| {
            serde_json::json!({
                "window_s": w.window_s, "allan_deviation": w.allan_deviation,
                "steepest_per_s": w.steepest, "noise_per_s": w.noise,
            })
        })
        .collect();
    serde_json::json!({
        "windows": windows,
        "steepest_per_s": survey.steepest().map(|(slope, _)| slope),
        "suggested_wander": survey.suggestion(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_survive_a_file() {
        let sample = |n: u32| Sample {
            counter_s: f64::from(n) * 4.0,
            phase_s: f64::from(n) * 1e-6,
            error_s: 2e-7,
        };
        let pieces = vec![(0..5).map(sample).collect(), (7..9).map(sample).collect::<Vec<_>>()];
        assert_eq!(parse(&csv(&pieces)).unwrap(), pieces);
        assert!(parse("a\n1,2\n").unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn the_advice_is_a_preset_or_a_number() {
        assert!(advice(1e-9).contains("\"tcxo\""));
        assert!(advice(2.5e-8).contains("\"crystal\" (3e-8)"));
        assert!(advice(2e-7).contains("wander = 2.0e-7"));
    }
}
