//! `timevisor sources record`: what references answer, as traces that `timevisor replay` reads.
//!
//! timevisord keeps the last exchanges, and this program asks for them once a second, also over the
//! read-only socket. It changes nothing, and nobody is asked more often because of it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use timevisor_linux::signals::Signals;
use timevisor_protocols::control::{Exchanges, RecentExchange, Request, Response, Sources};

use crate::connection::{ask, unexpected};
use crate::record::is_over;
use crate::spans::span;

#[derive(Args)]
pub struct Options {
    /// Stop after this time, for example 10m, instead of when interrupted
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
    /// Record this reference only; may be repeated
    #[arg(long = "source", value_name = "NAME")]
    sources: Vec<String>,
    /// A new file; of several references, one each: FILE with the reference's name in its own
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A trace's first line (crates/simulation, `trace`).
const HEADER: &str = "ta_counter_ns,tb_ns,te_ns,tf_counter_ns,error_ns";
/// timevisord keeps a few hundred exchanges.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    let mut signals = Signals::install().context("cannot take over SIGINT and SIGTERM")?;
    let names = chosen(directory, &options.sources)?;
    // What was exchanged before belongs to nobody who waits for the first answer.
    let mut last = recent(directory)?.last().map_or(0, |exchange| exchange.number);
    let mut traces = names
        .iter()
        .map(|name| Ok((name.clone(), Trace::create(&path_of(&options.file, name, names.len()))?)))
        .collect::<Result<BTreeMap<_, _>>>()?;
    let begun = Instant::now();
    let (mut asked, mut lost, mut complaint) = (begun, 0, None);
    while options.duration.is_none_or(|limit| begun.elapsed() < limit) && !is_over(&mut signals)? {
        if asked.elapsed() < ASK_EVERY {
            continue;
        }
        asked = Instant::now();
        match take(directory, &mut traces, &mut last) {
            Ok(missed) => lost += missed,
            Err(error) => {
                complaint = Some(error);
                break;
            }
        }
        if std::io::stderr().is_terminal() {
            let count: u64 = traces.values().map(|trace| trace.rows).sum();
            eprint!("\r{count} exchanges, {} s ", begun.elapsed().as_secs());
        }
    }
    if complaint.is_none() {
        lost += take(directory, &mut traces, &mut last)?;
    }
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    for (name, trace) in traces {
        println!("{name}: {} exchanges in {}", trace.rows, trace.path.display());
        trace.close()?;
    }
    if lost > 0 {
        eprintln!("timevisor: {lost} exchanges were missed: this program was held up for seconds");
    }
    match complaint {
        Some(error) => Err(error.context("the traces end here, and are usable up to this point")),
        None => Ok(()),
    }
}

/// Takes in what is new; returns how many exchanges were missed.
fn take(directory: &Path, traces: &mut BTreeMap<String, Trace>, last: &mut u64) -> Result<u64> {
    let exchanges = recent(directory)?;
    let newest = exchanges.last().map_or(*last, |exchange| exchange.number);
    if newest < *last {
        bail!("timevisord was restarted, and counts with another factor; record again");
    }
    let (mut missed, known) = (0, *last);
    for exchange in exchanges.iter().filter(|exchange| exchange.number > known) {
        missed += exchange.number - *last - 1;
        *last = exchange.number;
        if let Some(trace) = traces.get_mut(&exchange.source) {
            trace.write(exchange)?;
        }
    }
    traces.values_mut().try_for_each(Trace::flush)?;
    Ok(missed)
}

fn recent(directory: &Path) -> Result<Vec<RecentExchange>> {
    match ask(directory, &Request::Exchanges)? {
        Response::Exchanges(Exchanges { exchanges }) => Ok(exchanges),
        other => Err(unexpected(&other)),
    }
}

/// The references to record.
fn chosen(directory: &Path, wanted: &[String]) -> Result<Vec<String>> {
    let response = ask(directory, &Request::Sources)?;
    let Response::Sources(Sources { sources }) = response else {
        return Err(unexpected(&response));
    };
    let all: Vec<String> = sources.into_iter().map(|source| source.reference.name).collect();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(anyhow!("no reference is called {unknown}; there are: {}", all.join(", ")));
    }
    Ok(if wanted.is_empty() { all } else { wanted.to_vec() })
}

/// The file of one reference of several.
fn path_of(file: &Path, name: &str, count: usize) -> PathBuf {
    if count == 1 {
        return file.to_owned();
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let ending = file.extension().map_or_else(String::new, |e| format!(".{}", e.to_string_lossy()));
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}-{name}{ending}"))
}

/// A trace that is being written.
struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
    rows: u64,
}

impl Trace {
    fn create(path: &Path) -> Result<Self> {
        let file =
            OpenOptions::new().write(true).create_new(true).open(path).with_context(|| {
                format!("cannot create {}; name a file that does not exist yet", path.display())
            })?;
        let mut file = BufWriter::new(file);
        writeln!(file, "{HEADER}")?;
        Ok(Self { path: path.to_owned(), file, rows: 0 })
    }

    fn write(&mut self, exchange: &RecentExchange) -> Result<()> {
        let RecentExchange { ta_ns, tb_ns, te_ns, tf_ns, error_ns, .. } = exchange;
        self.rows += 1;
        writeln!(self.file, "{ta_ns},{tb_ns},{te_ns},{tf_ns},{error_ns}")
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn close(mut self) -> Result<()> {
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_references_have_a_file_each() {
        let file = Path::new("/tmp/a.csv");
        assert_eq!(path_of(file, "x", 1), file);
        assert_eq!(path_of(file, "[fd00::1]:123", 2), Path::new("/tmp/a-_fd00__1__123.csv"));
        assert_eq!(path_of(Path::new("a"), "p#1", 2), Path::new("a-p_1"));
    }
}
