//! A `lab-rvec worker` on one of two hosts, each with its own oscillator.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context as _, ensure};
use timevisor_lab::host::Host;

pub(super) struct Worker {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    /// `program` must be linked dynamically.
    pub(super) fn start(host: &Host, program: &Path) -> anyhow::Result<Self> {
        let oscillator = host.oscillator().context("a host without an oscillator")?;
        let mut command = oscillator.tethered(program);
        command.arg("worker").arg(host.directory().join("clock"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start lab-rvec")?;
        let to = process.stdin.take().context("no standard input")?;
        let from = BufReader::new(process.stdout.take().context("no standard output")?);
        Ok(Self { process, to, from })
    }

    /// Sends a command and returns the timestamps of the answer.
    pub(super) fn ask(&mut self, command: &str) -> anyhow::Result<Vec<i128>> {
        writeln!(self.to, "{command}")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        ensure!(!line.is_empty(), "lab-rvec ended at `{command}`; its reason is above");
        line.split_whitespace().map(|word| word.parse().context("no number")).collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
