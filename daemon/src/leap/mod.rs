//! TAI - UTC from the system's leap second table, or from the operator.
//!
//! The file is looked at about once a minute, and always before the loaded table is refused as
//! expired, so an upgraded tzdata needs no reload. A good table is never replaced by one that
//! cannot be read, expires earlier or lacks the last change.

mod table;

use std::cell::RefCell;
use std::path::PathBuf;

use timevisor_protocols::control::LeapSummary;
use timevisor_protocols::ntp::server::LeapPlan;
use timevisor_protocols::nts::date::UnixSeconds;
use timevisor_time::{Duration, Instant, LeapError, LeapTable, Leaps, Tai, Utc};

use self::table::{FileId, News, Table};
use crate::config::ClockConfig;

/// A reference's UTC is ambiguous around a leap second, and servers handle it differently;
/// exchanges this close to one are not used.
const AMBIGUOUS: Duration = Duration::from_secs(2);

/// How often the file is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// The operator is warned this long before the table expires.
const WARNING: i64 = 60 * 86_400;

/// 2026-01-01 in POSIX seconds. A clock that shows an earlier time is wrong, because this program
/// did not exist then.
const RELEASED: i64 = 1_767_225_600;

/// The source of TAI - UTC.
pub struct Leap {
    path: PathBuf,
    configured: Option<i16>,
    state: RefCell<State>,
}

struct State {
    table: Table,
    /// The file that was last read.
    seen: Option<FileId>,
    next_look: Duration,
    /// The expiry has been announced in the log.
    warned: bool,
}

/// Where an instant comes from at which the table is asked about the present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Present {
    /// This daemon's own estimate.
    Known(Instant<Tai>),
    /// CLOCK_REALTIME, because nothing better is known.
    Kernel(Instant<Utc>),
}

impl Leap {
    /// Loads the table; a problem is stored and reported, but is not fatal.
    pub fn load(config: &ClockConfig) -> Self {
        let path = config.leap_table.clone();
        let (seen, read) = table::read(&path);
        let table = Table::first(read);
        let state = State { table, seen, next_look: Duration::ZERO, warned: false };
        Self { path, configured: config.tai_offset, state: RefCell::new(state) }
    }

    /// Takes over another configuration, and reads the file again.
    pub fn configure(&mut self, config: &ClockConfig) {
        self.configured = config.tai_offset;
        self.path.clone_from(&config.leap_table);
        self.reload();
    }

    /// Reads the file again, even if it looks unchanged.
    fn reload(&self) {
        self.state.borrow_mut().seen = None;
        self.look();
    }

    /// Reads the file if it is not the one that was read last. Returns true if there is another
    /// table now.
    fn look(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if table::identity(&self.path).is_some_and(|found| state.seen == Some(found)) {
            return false;
        }
        let (seen, read) = table::read(&self.path);
        state.seen = seen;
        let news = state.table.take(read);
        drop(state);
        let path = self.path.display();
        match news {
            News::Same => false,
            News::Replaced { expires } => {
                tracing::info!("{path}: a new leap second table, valid until {}", date(expires));
                true
            }
            News::Refused { why, expires } => {
                tracing::warn!(
                    "{why}; the leap second table that is loaded stays in force until {}",
                    date(expires)
                );
                false
            }
            News::StillBad { why } => {
                tracing::warn!("{why}");
                false
            }
        }
    }

    /// Does what is due: looks at the file, and logs once that the table is about to expire.
    pub fn on_timer(&self, now: Duration, present: Present) {
        if now < self.state.borrow().next_look {
            return;
        }
        let known = matches!(present, Present::Known(_));
        let interval = if known { LOOK_INTERVAL } else { Duration::from_secs(1) };
        self.state.borrow_mut().next_look = now + interval;
        self.look();
        let warning = self.warning(present);
        let warned = std::mem::replace(&mut self.state.borrow_mut().warned, warning.is_some());
        if let Some(warning) = warning.filter(|_| !warned) {
            tracing::warn!("{}: {warning}", self.path.display());
        }
    }

    /// Asks the table. If it has expired or there is none, the file may have a newer one.
    fn ask<T>(&self, ask: impl Fn(&LeapTable) -> Result<T, LeapError>) -> Result<T, String> {
        let once = || {
            let state = self.state.borrow();
            state.table.loaded().map_err(|problem| (true, problem.to_owned())).and_then(|table| {
                let expired = |e: &LeapError| matches!(e, LeapError::Expired { .. });
                ask(table).map_err(|e| (expired(&e), format!("{e}; or set clock.tai_offset")))
            })
        };
        match once() {
            Err((true, _)) if self.look() => once(),
            answer => answer,
        }
        .map_err(|(_, problem)| problem)
    }

    /// TAI - UTC at a UTC instant.
    pub fn offset_at(&self, utc: Instant<Utc>) -> Result<i16, String> {
        self.configured.map_or_else(|| self.ask(|table| table.offset_at(utc)), Ok)
    }

