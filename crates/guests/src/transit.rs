//! A VM on its way between hosts: what each side has to do with its page, and when
//! (docs/how-to/migrate-vms.md).
//!
//! | side | on | then |
//! | --- | --- | --- |
//! | destination | the VM waits for a migration | nothing runs: the page carries no time |
//! | destination | it has arrived, or already runs | the page starts over with another disruption marker; then the vCPUs may run |
//! | source | the vCPUs stopped for the migration | the page carries no time |
//! | source | completed | the same, permanently: a reader that still runs on this page must not trust it |
//! | either | completed, but QEMU's state is not one of a migration | a snapshot was saved, which QEMU reports with the same events |
//! | source | failed or cancelled | nothing; RESUME has already restored the page |
//!
//! What it does not do: talk to QEMU, or write pages.

use timevisor_protocols::qmp::{MigrationStatus, QueryStatus, RunState, VmEvent};

/// Migration state of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Transit {
    /// It is here, and not migrating.
    #[default]
    Here,
    /// It waits for its memory, or is receiving it.
    Incoming,
    /// It is leaving; contains QEMU's migration status.
    Leaving(MigrationStatus),
    /// It runs elsewhere.
    Left,
    /// The migration failed for this reason, and the VM stayed here.
    Failed(String),
}

/// What the caller has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing beyond handling the event.
    Nothing,
    /// The VM has arrived: restart its page, and resume the VM if that was requested.
    Arrive,
    /// The VM has left: permanently withdraw the time from its page.
    Leave,
    /// The VM did not leave: ask QEMU why.
    AskWhy,
    /// Ask QEMU for the VM's state, which the event does not contain.
    AskStatus,
}

impl Transit {
    /// Processes QEMU's answer at the start of a connection.
    pub fn on_status(&mut self, status: &QueryStatus) -> Step {
        match status.state {
            RunState::InMigrate => *self = Self::Incoming,
            RunState::PostMigrate if *self == Self::Left => {}
            RunState::PostMigrate => {
                *self = Self::Left;
                return Step::Leave;
            }
            // The answer arrived between the last event and QEMU's last step; after saving a
            // snapshot, the state would be a different one.
            RunState::FinishMigrate if self.has_been_copied() => {
                *self = Self::Left;
                return Step::Leave;
            }
            // It is leaving, or its state goes into a file. Its events were missed.
            RunState::FinishMigrate if matches!(self, Self::Here | Self::Failed(_)) => {
                *self = Self::Leaving(MigrationStatus::Device);
            }
            _ if self.has_been_copied() => *self = Self::Here,
            // It arrived while we were not connected.
            _ if *self == Self::Incoming => {
                *self = Self::Here;
                return Step::Arrive;
            }
            _ => {}
        }
        Step::Nothing
    }

    /// Processes an event.
    pub fn on_event(&mut self, event: &VmEvent) -> Step {
        match (&*self, event) {
            // RESUME precedes `completed` unless the vCPUs are held back.
            (Self::Incoming, VmEvent::Resume | VmEvent::Migration(MigrationStatus::Completed)) => {
                *self = Self::Here;
                Step::Arrive
            }
            (Self::Incoming, VmEvent::Migration(MigrationStatus::Failed)) => Step::AskWhy,
            // To another host, or into a snapshot.
            (Self::Leaving(_), VmEvent::Migration(MigrationStatus::Completed)) => {
                *self = Self::Leaving(MigrationStatus::Completed);
                Step::AskStatus
            }
            (Self::Leaving(_), VmEvent::Migration(MigrationStatus::Cancelled)) => {
                *self = Self::Failed("cancelled".to_owned());
                Step::Nothing
            }
            (Self::Leaving(_), VmEvent::Migration(MigrationStatus::Failed)) => {
                *self = Self::Failed("QEMU does not say why".to_owned());
                Step::AskWhy
            }
            // An operator may resume it here after it has left; the time on this page is then
            // correct.
            (Self::Left | Self::Leaving(MigrationStatus::Completed), VmEvent::Resume) => {
                *self = Self::Here;
                Step::Nothing
            }
            (Self::Incoming, _) => Step::Nothing,
            (_, VmEvent::Migration(status)) if status.is_under_way() => {
                *self = Self::Leaving(status.clone());
                Step::Nothing
            }
            _ => Step::Nothing,
        }
    }

