//! What others do beside a core that is set apart. A VM that libvirt starts on cgroup v1 comes with cpusets that balance load over it,
//! which would make all of them one root domain: they stop doing so within a second, and are as they were when nothing is reserved.

use timevisor_linux::cpuset::{Cpusets, Level};
use timevisor_linux::scheduling::Change;

use super::Reservations;

impl Reservations {
    /// Has such cpusets balance no load over the cores that are set apart; whether there were any. Whoever sets one of them back meanwhile
    /// has it set again, and what they wanted when nothing is reserved.
    pub(super) fn keep_apart(&mut self) -> bool {
        let apart: Vec<usize> = self.apart().into_iter().collect();
        let Some(heir) = self.held.iter().position(|held| held.core().is_some()) else {
            self.joined = None;
            return false;
        };
        let found = match Cpusets::find().and_then(|cpusets| cpusets.keep_apart(&apart)) {
            Ok(found) => found,
            Err(error) => {
                self.note_joined(Some(format!("{:#}", anyhow::Error::new(error))));
                return false;
            }
        };
        let is_noted =
            |change: &Change| self.held.iter().flat_map(|h| &h.changes).any(|(_, c)| c == change);
        let new: Vec<_> = found.iter().filter(|change| !is_noted(change)).cloned().collect();
        // First the intent, then the deed.
        if !new.is_empty() {
            self.forget_moot();
            self.held[heir].changes.extend(new.into_iter().map(|change| (Level::Host, change)));
            if let Err(error) = self.journal.write(&self.held) {
                self.note_joined(Some(format!("{:#}", anyhow::Error::new(error))));
                return false;
            }
        }
        let mut problem = None;
        for change in &found {
            match change.make() {
                Ok(()) => tracing::info!("{change}: it balanced load over a reserved core"),
                Err(error) => problem = Some(format!("{change}: {error}")),
            }
        }
        self.note_joined(problem);
        !found.is_empty()
    }

    /// VMs come and go while a reservation stands.
    fn forget_moot(&mut self) {
        // Those that wait count their changes.
        if self.waiting.is_empty() {
            for held in &mut self.held {
                held.changes.retain(|(_, change)| !change.is_moot());
            }
        }
    }

    /// Takes note of why a core may share its root domain with others; told once.
    fn note_joined(&mut self, problem: Option<String>) {
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.joined) {
            tracing::warn!("a reserved core may not be apart: {problem}");
        }
        self.joined = problem;
    }
}
