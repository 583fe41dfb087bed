//! The events that matter to a VM's clock, read from QEMU's generic ones.
//!
//! Names and members are those of QEMU's qapi/run-state.json, migration.json and char.json.
//!
//! What it does not do: report errors. An event that is unknown, or lacks a required member, is
//! [`VmEvent::Other`]: QEMU adds events in every version.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::QmpEvent;

/// What happened to the VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VmEvent {
    /// STOP: the vCPUs do not run. Under TCG, the guest's counter stops too.
    Stop,
    /// RESUME: the vCPUs run again; read the counter mapping again.
    Resume,
    /// SHUTDOWN: QEMU is about to exit or to stop the guest permanently.
    Shutdown {
        /// The guest asked for it.
        guest: bool,
        /// Such as `host-qmp-quit`; absent before QEMU 4.0.
        reason: Option<String>,
    },
    /// RESET: the guest boots again, and its driver probes the page again.
    Reset {
        /// The guest asked for it.
        guest: bool,
    },
    /// SUSPEND: the guest entered S3.
    Suspend,
    /// WAKEUP: the guest left S3.
    Wakeup,
    /// MIGRATION: only sent when the migration capability `events` is on.
    Migration(MigrationStatus),
    /// VSERPORT_CHANGE: the guest opened or closed a virtio-serial port.
    PortChange {
        /// The device id of the port.
        id: String,
        /// Whether the guest has it open.
        open: bool,
    },
    /// Anything else, such as DEVICE_DELETED, by name.
    Other(String),
}

/// Progress of a migration: `MigrationStatus` of qapi/migration.json.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MigrationStatus {
    /// Never attempted.
    None,
    /// Connecting.
    Setup,
    /// Being cancelled.
    Cancelling,
    /// Cancelled.
    Cancelled,
    /// Copying memory while the guest runs.
    Active,
    /// Copying memory on demand: the guest already runs on the destination.
    PostcopyActive,
    /// Post-copy lost its connection.
    PostcopyPaused,
    /// Post-copy is setting up a new connection.
    PostcopyRecoverSetup,
    /// Post-copy is resuming.
    PostcopyRecover,
    /// Finished.
    Completed,
    /// Failed; the guest is still on the source.
    Failed,
    /// Replicating continuously.
    Colo,
    /// Paused before the devices' state, with capability `pause-before-switchover`.
    PreSwitchover,
    /// The guest is stopped and its devices' state is in transit.
    Device,
    /// Waiting for the guest to release devices.
    WaitUnplug,
    /// A status of a newer QEMU.
    Other(String),
}

impl MigrationStatus {
    /// Whether the VM is between two hosts.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        !matches!(self, Self::None | Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Whether a VM whose QEMU says so, when asked, is about to leave. A VM that runs on its
    /// destination already has the states of post-copy, too.
    #[must_use]
    pub const fn is_of_a_source(&self) -> bool {
        matches!(
            self,
            Self::Setup | Self::Active | Self::PreSwitchover | Self::Device | Self::Cancelling
        )
    }
}

impl From<&str> for MigrationStatus {
    fn from(name: &str) -> Self {
        match name {
            "none" => Self::None,
            "setup" => Self::Setup,
            "cancelling" => Self::Cancelling,
            "cancelled" => Self::Cancelled,
            "active" => Self::Active,
            "postcopy-active" => Self::PostcopyActive,
            "postcopy-paused" => Self::PostcopyPaused,
            "postcopy-recover-setup" => Self::PostcopyRecoverSetup,
            "postcopy-recover" => Self::PostcopyRecover,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "colo" => Self::Colo,
            "pre-switchover" => Self::PreSwitchover,
            "device" => Self::Device,
            "wait-unplug" => Self::WaitUnplug,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl From<&QmpEvent> for VmEvent {
    fn from(event: &QmpEvent) -> Self {
        let text = |member: &str| event.data.get(member).and_then(Value::as_str).map(str::to_owned);
        let flag = |member: &str| event.data.get(member).and_then(Value::as_bool);
        let known = match event.name.as_str() {
            "STOP" => Some(Self::Stop),
            "RESUME" => Some(Self::Resume),
            "SHUTDOWN" => {
                flag("guest").map(|guest| Self::Shutdown { guest, reason: text("reason") })
            }
            "RESET" => flag("guest").map(|guest| Self::Reset { guest }),
            "SUSPEND" => Some(Self::Suspend),
            "WAKEUP" => Some(Self::Wakeup),
            "MIGRATION" => text("status").map(|s| Self::Migration(s.as_str().into())),
            "VSERPORT_CHANGE" => {
                text("id").zip(flag("open")).map(|(id, open)| Self::PortChange { id, open })
            }
            _ => None,
        };
        known.unwrap_or_else(|| Self::Other(event.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(name: &str, data: Value) -> VmEvent {
        VmEvent::from(&QmpEvent { name: name.to_owned(), data, seconds: 0, microseconds: 0 })
    }

    #[test]
    fn known_events() {
        assert_eq!(read("STOP", Value::Null), VmEvent::Stop);
        assert_eq!(read("RESUME", Value::Null), VmEvent::Resume);
        assert_eq!(
            read("RESET", json!({"guest": true, "reason": "guest-reset"})),
            VmEvent::Reset { guest: true }
        );
        assert_eq!(
            read("SHUTDOWN", json!({"guest": false, "reason": "host-qmp-quit"})),
            VmEvent::Shutdown { guest: false, reason: Some("host-qmp-quit".to_owned()) }
        );
        assert_eq!(
            read("MIGRATION", json!({"status": "device"})),
            VmEvent::Migration(MigrationStatus::Device)
        );
        assert_eq!(
            read("VSERPORT_CHANGE", json!({"open": true, "id": "port0"})),
            VmEvent::PortChange { id: "port0".to_owned(), open: true }
        );
    }

    #[test]
    fn what_is_unknown_or_incomplete_keeps_its_name() {
        for (name, data) in [
            ("DEVICE_DELETED", json!({"path": "/machine/x"})),
            ("MIGRATION", Value::Null),
            ("RESET", json!({"guest": "yes"})),
            ("VSERPORT_CHANGE", json!([1])),
        ] {
            assert_eq!(read(name, data), VmEvent::Other(name.to_owned()));
        }
        let newer = MigrationStatus::Other("postcopy-device".to_owned());
        assert_eq!(
            read("MIGRATION", json!({"status": "postcopy-device"})),
            VmEvent::Migration(newer)
        );
    }
}
