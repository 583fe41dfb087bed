//! A calendar with an imminent leap second: its table, its NTP server, and true UTC.
//!
//! The calendar is this machine's CLOCK_REALTIME shifted by whole seconds, so that the midnight
//! after 31 December 2026 is a given time ahead. The machine's own clock is not touched.
//!
//! The server is the lab's own, not a chronyd. A chronyd that must not set the machine's clock
//! (`-x`) cannot step the time that it serves ("Could not step system clock", chrony 4.3): it would
//! serve a slewed leap second, whether inserted or deleted.

use std::time::Duration;

use timevisor_linux::clock::realtime;
use timevisor_protocols::ntp::{LeapIndicator, NtpTimestamp, Packet};
use timevisor_time::Duration as Span;

use crate::ntp_impostor::Impostor;

/// 2027-01-01T00:00:00Z, in POSIX seconds.
const MIDNIGHT: i64 = 1_798_761_600;
/// Seconds from the NTP epoch to the POSIX epoch.
const NTP: i64 = 2_208_988_800;
/// TAI - UTC before the leap second.
const BEFORE: i64 = 37;
/// The server applies the leap second this much too late, as a busy kernel does. timevisord uses no
/// answer within 2 s of a leap second.
const LATENESS_NS: i64 = 500_000_000;

pub(super) const SECOND_NS: i64 = 1_000_000_000;

/// What happens at midnight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Inserted,
    Deleted,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Calendar {
    pub(super) change: Change,
    /// The calendar's TAI minus this machine's CLOCK_REALTIME, s.
    shift: i64,
}

impl Calendar {
    /// A calendar whose leap second begins after `ahead`.
    pub(super) fn new(change: Change, ahead: Duration) -> Self {
        let now = realtime().floor_nanos() / SECOND_NS;
        let mut calendar = Self { change, shift: 0 };
        let ahead = i64::try_from(ahead.as_secs()).unwrap_or(0);
        calendar.shift = calendar.begins() / SECOND_NS - now - ahead;
        calendar
    }

    /// TAI - UTC after the leap second.
    fn after(self) -> i64 {
        match self.change {
            Change::Inserted => BEFORE + 1,
            Change::Deleted => BEFORE - 1,
        }
    }

    /// When 23:59:60 begins, or when the omitted 23:59:59 would begin: TAI, ns.
    pub(super) fn begins(self) -> i64 {
        (MIDNIGHT + BEFORE.min(self.after())) * SECOND_NS
    }

    /// When 00:00:00 begins: TAI, ns.
    pub(super) fn ends(self) -> i64 {
        (MIDNIGHT + self.after()) * SECOND_NS
    }

    /// The calendar's TAI when CLOCK_REALTIME shows `realtime`; both in ns.
    pub(super) fn tai(self, realtime: i64) -> i64 {
        realtime + self.shift * SECOND_NS
    }

    /// The calendar's TAI now, ns.
    pub(super) fn now(self) -> i64 {
        self.tai(realtime().floor_nanos())
    }

    /// Seconds since the start of the leap second, now.
    pub(super) fn since_begin(self) -> f64 {
        (self.now() - self.begins()) as f64 / SECOND_NS as f64
    }

    /// TAI - UTC at a TAI instant, s. POSIX has no separate number for 23:59:60: some systems
    /// repeat 23:59:59, others already show 00:00:00.
    pub(super) fn offsets(self, tai: i64) -> &'static [i64] {
        match self.change {
            _ if tai < self.begins() => &[BEFORE],
            Change::Inserted if tai < self.ends() => &[BEFORE, BEFORE + 1],
            Change::Inserted => &[BEFORE + 1],
            Change::Deleted => &[BEFORE - 1],
        }
    }

    /// A leap-seconds.list that ends with the last real leap second and this one.
    pub(super) fn table(self) -> String {
        let (midnight, expiry) = (MIDNIGHT + NTP, MIDNIGHT + NTP + 400_000_000);
        format!("#@ {expiry}\n3692217600 {BEFORE}\n{midnight} {}\n", self.after())
    }

    /// An NTP server on this calendar.
    pub(super) fn server(self) -> anyhow::Result<Impostor> {
        Impostor::new(move |answer| vec![self.dated(answer).to_bytes().to_vec()])
    }

    /// The honest answer, shifted to this calendar.
    fn dated(self, answer: Packet) -> Packet {
        let near = realtime();
        let dated = |stamp: NtpTimestamp| {
            let honest = stamp.to_instant(near);
            let tai = self.tai(honest.floor_nanos());
            let is_old = tai < self.begins() + LATENESS_NS;
            let offset = if is_old { BEFORE } else { self.after() };
            NtpTimestamp::from_instant(honest + Span::from_secs(self.shift - offset))
        };
        let leap = match self.change {
            _ if self.now() >= self.begins() => LeapIndicator::NoWarning,
            Change::Inserted => LeapIndicator::Insert,
            Change::Deleted => LeapIndicator::Delete,
        };
        Packet {
            leap,
            reference: dated(answer.reference),
            receive: dated(answer.receive),
            transmit: dated(answer.transmit),
            ..answer
        }
    }
}

#[cfg(test)]
mod tests {
    use timevisor_time::leap::LeapTable;
    use timevisor_time::{Instant, Tai};

    use super::*;

    #[test]
    fn the_table_says_what_the_calendar_says() {
        for change in [Change::Inserted, Change::Deleted] {
            let calendar = Calendar::new(change, Duration::from_secs(60));
            assert!((59..=60).contains(&((calendar.begins() - calendar.now()) / SECOND_NS)));
            let table = LeapTable::parse(&calendar.table()).unwrap();
            for tenths in -20..30 {
                let tai = calendar.begins() + tenths * SECOND_NS / 10;
                let (utc, in_leap_second) =
                    table.to_utc(Instant::<Tai>::from_unix_nanos(tai.into())).unwrap();
                let offset = (tai - utc.ceil_nanos()) / SECOND_NS;
                assert!(calendar.offsets(tai).contains(&offset), "{change:?} {tenths} {offset}");
                assert_eq!(in_leap_second, calendar.offsets(tai).len() == 2);
            }
        }
    }
}
