//! The bindings of each application, and their numbers at the host.
//!
//! Applications see the relay's own numbers, which stay the same while the host's change with every
//! session.
//!
//! What it does not do: communicate.

use std::collections::BTreeMap;

use crate::channel::message::{Bind, Bound, Update};

/// A binding of an application.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub app: u64,
    /// What to request again when the host has lost the binding.
    pub bind: Bind,
    /// What the application was last told.
    pub met: bool,
    /// The host's number, while the host has the binding.
    upstream: Option<u64>,
}

impl Held {
    pub(super) fn upstream(&self) -> Option<u64> {
        self.upstream
    }
}

/// All bindings by the relay's numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    held: BTreeMap<u64, Held>,
    by_upstream: BTreeMap<u64, u64>,
    last: u64,
}

impl Ledger {
    /// Adds a binding that the host has made. Returns nothing if the host uses one number for two
    /// bindings.
    pub(super) fn enter(&mut self, app: u64, bind: Bind, bound: &Bound) -> Option<u64> {
        let local = self.last + 1;
        self.link(local, bound.binding)?;
        self.last = local;
        self.held.insert(local, Held { app, bind, met: bound.met, upstream: Some(bound.binding) });
        Some(local)
    }

    /// Stores the host's new number for a binding that it had lost. Returns nothing as in
    /// [`Self::enter`].
    pub(super) fn restore(&mut self, local: u64, bound: &Bound) -> Option<&mut Held> {
        self.link(local, bound.binding)?;
        let held = self.held.get_mut(&local)?;
        held.upstream = Some(bound.binding);
        Some(held)
    }

    /// Stores a new requirement in force.
    pub(super) fn update(&mut self, local: u64, update: &Update, met: bool) {
        if let Some(held) = self.held.get_mut(&local) {
            held.bind.requirement = update.requirement;
            held.bind.best_effort = update.best_effort;
            held.met = met;
        }
    }

    /// Removes a binding and returns its number at the host.
    pub(super) fn remove(&mut self, local: u64) -> Option<u64> {
        let upstream = self.held.remove(&local)?.upstream?;
        self.by_upstream.remove(&upstream);
        Some(upstream)
    }

    /// Records that the host has none of the bindings any more.
    pub(super) fn lose_all(&mut self) {
        self.by_upstream.clear();
        for held in self.held.values_mut() {
            held.upstream = None;
        }
    }

    pub(super) fn get(&self, local: u64) -> Option<&Held> {
        self.held.get(&local)
    }

    /// Returns a binding if this application owns it.
    pub(super) fn of(&self, app: u64, local: u64) -> Option<&Held> {
        self.held.get(&local).filter(|held| held.app == app)
    }

    /// Returns a binding by the host's number.
    pub(super) fn by_upstream(&mut self, upstream: u64) -> Option<(u64, &mut Held)> {
        let local = *self.by_upstream.get(&upstream)?;
        Some((local, self.held.get_mut(&local)?))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Held)> {
        self.held.iter().map(|(local, held)| (*local, held))
    }

    /// Returns the numbers of an application's bindings.
    pub(super) fn of_app(&self, app: u64) -> Vec<u64> {
        self.iter().filter(|(_, held)| held.app == app).map(|(local, _)| local).collect()
    }

    fn link(&mut self, local: u64, upstream: u64) -> Option<()> {
        if self.by_upstream.contains_key(&upstream) {
            return None;
        }
        self.by_upstream.insert(upstream, local);
        Some(())
    }
}