    /// Converts a reference's UTC to TAI; fails where UTC is ambiguous.
    pub fn to_tai(&self, utc: Instant<Utc>) -> Result<Instant<Tai>, String> {
        let before = self.offset_at(utc - AMBIGUOUS)?;
        let after = self.offset_at(utc + AMBIGUOUS)?;
        if before != after {
            return Err("a leap second is being inserted or deleted".to_owned());
        }
        Ok((utc + Duration::from_secs(i64::from(after))).relabel())
    }

    /// TAI - UTC around a TAI instant.
    pub fn around(&self, tai: Instant<Tai>) -> Option<Leaps> {
        match self.configured {
            Some(offset) => Some(Leaps::constant(offset)),
            None => self.ask(|table| table.around(tai)).ok(),
        }
    }

    /// TAI - UTC at a TAI instant.
    pub fn offset_of_tai(&self, tai: Instant<Tai>) -> Result<i16, String> {
        let at = |table: &LeapTable| table.offset_at(table.to_utc(tai)?.0);
        self.configured.map_or_else(|| self.ask(at), Ok)
    }

    /// TAI - UTC at present; `None` where it is not known. CLOCK_REALTIME counts only if it can be
    /// right.
    pub fn offset_now(&self, present: Present) -> Option<i16> {
        match present {
            Present::Known(tai) => self.offset_of_tai(tai).ok(),
            Present::Kernel(utc) if self.configured.is_some() || utc.secs() >= RELEASED => {
                self.offset_at(utc).ok()
            }
            Present::Kernel(_) => None,
        }
    }

    /// The offset at a TAI instant, and the next change in the table; `None` if the table does not
    /// cover the instant.
    pub fn plan(&self, tai: Instant<Tai>) -> Option<LeapPlan> {
        if let Some(offset) = self.configured {
            return Some(LeapPlan { offset, change: None });
        }
        let plan = |table: &LeapTable| {
            let (utc, _) = table.to_utc(tai)?;
            Ok(LeapPlan { offset: table.offset_at(utc)?, change: table.next_change(utc) })
        };
        self.ask(plan).ok()
    }

    /// Says that the table expires soon, and what to do. Nothing expires by CLOCK_REALTIME.
    fn warning(&self, present: Present) -> Option<String> {
        let Present::Known(tai) = present else { return None };
        let expires = self.expires().filter(|_| self.configured.is_none())?;
        // TAI is ahead of the table's UTC by half a minute, which is nothing here.
        let left = expires.saturating_sub(tai.secs()).max(0);
        // An expired table is a problem, no longer a warning.
        (left < WARNING && self.offset_now(present).is_some()).then(|| {
            format!(
                "the leap second table expires in {} days, at {}; upgrade tzdata (apt-get install tzdata), or set \
                 clock.tai_offset",
                left / 86_400,
                date(expires)
            )
        })
    }

    fn expires(&self) -> Option<i64> {
        self.state.borrow().table.loaded().ok().map(LeapTable::expires)
    }

    /// For `timevisor status`.
    pub fn summary(&self, present: Present) -> LeapSummary {
        let problem = match present {
            _ if self.configured.is_some() => None,
            Present::Known(tai) => self.offset_of_tai(tai).err(),
            // Nobody knows whether the table covers the present, so the doubtful clock is named.
            Present::Kernel(utc) => {
                let lasts = |table: &LeapTable| match table.offset_at(utc) {
                    Err(expired @ LeapError::Expired { .. }) => Err(expired),
                    _ => Ok(()),
                };
                let is_there = self.ask(|_| Ok(()));
                is_there
                    .and_then(|()| {
                        let said = |problem| {
                            format!("CLOCK_REALTIME says {}: {problem}", date(utc.secs()))
                        };
                        self.ask(lasts).map_err(said)
                    })
                    .err()
            }
        };
        LeapSummary {
            expires_unix: self.expires(),
            tai_offset: self.offset_now(present),
            problem,
            warning: self.warning(present),
        }
    }
}

