//! Maps a clock page by its path: a guest's device, or a file of timevisord.

use std::path::Path;

use anyhow::{Context as _, Result};
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;

pub(crate) fn open(path: &Path) -> Result<ReadPage> {
    let mapping = if path.starts_with("/dev") {
        SharedMapping::of_device(path)?
    } else {
        page_file::open(path)?
    };
    ReadPage::new(mapping).with_context(|| format!("cannot read {}", path.display()))
}
