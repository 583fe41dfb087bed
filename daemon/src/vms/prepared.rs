//! Page files of VMs that have not started yet, created by `timevisor vm args`. The pages are valid
//! from the start, because a guest's driver reads the counter and the timescale only when it
//! probes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use timevisor_clock_page::PageWriter;
use timevisor_guests::acpi::ssdt;
use timevisor_guests::delivery::PageFiles;
use timevisor_guests::vm::{HostIdentity, identity};
use timevisor_linux::page::WritePage;
use timevisor_linux::state_file::{self, Readers};
use timevisor_protocols::control::TimeType;

pub struct Prepared {
    directory: PathBuf,
    /// Pages that we hold until their VM starts.
    held: BTreeMap<String, PageWriter<WritePage>>,
}

impl Prepared {
    pub fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), held: BTreeMap::new() }
    }

    /// Creates or replaces the page, with a table for the usual address. The CLI creates tables for
    /// other addresses.
    pub fn prepare(
        &mut self,
        name: &str,
        time_type: TimeType,
        host: HostIdentity,
    ) -> Result<(PathBuf, PathBuf)> {
        if host.tai_offset.is_none() && time_type == TimeType::Tai {
            bail!(
                "TAI - UTC is not known, and guest kernels before 7.0 refuse a TAI page without it; see `timevisor status`"
            );
        }
        self.held.remove(name);
        let pages = PageFiles::new(&self.directory);
        let mapping = pages.prepare(name)?;
        let writer = PageWriter::take_over(
            WritePage::new(mapping)?,
            identity(name, super::timescale(time_type), host),
            host.tai_offset,
        );
        let folder = pages.folder(name)?;
        let table = folder.join("vmclock.aml");
        state_file::write(&table, &ssdt(DEFAULT_ADDRESS), Readers::All)
            .with_context(|| format!("cannot write {}", table.display()))?;
        let note = serde_json::to_vec(&time_type)?;
        state_file::write(&folder.join("time_type"), &note, Readers::Owner)
            .context("cannot note the time type")?;
        self.held.insert(name.to_owned(), writer);
        Ok((pages.path(name)?, table))
    }

    /// Releases a page so that its VM can be attached.
    pub fn release(&mut self, name: &str) {
        self.held.remove(name);
    }

    /// The timescale of a prepared page, even if an earlier daemon prepared it.
    pub fn time_type(&self, name: &str) -> Option<TimeType> {
        let folder = PageFiles::new(&self.directory).folder(name).ok()?;
        let note = state_file::read(&folder.join("time_type"), MOST_NOTE_BYTES).ok()?;
        serde_json::from_slice(&note).ok()
    }

    /// Removes a VM's files; returns false if there are none.
    pub fn remove(&mut self, name: &str) -> Result<bool> {
        self.held.remove(name);
        let folder = PageFiles::new(&self.directory).folder(name)?;
        if !folder.exists() {
            return Ok(false);
        }
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
        Ok(true)
    }
}

/// The first address above memory for VMs with up to 2 GiB; `timevisor vm args` computes others.
const DEFAULT_ADDRESS: u64 = 0x1_0000_0000;
/// A time type is one word.
const MOST_NOTE_BYTES: u64 = 64;
