//! Which clock a timeline is that several hosts have, such as a cluster's own.

use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

use super::{ReadError, Reader, Waiting};
use crate::Counter;
use crate::abi::entry;
use crate::page::Page;
use crate::seqlock::{read_begin, read_valid};

impl<P: Deref<Target = Page>, C: Counter> Reader<P, C> {
    /// Which clock the timeline is, the same number on every host that has it (0: this host's own), and the entry's
    /// disruption marker at that time: with a reading that has it, they are of one clock.
    ///
    /// # Errors
    /// [`ReadError::WriterStalled`] when the writer died inside an update.
    pub fn clock(&self) -> Result<(u64, u64), ReadError> {
        let entry = self.page.entry(self.index);
        let mut waiting = Waiting::default();
        loop {
            if let Some(even) = read_begin(&entry[entry::SEQUENCE]) {
                let clock = self.page.clock(self.index).load(Relaxed);
                let disruption = entry[entry::DISRUPTION].load(Relaxed);
                let (there, written) = self.markers();
                if read_valid(&entry[entry::SEQUENCE], even) {
                    let loaded = if written == 0 { 0 } else { there.wrapping_sub(written) };
                    return Ok((clock, disruption.wrapping_add(loaded)));
                }
            }
            if self.gave_up(&mut waiting) {
                return Err(ReadError::WriterStalled);
            }
        }
    }
}
