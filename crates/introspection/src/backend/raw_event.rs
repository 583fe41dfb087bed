//! What a backend read at a trap point, not yet decoded.

/// What a backend read at a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawEvent {
    /// Counts the events of this attachment's backend without gaps, in their order over all vCPUs.
    pub sequence: u64,
    /// The host's counter at the hit, if the backend can read it.
    pub counter: Option<u64>,
    /// Maximum error of `counter`, in ticks.
    pub counter_error: u64,
    /// The point's id.
    pub point: u16,
    /// The vCPU.
    pub vcpu: u16,
    /// Bit n: read n failed, and its bytes are zero.
    pub failed: u16,
    /// The bytes of all reads.
    pub data: Vec<u8>,
}

impl RawEvent {
    /// The bytes of read `n` of `lens`; none if it failed.
    #[must_use]
    pub fn read(&self, lens: &[u16], n: usize) -> Option<&[u8]> {
        if self.failed & 1u16.checked_shl(u32::try_from(n).ok()?)? != 0 {
            return None;
        }
        let start: usize = lens.get(..n)?.iter().map(|len| usize::from(*len)).sum();
        self.data.get(start..start + usize::from(*lens.get(n)?))
    }
}
