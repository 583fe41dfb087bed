//! Live migration between two guests of the lab, over a unix socket.
//!
//! It moves the guest and reports the times. The caller takes care of the page.
//!
//! | file | owns |
//! | --- | --- |
//! | `pair.rs` | two hosts on one machine, their oscillators, the true time on each |
//! | `journey.rs` | moves of a guest that reads continuously |
//! | `soak.rs` | many moves, with a chronyd inside the guest for comparison |

pub(crate) mod journey;
pub mod pair;
pub mod soak;

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::interrupt;

/// A guest of the lab's size moves in under a second.
const LIMIT: Duration = Duration::from_secs(60);

/// The duration of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// From the command until the destination is ready.
    pub total: Duration,
    /// From the source's STOP to the destination's RESUME, by QEMU's own timestamps; `None` if the
    /// destination was started paused and waits for [`Guest::cont`].
    pub downtime: Option<Duration>,
}

/// Moves the guest from `source` to `destination`, which was started with
/// [`crate::builder::GuestBuilder::incoming`] and the same options otherwise.
///
/// With `ignore_shared`, memory that is shared with the host (the page of an nvdimm delivery) is
/// not copied, so the guest sees the destination's page at once. Without it, QEMU 7.2 crashes on a
/// read-only page.
///
/// # Errors
/// When QEMU refuses or the migration fails.
pub fn migrate(
    source: &mut Guest,
    destination: &mut Guest,
    ignore_shared: bool,
) -> anyhow::Result<Migration> {
    let capabilities = json!({ "capabilities": [
        { "capability": "events", "state": true },
        { "capability": "x-ignore-shared", "state": ignore_shared },
    ]});
    let uri =
        json!({ "uri": format!("unix:{}", destination.sockets().join("migration").display()) });
    source.qmp().execute("migrate-set-capabilities", &capabilities)?;
    destination.qmp().execute("migrate-set-capabilities", &capabilities)?;
    destination.qmp().execute("migrate-incoming", &uri)?;
    let started = Instant::now();
    source.qmp().execute("migrate", &uri)?;
    let stopped = wait_completed(source)?;
    let state = wait_arrived(destination)?;
    let total = started.elapsed();
    let downtime = if state == "running" {
        let resumed = destination.qmp().wait_event("RESUME", LIMIT)?;
        Some(time_stamp(&resumed)?.saturating_sub(stopped))
    } else {
        None
    };
    Ok(Migration { total, downtime })
}

/// Returns the time since the epoch at which the source stopped its CPUs.
fn wait_completed(source: &mut Guest) -> anyhow::Result<Duration> {
    let mut stopped = None;
    loop {
        let event = source.qmp().next_event(LIMIT).context("the migration does not end")?;
        match (event["event"].as_str(), event["data"]["status"].as_str()) {
            (Some("STOP"), _) => stopped = Some(time_stamp(&event)?),
            (Some("MIGRATION"), Some("completed")) => {
                return stopped.context("the migration completed without a STOP event");
            }
            (Some("MIGRATION"), Some("failed")) => {
                let info = source.qmp().run("query-migrate")?;
                bail!("the migration failed: {}", info["error-desc"]);
            }
            _ => {}
        }
    }
}

fn wait_arrived(destination: &mut Guest) -> anyhow::Result<String> {
    let state = interrupt::poll_until(LIMIT, || {
        let status = destination.qmp().run("query-status")?;
        let state = status["status"].as_str().unwrap_or_default();
        Ok((state != "inmigrate").then(|| state.to_owned()))
    })?;
    state.context("the destination stays in migration")
}

/// The time since the epoch at which QEMU sent an event.
pub(crate) fn time_stamp(event: &Value) -> anyhow::Result<Duration> {
    let field =
        |name: &str| event["timestamp"][name].as_u64().context("an event has no time stamp");
    Ok(Duration::from_secs(field("seconds")?) + Duration::from_micros(field("microseconds")?))
}
