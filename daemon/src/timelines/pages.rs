//! The host's pages: `clock`, whose further entries hold 17 timelines, then `clock.1` and so on for
//! more.

use std::path::{Path, PathBuf};

use anyhow::Result;
use timevisor_clock_page::{EntryUpdate, PageWriter};
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::{self, PageSize};

use crate::clock::{HostClock, epoch};

/// The pages other than the first; created when first needed, and kept.
pub struct FurtherPages {
    directory: PathBuf,
    writers: Vec<PageWriter<WritePage>>,
    /// The host's disruption marker as last written.
    seen: Option<u64>,
}

impl FurtherPages {
    /// Takes over the pages of an earlier daemon immediately, because otherwise nobody would update
    /// their timelines.
    pub fn in_directory(directory: &Path, clock: &HostClock) -> Self {
        let mut pages = Self { directory: directory.to_owned(), writers: Vec::new(), seen: None };
        while pages.path(pages.writers.len() + 1).exists() {
            if let Err(error) = pages.add(clock) {
                tracing::warn!("{error:#}");
                break;
            }
        }
        pages
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("clock.{number}"))
    }

    fn add(&mut self, clock: &HostClock) -> Result<()> {
        let mapping = page_file::create(&self.path(self.writers.len() + 1), PageSize::Page)?;
        let identity =
            timevisor_clock_page::Identity { epoch: epoch(), ..*clock.writer().identity() };
        let tai_offset = clock.writer().tai_offset_hint();
        self.writers.push(PageWriter::take_over(WritePage::new(mapping)?, identity, tai_offset));
        Ok(())
    }

    /// Writes these entries, along with the host's clock, to page `number` (1 or more). Creates no
    /// page for an empty list.
    pub fn write(
        &mut self,
        number: usize,
        entries: &[EntryUpdate],
        clock: &HostClock,
    ) -> Result<()> {
        if number > self.writers.len() {
            if entries.is_empty() {
                return Ok(());
            }
            self.add(clock)?;
        }
        let own = clock.writer();
        if self.seen.replace(own.disruption()).is_some_and(|seen| seen != own.disruption()) {
            self.writers.iter_mut().for_each(PageWriter::disrupt);
        }
        let Some(writer) = self.writers.get_mut(number - 1) else { return Ok(()) };
        writer.announce(own.announced());
        match clock.copy() {
            Some(update) => drop(writer.publish(&update, &clock.counter)),
            None if writer.in_force().is_none() && writer.status() == own.status() => {}
            None => writer.withdraw(own.status(), own.tai_offset()),
        }
        writer.write_entries(entries, &clock.counter);
        Ok(())
    }

    /// Whether the file of one of them was truncated.
    pub fn has_lost_page(&self) -> bool {
        self.writers.iter().any(|writer| writer.storage().is_lost())
    }

    /// Returns the number of pages other than the first.
    pub fn len(&self) -> usize {
        self.writers.len()
    }
}
