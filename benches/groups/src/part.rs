//! [`Part`]: this program once more, as a process of its own. It says a word a line, and is told one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{ours, plain};

/// A process that ends with this.
pub struct Part {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Part {
    pub fn start(words: &[String]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--part")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = process.stdin.take().context("no pipe")?;
        let from = BufReader::new(process.stdout.take().context("no pipe")?);
        Ok(Self { process, to, from })
    }

    pub fn say(&mut self, word: &str) -> Result<()> {
        writeln!(self.to, "{word}").context("a process of the benchmark has ended")
    }

    pub fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        ensure!(line.trim() == word, "a process of the benchmark said {line:?}, not {word}");
        Ok(())
    }

    pub fn is_alive(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_none())
    }

    pub fn memory_mib(&self) -> Result<u64> {
        memory_mib(self.process.id())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a process has in memory.
pub fn memory_mib(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = kib.and_then(|kib| kib.trim().strip_suffix(" kB")).context("no VmRSS")?;
    Ok(kib.trim().parse::<u64>()? / 1024)
}

/// What such a process does.
pub fn run(words: &[&str]) -> Result<()> {
    match words {
        ["ours", "echo", run, bus] => ours::echo(&ours::Place::of(run, bus)),
        ["ours", "crowd", run, bus, prefix, each, all] => {
            ours::crowd(&ours::Place::of(run, bus), prefix, each.parse()?, all.parse()?)
        }
        ["plain", "router", socket] => plain::router(socket.as_ref()),
        ["plain", "echo", socket] => plain::echo(socket.as_ref()),
        _ => bail!("no such part: {words:?}"),
    }
}

/// Says a word to the benchmark.
pub fn say(word: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{word}")?;
    Ok(out.flush()?)
}

/// Waits until the benchmark says something, or ends.
pub fn hear() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}
