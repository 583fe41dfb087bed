//! timevisor-bus: carries the messages of groups that share a timeline.
//!
//! Programs of this host connect to a Unix socket, programs in guests and on other hosts by TLS. A
//! group without a key belongs to the user whose programs join it; a group with a key is joined by
//! whoever proves to know it. The process needs no rights, and knows nothing of clocks: time is in
//! the messages.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | arguments, the start and the end |
//! | `config.rs` | the configuration |
//! | `account.rs` | who pays for a connection: a user, or an address |
//! | `listen.rs` | sockets, certificates, who connects |
//! | `connection.rs` | one connection: frames in and out |
//! | `outbox.rs` | what waits to be written, and what was dropped |
//! | `hosts.rs` | buses of other hosts, by Zenoh |
//! | `carrier.rs` | the hub (`timevisor-coordination`) and its timer |
//!
//! What it does not do: look into messages, keep anything over a restart, or find other hosts by itself.
#![forbid(unsafe_code)]

mod account;
mod carrier;
mod config;
mod connection;
mod hosts;
mod listen;
mod outbox;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{CommandFactory as _, Parser};
use timevisor_linux::descriptors;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

/// Enough for all connections of the network and of a dozen users.
const MOST_DESCRIPTORS: u64 = 4096;

/// Carries the messages of groups that share a timeline.
#[derive(Parser)]
#[command(version = timevisor_manual::version!())]
struct Arguments {
    /// Configuration; without it, only programs of this host are served.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where programs of this host connect, instead of what the configuration says.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Check the configuration, and end.
    #[arg(long)]
    check: bool,
    /// Write the manual page and completions that packages contain into a folder.
    #[arg(long, hide = true, value_name = "DIR")]
    write_manual: Option<PathBuf>,
}

fn main() -> Result<()> {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,zenoh=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    if let Some(folder) = &arguments.write_manual {
        return Ok(timevisor_manual::write(Arguments::command(), 8, folder)?);
    }
    let mut config = match &arguments.config {
        Some(path) => config::Config::read(path)?,
        None => config::Config::default(),
    };
    if let Some(socket) = arguments.socket {
        config.socket = Some(socket);
    }
    let keys = config.keys()?;
    let tls = config.tcp.as_ref().map(listen::tls).transpose()?;
    if arguments.check {
        println!("the configuration is good: {} groups with a key", keys.len());
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, run(config, keys, tls))
}

async fn run(
    config: config::Config,
    keys: config::Keys,
    tls: Option<tokio_rustls::TlsAcceptor>,
) -> Result<()> {
    let files = descriptors::raise_limit(MOST_DESCRIPTORS).context("the limit of open files")?;
    if files < MOST_DESCRIPTORS {
        warn!(
            "at most {files} files can be open, so at most so many connections: raise LimitNOFILE"
        );
    }
    let carrier = carrier::Carrier::new(keys)?;
    let socket = config.socket();
    let unix = listen::unix(&socket)?;
    info!("programs of this host connect to {}", socket.display());
    tokio::task::spawn_local(listen::serve_unix(unix, carrier.clone()));
    if let Some((tcp, tls)) = config.tcp.as_ref().zip(tls) {
        for address in &tcp.listen {
            let listener = tokio::net::TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
            info!("programs elsewhere connect to {address}, by TLS");
            tokio::task::spawn_local(listen::serve_tcp(listener, tls.clone(), carrier.clone()));
        }
    }
    if let Some(hosts) = &config.hosts {
        hosts::start(hosts, &carrier).await?;
    }
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = carrier.run() => {}
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    info!("ends");
    let _ = std::fs::remove_file(&socket);
    Ok(())
}
