//! `timevisor group`: members of a group from the shell, over a timevisor-bus.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use timevisor::Requirement;
use timevisor::group::{
    Accept, BusAddress, Group, JoinOptions, Message, Order, Outcome, Proposed, Reported, Secret,
};

use crate::bind::connect;
use crate::spans::span;

/// As whom, and which group.
#[derive(Args)]
pub struct Membership {
    /// The group; the first member makes it
    group: String,
    /// This member's name; by default the host's name and the process
    #[arg(long = "as", value_name = "NAME")]
    member: Option<String>,
    /// The timeline that the group is on
    #[arg(long, default_value = "tai")]
    timeline: String,
    /// True time may be this far from the estimate, for example 1ms
    #[arg(long, value_name = "SPAN", value_parser = span)]
    within: Option<Duration>,
    /// Where the bus listens: a socket, or tls://HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    bus: Option<String>,
    /// Who signed the certificate of a bus elsewhere, or that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "bus")]
    authority: Option<PathBuf>,
    /// The group's key, from a file that `timevisor cluster key` made
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Join, accept all proposals, and print what happens, until interrupted
    Join(Membership),
    /// Print the members and leave
    Members(Membership),
    /// Publish each line of the standard input on a topic
    Publish {
        #[command(flatten)]
        membership: Membership,
        /// The topic
        topic: String,
    },
    /// Print a topic's messages, until interrupted
    Subscribe {
        #[command(flatten)]
        membership: Membership,
        /// The topic
        topic: String,
        /// In the order of time instead of arrival
        #[arg(long)]
        in_time: bool,
        /// How many of the messages that were published before
        #[arg(long, default_value_t = 0)]
        history: u32,
    },
    /// Propose that all members fire together, and print who did; exit status 1 unless all fired
    Propose {
        #[command(flatten)]
        membership: Membership,
        /// How long from now
        #[arg(long = "in", value_name = "SPAN", value_parser = span, default_value = "500ms")]
        lead: Duration,
        /// How many members there have to be first, this one included
        #[arg(long, default_value_t = 2)]
        members: usize,
        /// What to do, as members are told
        text: String,
    },
}

/// How long a command waits for others.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(directory: &Path, command: &Command) -> Result<()> {
    match command {
        Command::Join(membership) => stay(&membership.join(directory)?, membership.json),
        Command::Members(membership) => members(&membership.join(directory)?, membership.json),
        Command::Publish { membership, topic } => publish(&membership.join(directory)?, topic),
        Command::Subscribe { membership, topic, in_time, history } => {
            let group = membership.join(directory)?;
            let hold = Duration::from_millis(500);
            let order = if *in_time { Order::Time { hold } } else { Order::Arrival };
            let inbox = group.subscribe(topic, order, *history)?;
            loop {
                if let Some(message) = inbox.next_within(PATIENCE) {
                    print(&show_message(&message, membership.json))?;
                }
            }
        }
        Command::Propose { membership, lead, members, text } => {
            propose(directory, membership, *lead, *members, text)
        }
    }
}

impl Membership {
    fn join(&self, directory: &Path) -> Result<Group> {
        let client = connect(directory)?;
        let key = match &self.key {
            None => None,
            Some(path) => {
                let text = std::fs::read(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                let key = Secret::parse(&text);
                Some(key.with_context(|| format!("{} is no key", path.display()))?)
            }
        };
        let options = JoinOptions {
            timeline: self.timeline.clone(),
            requirement: self.within.map(Requirement::within),
            bus: self.bus()?,
            key,
            ..JoinOptions::default()
        };
        let group = client.join_with(&self.group, &self.name(), &options)?;
        group.accept(Accept::All);
        Ok(group)
    }

    fn bus(&self) -> Result<Option<BusAddress>> {
        let parse = |text: &String| BusAddress::parse(text, self.authority.as_deref());
        Ok(self.bus.as_ref().map(parse).transpose()?)
    }

    fn name(&self) -> String {
        self.member.clone().unwrap_or_else(|| {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let host: String = host.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
            format!("{host}.{}", std::process::id())
        })
    }
}

/// A reader that has gone ends the command.
fn print(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot print")
}

fn members(group: &Group, as_json: bool) -> Result<()> {
    for member in group.members() {
        let achieved = member.achieved.map(|it| it.below_ns.max(it.above_ns));
        let met = member.met;
        print(&if as_json {
            json!({"member": member.who.name, "met": met, "half_width_ns": achieved}).to_string()
        } else {
            let width = achieved.map_or("unknown".to_owned(), |ns| format!("+-{ns} ns"));
            let met = if met { "meets its requirement" } else { "does not meet its requirement" };
            format!("{:<32} {width:>16}  {met}", member.who.name)
        })?;
    }
    Ok(())
}

fn publish(group: &Group, topic: &str) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        group.publish(topic, line?.as_bytes())?;
    }
    Ok(())
}

fn stay(group: &Group, as_json: bool) -> Result<()> {
    let (reports, proposals) = (group.watch(), group.proposals());
    members(group, as_json)?;
    loop {
        while let Some(report) = reports.try_next() {
            print(&show_report(&report, as_json))?;
        }
        if let Some(proposed) = proposals.next_within(Duration::from_millis(50)) {
            print(&show_proposed(&proposed, as_json))?;
        }
    }
}

