//! `timevisor sources`: the references in a table, one of them in detail, and changes while the
//! daemon runs.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the commands |
//! | `table.rs` | all references, one line each |
//! | `detail.rs` | one reference with everything that is known of it |
//! | `record.rs` | what they answer, into traces |
//! | `polling.rs` | which poll is in force, and why |

mod detail;
mod polling;
mod record;
mod table;

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use clap::{Args, Subcommand};
use timevisor_protocols::control::{
    Changed, Request, Response, Source, SourceAdd, SourceNames, Sources,
};

pub use self::polling::polls;
pub use self::table::shared;

use crate::connection::{ask, unexpected};
use crate::exit::Found;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    action: Option<Action>,
    /// Show everything that is known of this reference (or of all members of this pool)
    name: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Add a reference until the daemon restarts or reads its configuration again
    Add(Add),
    /// Remove references, with what they said, until the daemon restarts or reloads
    Remove(SomeNames),
    /// Ask now; NTP servers several times. Without a name: everybody
    Burst(Names),
    /// Ask no more; what was said stays true. Without a name: nobody is asked
    Offline(Names),
    /// Ask again
    Online(Names),
    /// Record what they answer, as a trace that `timevisor replay` reads
    Record(record::Options),
}

#[derive(Args)]
struct Add {
    /// An NTP server's address, and keys of its [[reference]] table as KEY=VALUE
    #[arg(required = true, value_name = "ADDRESS | KEY=VALUE")]
    words: Vec<String>,
    /// The address is a name with many servers behind it
    #[arg(long)]
    pool: bool,
    /// What kind of reference it is
    #[arg(long = "type", value_name = "TYPE", default_value = "ntp")]
    kind: String,
}

#[derive(Args)]
struct Names {
    /// As `timevisor sources` shows them; a pool's name stands for its members
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Args)]
struct SomeNames {
    /// As `timevisor sources` shows them; a pool's name stands for its members
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl From<&Names> for SourceNames {
    fn from(names: &Names) -> Self {
        Self { names: names.names.clone() }
    }
}

pub fn run(directory: &Path, options: &Options) -> Result<Found> {
    let request = match &options.action {
        None => return show(directory, options),
        Some(Action::Add(add)) => Request::SourceAdd(SourceAdd { reference: add.table()? }),
        Some(Action::Remove(SomeNames { names })) => {
            Request::SourceRemove(SourceNames { names: names.clone() })
        }
        Some(Action::Burst(names)) => Request::SourceBurst(names.into()),
        Some(Action::Offline(names)) => Request::SourceOffline(names.into()),
        Some(Action::Online(names)) => Request::SourceOnline(names.into()),
        Some(Action::Record(options)) => {
            return record::run(directory, options).map(|()| Found::Good);
        }
    };
    change(directory, &request).map(|()| Found::Good)
}

/// Reads the configuration again.
pub fn reload(directory: &Path) -> Result<()> {
    change(directory, &Request::Reload)
}

fn change(directory: &Path, request: &Request) -> Result<()> {
    let response = ask(directory, request)?;
    let Response::Changed(Changed { changes, restart }) = &response else {
        return Err(unexpected(&response));
    };
    if changes.is_empty() && restart.is_empty() {
        println!("nothing to change");
    }
    for line in changes.iter().chain(restart) {
        println!("{line}");
    }
    Ok(())
}

fn show(directory: &Path, options: &Options) -> Result<Found> {
    let response = ask(directory, &Request::Sources)?;
    let Response::Sources(Sources { sources }) = response else {
        return Err(unexpected(&response));
    };
    let chosen: Vec<Source> = match &options.name {
        None => sources,
        Some(name) => named(sources, name)?,
    };
    // A clock needs one of its references; of a certain one it is asked whether it agrees.
    let agrees = |source: &Source| {
        source.reference.status == "selected"
            || options.name.is_some() && source.reference.status == "reachable"
    };
    let found = Found::when(chosen.iter().any(agrees));
    if options.json {
        println!("{}", serde_json::to_string(&Sources { sources: chosen })?);
    } else if options.name.is_some() {
        let texts: Vec<String> = chosen.iter().map(detail::text).collect();
        print!("{}", texts.join("\n"));
    } else {
        print!("{}", table::text(&chosen));
    }
    Ok(found)
}

/// The reference of this name, or the members of this pool.
fn named(sources: Vec<Source>, name: &str) -> Result<Vec<Source>> {
    let names: Vec<String> = sources.iter().map(|s| s.reference.name.clone()).collect();
    let is_called = |source: &Source| {
        let own = source.reference.name.as_str();
        own == name || own.rsplit_once('#').is_some_and(|(pool, _)| pool == name)
    };
    let chosen: Vec<Source> = sources.into_iter().filter(is_called).collect();
    if chosen.is_empty() {
        return Err(anyhow!("no reference is called {name}; there are: {}", names.join(", ")));
    }
    Ok(chosen)
}

impl Add {
    /// The keys as TOML.
    fn table(&self) -> Result<String> {
        let mut table = toml::Table::new();
        table.insert("type".to_owned(), self.kind.clone().into());
        for word in &self.words {
            match word.split_once('=') {
                Some((key, value)) => {
                    ensure!(!key.is_empty(), "{word}: write KEY=VALUE");
                    table.insert(key.to_owned(), value_of(value));
                }
                None => {
                    let key = if self.pool { "pool" } else { "address" };
                    let before = table.insert(key.to_owned(), word.clone().into());
                    ensure!(
                        before.is_none(),
                        "{word}: one reference has one address; add them one by one"
                    );
                }
            }
        }
        Ok(toml::to_string(&table)?)
    }
}

/// What TOML makes of a value; a text needs no quotes.
fn value_of(text: &str) -> toml::Value {
    let parsed: Option<toml::Table> = toml::from_str(&format!("value = {text}")).ok();
    let value = parsed.and_then(|mut table| {
        let value = table.remove("value")?;
        table.is_empty().then_some(value)
    });
    value.unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(words: &[&str], pool: bool, kind: &str) -> Result<String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Add { words, pool, kind: kind.to_owned() }.table()
    }

    #[test]
    fn words_become_the_keys_of_a_reference() {
        let server = table(&["[fd00::1]:123", "poll=16s", "burst=4", "nts=true"], false, "ntp");
        assert_eq!(
            server.unwrap(),
            "address = \"[fd00::1]:123\"\nburst = 4\nnts = true\npoll = \"16s\"\ntype = \"ntp\"\n"
        );
        let pool = table(&["servers=2", "pool.example"], true, "ntp").unwrap();
        assert!(pool.contains("pool = \"pool.example\"") && pool.contains("servers = 2"), "{pool}");
        let phc = table(&["device=/dev/ptp0", "accuracy=1us"], false, "phc").unwrap();
        assert!(phc.contains("device = \"/dev/ptp0\"") && !phc.contains("address"), "{phc}");
        // No line of a file can be smuggled in.
        let odd = table(&["a", "poll=\"1s\"\nnts = true"], false, "ntp").unwrap();
        let parsed: toml::Table = toml::from_str(&odd).unwrap();
        assert_eq!(parsed.len(), 3, "{odd}");
        assert!(table(&["a", "b"], false, "ntp").is_err() && table(&["=1"], false, "ntp").is_err());
    }
}
