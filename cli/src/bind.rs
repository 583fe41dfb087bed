//! `timevisor timelines`, `bind` and `watch`: Quality of Time from the shell, through the library
//! that programs use.

use std::path::Path;
use std::time::Duration as StdDuration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use timevisor::{
    BindError, BindOptions, Binding, ChannelAddress, Client, Epoch, Event, Reading, Requirement,
    TimelineRow, ValidUntil,
};

use crate::bound::sides_ns;
use crate::exit::Found;
use crate::spans::span;

#[derive(Args)]
pub struct ListOptions {
    /// One JSON array
    #[arg(long)]
    json: bool,
}

/// A timeline, and what is required of it.
#[derive(Args)]
pub struct Need {
    /// The timeline: `tai`, `utc`, or another one that `timevisor timelines` shows
    timeline: String,
    /// True time may be this far from the estimate, for example 100us
    #[arg(long, value_name = "SPAN", value_parser = span)]
    within: Option<StdDuration>,
    /// The same, below the estimate only
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "above", conflicts_with = "within")]
    below: Option<StdDuration>,
    /// The same, above the estimate only
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "below")]
    above: Option<StdDuration>,
    /// By the estimated error, with this probability, instead of the hard bounds
    #[arg(long, value_name = "P")]
    probability: Option<f64>,
    /// Make the timeline if there is none of this name
    #[arg(long, value_enum, value_name = "EPOCH")]
    create: Option<EpochName>,
    /// Bind even if the requirement cannot be met
    #[arg(long)]
    best_effort: bool,
}

#[derive(Args)]
pub struct BindOptionsOfShell {
    #[command(flatten)]
    need: Need,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Read again every this many seconds until interrupted; the binding ends with the command
    #[arg(long, value_name = "SECONDS")]
    every: Option<f64>,
}

