//! The bindings: each one's request, its number in the current session, and the handle that reads
//! it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use timevisor_protocols::channel::Bind;

use super::Lease;
use crate::timeline::Shared;
use crate::unpoisoned;

/// One binding of the program, which outlives sessions.
pub(super) struct Entry {
    /// What to ask for, in this session and the next ones.
    pub(super) wish: Bind,
    /// The session's number for it.
    pub(super) binding: Option<u64>,
    pub(super) shared: Weak<Shared>,
    pub(super) lease: Arc<Mutex<Lease>>,
}

impl Entry {
    pub(super) fn held(&mut self, binding: u64) {
        self.binding = Some(binding);
        *unpoisoned(self.lease.lock()) = Lease::Held;
    }

    pub(super) fn lost(&mut self, why: &str) {
        self.binding = None;
        *unpoisoned(self.lease.lock()) = Lease::Lost(why.to_owned());
    }
}

/// All bindings of a client, by keys that the client chooses.
#[derive(Default)]
pub(super) struct Leases {
    last_key: u64,
    entries: BTreeMap<u64, Entry>,
}

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn add(&mut self, entry: Entry) -> u64 {
        self.last_key += 1;
        self.entries.insert(self.last_key, entry);
        self.last_key
    }

    pub(super) fn get(&mut self, key: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&key)
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<Entry> {
        self.entries.remove(&key)
    }

    /// The entry with this number in the session.
    pub(super) fn bound(&mut self, binding: u64) -> Option<&mut Entry> {
        self.entries.values_mut().find(|entry| entry.binding == Some(binding))
    }

    /// Ends the session: no binding has a number any more.
    pub(super) fn lose_all(&mut self, why: &str) {
        self.entries.values_mut().for_each(|entry| entry.lost(why));
    }

    /// The bindings that have to be renewed.
    pub(super) fn unbound(&self) -> Vec<(u64, Bind)> {
        let missing = self.entries.iter().filter(|(_, entry)| entry.binding.is_none());
        missing.map(|(key, entry)| (*key, entry.wish.clone())).collect()
    }
}
