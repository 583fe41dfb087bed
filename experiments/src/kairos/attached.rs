//! Introspects a guest for a while.

use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::introspection::emulated::row;

/// Introspection of a guest that lasts until this value is dropped.
pub(super) struct Attached<'a>(Option<&'a Host>);

impl<'a> Attached<'a> {
    /// `words` are the arguments of `attach`; without any, nothing is attached.
    pub(super) fn new(host: &'a Host, words: &[&str]) -> anyhow::Result<Self> {
        interrupt::check()?;
        if words.is_empty() {
            return Ok(Self(None));
        }
        host.cli(&[&["introspect", "attach", "web"], words].concat())?;
        host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;
        Ok(Self(Some(host)))
    }

    pub(super) fn end(self) -> anyhow::Result<()> {
        self.0.map_or(Ok(()), |host| host.cli(&["introspect", "detach", "web"]).map(drop))
    }
}
