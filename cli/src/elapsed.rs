//! `timevisor elapsed`: how long the host, the VM, or whatever keeps a file has been running.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use timevisor::{
    BindOptions, Blackouts, Client, Elapsed, ThreadAge, ThreadAgeError, Timeline, TimelineError,
};
use timevisor_linux::elapsed_source::elapsed_source;
use timevisor_protocols::control::{Request, Response};

use crate::bind::{connect, explained, readings};
use crate::connection::ask;
use crate::exit::Found;

#[derive(Args)]
pub struct Options {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Read again every this many seconds until interrupted
    #[arg(long, value_name = "SECONDS")]
    every: Option<f64>,
    /// Instead, print how this host measures threads' ages, and why; without a timevisord tries it,
    /// so as root
    #[arg(long, conflicts_with_all = ["every", "since"])]
    source: bool,
    /// Instead, begin an age of this program's thread, and read it; where the counter is not
    /// invariant
    #[arg(long, conflicts_with_all = ["every", "since", "source"])]
    thread: bool,
    /// Read it so many times, each a line
    #[arg(long, value_name = "N", default_value_t = 1, requires = "thread")]
    count: u64,
    /// Keep your own age in this file, for example a container's; begins if there is no such file
    #[arg(long, value_name = "FILE")]
    since: Option<PathBuf>,
    /// Leave out the time of a migration, or between a checkpoint and its restore, as far as the
    /// kernel's clock stood still
    #[arg(long, requires = "since")]
    exclude_blackouts: bool,
}

/// The timeline `elapsed`, which needs no requirement; or an age that is kept in a file.
pub fn run(directory: &Path, options: &Options) -> Result<Found> {
    if options.source {
        return print_source(directory, options.json).map(|()| Found::Good);
    }
    if options.thread {
        return print_thread(directory, options).map(|()| Found::Good);
    }
    let client = connect(directory)?;
    let Some(file) = &options.since else {
        let binding = client.bind_with("elapsed", &BindOptions::default()).map_err(explained)?;
        return readings("elapsed", || Ok(binding.now()?), options.json, options.every);
    };
    let age = age_in(file, &client, options.exclude_blackouts)?;
    let read = || {
        let reading = age.now()?;
        keep(file, &age.save()?).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(reading)
    };
    readings("elapsed", read, options.json, options.every)
}

/// What timevisord says, if one runs; otherwise what this process can do.
fn print_source(directory: &Path, json: bool) -> Result<()> {
    let (by, name, why) = match source_of_daemon(directory) {
        Some((name, why)) => ("timevisord", name, why),
        None => {
            let (source, why) = elapsed_source();
            ("this process", source.name().to_owned(), why)
        }
    };
    if json {
        println!("{}", serde_json::json!({"by": by, "source": name, "reason": why}));
    } else {
        println!("{why}");
    }
    Ok(())
}

/// The source and the reason. Everybody may ask at the socket that serves ages, root at the other.
fn source_of_daemon(directory: &Path) -> Option<(String, String)> {
    if let Ok(why) = ThreadAge::source_in(directory) {
        let name = if why.starts_with("bpf") { "bpf" } else { "monotonic-raw" };
        return Some((name.to_owned(), why));
    }
    let Ok(Response::Status(status)) = ask(directory, &Request::Status) else { return None };
    let counter = status.counter;
    let name = if counter.name == "monotonic-raw" { "monotonic-raw" } else { "counter" };
    counter.reason.map(|why| (name.to_owned(), why))
}

/// Readings of this thread's age, each later than the one before.
fn print_thread(directory: &Path, options: &Options) -> Result<()> {
    let age = ThreadAge::begin_in(directory).map_err(|error| match error {
        // The reason is timevisord's own.
        ThreadAgeError::Refused(reason) => anyhow::anyhow!(reason),
        error => error.into(),
    })?;
    for _ in 0..options.count {
        let now = age.now()?;
        if options.json {
            let ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            println!("{}", serde_json::json!({"age_ns": ns, "moves": age.moves()}));
        } else {
            println!("{}.{:09}", now.as_secs(), now.subsec_nanos());
        }
    }
    Ok(())
}

/// The age that a file says, or one that begins now.
fn age_in(file: &Path, client: &Client, exclude: bool) -> Result<Elapsed> {
    let wanted = if exclude { Blackouts::Exclude } else { Blackouts::Count };
    let saved = match std::fs::read_to_string(file) {
        Ok(saved) => Some(saved),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", file.display()));
        }
    };
    let open = |tai: &Timeline| match &saved {
        Some(saved) => Elapsed::resume(tai, saved).with_context(|| file.display().to_string()),
        None => Ok(Elapsed::begin(tai, wanted)?),
    };
    let age = match client.timeline("tai") {
        Ok(tai) => open(&tai)?,
        Err(TimelineError::NotFound(_)) => {
            let options = BindOptions::default();
            open(client.bind_with("tai", &options).map_err(explained)?.timeline())?
        }
        Err(error) => return Err(error.into()),
    };
    if age.blackouts() != wanted {
        bail!(
            "{}: an age is with or without blackouts from its beginning on; {} --exclude-blackouts",
            file.display(),
            if exclude { "leave out" } else { "add" }
        );
    }
    Ok(age)
}

/// Replaces the file in one step, so it never holds half an age.
fn keep(file: &Path, saved: &str) -> std::io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = file.with_file_name(name);
    std::fs::write(&new, format!("{saved}\n"))?;
    std::fs::rename(new, file)
}
