//! Other programs' cpusets that join a reserved core to other cores.
//!
//! A VM that libvirt starts on cgroup v1 creates cpusets that balance load over all cores, which
//! would make all cores one root domain. Balancing is turned off in those cpusets within a second,
//! and turned on again once nothing is reserved.

use crate::book::Book;
use crate::held::Level;
use crate::host::{Host, Severity};

/// Why a reserved core may share its root domain with others; reported once.
#[derive(Debug, Default)]
pub(crate) struct CoreIsolation {
    problem: Option<String>,
}

impl CoreIsolation {
    /// Why a reserved core may share its root domain with others.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Stops cpusets from balancing load over reserved cores, and returns whether there were any.
    /// If a program turns balancing on again, it is turned off again; once nothing is reserved,
    /// balancing is on.
    pub(crate) fn restore<H: Host>(&mut self, book: &mut Book<H::Change>, host: &mut H) -> bool {
        let isolated: Vec<usize> = book.isolated().into_iter().collect();
        let Some(heir) = book.held.iter().position(|held| held.core().is_some()) else {
            self.problem = None;
            return false;
        };
        let found = match host.separating(&isolated) {
            Ok(found) => found,
            Err(error) => {
                self.note(Some(error), host);
                return false;
            }
        };
        let is_known = |change: &H::Change| {
            book.held.iter().flat_map(|held| &held.changes).any(|(_, known)| known == change)
        };
        let new: Vec<_> = found.iter().filter(|change| !is_known(change)).cloned().collect();
        // A change is written to the journal before it is made.
        if !new.is_empty() {
            forget_moot(book, host);
            book.held[heir].changes.extend(new.into_iter().map(|change| (Level::Host, change)));
            if let Err(error) = host.write(&book.held) {
                self.note(Some(error), host);
                return false;
            }
        }
        let mut problem = None;
        for change in &found {
            match host.make(&book.held[heir], change) {
                Ok(()) => {
                    let text = format!("{change}: it balanced load over a reserved core");
                    host.tell(Severity::Info, &text);
                }
                Err(unmade) => problem = Some(unmade.why),
            }
        }
        self.note(problem, host);
        !found.is_empty()
    }

    fn note<H: Host>(&mut self, problem: Option<String>, host: &mut H) {
        if let Some(why) = problem.as_ref().filter(|_| problem != self.problem) {
            host.tell(Severity::Warn, &format!("a reserved core may not be isolated: {why}"));
        }
        self.problem = problem;
    }
}

/// Drops changes of cpusets that no longer exist: VMs come and go during a reservation.
fn forget_moot<H: Host>(book: &mut Book<H::Change>, host: &H) {
    // Waiting reservations refer to their changes by number.
    if book.waiting.is_empty() {
        for held in &mut book.held {
            held.changes.retain(|(_, change)| !host.is_moot(change));
        }
    }
}
