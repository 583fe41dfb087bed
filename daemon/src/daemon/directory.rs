//! The run directory.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use timevisor_linux::file_system::is_in_memory;
use timevisor_linux::lock_file::{self, LockError};

/// Opens the run directory, creates it if needed, and locks it: two daemons that write one page
/// would be two clocks.
pub(super) fn take_directory(path: &Path) -> Result<File> {
    fs::create_dir_all(path).with_context(|| {
        format!("cannot create {}; run as root or change run_directory", path.display())
    })?;
    fs::set_permissions(path, Permissions::from_mode(0o755)).with_context(|| {
        format!("{} is not ours; run as root or change run_directory", path.display())
    })?;
    let lock = lock_file::take(&path.join("lock")).map_err(|error| match error {
        LockError::Held { holder, .. } => anyhow::anyhow!(
            "another timevisord serves {}: {holder}; stop that one first, or set another run_directory",
            path.display()
        ),
        error => anyhow::Error::new(error).context("cannot lock the run directory"),
    })?;
    // The recovery journal is written with each publication, by the clock's thread.
    if !is_in_memory(path).unwrap_or(true) {
        tracing::warn!(
            "{} is on a disk: a slow one delays the clock and every answer; set run_directory to a folder of a tmpfs, such as \
             /run/timevisor",
            path.display()
        );
    }
    Ok(lock)
}
