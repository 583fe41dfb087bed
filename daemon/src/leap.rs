//! TAI - UTC from the system's leap second table, or from the operator.

use std::path::PathBuf;

use timevisor_protocols::control::LeapSummary;
use timevisor_protocols::ntp::server::LeapPlan;
use timevisor_time::{Duration, Instant, LeapTable, Leaps, Tai, Utc};

use crate::config::ClockConfig;

/// A reference's UTC is ambiguous around a leap second, and servers handle it differently;
/// exchanges this close to one are not used.
const AMBIGUOUS: Duration = Duration::from_secs(2);

/// The source of TAI - UTC.
pub struct Leap {
    path: PathBuf,
    configured: Option<i16>,
    table: Result<LeapTable, String>,
}

impl Leap {
    /// Loads the table; a problem is stored and reported, but is not fatal.
    pub fn load(config: &ClockConfig) -> Self {
        let mut leap = Self {
            path: config.leap_table.clone(),
            configured: config.tai_offset,
            table: Err(String::new()),
        };
        leap.reload();
        leap
    }

    /// Reloads the table: tzdata may have been upgraded.
    pub fn reload(&mut self) {
        self.table = std::fs::read_to_string(&self.path)
            .map_err(|e| {
                format!(
                    "cannot read {}: {e}; install tzdata or set clock.tai_offset",
                    self.path.display()
                )
            })
            .and_then(|text| {
                LeapTable::parse(&text).map_err(|e| format!("{}: {e}", self.path.display()))
            });
    }

    /// TAI - UTC at a UTC instant.
    pub fn offset_at(&self, utc: Instant<Utc>) -> Result<i16, String> {
        if let Some(offset) = self.configured {
            return Ok(offset);
        }
        let table = self.table.as_ref().map_err(Clone::clone)?;
        table.offset_at(utc).map_err(|e| format!("{e}; or set clock.tai_offset"))
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
        match (self.configured, &self.table) {
            (Some(offset), _) => Some(Leaps::constant(offset)),
            (None, Ok(table)) => table.around(tai).ok(),
            (None, Err(_)) => None,
        }
    }

    /// TAI - UTC at a TAI instant.
    pub fn offset_of_tai(&self, tai: Instant<Tai>) -> Result<i16, String> {
        if let Some(offset) = self.configured {
            return Ok(offset);
        }
        let table = self.table.as_ref().map_err(Clone::clone)?;
        let (utc, _) = table.to_utc(tai).map_err(|e| e.to_string())?;
        self.offset_at(utc)
    }

    /// The offset at a TAI instant, and the next change in the table; `None` if the table does not
    /// cover the instant.
    pub fn plan(&self, tai: Instant<Tai>) -> Option<LeapPlan> {
        if let Some(offset) = self.configured {
            return Some(LeapPlan { offset, change: None });
        }
        let table = self.table.as_ref().ok()?;
        let (utc, _) = table.to_utc(tai).ok()?;
        Some(LeapPlan { offset: table.offset_at(utc).ok()?, change: table.next_change(utc) })
    }

    /// For `timevisor status`.
    pub fn summary(&self, now: Instant<Utc>) -> LeapSummary {
        let offset = self.offset_at(now);
        LeapSummary {
            expires_unix: self.table.as_ref().ok().map(LeapTable::expires),
            tai_offset: offset.as_ref().ok().copied(),
            problem: offset.err(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leap(text: &str, configured: Option<i16>) -> Leap {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leap");
        std::fs::write(&path, text).unwrap();
        Leap::load(&ClockConfig {
            leap_table: path,
            tai_offset: configured,
            ..ClockConfig::default()
        })
    }

    const TABLE: &str = "#@ 4000000000\n3644697600 36\n3692217600 37\n";
    const JAN_2017: i128 = 1_483_228_800;

    fn utc(secs: i128) -> Instant<Utc> {
        Instant::from_unix_nanos(secs * 1_000_000_000)
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
}
