//! `timevisor record`: keeps what a timeline's page says, so that stamps can be converted later.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use timevisor::{ReadError, Recorder, RecordingError, TimelineError};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::signals::{Signal, Signals};

use crate::bind::connect;

#[derive(Args)]
pub struct Options {
    /// The timeline: `tai`, `utc`, or another one on the page
    #[arg(long, value_name = "NAME", default_value = "tai")]
    timeline: String,
    /// Stop after this many seconds instead of when interrupted
    #[arg(long = "for", value_name = "SECONDS")]
    duration: Option<f64>,
    /// Append to this file; it is made if it is not there
    file: PathBuf,
}

/// Publications come once a second or less often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a terminal is told.
const SAY_EVERY: Duration = Duration::from_secs(1);

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    let limit = options.duration.map(Duration::try_from_secs_f64).transpose()?;
    let mut signals = Signals::install().context("cannot take over SIGINT and SIGTERM")?;
    let timeline = match connect(directory)?.timeline(&options.timeline) {
        Err(TimelineError::NotFound(name)) => {
            bail!(
                "the page has no timeline {name:?}; keep `timevisor bind {name} --every 60` running beside this"
            )
        }
        other => other?,
    };
    let mut recorder = timeline.record_to(&options.file)?;
    let (name, file) = (timeline.name(), options.file.display());
    println!("recording {name} to {file}; Ctrl-C ends it");
    let begun = Instant::now();
    let mut progress = Progress { said: begun, publications: 1 };
    while limit.is_none_or(|limit| begun.elapsed() < limit) && !is_over(&mut signals)? {
        progress.publications += u64::from(look(&mut recorder)?);
        progress.say(&recorder);
    }
    let publications = progress.publications;
    let length = recorder.length();
    recorder.close()?;
    println!("{publications} publications; {file} had {length} bytes before the end was written");
    Ok(())
}

/// Waits until the next look; true when the program was told to end.
pub fn is_over(signals: &mut Signals) -> Result<bool> {
    wait(&mut [PollFd::readable(signals.as_fd())], Some(LOOK_EVERY))?;
    while let Some(signal) = signals.take() {
        if signal == Signal::Terminate {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A daemon that died inside an update is repaired by the next one; the recording goes on then.
fn look(recorder: &mut Recorder) -> Result<bool> {
    match recorder.observe() {
        Err(RecordingError::Read(ReadError::WriterStalled | ReadError::OutOfOrder)) => Ok(false),
        other => Ok(other?),
    }
}

struct Progress {
    said: Instant,
    publications: u64,
}

impl Progress {
    /// One line that is written over; nothing into a pipe or a log.
    fn say(&mut self, recorder: &Recorder) {
        if self.said.elapsed() < SAY_EVERY || !std::io::stderr().is_terminal() {
            return;
        }
        self.said = Instant::now();
        eprint!("\r{} publications, {} bytes ", self.publications, recorder.length());
    }
}
