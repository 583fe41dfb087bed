//! Where time comes from: finding the clock page and the counter that it is written for.
//!
//! The same program runs on a host, in a container and in a guest: the first page that Timevisor
//! fills is used, and skipped ones are recorded with the reason. It does not read time.

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use timevisor_clock_page::reader::{check, counter_of};
use timevisor_clock_page::{Counter, CounterId, Page};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_linux::{page_file, pci, truncation};

use crate::error::{ConnectError, TimelineError};
use crate::tried::Tried;

/// A guest's page, from the kernel's driver.
const DEVICE: &str = "/dev/vmclock0";
/// A host's page, including in its containers.
const HOST_PAGE: &str = "/run/timevisor/clock";

/// The page that a client reads, and those that it skipped.
#[derive(Clone, Debug)]
pub struct PageChoice {
    /// The file or device.
    pub path: PathBuf,
    /// Pages that were tried before and are not used.
    pub passed_over: Vec<Tried>,
}

/// A page, mapped or in this process's own memory.
#[derive(Clone, Debug)]
pub(crate) enum PageRef {
    Mapped(Arc<ReadPage>),
    Memory(Arc<OwnPage>),
}

impl PageRef {
    /// Whether an access found its file truncated. No system call.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Mapped(page) if page.is_lost())
    }

    /// As [`Self::is_lost`], and looks at the file, too.
    pub(crate) fn is_truncated(&self) -> bool {
        matches!(self, Self::Mapped(page) if page.is_truncated())
    }
}

/// A page that a manually driven clock fills.
#[derive(Default)]
pub(crate) struct OwnPage(pub(crate) Page);

impl core::fmt::Debug for OwnPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("OwnPage")
    }
}

impl Deref for PageRef {
    type Target = Page;
    #[inline(always)]
    fn deref(&self) -> &Page {
        match self {
            Self::Mapped(page) => page,
            Self::Memory(page) => &page.0,
        }
    }
}

/// The counter that a page is written for.
#[derive(Clone, Debug)]
pub(crate) enum CounterRef {
    Host(HostCounter),
    /// Nanoseconds that are advanced manually.
    Manual(Arc<AtomicU64>),
}

impl Counter for CounterRef {
    fn id(&self) -> CounterId {
        match self {
            Self::Host(counter) => counter.id(),
            Self::Manual(_) => CounterId::MonotonicRaw,
        }
    }

    #[inline(always)]
    fn read_ordered(&self) -> u64 {
        match self {
            Self::Host(counter) => counter.read_ordered(),
            Self::Manual(count) => count.load(Ordering::SeqCst),
        }
    }

    #[inline(always)]
    fn read_unordered(&self) -> u64 {
        match self {
            Self::Host(counter) => counter.read_unordered(),
            Self::Manual(count) => count.load(Ordering::SeqCst),
        }
    }

    fn let_others_run(&self) {
        if let Self::Host(counter) = self {
            counter.let_others_run();
        }
    }
}

/// The counter for an entry of a page.
pub(crate) fn counter_for(page: &PageRef, index: usize) -> Result<CounterRef, TimelineError> {
    let id = counter_of(page, index);
    HostCounter::for_reader(id).map(CounterRef::Host).ok_or(TimelineError::Counter(id.name()))
}

/// Opens the requested page, or the first one that exists.
///
/// A page that the program names may be any file, whose owner may truncate it: from then on the
/// process survives that. The pages that are looked for without a name are made by timevisord,
/// which never makes them shorter.
pub(crate) fn find(wanted: Option<&Path>) -> Result<(PageRef, PageChoice), ConnectError> {
    let mut tried = Vec::new();
    let mut look = |path: &Path| match open(path) {
        Ok(page) => Some((
            page,
            PageChoice { path: path.to_owned(), passed_over: core::mem::take(&mut tried) },
        )),
        Err(why) => {
            tried.push(why);
            None
        }
    };
    let found = match wanted {
        Some(path) => {
            // It cannot fail; if it did, reading would work as without it.
            let _ = truncation::survive();
            look(path)
        }
        None => candidates().iter().find_map(|path| look(path)),
    };
    found.ok_or(ConnectError { tried })
}

/// The candidates in the order of preference. If a machine runs timevisord itself, its clock
/// already includes its host's bounds, if it has a host. An unreadable list of PCI devices counts
/// as one without ivshmem.
fn candidates() -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from(HOST_PAGE), PathBuf::from(DEVICE)];
    all.extend(pci::ivshmem_resources().unwrap_or_default());
    all
}

/// Maps one page and checks whether Timevisor fills it.
pub(crate) fn open(path: &Path) -> Result<PageRef, Tried> {
    let because = |why: &dyn core::error::Error| Tried::because(path, why);
    // /dev/shm has files, not devices.
    let mapping = if path.starts_with("/dev") && !path.is_file() {
        SharedMapping::of_device(path).map_err(|e| because(&e))?
    } else if path.starts_with("/sys") {
        SharedMapping::of_pci_resource(path).map_err(|e| because(&e))?
    } else {
        page_file::open(path).map_err(|e| because(&e))?
    };
    let page = PageRef::Mapped(Arc::new(ReadPage::new(mapping).map_err(|e| because(&e))?));
    check(&page).map_err(|e| because(&e))?;
    // A page for another machine's counter is useless.
    counter_for(&page, 0).map_err(|e| because(&e))?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_is_told_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("clock");
        std::fs::write(&empty, [0; 4096]).unwrap();
        let Err(error) = find(Some(&empty)) else { panic!("an empty file is no page") };
        assert_eq!(error.tried.len(), 1);
        assert!(error.to_string().contains("no VCLK magic"), "{error}");
        let Err(error) = find(Some(&folder.path().join("none"))) else { panic!("no file") };
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    #[test]
    fn a_file_in_shared_memory_is_no_device() {
        // Wherever there is one.
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let empty = folder.path().join("clock");
        std::fs::write(&empty, [0; 4096]).unwrap();
        let Err(error) = find(Some(&empty)) else { panic!("an empty file is no page") };
        assert!(error.to_string().contains("no VCLK magic"), "{error}");
    }

    #[test]
    fn a_daemon_on_this_machine_comes_before_its_host() {
        let all = candidates();
        assert_eq!(all[..2], [PathBuf::from(HOST_PAGE), PathBuf::from(DEVICE)]);
    }
}
