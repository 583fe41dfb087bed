//! The host's page, read as every program reads it.

use std::path::{Path, PathBuf};

use timevisor::{Client, Options, Reading, Timeline};

/// The page, opened when it is there.
pub struct Page {
    path: PathBuf,
    open: Option<(Client, Timeline)>,
}

impl Page {
    pub fn in_directory(run_directory: &Path) -> Self {
        Self { path: run_directory.join("clock"), open: None }
    }

    /// Reads TAI.
    ///
    /// # Errors
    /// Why the page cannot be read.
    pub fn read(&mut self) -> Result<Reading, String> {
        let read = self.open().and_then(|tai| tai.now().map_err(|error| error.to_string()));
        if read.is_err() {
            self.open = None;
        }
        read
    }

    /// Opens the file again at the next reading: it may be another one.
    pub fn reopen(&mut self) {
        self.open = None;
    }

    fn open(&mut self) -> Result<&Timeline, String> {
        if self.open.is_none() {
            let client = Options::new().page(&self.path).connect();
            let client = client.map_err(|error| error.to_string())?;
            let tai = client.timeline("tai").map_err(|error| error.to_string())?;
            self.open = Some((client, tai));
        }
        match &self.open {
            Some((_, tai)) => Ok(tai),
            None => Err("the page is not open".to_owned()),
        }
    }
}
