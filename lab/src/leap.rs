//! Keeps the system's leap second table valid: timevisord refuses an expired table, and so must the
//! lab.

use std::fs;
use std::time::SystemTime;

use anyhow::Context as _;
use timevisor_time::leap::{LeapTable, SYSTEM_PATH};

use crate::packages;

/// Upgrades tzdata if its leap second table has expired; returns true if it did so.
///
/// # Errors
/// When no newer table is available.
pub fn ensure_valid() -> anyhow::Result<bool> {
    if is_valid() {
        return Ok(false);
    }
    packages::upgrade("tzdata")?;
    is_valid().then_some(true).with_context(|| {
        format!(
            "{SYSTEM_PATH} has expired and apt has no newer tzdata; set clock.tai_offset meanwhile"
        )
    })
}

fn is_valid() -> bool {
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let table = fs::read_to_string(SYSTEM_PATH).ok().and_then(|text| LeapTable::parse(&text).ok());
    table.is_some_and(|table| u64::try_from(table.expires()).is_ok_and(|expires| expires > now))
}
