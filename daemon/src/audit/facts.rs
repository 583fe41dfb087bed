//! References, leap seconds, VMs and reservations, as they are recorded.

use std::collections::BTreeMap;

use timevisor_audit::watch::{self, Facts};

use super::utc;
use crate::clock::HostClock;
use crate::references::Reference;
use crate::report;
use crate::reservations::Reservations;
use crate::vms::Vms;

/// As they are now.
pub(super) fn facts(
    clock: &HostClock,
    references: &[Reference],
    vms: &Vms,
    reservations: &Reservations,
) -> Facts {
    let vms: BTreeMap<_, _> = vms.audited().collect();
    let user = |vm: &str| vms.iter().find(|((name, _), _)| name == vm).map(|(_, vm)| vm.uid);
    let reservations = reservations.audited(user).collect();
    Facts { references: of(clock, references), leap: leap(clock), vms, reservations }
}

fn of(clock: &HostClock, references: &[Reference]) -> BTreeMap<String, watch::Reference> {
    let one = |(index, reference): (usize, &Reference)| {
        let report = report::reference(clock, index, reference);
        // Which one counts most changes often among good ones, and is in each bound's record.
        let is_good = report.status == "selected";
        let state = if is_good { "reachable".to_owned() } else { report.status };
        (report.name, watch::Reference { state, detail: report.detail })
    };
    references.iter().enumerate().map(one).collect()
}

/// TAI - UTC, and what the table says of the next leap second.
fn leap(clock: &HostClock) -> (Option<i16>, String) {
    let unknown = || (clock.tai_offset(), "unknown".to_owned());
    let Some(known) = clock.known() else { return unknown() };
    let tai = known.middle();
    let Some(plan) = clock.leap.plan(tai) else { return unknown() };
    let next = match plan.utc(tai) {
        // Within seconds of it.
        None => "now".to_owned(),
        Some((_, indicator)) => indicator.name().to_owned(),
    };
    let offset = utc(clock, tai).and_then(|_| clock.tai_offset());
    (offset, next)
}
