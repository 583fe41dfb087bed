//! A key-value store that keeps every version, and whose versions are in order with those of other
//! such stores, though these never talk to each other: Spanner's commit-wait.
//!
//! `kv [--clock timevisor|naive] STREAM`; STREAM is `-` or a virtio-serial port. It answers each
//! line with a line of JSON:
//!
//! | line | answer |
//! | --- | --- |
//! | `put KEY VALUE` | its timestamp, once that has surely passed everywhere |
//! | `snapshot TIMESTAMP_NS` | all values as of that time; final, since no commit can come before it any more |
//! | `now` | what the clock says |
//!
//! `--clock naive` shows what goes wrong with the machine's own clock.

mod lines;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use timevisor::{Binding, Client, Requirement, WaitOptions, When};

/// The required half-width: a commit waits for twice this at most, or is refused.
const WITHIN: Duration = Duration::from_millis(50);

/// How long a snapshot of a future time may wait.
const PATIENCE: Duration = Duration::from_secs(5);

type Versions = BTreeMap<i64, String>;

enum Clock {
    Timevisor(Binding),
    Naive,
}

impl Clock {
    fn new(name: &str) -> Result<Self, Box<dyn Error>> {
        match name {
            "timevisor" => {
                Ok(Self::Timevisor(Client::connect()?.bind("tai", &Requirement::within(WITHIN))?))
            }
            "naive" => Ok(Self::Naive),
            _ => Err(format!("no clock {name:?}; there are timevisor and naive").into()),
        }
    }

    /// Earliest and latest: true time is in between.
    fn now(&self) -> Result<(i64, i64), Box<dyn Error>> {
        match self {
            Self::Timevisor(tai) => {
                let now = tai.now()?;
                // Unknown and unreliable clocks do not meet anything either.
                if !now.met() {
                    let status = now.status().name();
                    return Err(format!("the clock is {status}, not within {WITHIN:?}").into());
                }
                Ok((now.earliest_ns(), now.latest_ns()))
            }
            // A clock that does not know its error. This is the bug.
            Self::Naive => {
                let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
                Ok((now, now))
            }
        }
    }

    /// Returns when `t_ns` has passed on every clock that is right.
    fn wait_past(&self, t_ns: i64) -> Result<(), Box<dyn Error>> {
        if let Self::Timevisor(tai) = self {
            tai.wait(When::Past(t_ns), &WaitOptions::default().timeout(PATIENCE))?;
        }
        Ok(())
    }
}

struct Store {
    clock: Clock,
    versions: BTreeMap<String, Versions>,
}

impl Store {
    fn answer(&mut self, line: &str) -> Result<Value, Box<dyn Error>> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["put", key, value] => self.put(key, value),
            ["snapshot", t_ns] => self.snapshot(t_ns.parse()?),
            ["now"] => {
                let (earliest, latest) = self.clock.now()?;
                Ok(json!({ "earliest_ns": earliest, "latest_ns": latest }))
            }
            _ => Err("put KEY VALUE, snapshot TIMESTAMP_NS or now".into()),
        }
    }

    /// The timestamp is not before any commit that was acknowledged before this one began, wherever
    /// that was: that one's has passed, and this one is the latest that it can be now. And it has
    /// passed before anybody can begin another.
    fn put(&mut self, key: &str, value: &str) -> Result<Value, Box<dyn Error>> {
        let began = Instant::now();
        let (earliest, timestamp) = self.clock.now()?;
        self.clock.wait_past(timestamp)?; // commit-wait
        // A store with threads has to keep snapshots from passing a commit that waits; this one
        // does one thing at a time.
        self.versions.entry(key.to_owned()).or_default().insert(timestamp, value.to_owned());
        Ok(json!({
            "timestamp_ns": timestamp,
            "uncertainty_ns": timestamp - earliest,
            "took_ns": u64::try_from(began.elapsed().as_nanos())?,
        }))
    }

    fn snapshot(&self, t_ns: i64) -> Result<Value, Box<dyn Error>> {
        self.clock.wait_past(t_ns)?; // every later commit is later than that
        let newest = |versions: &Versions| versions.range(..=t_ns).next_back().map(|v| v.1.clone());
        let values = self.versions.iter().filter_map(|(key, all)| Some((key, newest(all)?)));
        Ok(json!(values.collect::<BTreeMap<_, _>>()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (clock, stream) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [stream] => ("timevisor", stream),
        ["--clock", clock, stream] => (clock, stream),
        _ => return Err("kv [--clock timevisor|naive] STREAM".into()),
    };
    let mut store = Store { clock: Clock::new(clock)?, versions: BTreeMap::new() };
    Ok(lines::serve(stream, |line| store.answer(line))?)
}
