//! `timevisor audit`: whether the audit log is whole, and how long the clock was within a bound. It
//! reads files and asks no daemon, so an auditor can do it on any machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use timevisor_audit::line::Head;
use timevisor_audit::report::{Gap, Report, Reporter, Why};
use timevisor_audit::stamp::{date, parse_date};
use timevisor_audit::verify::{Broken, Verified, Verifier};
use timevisor_audit::{Line, file_number};
use timevisor_time::Duration;

use crate::exit::Found;
use crate::spans::span;

#[derive(Subcommand)]
pub enum Command {
    /// Verify the chain of hashes: OK, or the first line that was changed
    Verify(VerifyOptions),
    /// Report the share of a time in which the bound was within a limit, and name the rest
    Report(ReportOptions),
}

#[derive(Args)]
struct Files {
    /// Where timevisord writes its audit log
    #[arg(long, value_name = "DIR", default_value = "/var/lib/timevisor/audit")]
    directory: PathBuf,
    /// Files of one log, oldest first, instead of all in the directory
    #[arg(conflicts_with = "directory")]
    files: Vec<PathBuf>,
}

#[derive(Args)]
pub struct VerifyOptions {
    #[command(flatten)]
    files: Files,
    /// A line that was noted earlier must be there: its number and SHA-256, as `verify` prints them
    #[arg(long, value_name = "SEQ:SHA256", value_parser = head)]
    expect: Option<Head>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct ReportOptions {
    #[command(flatten)]
    files: Files,
    /// The first moment, in UTC: 2026-11-30 or 2026-11-30T08:00:00Z
    #[arg(long, value_name = "DATE", value_parser = moment)]
    from: i64,
    /// The moment after the last, in UTC
    #[arg(long, value_name = "DATE", value_parser = moment)]
    to: i64,
    /// The greatest divergence from UTC that is allowed, for example 100us
    #[arg(long, value_name = "SPAN", value_parser = span)]
    within: StdDuration,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Gaps that are printed; `--json` has all.
const MOST_GAPS: usize = 50;

pub fn run(command: &Command) -> Result<Found> {
    match command {
        Command::Verify(options) => verify(options),
        Command::Report(options) => report(options),
    }
}

fn verify(options: &VerifyOptions) -> Result<Found> {
    let (files, outcome) = read(&options.files, options.expect.clone(), |_| {})?;
    let outcome = outcome.map_err(|broken| broken.to_string());
    if options.json {
        let object = match &outcome {
            Ok(verified) => json!({
                "ok": true,
                "files": files,
                "lines": verified.lines,
                "first_seq": verified.first.as_ref().map(|(seq, _)| seq),
                "last_seq": verified.head.seq,
                "last_sha256": verified.head.hash,
                "named": verified.named.iter().map(|named| {
                    json!({"file": named.file, "line": named.line, "what": named.what})
                }).collect::<Vec<_>>(),
            }),
            Err(broken) => json!({"ok": false, "files": files, "broken": broken}),
        };
        println!("{object}");
        return Ok(Found::when(outcome.is_ok()));
    }
    let verified = match outcome {
        Ok(verified) => verified,
        Err(broken) => {
            println!("BROKEN: {broken}");
            println!("What is before that line is whole; from it on, nothing is proven.");
            return Ok(Found::NotMet);
        }
    };
    println!("OK: {} lines in {files} file(s)", verified.lines);
    if let Some((seq, _)) = verified.first.filter(|(seq, _)| *seq > 1) {
        println!("it begins with line {seq}: files before were rotated away, or are not given");
    }
    for named in &verified.named {
        println!("named: {}, line {}: {}", named.file, named.line, named.what);
    }
    println!("last line: {}:{}", verified.head.seq, verified.head.hash);
    Ok(Found::Good)
}

fn report(options: &ReportOptions) -> Result<Found> {
    if options.from >= options.to {
        bail!("--from is not before --to; exchange them");
    }
    let limit = i64::try_from(options.within.as_nanos()).unwrap_or(i64::MAX);
    let mut reporter = Reporter::new(options.from, options.to, limit);
    let (_, outcome) = read(&options.files, None, |line| reporter.take(&line))?;
    if let Err(broken) = outcome {
        bail!("the log proves nothing: {broken}; `timevisor audit verify` says what is whole");
    }
    let report = reporter.report();
    if options.json {
        println!("{}", to_json(options, limit, &report));
    } else {
        print!("{}", text(options, limit, &report));
    }
    Ok(Found::when(report.is_met()))
}

/// Verifies files and passes their lines on. Returns how many files, and what became of it.
fn read(
    files: &Files,
    expect: Option<Head>,
    mut each: impl FnMut(Line),
) -> Result<(usize, Result<Verified, String>)> {
    let paths =
        if files.files.is_empty() { all_in(&files.directory)? } else { files.files.clone() };
    let mut verifier = Verifier::expecting(expect);
    for path in &paths {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let outcome: Result<(), Broken> =
            verifier.file(&path.display().to_string(), &bytes, &mut each);
        if let Err(broken) = outcome {
            return Ok((paths.len(), Err(broken.to_string())));
        }
    }
    Ok((paths.len(), verifier.end()))
}

/// The files of a log, oldest first.
fn all_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(directory).with_context(|| {
        format!(
            "cannot list {}; run this as root, or name the directory or files of the log",
            directory.display()
        )
    })?;
    let mut found = Vec::new();
    for entry in list {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(file_number);
        found.extend(number.map(|number| (number, entry.path())));
    }
    found.sort();
    if found.is_empty() {
        return Err(anyhow!(
            "there is no audit log in {}; set enabled = true in [audit] of timevisord's configuration and restart it",
            directory.display()
        ));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn to_json(options: &ReportOptions, limit: i64, report: &Report) -> serde_json::Value {
    let seconds = |ns: i64| Duration::from_nanos(ns).as_secs_f64();
    let gap = |gap: &Gap| {
        let (why, status, worst_ns) = match &gap.why {
            Why::NoRecord => ("no_record", None, None),
            Why::NotVouched(status) => ("not_vouched", Some(status), None),
            Why::Above(worst) => ("above", None, Some(worst)),
        };
        json!({
            "from": date(gap.from_ns),
            "to": date(gap.to_ns),
            "seconds": seconds(gap.to_ns - gap.from_ns),
            "why": why,
            "status": status,
            "worst_ns": worst_ns,
        })
    };
    json!({
        "from": date(options.from),
        "to": date(options.to),
        "within_ns": limit,
        "met": report.is_met(),
        "share": report.share(),
        "total_s": seconds(report.total_ns),
        "within_s": seconds(report.within_ns),
        "worst_ns": report.worst_ns,
        "starts": report.starts,
        "contradictions": report.contradictions,
        "gaps": report.gaps.iter().map(gap).collect::<Vec<_>>(),
    })
}

fn text(options: &ReportOptions, limit: i64, report: &Report) -> String {
    let shown = |ns: i64| Duration::from_nanos(ns).to_string();
    let mut out = format!(
        "from            {}\nto              {}\nrequired        within {} of UTC\n",
        date(options.from),
        date(options.to),
        shown(limit)
    );
    out += &format!(
        "within          {} % ({} of {})\n",
        percent(report),
        shown(report.within_ns),
        shown(report.total_ns)
    );
    let worst = report.worst_ns.map_or_else(|| "none".to_owned(), shown);
    out += &format!("worst bound     {worst}, while it was vouched for\n");
    out += &format!("daemon          started {} time(s)\n", report.starts);
    if report.contradictions > 0 {
        out += &format!(
            "contradictions  {} time(s) references excluded what had been published: bounds before may have been wrong\n",
            report.contradictions
        );
    }
    out += &format!("not within      {} gap(s)\n", report.gaps.len());
    for gap in report.gaps.iter().take(MOST_GAPS) {
        let why = match &gap.why {
            Why::NoRecord => "no record".to_owned(),
            Why::NotVouched(status) => format!("not vouched for: {status}"),
            Why::Above(worst) => format!("bound above: up to {}", shown(*worst)),
        };
        out += &format!(
            "  {}  {}  {:>12}  {why}\n",
            date(gap.from_ns),
            date(gap.to_ns),
            shown(gap.to_ns - gap.from_ns)
        );
    }
    if report.gaps.len() > MOST_GAPS {
        out += &format!("  and {} more; --json has all\n", report.gaps.len() - MOST_GAPS);
    }
    out
}

/// Rounded down: 99.9999 % never reads 100 %.
fn percent(report: &Report) -> String {
    let millionths = i128::from(report.within_ns) * 1_000_000 / i128::from(report.total_ns.max(1));
    format!("{}.{:04}", millionths / 10_000, millionths % 10_000)
}

/// A moment, or a day's beginning.
fn moment(text: &str) -> Result<i64, String> {
    let is_day = text.len() == 10;
    parse_date(&if is_day { format!("{text}T00:00:00Z") } else { text.to_owned() }).map_err(|_| {
        format!("{text:?} is no date in UTC; write 2026-11-30 or 2026-11-30T08:00:00Z")
    })
}

fn head(text: &str) -> Result<Head, String> {
    let parsed = text.split_once(':').and_then(|(seq, hash)| {
        let is_hash = hash.len() == 64 && hash.bytes().all(|c| c.is_ascii_hexdigit());
        let seq = seq.parse().ok().filter(|_| is_hash)?;
        Some(Head { seq, hash: hash.to_ascii_lowercase() })
    });
    parsed.ok_or_else(|| {
        "write it as `timevisor audit verify` prints it: 42:64 hex digits".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_heads() {
        assert_eq!(moment("1970-01-02"), Ok(86_400_000_000_000));
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Ok(1_500_000_000));
        assert!(moment("today").unwrap_err().contains("2026-11-30"));
        let hash = "Ab".repeat(32);
        assert_eq!(head(&format!("7:{hash}")), Ok(Head { seq: 7, hash: "ab".repeat(32) }));
        assert!(head("7").is_err() && head("7:ab").is_err());
    }

    #[test]
    fn a_share_is_rounded_down() {
        let mut report = Report {
            total_ns: 1_000_000_000,
            within_ns: 999_999_999,
            worst_ns: None,
            gaps: Vec::new(),
            starts: 0,
            contradictions: 0,
        };
        assert_eq!(percent(&report), "99.9999");
        report.within_ns = report.total_ns;
        assert_eq!(percent(&report), "100.0000");
    }
}
