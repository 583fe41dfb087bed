//! A timevisor-bus with a key for one group: at a Unix socket for this machine's programs and, by TLS, on the guests'
//! network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::authority::Authority;
use crate::command::{Tethered, tethered};
use crate::interrupt::{self, Late};
use crate::lan::Lan;
use crate::programs;
use crate::scenario::Context;

const PATIENCE: Duration = Duration::from_secs(30);

/// The process, and what members need to join.
#[derive(Debug)]
pub struct Bus {
    process: Tethered,
    /// For programs of this machine.
    pub socket: PathBuf,
    /// For programs elsewhere: `tls://HOST:PORT`.
    pub remote: String,
    /// Who signed its certificate, PEM.
    pub authority: PathBuf,
    /// The group's key, as `timevisor cluster key` writes it.
    pub key: PathBuf,
}

impl Bus {
    /// Starts it by `starter` (such as `chrt -f 40`), if given. `key`: the file with the key of `group`.
    ///
    /// # Errors
    /// When it does not start to listen.
    pub fn start(
        ctx: &Context,
        lan: &Lan,
        port: u16,
        (group, key): (&str, &Path),
        starter: &[&str],
    ) -> anyhow::Result<Self> {
        let authority = ctx.path("authority.pem");
        let issuer = Authority::new()?;
        issuer.write(&authority)?;
        let files = issuer.certify(lan.host().into(), 2100, ctx.log_dir(), "bus")?;
        let config = ctx.path("bus.toml");
        fs::write(
            &config,
            format!(
                "[tcp]\nlisten = [\"{}:{port}\"]\ncertificate = {:?}\nkey = {:?}\n[[group]]\nname = {group:?}\nkey = {key:?}\n",
                lan.host(),
                files.certificate,
                files.key
            ),
        )?;
        let socket = ctx.path("bus.socket");
        let program = programs::binary("timevisor-bus", "timevisor-bus")?;
        let mut command = started(&program, starter);
        command.arg("--config").arg(&config).arg("--socket").arg(&socket);
        let mut process = Tethered::spawn(&mut command, "timevisor-bus", &ctx.path("bus.log"))?;
        interrupt::poll_until(PATIENCE, || {
            process.check_alive()?;
            Ok(socket.exists().then_some(()))
        })?
        .context(Late)
        .context("the bus does not listen")?;
        let remote = format!("tls://{}:{port}", lan.host());
        Ok(Self { process, socket, remote, authority, key: key.to_owned() })
    }

    /// # Errors
    /// When it has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        self.process.check_alive()
    }
}

fn started(program: &Path, starter: &[&str]) -> Command {
    let Some((first, rest)) = starter.split_first() else { return tethered(program) };
    let mut command = tethered(first);
    command.args(rest).arg(program);
    command
}
