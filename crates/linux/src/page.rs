//! A mapped clock page as a [`Page`]: the one place where mapped memory becomes a reference.

use core::ops::Deref;

use timevisor_clock_page::page::{Page, WritablePage};

use crate::mapping::{Access, MapError, PAGE_BYTES, SharedMapping};

/// A page that this process reads.
#[derive(Debug)]
pub struct ReadPage(SharedMapping);

/// A page that this process writes.
#[derive(Debug)]
pub struct WritePage(SharedMapping);

impl ReadPage {
    /// Wraps a mapping of at least one page.
    ///
    /// # Errors
    /// When the mapping is shorter.
    pub fn new(mapping: SharedMapping) -> Result<Self, MapError> {
        long_enough(&mapping)?;
        Ok(Self(mapping))
    }

    /// As [`SharedMapping::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// As [`SharedMapping::is_truncated`].
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.0.is_truncated()
    }
}

impl WritePage {
    /// Wraps a writable mapping of at least one page.
    ///
    /// # Errors
    /// When the mapping is shorter or read-only: storing to it would kill this process.
    pub fn new(mapping: SharedMapping) -> Result<Self, MapError> {
        long_enough(&mapping)?;
        if mapping.access() != Access::ReadWrite {
            return Err(MapError::ReadOnly);
        }
        Ok(Self(mapping))
    }

    /// As [`SharedMapping::is_there`].
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_there()
    }

    /// As [`SharedMapping::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}

fn long_enough(mapping: &SharedMapping) -> Result<(), MapError> {
    let found = mapping.len() as u64;
    if mapping.len() < PAGE_BYTES {
        Err(MapError::TooShort { found, wanted: PAGE_BYTES })
    } else {
        Ok(())
    }
}

impl Deref for ReadPage {
    type Target = Page;
    fn deref(&self) -> &Page {
        // SAFETY: the mapping is page aligned, at least a page long (checked in `new`) and lives as
        // long as `self`; nobody stores through a ReadPage.
        unsafe { Page::from_mapping(self.0.as_ptr()) }
    }
}

impl Deref for WritePage {
    type Target = Page;
    fn deref(&self) -> &Page {
        // SAFETY: as above, and the mapping is writable (checked in `new`).
        unsafe { Page::from_mapping(self.0.as_ptr()) }
    }
}

impl WritablePage for WritePage {}
