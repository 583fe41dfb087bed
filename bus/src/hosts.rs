//! Buses of other hosts, by Zenoh: explicit endpoints, no discovery.
//!
//! Zenoh carries bytes that are sealed with each group's key, and sees nothing but the group's name. It
//! may lose and repeat them.

use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use timevisor_coordination::Name;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};
use zenoh::{Config, Session, Wait};

use crate::carrier::Carrier;
use crate::config::Hosts;

/// Keys are this and a group's name.
const PREFIX: &str = "timevisor/bus/v1";

/// Longer ones are not from a bus.
const MOST_BYTES: usize = 2 * timevisor_protocols::bus::MAX_MESSAGE;

/// Messages that wait to be carried, either way. Further ones are lost, which receivers notice.
const MOST: usize = 4096;

/// Starts to carry messages between hosts.
pub async fn start(hosts: &Hosts, carrier: &Carrier) -> Result<()> {
    if hosts.listen.is_empty() && hosts.connect.is_empty() {
        bail!("[hosts] needs addresses to listen at or to connect to");
    }
    let config = config(hosts)?;
    let (arrives, arrived) = channel(MOST);
    let (leaves, to_send) = channel(MOST);
    let (ready, started) = oneshot::channel();
    // Zenoh has threads of its own and does not run inside of a runtime with one thread.
    std::thread::Builder::new().name("hosts".to_owned()).spawn(move || {
        match open(config, arrives) {
            Ok(session) => {
                let _ = ready.send(Ok(()));
                send(&session, to_send);
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    })?;
    started.await.context("the thread for other hosts ended")??;
    carrier.carry_to_hosts(leaves);
    tokio::task::spawn_local(take(arrived, carrier.clone()));
    for address in &hosts.listen {
        info!("buses of other hosts connect to {address}");
    }
    Ok(())
}

fn open(config: Config, arrives: Sender<(Name, Vec<u8>)>) -> Result<Session> {
    let session = zenoh::open(config).wait();
    let session = session.map_err(|error| anyhow!("cannot reach buses of other hosts: {error}"))?;
    let subscriber = session.declare_subscriber(format!("{PREFIX}/*")).callback(move |sample| {
        let group = sample.key_expr().as_str().rsplit('/').next().unwrap_or_default();
        if sample.payload().len() > MOST_BYTES {
            return;
        }
        if let Ok(group) = Name::from_str(group) {
            // Without room it is lost: a bus that falls behind must not grow.
            let _ = arrives.try_send((group, sample.payload().to_bytes().into_owned()));
        }
    });
    // It lives as long as the session.
    let declared = subscriber.background().wait();
    declared.map_err(|error| anyhow!("cannot listen to other hosts: {error}"))?;
    Ok(session)
}

fn config(hosts: &Hosts) -> Result<Config> {
    let mut config = Config::default();
    let endpoints = |addresses: &[std::net::SocketAddr]| {
        let each: Vec<_> = addresses.iter().map(|it| format!("\"tcp/{it}\"")).collect();
        format!("[{}]", each.join(","))
    };
    for (key, value) in [
        // Routers carry messages between hosts that are not connected directly.
        ("mode", "\"router\"".to_owned()),
        ("listen/endpoints", endpoints(&hosts.listen)),
        ("connect/endpoints", endpoints(&hosts.connect)),
        ("scouting/multicast/enabled", "false".to_owned()),
        ("scouting/gossip/enabled", "false".to_owned()),
    ] {
        config
            .insert_json5(key, &value)
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("Zenoh's setting {key}"))?;
    }
    Ok(config)
}

async fn take(mut arrived: Receiver<(Name, Vec<u8>)>, carrier: Carrier) {
    while let Some((group, bytes)) = arrived.recv().await {
        carrier.heard(group, &bytes);
    }
}

fn send(session: &Session, mut to_send: Receiver<(Name, Vec<u8>)>) {
    while let Some((group, bytes)) = to_send.blocking_recv() {
        if let Err(error) = session.put(format!("{PREFIX}/{group}"), bytes).wait() {
            debug!("nothing is carried to other hosts: {error}");
        }
    }
}

/// Where messages for other hosts go.
pub type ToHosts = Sender<(Name, Vec<u8>)>;

/// Gives a message to the task that carries it.
pub fn carry(to_hosts: Option<&ToHosts>, group: Name, bytes: Vec<u8>) {
    if let Some(to_hosts) = to_hosts
        && to_hosts.try_send((group, bytes)).is_err()
    {
        warn!("a message of group {group} is not carried to other hosts: too many wait");
    }
}
