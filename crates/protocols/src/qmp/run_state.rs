//! The answer to `query-status`: `StatusInfo` of QEMU's qapi/run-state.json.
//!
//! What it does not do: send the command; pass `"query-status"` to [`super::Session::command`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What QEMU does with the VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RunState {
    /// Stopped by the debugger.
    Debug,
    /// Finishing a migration: the vCPUs are stopped.
    FinishMigrate,
    /// Waiting for an incoming migration.
    InMigrate,
    /// An internal error stopped it.
    InternalError,
    /// An I/O error stopped it.
    IoError,
    /// Paused by `stop`.
    Paused,
    /// Migrated away.
    PostMigrate,
    /// Started with `-S`: the vCPUs have not run yet.
    Prelaunch,
    /// Loading a snapshot.
    RestoreVm,
    /// The vCPUs run.
    Running,
    /// Saving a snapshot.
    SaveVm,
    /// Shut down with `-no-shutdown`.
    Shutdown,
    /// In S3.
    Suspended,
    /// A watchdog stopped it.
    Watchdog,
    /// The guest panicked.
    GuestPanicked,
    /// Replicating continuously.
    Colo,
    /// A state of a newer QEMU.
    Other(String),
}

impl From<&str> for RunState {
    fn from(name: &str) -> Self {
        match name {
            "debug" => Self::Debug,
            "finish-migrate" => Self::FinishMigrate,
            "inmigrate" => Self::InMigrate,
            "internal-error" => Self::InternalError,
            "io-error" => Self::IoError,
            "paused" => Self::Paused,
            "postmigrate" => Self::PostMigrate,
            "prelaunch" => Self::Prelaunch,
            "restore-vm" => Self::RestoreVm,
            "running" => Self::Running,
            "save-vm" => Self::SaveVm,
            "shutdown" => Self::Shutdown,
            "suspended" => Self::Suspended,
            "watchdog" => Self::Watchdog,
            "guest-panicked" => Self::GuestPanicked,
            "colo" => Self::Colo,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// The answer to `query-status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueryStatus {
    /// Whether the vCPUs run.
    pub running: bool,
    /// Why, or why not.
    pub state: RunState,
}

/// A reply that is not a `StatusInfo`.
#[derive(Debug, thiserror::Error)]
#[error("the reply to query-status has an unexpected shape; is this QEMU newer than Timevisor?")]
pub struct UnexpectedStatus(#[source] serde_json::Error);

impl QueryStatus {
    /// Reads the value of a successful reply.
    ///
    /// # Errors
    /// [`UnexpectedStatus`] when `status` or `running` is missing.
    pub fn from_reply(reply: &Value) -> Result<Self, UnexpectedStatus> {
        #[derive(Deserialize)]
        struct StatusInfo {
            running: bool,
            status: String,
        }
        let info = StatusInfo::deserialize(reply).map_err(UnexpectedStatus)?;
        Ok(Self { running: info.running, state: info.status.as_str().into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_reply_is_read() {
        let reply = json!({"status": "prelaunch", "singlestep": false, "running": false});
        assert_eq!(
            QueryStatus::from_reply(&reply).unwrap(),
            QueryStatus { running: false, state: RunState::Prelaunch }
        );
        let newer = json!({"status": "dreaming", "running": true});
        assert_eq!(
            QueryStatus::from_reply(&newer).unwrap().state,
            RunState::Other("dreaming".to_owned())
        );
        assert!(QueryStatus::from_reply(&json!({"status": "running"})).is_err());
        assert!(QueryStatus::from_reply(&Value::Null).is_err());
    }
}
