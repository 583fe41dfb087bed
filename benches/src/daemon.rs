//! A timevisord of the benchmark's own: the binary beside this one, on this machine's clock.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use timevisor::{BindOptions, Binding, ChannelAddress, Client, Epoch, Options, Requirement};

/// A timevisord that ends with this.
pub struct Daemon {
    process: Child,
    folder: TempDir,
}

impl Daemon {
    /// Starts it, and waits until it knows the time.
    ///
    /// # Errors
    /// When there is no such program, or it does not become ready.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("timevisord.toml");
        let run = folder.path().join("run");
        fs::write(
            &config,
            format!(
                "run_directory = {run:?}\n[clock]\ntai_offset = 37\n[guests]\ndiscover = false\n[[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\n"
            ),
        )?;
        let program = std::env::current_exe()?.with_file_name("timevisord");
        let log = File::create(folder.path().join("log"))?;
        let process =
            Command::new(&program).arg("--config").arg(&config).stderr(log).spawn().with_context(
                || format!("cannot start {}; use make, which builds it", program.display()),
            )?;
        let daemon = Self { process, folder };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !daemon.is_ready() {
            if Instant::now() > deadline {
                bail!(
                    "timevisord is not ready: {}",
                    fs::read_to_string(daemon.folder.path().join("log"))?
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(daemon)
    }

    fn is_ready(&self) -> bool {
        let known = |client: Client| client.timeline("tai").ok()?.now().ok();
        self.client().ok().and_then(known).is_some_and(|reading| reading.is_known())
    }

    /// A file in its run directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    /// A program's connection to it.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn client(&self) -> Result<Client> {
        let channel = ChannelAddress::Unix(self.path("timelines"));
        Ok(Options::new().page(self.path("clock")).channel(channel).connect()?)
    }

    /// So many clients, each with so many bindings to so many timelines. The bindings keep their
    /// clients.
    ///
    /// # Errors
    /// When it refuses.
    pub fn fill(
        &self,
        clients: usize,
        timelines: usize,
        each: usize,
    ) -> Result<Vec<(Client, Binding)>> {
        let requirement = Some(Requirement::within(Duration::from_secs(1)));
        let options = BindOptions { requirement, best_effort: false, create: Some(Epoch::Tai) };
        let mut members = Vec::new();
        for _ in 0..clients {
            let client = self.client()?;
            for timeline in 0..timelines {
                for _ in 0..each {
                    let binding = client.bind_with(&format!("line{timeline}"), &options)?;
                    members.push((client.clone(), binding));
                }
            }
        }
        Ok(members)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