fn date(posix: i64) -> UnixSeconds {
    UnixSeconds(u64::try_from(posix).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, configured: Option<i16>) -> (tempfile::TempDir, Leap) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leap");
        std::fs::write(&path, text).unwrap();
        let config =
            ClockConfig { leap_table: path, tai_offset: configured, ..ClockConfig::default() };
        (dir, Leap::load(&config))
    }

    fn leap(text: &str, configured: Option<i16>) -> Leap {
        written(text, configured).1
    }

    const TABLE: &str = "#@ 4000000000\n3644697600 36\n3692217600 37\n";
    const JAN_2017: i128 = 1_483_228_800;
    /// The end of TABLE, POSIX seconds.
    const END: i128 = 4_000_000_000 - 2_208_988_800;

    fn utc(secs: i128) -> Instant<Utc> {
        Instant::from_unix_nanos(secs * 1_000_000_000)
    }

    fn tai(secs: i128) -> Instant<Tai> {
        Instant::from_unix_nanos((secs + 37) * 1_000_000_000)
    }

    #[test]
    fn utc_near_a_leap_second_is_refused() {
        let leap = leap(TABLE, None);
        assert_eq!(leap.to_tai(utc(JAN_2017 - 10)).unwrap().secs(), 1_483_228_800 - 10 + 36);
        assert!(leap.to_tai(utc(JAN_2017 - 1)).unwrap_err().contains("leap second"));
        assert_eq!(leap.to_tai(utc(JAN_2017 + 10)).unwrap().secs(), 1_483_228_800 + 10 + 37);
    }

    #[test]
    fn an_expired_table_is_a_clear_problem_and_the_operator_may_overrule_it() {
        let expired = "#@ 3692217700\n3644697600 36\n3692217600 37\n";
        let late = utc(JAN_2017 + 1_000_000);
        let problem = leap(expired, None).to_tai(late).unwrap_err();
        assert!(problem.contains("expired") && problem.contains("upgrade tzdata"), "{problem}");
        assert!(leap(expired, Some(37)).to_tai(late).is_ok());
    }

    #[test]
    fn the_file_is_looked_at_before_the_loaded_table_is_refused() {
        let (dir, leap) = written(TABLE, None);
        let late = utc(END + 5);
        assert!(leap.to_tai(late).is_err());
        let new = dir.path().join("leap.new");
        std::fs::write(&new, "#@ 4000001000\n3644697600 36\n3692217600 37\n").unwrap();
        std::fs::rename(&new, dir.path().join("leap")).unwrap();
        assert!(leap.to_tai(late).is_ok(), "the file on disk is valid");
        assert!(leap.around(tai(END + 5)).is_some());
        // A table that vanishes is kept.
        std::fs::remove_file(dir.path().join("leap")).unwrap();
        leap.reload();
        assert!(leap.to_tai(late).is_ok());
    }

    #[test]
    fn a_missing_table_is_taken_when_it_appears() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leap");
        let leap = Leap::load(&ClockConfig { leap_table: path.clone(), ..ClockConfig::default() });
        let now = Present::Known(tai(END - 100 * 86_400));
        assert!(leap.summary(now).problem.unwrap().contains("install tzdata"));
        std::fs::write(&path, TABLE).unwrap();
        assert_eq!(leap.summary(now).tai_offset, Some(37));
    }

    #[test]
    fn the_last_sixty_days_are_announced_until_the_table_is_renewed() {
        let (dir, leap) = written(TABLE, None);
        let at = |days: i128| leap.summary(Present::Known(tai(END - days * 86_400))).warning;
        assert_eq!(at(61), None);
        let warning = at(59).unwrap();
        for part in ["expires in 58 days, at 2026-10-03", "upgrade tzdata", "clock.tai_offset"] {
            assert!(warning.contains(part), "{warning}");
        }
        assert_eq!(at(-1), None, "that is a problem, no longer a warning");
        let now = Present::Known(tai(END - 86_400));
        leap.on_timer(Duration::ZERO, now);
        assert!(leap.state.borrow().warned);
        let renewed = "#@ 4010000000\n3644697600 36\n3692217600 37\n";
        std::fs::write(dir.path().join("leap"), renewed).unwrap();
        leap.on_timer(Duration::from_secs(59), now);
        assert!(leap.state.borrow().warned, "not looked at yet");
        leap.on_timer(Duration::from_secs(60), now);
        assert!(!leap.state.borrow().warned);
        assert_eq!(leap.summary(now).warning, None);
        let overruled = super::tests::leap(TABLE, Some(37));
        assert_eq!(overruled.summary(now).warning, None);
    }

    #[test]
    fn the_kernels_clock_decides_nothing_that_is_known_better_or_cannot_be() {
        let leap = leap(TABLE, None);
        let known = Present::Known(tai(END - 100 * 86_400));
        assert_eq!(leap.offset_now(known), Some(37));
        // 1970, 1981, 2010: the offset at that time says nothing of today.
        for secs in [5, 360_000_000, 1_270_000_000] {
            let summary = leap.summary(Present::Kernel(utc(secs)));
            assert_eq!((summary.tai_offset, summary.problem, summary.warning), (None, None, None));
        }
        // Nor does the expiry.
        let far = leap.summary(Present::Kernel(utc(4_100_000_000)));
        let problem = far.problem.unwrap();
        assert!(problem.starts_with("CLOCK_REALTIME says 2099-12-03 16:53 UTC: "), "{problem}");
        assert_eq!((far.tai_offset, far.warning), (None, None));
        assert_eq!(leap.offset_now(Present::Kernel(utc(END - 5))), Some(37));
        let stated = super::tests::leap(TABLE, Some(36));
        assert_eq!(stated.offset_now(Present::Kernel(utc(5))), Some(36));
    }
}
