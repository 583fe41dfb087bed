//! The planner and one controller in stock guests. Each guest reads the page that its host's timevisord serves, and
//! reaches the bus and the plant over its network. The planner's guest moves between two hosts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use timevisor_lab::client::{Client, Launch, Way};
use timevisor_lab::host::Host;
use timevisor_lab::lan::Lan;
use timevisor_lab::qemu::Qemu;
use timevisor_lab::scenario::Context;

const PATIENCE: Duration = Duration::from_secs(60);
/// The guests' first address, behind the hosts'.
const FIRST_ADDRESS: u8 = 10;

/// A guest, where it is now, and the program that runs in it.
pub(super) struct Guest {
    ctx: Context,
    qemu: Qemu,
    files: Vec<PathBuf>,
    name: &'static str,
    number: u8,
    /// How often it has moved.
    moves: u8,
    client: Client,
    program: Option<Program>,
}

struct Program {
    pid: String,
    log: String,
}

impl Guest {
    /// Boots it on this host. `files` go to its /bin.
    pub(super) fn boot(
        ctx: &Context,
        host: &Host,
        lan: &Lan,
        (number, name): (u8, &'static str),
        files: Vec<PathBuf>,
    ) -> anyhow::Result<Self> {
        let (ctx, number, qemu) = (ctx.further(name)?, FIRST_ADDRESS + number, ctx.qemu_10()?);
        let network = lan.arguments_at(number, number)?;
        let mut client = launch(&ctx, host, &qemu, name, &files, network).start()?;
        client.guest.wait_ready()?;
        host.wait_vm(name, "synchronized")?;
        client.guest.sh(&lan.guest_setup(number))?;
        Ok(Self { ctx, qemu, files, name, number, moves: 0, client, program: None })
    }

    /// Its name in its host's timevisord.
    pub(super) fn name(&self) -> &str {
        &self.client.name
    }

    /// Its QEMU.
    pub(super) fn pid(&self) -> u32 {
        self.client.guest.pid()
    }

    /// Starts one of its files with these arguments, under SCHED_FIFO.
    pub(super) fn start(&mut self, priority: &str, line: &str) -> anyhow::Result<()> {
        self.kill()?;
        let log = format!("/run/{}.log", self.name);
        let run = format!("chrt -f {priority} /bin/{line} >{log} 2>&1 & echo $!");
        let pid = self.client.guest.sh(&run)?.trim().to_owned();
        self.program = Some(Program { pid, log });
        Ok(())
    }

    /// Writes a word into a file.
    pub(super) fn write(&mut self, file: &str, word: &str) -> anyhow::Result<()> {
        self.client.guest.sh(&format!("echo {word} >{file}")).map(drop)
    }

    /// Kills its program.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        let Some(Program { pid, .. }) = self.program.take() else { return Ok(()) };
        self.client.guest.sh(&format!("kill -9 {pid} 2>/dev/null; true")).map(drop)
    }

    /// # Errors
    /// When its program has ended; the message contains what it said last.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        let Some(program) = &self.program else { return Ok(()) };
        let ask = format!("kill -0 {} 2>/dev/null && echo alive; true", program.pid);
        if self.client.guest.sh(&ask)?.trim() != "alive" {
            let said = self.said(20)?;
            bail!("the program in {} has ended: {said}", self.name);
        }
        Ok(())
    }

    /// The last lines that its program printed.
    pub(super) fn said(&mut self, lines: u32) -> anyhow::Result<String> {
        let Some(program) = &self.program else { return Ok(String::new()) };
        let tail = format!("tail -n {lines} {}", program.log);
        self.client.guest.sh(&tail)
    }

    /// Moves it, while it runs, from one host to the other.
    pub(super) fn migrate(&mut self, from: &Host, to: &Host, lan: &Lan) -> anyhow::Result<()> {
        self.moves += 1;
        let name = format!("{}-{}", self.name, self.moves);
        let uri = format!("unix:{}", to.directory().join(format!("{name}.migration")).display());
        let network = lan.arguments_at(self.number + 10 + self.moves, self.number)?;
        let launch = launch(&self.ctx, to, &self.qemu, &name, &self.files, network);
        let there = launch.incoming(&uri).start()?;
        to.wait_until("the destination to await it", |host| {
            Ok(host.vm(&name)?["migration"] == "incoming")
        })?;
        let said = from.cli(&["vm", "migrate", &self.client.name, "--to", &uri])?;
        if !said.contains("runs on the other host") {
            bail!("the planner's VM did not move: {said}");
        }
        let mut left = std::mem::replace(&mut self.client, there);
        left.guest.kill();
        let answers = self.client.guest.sh_within("echo here", PATIENCE);
        answers.context("the guest does not answer on the other host").map(drop)
    }
}

fn launch<'a>(
    ctx: &'a Context,
    host: &'a Host,
    qemu: &'a Qemu,
    name: &'a str,
    files: &[PathBuf],
    network: [String; 4],
) -> Launch<'a> {
    let files = files.to_vec();
    Launch::new(ctx, host, qemu, Way::Vmclock, name)
        .image(move |image| {
            let image = image.module("virtio_net").dynamic_program(Path::new("/usr/bin/chrt"))?;
            Ok(files.iter().fold(image, |image, file| image.program(file)))
        })
        .builder(move |builder| builder.args(network.clone()))
}
