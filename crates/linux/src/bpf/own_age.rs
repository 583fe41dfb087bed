//! The age of a thread of the process that loaded the programs.

use core::ops::Deref;

use super::elapsed::ElapsedBpf;
use super::error::BpfError;
use super::reader::{AgeReader, Records};
use super::record::FineAge;

/// The age of the thread that registered, read as [`AgeReader`] does. Dropping it releases its
/// place.
#[derive(Debug)]
pub struct OwnAge<'a> {
    reader: AgeReader<&'a Records>,
    elapsed: &'a ElapsedBpf,
    place: u32,
    pid: u32,
}

impl ElapsedBpf {
    /// Registers the calling thread with the initial age `age`.
    ///
    /// # Errors
    /// When all places are taken, or the programs do not see it run.
    pub fn register_self(&self, age: FineAge) -> Result<OwnAge<'_>, BpfError> {
        let pid = self.own_pid()?;
        let place = self.register(pid, age)?;
        let reader = AgeReader::new(self.records(), place, pid);
        let own = OwnAge { reader, elapsed: self, place, pid };
        if own.settle() { Ok(own) } else { Err(BpfError::NotSeen(pid)) }
    }
}

impl<'a> Deref for OwnAge<'a> {
    type Target = AgeReader<&'a Records>;

    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl Drop for OwnAge<'_> {
    fn drop(&mut self) {
        self.elapsed.release(self.place, self.pid);
    }
}
