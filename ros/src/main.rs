//! timevisor-ros: a node of ROS 2 that publishes the host's clock with its bounds, and carries stamped commands
//! between a group and ROS.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | arguments, the start and the end |
//! | `messages.rs` | the messages of ROS that are used |
//! | `clock.rs` | what is published of the clock |
//! | `command.rs` | a trajectory as groups have it, and as ROS has it |
//! | `bridge.rs` | the topics, each way |
//! | `events.rs` | what the group reports, in the log |
//!
//! What it does not do: set ROS's clock (nodes read CLOCK_REALTIME or /clock), or carry other messages.
#![forbid(unsafe_code)]

mod bridge;
mod clock;
mod command;
mod events;
mod messages;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser;
use ros2_client::{Context, ContextOptions, Node, NodeName, NodeOptions};
use timevisor::group::{BusAddress, Group, JoinOptions, Secret};
use timevisor::{ChannelAddress, Client, Options, Requirement, Timeline};
use timevisor_linux::poll::{self, PollFd};
use timevisor_linux::signals::Signals;
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::bridge::Pair;

/// Publishes the clock with its bounds to ROS 2, and carries commands between a group and ROS.
#[derive(Parser)]
#[command(name = "timevisor-ros", version)]
struct Arguments {
    /// The node's namespace
    #[arg(long, default_value = "/timevisor")]
    namespace: String,
    /// DDS's domain; by default ROS_DOMAIN_ID, or 0
    #[arg(long)]
    domain: Option<u16>,
    /// How often the clock is published, per second
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// True time may be this many microseconds from the estimate
    #[arg(long, value_name = "MICROSECONDS")]
    within_us: Option<u64>,
    /// The clock's page, instead of where it usually is
    #[arg(long)]
    page: Option<PathBuf>,
    /// Where timevisord takes requirements
    #[arg(long)]
    channel: Option<PathBuf>,
    /// The group to join, on timeline tai
    #[arg(long)]
    group: Option<String>,
    /// This node's name in the group
    #[arg(long = "as", default_value = "ros", requires = "group")]
    member: String,
    /// Where the bus listens: a socket, or tls://HOST:PORT
    #[arg(long, requires = "group")]
    bus: Option<String>,
    /// Who signed the certificate of a bus elsewhere, PEM
    #[arg(long, requires = "bus")]
    authority: Option<PathBuf>,
    /// The group's key, from a file that `timevisor cluster key` made
    #[arg(long, requires = "group")]
    key: Option<PathBuf>,
    /// Carry a topic of the group to a topic of ROS, as trajectory_msgs/JointTrajectory
    #[arg(long, value_name = "TOPIC=ROS_TOPIC", requires = "group")]
    to_ros: Vec<Pair>,
    /// Carry a topic of ROS to a topic of the group
    #[arg(long, value_name = "ROS_TOPIC=TOPIC", requires = "group")]
    from_ros: Vec<Pair>,
}

fn main() -> Result<()> {
    // RustDDS tells of every network interface that it does not use.
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,rustdds=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    let mut signals = Signals::install().context("cannot take over SIGINT and SIGTERM")?;
    let client = connect(&arguments)?;
    let timeline = timeline(&client, &arguments)?;
    let group =
        arguments.group.as_ref().map(|group| join(&client, group, &arguments)).transpose()?;
    let (mut node, name) = node(&arguments)?;
    let mut clock = clock::Publisher::new(&mut node, &arguments.namespace, timeline.clone())?;
    if let Some(group) = &group {
        bridge::start(&mut node, group, &timeline, &arguments.to_ros, &arguments.from_ros)?;
    }
    let spinner = node.spinner().map_err(|error| anyhow!("no spinner: {error}"))?;
    std::thread::Builder::new().name("ros".to_owned()).spawn(move || {
        if let Err(error) = futures::executor::block_on(spinner.spin()) {
            tracing::error!("the node does not hear of others any more: {error}");
        }
    })?;
    info!("{name} publishes the clock {} times a second", arguments.rate);
    let pause = Duration::from_secs(1) / arguments.rate;
    loop {
        clock.publish();
        poll::wait(&mut [PollFd::readable(signals.as_fd())], Some(pause))?;
        if signals.take().is_some() {
            break;
        }
    }
    info!("ends");
    if let Some(group) = group {
        bridge::leave(group);
    }
    Ok(())
}

fn connect(arguments: &Arguments) -> Result<Client> {
    let mut options = Options::new();
    if let Some(page) = &arguments.page {
        options = options.page(page);
    }
    if let Some(channel) = &arguments.channel {
        options = options.channel(ChannelAddress::Unix(channel.clone()));
    }
    Ok(options.connect()?)
}

fn requirement(arguments: &Arguments) -> Option<Requirement> {
    arguments.within_us.map(|us| Requirement::within(Duration::from_micros(us)))
}

fn timeline(client: &Client, arguments: &Arguments) -> Result<Timeline> {
    let timeline = client.timeline("tai")?;
    Ok(match requirement(arguments) {
        Some(requirement) => timeline.with_requirement(&requirement)?,
        None => timeline,
    })
}

fn join(client: &Client, group: &str, arguments: &Arguments) -> Result<std::sync::Arc<Group>> {
    if arguments.to_ros.is_empty() && arguments.from_ros.is_empty() {
        bail!(
            "with --group, say what to carry: --to-ros TOPIC=ROS_TOPIC or --from-ros ROS_TOPIC=TOPIC"
        );
    }
    let bus =
        arguments.bus.as_ref().map(|bus| BusAddress::parse(bus, arguments.authority.as_deref()));
    let key = arguments.key.as_ref().map(|path| {
        let key = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        anyhow::Ok(Secret::parse(&key)?)
    });
    let options = JoinOptions {
        requirement: requirement(arguments),
        bus: bus.transpose()?,
        key: key.transpose()?,
        ..JoinOptions::default()
    };
    Ok(std::sync::Arc::new(client.join_with(group, &arguments.member, &options)?))
}

fn node(arguments: &Arguments) -> Result<(Node, String)> {
    let domain = match arguments.domain {
        Some(domain) => domain,
        None => match std::env::var("ROS_DOMAIN_ID") {
            Ok(text) => {
                text.parse().with_context(|| format!("ROS_DOMAIN_ID is {text:?}, no number"))?
            }
            Err(_) => 0,
        },
    };
    if domain > 232 {
        bail!("domain {domain} has no ports; DDS has domains 0 to 232");
    }
    let context = Context::with_options(ContextOptions::new().domain_id(domain));
    let context = context.map_err(|error| anyhow!("no DDS on domain {domain}: {error}"))?;
    let name = NodeName::new(&arguments.namespace, "clock").map_err(|error| {
        anyhow!(
            "{:?} is no namespace of ROS: {error}; try --namespace /timevisor",
            arguments.namespace
        )
    })?;
    let told = name.fully_qualified_name();
    let node = context.new_node(name, NodeOptions::new().enable_rosout(false));
    Ok((node.map_err(|error| anyhow!("no node: {error}"))?, told))
}
