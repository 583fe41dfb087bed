//! timevisor-observe: metrics for Prometheus and a dashboard, unprivileged and read-only.
//!
//! It reads the host's page, as any program may, and asks timevisord over the read-only socket. It
//! has no way to change anything. Killed, flooded or out of memory, it takes nothing from the clock.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the start and the end |
//! | `options.rs` | arguments, and which addresses may be listened at |
//! | `daemon.rs` | questions to timevisord |
//! | `page.rs` | the host's page |
//! | `sample.rs` | what is known at one moment |
//! | `sampler.rs` | takes a sample each second, and passes it on |
//! | `history.rs` | the clock's last 24 hours |
//! | `process.rs` | a process's time, memory and descriptors |
//! | `metrics/` | samples in Prometheus' formats |
//! | `view/` | samples as the dashboard shows them |
//! | `web/` | HTTP, TLS, streams of events |
//! | `assets/` | the dashboard, with uPlot (MIT) |
//!
//! What it does not do: keep history over a restart, or observe other hosts.
#![forbid(unsafe_code)]

mod daemon;
mod history;
mod metrics;
mod options;
mod page;
mod process;
mod sample;
mod sampler;
#[cfg(test)]
mod testing;
mod view;
mod web;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::options::Options;
use crate::sampler::Sampler;

fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let options = Options::parse();
    let tls = options.tls()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(options, tls))
}

async fn run(options: Options, tls: Option<tokio_rustls::TlsAcceptor>) -> Result<()> {
    let sampler = Sampler::start(&options.run_directory);
    let web = web::Web::bind(&options, tls, sampler.observed()).await?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        () = web.serve() => {}
        () = sampler.run() => {}
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