fn propose(
    directory: &Path,
    membership: &Membership,
    lead: Duration,
    members: usize,
    text: &str,
) -> Result<()> {
    let group = membership.join(directory)?;
    let timeline = connect(directory)?.timeline(&membership.timeline)?;
    group.wait_for(members, PATIENCE).with_context(|| {
        format!(
            "there are {} members, not {members}; start the others first",
            group.members().len()
        )
    })?;
    let lead_ns = i64::try_from(lead.as_nanos()).context("so far ahead")?;
    let begun = Instant::now();
    let pending = group.propose(timeline.now()?.latest_ns() + lead_ns, text.as_bytes())?;
    let commits = pending.decided(lead + PATIENCE)?;
    let decided_ms = begun.elapsed().as_secs_f64() * 1e3;
    let outcome = pending.wait(lead + PATIENCE)?;
    if membership.json {
        let mut value = outcome_value(&outcome);
        value["decided_ms"] = decided_ms.into();
        value["commits"] = commits.into();
        print(&value.to_string())?;
    } else {
        print(&format!(
            "{} after {decided_ms:.1} ms",
            if commits { "decided" } else { "given up" }
        ))?;
        print(&show_outcome(&outcome))?;
    }
    if outcome.agreed() != Some(true) {
        bail!("not all fired");
    }
    Ok(())
}

fn show_message(message: &Message, as_json: bool) -> String {
    let text = String::from_utf8_lossy(&message.payload);
    let interval = message.stamp.map(|stamp| stamp.interval);
    let sides = interval.map(|it| (it.earliest().floor_nanos(), it.latest().ceil_nanos()));
    if as_json {
        json!({
            "from": message.from.name.as_str(), "sequence": message.sequence, "text": text,
            "earliest_ns": sides.map(|it| it.0), "latest_ns": sides.map(|it| it.1),
            "late_ns": message.late_ns, "old": message.is_old,
            "unheard": message.unheard.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
        })
        .to_string()
    } else {
        let time = sides.map_or("unknown".to_owned(), |(earliest, latest)| {
            format!("{earliest} +{}", latest.saturating_sub(earliest))
        });
        format!("{time}  {:<16} {text}", message.from.name)
    }
}

fn show_report(report: &Reported, as_json: bool) -> String {
    let text = match report {
        Reported::Present(info) if info.met => format!("{} is there", info.who.name),
        // It has just joined and has not said yet what its clock gives.
        Reported::Present(info) if info.achieved.is_none() => format!("{} joins", info.who.name),
        Reported::Present(info) => {
            format!("{} is there; its clock does not meet its requirement", info.who.name)
        }
        Reported::Gone(id, why) => format!("{} has gone: {why:?}", id.name),
        Reported::Lost { from, count, .. } => {
            let whose = from.map_or("the bus".to_owned(), |from| from.name.to_string());
            format!("{count} messages of {whose} were lost")
        }
        Reported::FromTheFuture { from, by_ns } => {
            format!("{} is {by_ns} ns in the future: its clock or ours is wrong", from.name)
        }
        Reported::AnotherOrigin(from) => format!("{} follows another origin", from.name),
        Reported::Split { barrier, fired, quiet } => {
            format!("barrier {barrier} released {fired} members and not {quiet}")
        }
        Reported::Disconnected => "the bus is gone".to_owned(),
        Reported::Connected => "the bus is there again".to_owned(),
        Reported::Refused(text) => format!("refused: {text}"),
        Reported::Leads { office, until_ns } => format!("leads {office} until {until_ns}"),
        Reported::LeadsNoMore(office) => format!("leads {office} no longer"),
        Reported::HistoryIncomplete { topic, dropped } => {
            format!("{dropped} older messages of {topic} were not kept")
        }
    };
    if as_json { json!({"report": text}).to_string() } else { text }
}

fn show_proposed(proposed: &Proposed, as_json: bool) -> String {
    let (value, text) = match proposed {
        Proposed::Asked(proposal) => {
            let from = proposal.id.proposer.name;
            (json!({"asked": from.as_str()}), format!("{from} proposes"))
        }
        Proposed::Decided(id, commits) => {
            let (from, word) =
                (id.proposer.name, if *commits { "is decided" } else { "is given up" });
            (json!({"decided": commits}), format!("the proposal of {from} {word}"))
        }
        Proposed::Fire { id, interval, late_ns, payload } => {
            let (earliest, text) =
                (interval.earliest().floor_nanos(), String::from_utf8_lossy(payload));
            let value = json!({
                "fire": text, "earliest_ns": earliest, "latest_ns": interval.latest().ceil_nanos(),
                "late_ns": late_ns,
            });
            (
                value,
                format!("{earliest}  fire: {text} ({}, late by {late_ns} ns)", id.proposer.name),
            )
        }
        Proposed::Outcome(outcome) => (outcome_value(outcome), show_outcome(outcome)),
    };
    if as_json { value.to_string() } else { text }
}

fn outcome_value(outcome: &Outcome) -> Value {
    let fired = outcome.fired.iter().map(|(id, interval)| {
        json!({"member": id.name.as_str(), "earliest_ns": interval.earliest().floor_nanos(),
               "latest_ns": interval.latest().ceil_nanos()})
    });
    let quiet = outcome
        .quiet
        .iter()
        .map(|(id, why)| json!({"member": id.name.as_str(), "why": format!("{why:?}")}));
    json!({
        "fired": fired.collect::<Vec<_>>(), "quiet": quiet.collect::<Vec<_>>(),
        "unknown": outcome.unknown.iter().map(|id| id.name.as_str()).collect::<Vec<_>>(),
    })
}

fn show_outcome(outcome: &Outcome) -> String {
    let names = |ids: &mut dyn Iterator<Item = String>| {
        let names: Vec<_> = ids.collect();
        if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
    };
    let fired = names(&mut outcome.fired.iter().map(|(id, _)| id.name.to_string()));
    let quiet = names(&mut outcome.quiet.iter().map(|(id, why)| format!("{} ({why:?})", id.name)));
    let unknown = names(&mut outcome.unknown.iter().map(|id| id.name.to_string()));
    format!("fired: {fired}; did not: {quiet}; not known: {unknown}")
}
