//! What the host gives each VM's page: its clock on both timescales, and who it is.

use timevisor_clock_page::{ClockStatus, CounterId, Identity, LeapIndicator, Slew, Update};
use timevisor_time::TimescaleId;

use crate::counter_mapping::CounterMapping;
use crate::guest_clock::for_guest;

/// The content of the host's page, from which the guests' pages are derived.
#[derive(Clone, Copy, Debug)]
pub struct HostUpdate {
    /// For pages on TAI. The host's estimate is already monotonic.
    pub tai: ScaleUpdate,
    /// For pages on UTC.
    pub utc: ScaleUpdate,
    /// TAI - UTC, where known.
    pub tai_offset: Option<i16>,
    /// The leap second that pages announce.
    pub leap: LeapIndicator,
}

impl HostUpdate {
    pub(crate) fn on(&self, timescale: TimescaleId) -> ScaleUpdate {
        if timescale == TimescaleId::Utc { self.utc } else { self.tai }
    }
}

/// The host's clock on one timescale.
#[derive(Clone, Copy, Debug)]
pub struct ScaleUpdate {
    /// The lines in force on the host's counter, or the status to publish without time and bounds.
    pub update: Result<Update, ClockStatus>,
    /// A number that changes whenever earlier publications become void.
    pub disruptions: u64,
}

impl ScaleUpdate {
    /// The same for a guest: how often the host was disrupted, and what its page shall say.
    pub(crate) fn for_guest(self, mapping: &CounterMapping) -> (u64, Result<Update, ClockStatus>) {
        let update = self.update.and_then(|update| {
            let target = for_guest(&update.target, mapping).ok_or(update.status)?;
            let horizon = guest_ticks(mapping, update.slew.horizon);
            let as_of = mapping.guest_from_host(update.as_of);
            Ok(Update { target, as_of, slew: Slew { horizon, ..update.slew }, ..update })
        });
        (self.disruptions, update)
    }
}

/// What all pages of this host have in common.
#[derive(Clone, Copy, Debug)]
pub struct HostIdentity {
    /// The host's machine id.
    pub id: [u8; 16],
    /// The host's counter.
    pub counter: CounterId,
    /// New for every page.
    pub epoch: u64,
    /// TAI - UTC, for the driver's probe.
    pub tai_offset: Option<i16>,
}

fn guest_ticks(mapping: &CounterMapping, host_ticks: u64) -> u64 {
    mapping.guest_from_host(host_ticks).wrapping_sub(mapping.guest_from_host(0))
}

/// The identity of a VM's page, including one that is prepared before its VM starts.
#[must_use]
pub fn identity(name: &str, timescale: TimescaleId, host: HostIdentity) -> Identity {
    let timeline = timeline_of(timescale);
    Identity {
        counter: host.counter,
        timescale,
        host: host.id,
        vm: vm_id(name),
        timeline,
        epoch: host.epoch,
    }
}

pub(crate) fn timeline_of(timescale: TimescaleId) -> &'static str {
    if timescale == TimescaleId::Utc { "utc" } else { "tai" }
}

/// A VM's id: its name, cut or padded to 16 bytes. Names are unique on a host, and the page
/// contains the host's id as well.
fn vm_id(name: &str) -> [u8; 16] {
    let mut id = [0; 16];
    for (to, from) in id.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    id
}