    /// Processes QEMU's answer of how the latest migration stands, at the start of a connection:
    /// events may have been missed. `why` it failed.
    pub fn on_asked(&mut self, status: &MigrationStatus, why: Option<&str>) -> Step {
        match (&*self, status) {
            // Such a status is of an earlier migration, or of the one that brought the VM here.
            (Self::Incoming | Self::Left, _) => Step::Nothing,
            (_, status) if status.is_of_a_source() => {
                *self = Self::Leaving(status.clone());
                Step::Nothing
            }
            (Self::Leaving(_), MigrationStatus::Completed) => {
                *self = Self::Leaving(MigrationStatus::Completed);
                Step::AskStatus
            }
            (Self::Leaving(_), MigrationStatus::Failed) => {
                *self = Self::Failed(why.unwrap_or("QEMU does not say why").to_owned());
                Step::Nothing
            }
            (Self::Leaving(_), MigrationStatus::Cancelled) => {
                *self = Self::Failed("cancelled".to_owned());
                Step::Nothing
            }
            (Self::Leaving(_), MigrationStatus::None) => {
                *self = Self::Failed("QEMU knows of no migration".to_owned());
                Step::Nothing
            }
            _ => Step::Nothing,
        }
    }

    fn has_been_copied(&self) -> bool {
        *self == Self::Leaving(MigrationStatus::Completed)
    }

    /// Records that the migration did not start, or that QEMU has given the reason for its failure.
    pub fn fail(&mut self, reason: String) {
        if !matches!(self, Self::Incoming | Self::Left) {
            *self = Self::Failed(reason);
        }
    }

    /// Records that a migration was requested; QEMU's events follow.
    pub fn leave(&mut self) {
        *self = Self::Leaving(MigrationStatus::None);
    }

    /// Nobody hears QEMU any more, and nobody has heard that the migration that was asked for has begun.
    /// [`Self::on_asked`] says what has become of it.
    pub fn unheard(&mut self) {
        if *self == Self::Leaving(MigrationStatus::None) {
            let text = "the QMP connection was lost before QEMU had answered; whether it leaves is not known";
            *self = Self::Failed(text.to_owned());
        }
    }

