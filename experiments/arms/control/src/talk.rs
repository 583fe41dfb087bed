//! The group's side of both programs. The real-time loop of a controller never waits for it: they exchange what
//! they have to say by queues.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use timevisor::group::{
    Accept, BusAddress, Group, JoinOptions, Message, Order, Proposed, Reported, Secret,
};
use timevisor::{ChannelAddress, Client, Options, Requirement, Timeline};

use crate::message::{COMMANDS, Commands, STATUS, Status};
use crate::start::Start;
use crate::wire::Arm;

/// How long a member is not heard before it counts as gone.
const LEASE: Duration = Duration::from_secs(2);
/// Between two looks into the inboxes.
const NAP: Duration = Duration::from_millis(2);

/// How a program joins.
#[derive(Clone, Debug, clap::Args)]
pub struct Membership {
    /// The group
    #[arg(long, default_value = "cell7")]
    pub group: String,
    /// timevisord's folder; by default the page is looked for
    #[arg(long, value_name = "FOLDER")]
    pub run_directory: Option<PathBuf>,
    /// Where the bus listens: a socket, or tls://HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,
    /// Who signed the certificate of a bus elsewhere, or that certificate, PEM
    #[arg(long, value_name = "FILE")]
    pub authority: Option<PathBuf>,
    /// The group's key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// True time must be this near, us
    #[arg(long, value_name = "US")]
    pub within_us: u64,
}

impl Membership {
    /// Joins under a name; returns the group and its timeline.
    ///
    /// # Errors
    /// When there is no page or no bus, or it refuses.
    pub fn join(&self, name: &str) -> Result<(Group, Timeline)> {
        let client = match &self.run_directory {
            None => Client::connect()?,
            Some(folder) => {
                let channel = ChannelAddress::Unix(folder.join("timelines"));
                Options::new().page(folder.join("clock")).channel(channel).name(name).connect()?
            }
        };
        let key = match &self.key {
            None => None,
            Some(file) => {
                let text = std::fs::read(file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                Some(
                    Secret::parse(&text)
                        .with_context(|| format!("{} is no key", file.display()))?,
                )
            }
        };
        let parse = |text: &String| BusAddress::parse(text, self.authority.as_deref());
        let requirement = Requirement::within(Duration::from_micros(self.within_us));
        let options = JoinOptions {
            requirement: Some(requirement),
            bus: self.bus.as_ref().map(parse).transpose()?,
            key,
            lease: LEASE,
            ..JoinOptions::default()
        };
        let group = client.join_with(&self.group, name, &options)?;
        let timeline = client.timeline(&options.timeline)?.with_requirement(&requirement)?;
        Ok((group, timeline))
    }
}

/// What a controller hears.
#[derive(Debug)]
pub enum Heard {
    /// Waypoints.
    Commands(Commands),
    /// What the other arm says of itself.
    Other(Status),
    /// Something that forbids to go on.
    Wrong(String),
    /// May this start be agreed? The answer goes back by [`Said::Answer`].
    Asked(timevisor::group::ProposalId, Start),
    /// It was agreed, and it is time.
    Start(Start),
}

/// What a controller says.
#[derive(Debug)]
pub enum Said {
    /// To everybody.
    Status(Status),
    /// Whether a start may be agreed, else why not.
    Answer(timevisor::group::ProposalId, Result<(), String>),
    /// On the standard output.
    Print(serde_json::Value),
}

/// Serves one controller until it ends. `naive`: what the group finds out about clocks is not passed on.
///
/// # Errors
/// When something cannot be subscribed to.
pub fn serve(
    group: &Group,
    arm: Arm,
    naive: bool,
    heard: &Sender<Heard>,
    said: &Receiver<Said>,
) -> Result<()> {
    group.accept(Accept::Ask);
    let commands = group.subscribe(COMMANDS, Order::Arrival, 0)?;
    let others = group.subscribe(STATUS, Order::Arrival, 0)?;
    let (proposals, watch) = (group.proposals(), group.watch());
    let other = format!("arm-{}", arm.other().name());
    loop {
        let mut found = Vec::new();
        while let Some(message) = commands.try_next() {
            found.extend(parse::<Commands>(&message).map(Heard::Commands));
        }
        while let Some(message) = others.try_next() {
            let status = parse::<Status>(&message).filter(|it| it.arm == arm.other().index());
            found.extend(status.map(Heard::Other));
        }
        while let Some(proposed) = proposals.try_next() {
            match proposed {
                Proposed::Asked(proposal) => match serde_json::from_slice(&proposal.payload) {
                    Ok(start) => found.push(Heard::Asked(proposal.id, start)),
                    Err(_) => group.answer(proposal.id, false),
                },
                Proposed::Fire { payload, .. } => {
                    found.extend(serde_json::from_slice(&payload).ok().map(Heard::Start));
                }
                Proposed::Decided(..) | Proposed::Outcome(_) => {}
            }
        }
        while let Some(reported) = watch.try_next() {
            match reported {
                Reported::Gone(id, _) if id.name.as_str() == other => {
                    found.push(Heard::Wrong("the other arm is gone".to_owned()));
                }
                Reported::FromTheFuture { from, by_ns } => {
                    let why = format!("{} is in our future: its clock or ours is wrong", from.name);
                    println!(
                        "{}",
                        json!({"arm": arm.name(), "event": "future", "of": from.name.as_str(), "by_ns": by_ns})
                    );
                    if !naive {
                        found.push(Heard::Wrong(why));
                    }
                }
                _ => {}
            }
        }
        for heard_now in found {
            if heard.send(heard_now).is_err() {
                return Ok(());
            }
        }
        while let Ok(said) = said.try_recv() {
            match said {
                Said::Status(status) => publish(group, STATUS, &status),
                Said::Answer(id, answer) => {
                    if let Err(why) = &answer {
                        println!("{}", json!({"arm": arm.name(), "event": "refuses", "why": why}));
                    }
                    group.answer(id, answer.is_ok());
                }
                Said::Print(line) => println!("{line}"),
            }
        }
        std::thread::sleep(NAP);
    }
}

/// Publishes as JSON. What cannot be published now is said again soon.
pub fn publish<T: serde::Serialize>(group: &Group, topic: &str, what: &T) {
    if let Ok(bytes) = serde_json::to_vec(what) {
        let _ = group.publish(topic, &bytes);
    }
}

/// Reads JSON.
#[must_use]
pub fn parse<T: serde::de::DeserializeOwned>(message: &Message) -> Option<T> {
    serde_json::from_slice(&message.payload).ok()
}
