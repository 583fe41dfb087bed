//! The same by Zenoh alone: a router as a process of its own, a publisher and an echo that connect to it.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use zenoh::{Config, Session, Wait};

use crate::part::{hear, say};

const LONG: Duration = Duration::from_secs(60);

pub fn words(part: &str, socket: &Path) -> Vec<String> {
    vec!["plain".to_owned(), part.to_owned(), socket.display().to_string()]
}

fn open(mode: &str, way: &str, socket: &Path) -> Result<Session> {
    let mut config = Config::default();
    let address = format!("[\"unixsock-stream/{}\"]", socket.display());
    for (key, value) in [
        ("mode", format!("\"{mode}\"")),
        (way, address.as_str().to_owned()),
        ("scouting/multicast/enabled", "false".to_owned()),
        ("scouting/gossip/enabled", "false".to_owned()),
    ] {
        config.insert_json5(key, &value).map_err(|error| anyhow!("{key}: {error}"))?;
    }
    if mode != "router" {
        let none = config.insert_json5("listen/endpoints", "[]");
        none.map_err(|error| anyhow!("listen/endpoints: {error}"))?;
    }
    zenoh::open(config).wait().map_err(|error| anyhow!("Zenoh: {error}"))
}

pub fn router(socket: &Path) -> Result<()> {
    let _session = open("router", "listen/endpoints", socket)?;
    say("ready")?;
    hear()?;
    Ok(())
}

fn subscribe(session: &Session, key: &'static str) -> Result<Receiver<Vec<u8>>> {
    let (arrives, arrived) = channel();
    let subscriber = session
        .declare_subscriber(key)
        .callback(move |sample| drop(arrives.send(sample.payload().to_bytes().into_owned())));
    subscriber.background().wait().map_err(|error| anyhow!("Zenoh: {error}"))?;
    Ok(arrived)
}

fn put(session: &Session, key: &str, bytes: Vec<u8>) -> Result<()> {
    session.put(key, bytes).wait().map_err(|error| anyhow!("Zenoh: {error}"))
}

pub fn echo(socket: &Path) -> Result<()> {
    let session = open("client", "connect/endpoints", socket)?;
    let pings = subscribe(&session, "bench/ping")?;
    say("ready")?;
    while let Ok(bytes) = pings.recv_timeout(LONG) {
        put(&session, "bench/pong", bytes)?;
    }
    Ok(())
}

pub struct Pinger {
    session: Session,
    pongs: Receiver<Vec<u8>>,
}

impl Pinger {
    pub fn new(socket: &Path) -> Result<Self> {
        let session = open("client", "connect/endpoints", socket)?;
        let pongs = subscribe(&session, "bench/pong")?;
        // Until the router has told who subscribes to what, messages go nowhere.
        let it = Self { session, pongs };
        for _ in 0..600 {
            put(&it.session, "bench/ping", vec![7; 64])?;
            if it.pongs.recv_timeout(Duration::from_millis(100)).is_ok() {
                while it.pongs.recv_timeout(Duration::from_millis(100)).is_ok() {}
                return Ok(it);
            }
        }
        Err(anyhow!("Zenoh's echo does not answer"))
    }

    pub fn trip(&self) -> Result<()> {
        put(&self.session, "bench/ping", vec![7; 64])?;
        self.pongs.recv_timeout(LONG).context("no echo")?;
        Ok(())
    }
}