#[derive(Args)]
pub struct WatchOptions {
    #[command(flatten)]
    need: Need,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum EpochName {
    Tai,
    Utc,
    Local,
}

pub fn list(directory: &Path, options: &ListOptions) -> Result<Found> {
    let rows = connect(directory)?.timelines().map_err(explained)?;
    let found = Found::when(rows.iter().all(is_met));
    if options.json {
        println!("{}", serde_json::to_string(&rows)?);
        return Ok(found);
    }
    println!(
        "{:<32} {:<6} {:>7} {:>24} {:>24}",
        "timeline", "epoch", "members", "required", "achieved"
    );
    for row in &rows {
        println!("{}", line(row));
    }
    Ok(found)
}

/// Whether a timeline has what its bindings need.
fn is_met(row: &TimelineRow) -> bool {
    let within = |side: Option<u64>, most: u64| side.is_some_and(|side| side <= most);
    row.required.as_ref().is_none_or(|required| {
        within(row.achieved.below_ns, required.below_ns)
            && within(row.achieved.above_ns, required.above_ns)
    })
}

pub fn bind(directory: &Path, options: &BindOptionsOfShell) -> Result<Found> {
    let (_client, binding) = bound(directory, &options.need)?;
    readings(binding.name(), || Ok(binding.now()?), options.json, options.every)
}

/// Prints one reading, or one every so many seconds.
pub fn readings(
    name: &str,
    read: impl Fn() -> Result<Reading>,
    json: bool,
    every: Option<f64>,
) -> Result<Found> {
    loop {
        let reading = read()?;
        if json {
            println!("{}", of_reading(name, &reading));
        } else {
            println!("{}", text(name, &reading));
        }
        match every {
            Some(seconds) if seconds > 0.0 => {
                std::thread::sleep(StdDuration::try_from_secs_f64(seconds)?);
            }
            _ => return Ok(Found::when(reading.is_known() && reading.met())),
        }
    }
}

pub fn watch(directory: &Path, options: &WatchOptions) -> Result<()> {
    let (_client, binding) = bound(directory, &options.need)?;
    let mut watch = binding.watch()?;
    loop {
        let event = watch.event()?;
        if options.json {
            let mut object = of_reading(binding.name(), &event.reading);
            object["change"] = json!(change(&event));
            object["valid_until_ns"] = json!(event.valid_until.estimate_ns());
            println!("{object}");
        } else {
            println!(
                "{:<12} {}{}",
                change(&event),
                text(binding.name(), &event.reading),
                until(&event)
            );
        }
    }
}

fn bound(directory: &Path, need: &Need) -> Result<(Client, Binding)> {
    let requirement = match (need.within, need.below, need.above) {
        (Some(within), ..) => Some(Requirement::within(within)),
        (None, Some(below), Some(above)) => Some(Requirement::between(below, above)),
        _ => None,
    };
    let requirement = match (requirement, need.probability) {
        (Some(requirement), Some(p)) => Some(requirement.with_probability(p)),
        (None, Some(_)) => bail!("a probability needs a requirement: add --within 100us"),
        (requirement, None) => requirement,
    };
    let create = need.create.map(|epoch| match epoch {
        EpochName::Tai => Epoch::Tai,
        EpochName::Utc => Epoch::Utc,
        EpochName::Local => Epoch::Local,
    });
    let options = BindOptions { requirement, best_effort: need.best_effort, create };
    let client = connect(directory)?;
    let binding = client.bind_with(&need.timeline, &options).map_err(explained)?;
    Ok((client, binding))
}

/// In a guest there is no daemon's directory; then as any program would.
pub fn connect(directory: &Path) -> Result<Client> {
    let options = timevisor::Options::new().name("timevisor");
    let (page, channel) = (directory.join("clock"), directory.join("timelines"));
    let options = if page.exists() { options.page(page) } else { options };
    let options =
        if channel.exists() { options.channel(ChannelAddress::Unix(channel)) } else { options };
    Ok(options.connect()?)
}

/// Adds what can be achieved to a refusal for that reason.
pub fn explained(error: BindError) -> anyhow::Error {
    let BindError::CannotBeMet { achievable, .. } = &error else { return error.into() };
    let can = format!("what can be had: {}", sides_ns(achievable.below_ns, achievable.above_ns));
    anyhow::Error::new(error).context(can)
}

fn line(row: &TimelineRow) -> String {
    let required = row
        .required
        .as_ref()
        .map_or("-".to_owned(), |r| sides_ns(Some(r.below_ns), Some(r.above_ns)));
    let achieved = sides_ns(row.achieved.below_ns, row.achieved.above_ns);
    let epoch = serde_json::to_value(row.epoch).ok();
    let epoch = epoch.as_ref().and_then(Value::as_str).unwrap_or_default();
    format!("{:<32} {epoch:<6} {:>7} {required:>24} {achieved:>24}", row.name, row.members)
}

/// The object that `--json` prints.
pub fn of_reading(name: &str, reading: &Reading) -> Value {
    let known = |ns: i64| reading.is_known().then_some(ns);
    json!({
        "timeline": name,
        "timescale": reading.timescale().name(),
        "earliest_ns": known(reading.earliest_ns()),
        "estimate_ns": known(reading.estimate_ns()),
        "latest_ns": known(reading.latest_ns()),
        "below_ns": reading.below_ns(),
        "above_ns": reading.above_ns(),
        "status": reading.status().name(),
        "met": reading.met(),
        "estimated_error_ns": reading.estimated_error_ns(),
        "disruption": reading.disruption(),
        "counter": reading.counter(),
    })
}

/// The line that is printed without `--json`.
pub fn text(name: &str, reading: &Reading) -> String {
    let status = reading.status().name();
    let met = if reading.met() { "met" } else { "not met" };
    let Some((below, above)) = reading.below_ns().zip(reading.above_ns()) else {
        return format!("{name} unknown  {status}, {met}");
    };
    let ns = reading.estimate_ns();
    let (secs, rest) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let bound = sides_ns(Some(below), Some(above));
    format!("{name} {secs}.{rest:09}  {bound}  {status}, {met}")
}

fn change(event: &Event) -> String {
    format!("{:?}", event.change).to_lowercase()
}

fn until(event: &Event) -> String {
    let left = match event.valid_until {
        ValidUntil::Until { estimate_ns, .. } => estimate_ns - event.reading.estimate_ns(),
        ValidUntil::Exceeded | ValidUntil::Unlimited => return String::new(),
    };
    u64::try_from(left).map(|ns| format!(", for {} without news", nanos(ns))).unwrap_or_default()
}

fn nanos(ns: u64) -> String {
    timevisor_time::Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX)).to_string()
}