    /// Whether the VM is between two hosts.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        matches!(self, Self::Incoming | Self::Leaving(_))
    }

    /// A few words for reports; `None` for a VM that is here.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Here => None,
            Self::Incoming => Some("incoming".to_owned()),
            Self::Leaving(_) => Some("leaving".to_owned()),
            Self::Left => Some("left".to_owned()),
            Self::Failed(reason) => Some(format!("failed: {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: RunState) -> QueryStatus {
        QueryStatus { running: state == RunState::Running, state }
    }

    fn events(transit: &mut Transit, events: &[VmEvent]) -> Vec<Step> {
        events.iter().map(|event| transit.on_event(event)).collect()
    }

    fn migration(status: MigrationStatus) -> VmEvent {
        VmEvent::Migration(status)
    }

    #[test]
    fn a_vm_that_is_held_back_arrives_at_completed() {
        use MigrationStatus::{Active, Completed, Setup};
        let mut transit = Transit::default();
        assert_eq!(transit.on_status(&status(RunState::InMigrate)), Step::Nothing);
        assert!(transit == Transit::Incoming && transit.text().as_deref() == Some("incoming"));
        let seen = [Setup, Active, Completed].map(migration);
        assert_eq!(events(&mut transit, &seen), [Step::Nothing, Step::Nothing, Step::Arrive]);
        assert_eq!(transit.on_event(&VmEvent::Resume), Step::Nothing);
        assert_eq!(transit, Transit::Here);
    }

    #[test]
    fn one_that_is_not_arrives_once_at_resume() {
        let mut transit = Transit::Incoming;
        let seen = [
            migration(MigrationStatus::Active),
            VmEvent::Resume,
            migration(MigrationStatus::Completed),
        ];
        assert_eq!(events(&mut transit, &seen), [Step::Nothing, Step::Arrive, Step::Nothing]);
    }

    #[test]
    fn one_that_arrived_while_nobody_looked() {
        let mut transit = Transit::Incoming;
        assert_eq!(transit.on_status(&status(RunState::Running)), Step::Arrive);
        assert_eq!(transit.on_status(&status(RunState::Running)), Step::Nothing);
    }

    #[test]
    fn the_source_leaves_stays_or_may_be_run_again() {
        use MigrationStatus::{Active, Cancelled, Cancelling, Completed, Device, Failed};
        let mut left = Transit::default();
        let seen = [migration(Active), VmEvent::Stop, migration(Device), migration(Completed)];
        let steps = events(&mut left, &seen);
        assert_eq!(steps, [Step::Nothing, Step::Nothing, Step::Nothing, Step::AskStatus]);
        let mut early = left.clone();
        assert_eq!(left.on_status(&status(RunState::PostMigrate)), Step::Leave);
        assert_eq!(early.on_status(&status(RunState::FinishMigrate)), Step::Leave);
        assert!(left == Transit::Left && early == left);
        assert_eq!(left.on_status(&status(RunState::PostMigrate)), Step::Nothing, "told once");
        assert_eq!(left.on_event(&VmEvent::Resume), Step::Nothing);
        assert_eq!(left, Transit::Here, "run here again");

        let mut stayed = Transit::default();
        let steps = events(&mut stayed, &[migration(Active), migration(Failed), VmEvent::Resume]);
        assert_eq!(steps, [Step::Nothing, Step::AskWhy, Step::Nothing]);
        stayed.fail("no route".to_owned());
        assert_eq!(stayed.text().as_deref(), Some("failed: no route"));
        let steps = events(&mut stayed, &[Active, Cancelling, Cancelled].map(migration));
        assert_eq!(steps, [Step::Nothing; 3]);
        assert_eq!(stayed, Transit::Failed("cancelled".to_owned()));
    }

    /// QEMU 7.2 and 10.0 send this for `savevm`, and only STOP and RESUME for `loadvm`.
    #[test]
    fn a_snapshot_is_no_migration() {
        use MigrationStatus::{Active, Completed, Setup};
        for state in [RunState::Running, RunState::Paused, RunState::SaveVm] {
            let mut vm = Transit::default();
            let seen = [VmEvent::Stop, migration(Setup), migration(Active), migration(Completed)];
            assert_eq!(events(&mut vm, &seen).last(), Some(&Step::AskStatus));
            assert_eq!(vm.on_status(&status(state)), Step::Nothing);
            assert_eq!(vm, Transit::Here);
        }
        let mut runs = Transit::Leaving(Completed);
        assert_eq!(runs.on_event(&VmEvent::Resume), Step::Nothing);
        assert_eq!(runs, Transit::Here);
        // A query made for another reason in the meantime changes nothing.
        let mut under_way = Transit::Leaving(Active);
        under_way.on_status(&status(RunState::Running));
        assert_eq!(under_way, Transit::Leaving(Active));
    }

    #[test]
    fn a_daemon_that_starts_beside_a_vm_that_has_left() {
        let mut transit = Transit::default();
        assert_eq!(transit.on_status(&status(RunState::PostMigrate)), Step::Leave);
        assert_eq!(transit, Transit::Left);
    }

    /// Its end came while nobody listened. Before, it was leaving for good.
    #[test]
    fn a_migration_that_has_ended_meanwhile_is_no_longer_under_way() {
        use MigrationStatus::{Active, Cancelled, Completed, Failed, None as Never};
        let asked = |transit: Transit, status: &MigrationStatus, why| {
            let mut transit = transit;
            let step = transit.on_asked(status, why);
            (transit, step)
        };
        let failed = |why: &str| (Transit::Failed(why.to_owned()), Step::Nothing);
        let leaving = || Transit::Leaving(Active);
        assert_eq!(asked(leaving(), &Failed, Some("no route")), failed("no route"));
        assert_eq!(asked(leaving(), &Failed, None), failed("QEMU does not say why"));
        assert_eq!(asked(leaving(), &Cancelled, None), failed("cancelled"));
        assert_eq!(asked(leaving(), &Never, None), failed("QEMU knows of no migration"));
        let (mut copied, step) = asked(leaving(), &Completed, None);
        assert_eq!((&copied, step), (&Transit::Leaving(Completed), Step::AskStatus));
        assert_eq!(copied.on_status(&status(RunState::PostMigrate)), Step::Leave);
        for (transit, said) in [
            (Transit::Here, Completed),
            (Transit::Here, Failed),
            (Transit::Left, Completed),
            (Transit::Incoming, Active),
            (Transit::Failed("before".to_owned()), Cancelled),
        ] {
            assert_eq!(asked(transit.clone(), &said, None), (transit, Step::Nothing));
        }
        assert_eq!(asked(Transit::Here, &Active, None), (leaving(), Step::Nothing));
    }

    /// Whatever an incoming VM's QEMU reports, a rejected command does not turn it into a VM that
    /// stayed here.
    #[test]
    fn an_incoming_one_stays_incoming_when_a_command_fails() {
        let mut transit = Transit::Incoming;
        transit.fail("x".to_owned());
        assert_eq!(transit, Transit::Incoming);
        assert_eq!(transit.on_event(&migration(MigrationStatus::Failed)), Step::AskWhy);
    }
}
